//! Step 5 of a reconcile: builds the objects of a tenant. This step needs no client.

use std::net::IpAddr;

use berth_api::TenantCluster;
use kube::ResourceExt as _;

use super::claims::Claimed;
use super::read::Observed;
use crate::tenants::fault::Fault;
use crate::tenants::kubeconfig::Server;
use crate::tenants::network::HostNetwork;
use crate::tenants::objects::access::access;
use crate::tenants::objects::attachment::{TenantCount, attachment};
use crate::tenants::objects::policies::{self, Policies};
use crate::tenants::objects::{DesiredObject, flavours};

/// Input of [`build`].
pub(super) struct Input<'a, T: Fn(&str) -> TenantCount> {
    pub(super) tenant: &'a TenantCluster,
    pub(super) network: Option<&'a HostNetwork>,
    pub(super) claimed: Option<&'a Claimed>,
    /// Function that returns the number of tenants of a host network.
    pub(super) tenants: T,
    pub(super) observed: &'a Observed,
}

/// Desired objects of a tenant.
pub(super) struct Desired {
    /// The NetworkAttachmentDefinition, if the tenant has a network and a VLAN or VNI.
    pub(super) attachment: Option<Attachment>,
    pub(super) policies: Policies,
    /// Note for the condition of the policies.
    pub(super) policies_note: Option<String>,
    /// ServiceAccount, roles and instance types.
    pub(super) objects: Vec<DesiredObject>,
}

/// A NetworkAttachmentDefinition.
pub(super) struct Attachment {
    /// The object, or the reason why VMs cannot be attached to the network as the spec requires.
    pub(super) object: Result<DesiredObject, Fault>,
    /// Message of the network's condition.
    pub(super) message: String,
}

/// Builds the objects of a tenant.
pub(super) fn build<T: Fn(&str) -> TenantCount>(input: Input<'_, T>) -> Desired {
    let Input { tenant, network, claimed, tenants, observed } = input;
    let name = tenant.name_any();
    let attachment = match (claimed, network, &tenant.spec.network) {
        (Some(claimed), Some(network), Some(spec)) => {
            let note = claimed.note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
            Some(Attachment {
                object: attachment(&name, spec, network, claimed.id, tenants(&network.name)),
                message: format!("has {}{note}", claimed.id),
            })
        }
        _ => None,
    };
    let server = observed.api_server.as_ref().ok().and_then(|read| read.as_ref().ok());
    let (api_server, policies_note) = address(server.and_then(Option::as_ref));
    let policies = policies::policies(policies::Input {
        tenant: &name,
        asked: tenant.spec.network_policies.as_ref(),
        config: &observed.config,
        cluster: &observed.cluster,
        api_server,
    });
    let objects = [access(&name), flavours(&name)].concat();
    Desired { attachment, policies, policies_note, objects }
}

/// Returns the address of an API server for a policy, and a note if the address is unknown.
fn address(server: Option<&Server>) -> (Option<IpAddr>, Option<String>) {
    match server {
        None => (None, None),
        Some(Server::Address(address)) => (Some(*address), None),
        Some(Server::Name(_)) => {
            // The host name comes from a Secret, so the message does not contain it.
            let message = "its kubeconfig names the API server by a host name, and NetworkPolicies need addresses: allow the traffic with a \
                           custom policy";
            (None, Some(message.to_owned()))
        }
    }
}
