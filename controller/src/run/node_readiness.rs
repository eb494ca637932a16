//! Readiness of machines according to their Nodes in the tenants' clusters. The reconcilers of MachineDeployments and
//! of evacuations share this code, so that they count the same machines as available.

use berth_api::TenantCluster;
use berth_api::names::TENANT_PREFIX;
use berth_kubevirt_render::machines::reconcile_steps::NodeReadiness;
use berth_runtime::watch::Informer;
use k8s_openapi::jiff::Timestamp;

use super::tenant_access::Connections;
use crate::removal::readiness::node_readiness;
use crate::tenant_nodes::node_match::{NodeIndex, NodeMatch};

/// Returns the readiness of the Node of each machine in `machines`, which are in one namespace. While the tenant's API
/// server does not answer, the last known Nodes are used. `omitted` is the result for a machine whose Node is not
/// stored, if the store lacks Nodes because of its size limits.
pub(super) fn find_node_readiness<'m>(
    tenants: &Informer<TenantCluster>,
    connections: &Connections,
    namespace: &str,
    machines: impl Iterator<Item = &'m str>,
    omitted: NodeReadiness,
) -> Vec<NodeReadiness> {
    let name = namespace.strip_prefix(TENANT_PREFIX);
    let tenant = name.and_then(|name| tenants.get(name));
    let tenant = tenant.filter(|tenant| tenant.spec.uses_node_readiness());
    let (Some(name), Some(_)) = (name, tenant) else {
        return machines.map(|_| NodeReadiness::NotUsed).collect();
    };
    let Some(state) = connections.state(name) else {
        return machines.map(|_| NodeReadiness::Unknown).collect();
    };
    let now = Timestamp::now();
    let state = state.lock();
    let (index, is_listed) = (NodeIndex::new(state.nodes.nodes()), state.nodes.is_listed());
    let has_omitted = state.nodes.omitted() > 0;
    let readiness = |machine| match index.find(machine) {
        NodeMatch::None if has_omitted && is_listed => omitted,
        node => node_readiness(node, is_listed, now),
    };
    machines.map(readiness).collect()
}
