//! Step 5 of a reconcile of a tenant: builds the objects of the tenant. This step needs no client.

use std::net::IpAddr;

use berth_api::TenantCluster;
use kube::ResourceExt as _;

use super::claims::ClaimedId;
use super::read::ObservedState;
use crate::tenants::additional_networks::{AdditionalDefinitions, AdditionalInput};
use crate::tenants::exposure::{DesiredExposure, ExposureInput, plan_exposure};
use crate::tenants::fault::Fault;
use crate::tenants::kubeconfig::ApiServerHost;
use crate::tenants::network::HostNetwork;
use crate::tenants::objects::attachment::{TenantCount, network_attachment_definition};
use crate::tenants::objects::csi_access::csi_access_objects;
use crate::tenants::objects::policies::{self, RenderedPolicies};
use crate::tenants::objects::{DesiredObject, instancetype_objects};

/// Input of [`build_objects`].
pub(super) struct BuildInput<'a, T: Fn(&str) -> TenantCount> {
    pub(super) tenant: &'a TenantCluster,
    pub(super) network: Option<&'a HostNetwork>,
    pub(super) claimed_id: Option<&'a ClaimedId>,
    /// Function that returns the number of tenants that use a host network.
    pub(super) count_tenants: T,
    pub(super) observed: &'a ObservedState,
}

pub(super) struct DesiredObjects {
    /// The NetworkAttachmentDefinition, if the tenant has a network and a VLAN or VNI.
    pub(super) attachment: Option<DesiredAttachment>,
    /// NetworkAttachmentDefinitions for the networks of other tenants.
    pub(super) additional: AdditionalDefinitions,
    pub(super) policies: RenderedPolicies,
    /// Note that is appended to the message of the condition about the NetworkPolicies.
    pub(super) policies_note: Option<String>,
    /// ServiceAccount, roles, role bindings and instance types.
    pub(super) objects: Vec<DesiredObject>,
    pub(super) exposure: DesiredExposure,
}

/// The NetworkAttachmentDefinition of a tenant.
pub(super) struct DesiredAttachment {
    /// The object, or the reason why VMs cannot be attached to the network as the spec requires.
    pub(super) object: Result<DesiredObject, Fault>,
    /// Message of the condition `NetworkReady`.
    pub(super) message: String,
}

pub(super) fn build_objects<T: Fn(&str) -> TenantCount>(
    input: BuildInput<'_, T>,
) -> DesiredObjects {
    let BuildInput { tenant, network, claimed_id: claimed, count_tenants: tenants, observed } =
        input;
    let name = tenant.name_any();
    let attachment = match (claimed, network, &tenant.spec.network) {
        (Some(claimed), Some(network), Some(spec)) => {
            let note = claimed.note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
            let count = tenants(&network.name);
            Some(DesiredAttachment {
                object: observed.binding_plugins.check(spec.binding).and_then(|()| {
                    network_attachment_definition(&name, spec, network, claimed.id, count)
                }),
                message: format!("the tenant has {}{note}", claimed.id),
            })
        }
        _ => None,
    };
    let additional_input = AdditionalInput {
        tenant,
        tenants: &observed.tenants,
        config: &observed.config,
        hosts: &observed.hosts,
        binding_plugins: &observed.binding_plugins,
    };
    let additional = AdditionalDefinitions::new(additional_input, &tenants);
    let server = observed.api_server.as_ref().ok().and_then(|read| read.as_ref().ok());
    let (api_server, policies_note) = api_server_address(server.and_then(Option::as_ref));
    let policies = policies::render_policies(policies::PolicyInput {
        tenant: &name,
        requested: tenant.spec.network_policies.as_ref(),
        config: &observed.config,
        cluster: &observed.cluster,
        api_server,
        exposure: tenant.spec.exposure.as_ref(),
        load_balancers: &observed.load_balancers,
    });
    let exposure = plan_exposure(ExposureInput {
        tenant,
        tenants: &observed.tenants,
        config: &observed.config,
        cluster: &observed.cluster,
        pool_use: &observed.pool_use,
    });
    let objects = [csi_access_objects(tenant), instancetype_objects(&name)].concat();
    DesiredObjects { attachment, additional, policies, policies_note, objects, exposure }
}

/// Returns the address of a tenant's API server, for the NetworkPolicies of the tenant. Returns a note instead if the
/// kubeconfig contains a host name.
fn api_server_address(server: Option<&ApiServerHost>) -> (Option<IpAddr>, Option<String>) {
    match server {
        None => (None, None),
        Some(ApiServerHost::Address(address)) => (Some(*address), None),
        Some(ApiServerHost::Name(_)) => {
            // The message must not contain the host name, because the host name is from a Secret.
            let message = "the tenant's kubeconfig has a host name for the API server, but a \
            NetworkPolicy requires an IP address: \
                           allow the traffic with a custom policy";
            (None, Some(message.to_owned()))
        }
    }
}
