//! Readiness of a machine from its Node in the tenant's cluster.

use berth_kubevirt_render::machines::reconcile_steps::NodeReadiness;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::tenant_nodes::node_match::NodeMatch;

/// Largest difference between the clocks of the tenant and of the controller. A Node whose condition Ready has a
/// transition time later than now plus this difference counts as ready for a long time: otherwise its machine would
/// never become available.
const MAX_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_hours(1);

/// Returns the readiness of a machine. `is_listed` is true if the tenant's Nodes were listed since the start of the
/// controller; while the tenant's API server does not answer, the last known Nodes are used.
#[must_use]
pub fn node_readiness(node: NodeMatch<'_>, is_listed: bool, now: Timestamp) -> NodeReadiness {
    if !is_listed {
        return NodeReadiness::Unknown;
    }
    let since = match node {
        NodeMatch::Found(node) => node.ready_since,
        NodeMatch::Ambiguous(_) | NodeMatch::None => None,
    };
    let latest = now.checked_add(MAX_CLOCK_DIFFERENCE).unwrap_or(now);
    match since {
        None => NodeReadiness::NotReady,
        Some(since) if since > latest => NodeReadiness::ReadySince(0),
        Some(since) => NodeReadiness::ReadySince(since.as_second()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant_nodes::node::TenantNode;

    #[test]
    fn a_machine_is_ready_with_its_node() {
        let now = Timestamp::from_second(10_000).unwrap();
        let at = |seconds: i64| {
            let ready_since = Some(Timestamp::from_second(seconds).unwrap());
            let node = TenantNode { ready_since, ..TenantNode::default() };
            node_readiness(NodeMatch::Found(&node), true, now)
        };
        assert_eq!(at(9_000), NodeReadiness::ReadySince(9_000));
        assert_eq!(at(10_030), NodeReadiness::ReadySince(10_030));
        assert_eq!(at(99_000), NodeReadiness::ReadySince(0));
        let node = TenantNode::default();
        let unready = NodeMatch::Found(&node);
        assert_eq!(node_readiness(unready, true, now), NodeReadiness::NotReady);
        assert_eq!(node_readiness(unready, false, now), NodeReadiness::Unknown);
        assert_eq!(node_readiness(NodeMatch::None, true, now), NodeReadiness::NotReady);
        assert_eq!(node_readiness(NodeMatch::Ambiguous(2), true, now), NodeReadiness::NotReady);
    }
}
