//! Additional networks of a machine: `additionalNetworks` and `attachDefaultNetwork` of `cloudProviderSpec`. The fields
//! have the names and the meaning of those of HyperShift's NodePool.

use berth_api::NetworkBinding;

use super::field_parser::UnreadFields;

/// Names of the fields in `cloudProviderSpec`.
pub(super) const NETWORKS_FIELD: &str = "additionalNetworks";
pub(super) const DEFAULT_NETWORK_FIELD: &str = "attachDefaultNetwork";
/// Fields that Berth does not support, but in which a user may expect to set addresses.
const ADDRESS_FIELDS: [&str; 6] = ["address", "addresses", "cidr", "ipam", "ipv4", "ipv6"];
/// Maximum length of the name of a TenantCluster, as in the CRD.
const MAX_TENANT_NAME: usize = 55;
/// Maximum number of additional networks of a machine.
pub(super) const MAX_NETWORKS: usize = 16;

/// Additional networks of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AdditionalNetworks {
    pub(super) networks: Vec<AdditionalNetwork>,
    /// False if the machine has no interface in the pod network; `None` if the field is absent, which means true.
    pub(super) has_pod_network: Option<bool>,
}

/// An additional network of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdditionalNetwork {
    /// The name, as written in the field.
    pub(super) name: String,
    pub(super) source: NetworkSource,
}

/// Meaning of the name of an additional network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NetworkSource {
    /// NAMESPACE/NAME of a NetworkAttachmentDefinition.
    Definition { namespace: String, binding: NetworkBinding },
    /// Name of a TenantCluster, whose network determines the binding.
    Tenant,
}

impl AdditionalNetworks {
    /// Reads the fields from `cloudProviderSpec`.
    pub(super) fn read(cloud: &mut UnreadFields<'_>) -> Self {
        let has_pod_network = cloud.read_flag(DEFAULT_NETWORK_FIELD);
        let entries = cloud.read_objects(NETWORKS_FIELD);
        if entries.len() > MAX_NETWORKS {
            let message = format!("has more than {MAX_NETWORKS} networks: remove some of them");
            cloud.report_error(NETWORKS_FIELD, &entries.len().to_string(), message);
        }
        let networks = entries.into_iter().take(MAX_NETWORKS).filter_map(AdditionalNetwork::read);
        Self { networks: networks.collect(), has_pod_network }
    }
}

impl AdditionalNetwork {
    fn read(mut fields: UnreadFields<'_>) -> Option<Self> {
        let name = fields.read_text("name");
        let binding = fields.read_text("binding");
        let known = [
            ("", NetworkBinding::Bridge),
            ("Bridge", NetworkBinding::Bridge),
            ("Sriov", NetworkBinding::Sriov),
            ("Macvtap", NetworkBinding::Macvtap),
        ];
        let found = known.into_iter().find(|(text, _)| *text == binding);
        if found.is_none() {
            fields.report_error("binding", &binding, "must be Bridge, Sriov or Macvtap");
        }
        let is_tenant = is_object_name(&name, MAX_TENANT_NAME) && !name.contains('.');
        if is_tenant && !binding.is_empty() {
            let message = "must be absent: the TenantCluster of the network determines it";
            fields.report_error("binding", &binding, message);
        }
        let namespace = name.split_once('/').and_then(|(namespace, name)| {
            let is_name = is_object_name(name, 253) && is_object_name(namespace, 63);
            (is_name && !namespace.contains('.')).then(|| namespace.to_owned())
        });
        if namespace.is_none() && !is_tenant {
            fields.report_error(
                "name",
                &name,
                "must be NAMESPACE/NAME of a NetworkAttachmentDefinition, or the name of a TenantCluster",
            );
        }
        for field in ADDRESS_FIELDS {
            fields.skip_unsupported(
                field,
                ": Berth allocates no addresses in further networks, except from the pools of a TenantCluster; set the \
                 address in the user data, or use DHCP",
            );
        }
        fields.report_unknown_fields(&["name", "binding"]);
        let binding = found?.1;
        let source = if is_tenant {
            NetworkSource::Tenant
        } else {
            NetworkSource::Definition { namespace: namespace?, binding }
        };
        Some(Self { name, source })
    }
}

/// Returns true for a DNS subdomain, the format of names of objects.
fn is_object_name(name: &str, max_length: usize) -> bool {
    let is_inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    name.len() <= max_length
        && name.bytes().all(is_inner)
        && is_end(name.bytes().next())
        && is_end(name.bytes().next_back())
}
