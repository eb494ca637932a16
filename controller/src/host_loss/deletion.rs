//! Decides when a machine that was replaced because of its host may be deleted.

use k8s_openapi::api::core::v1::Node;

use super::evidence::is_ready;
use crate::removal::mark::{RemovalMark, RemovalReason};

/// Key of the taint by which an administrator or a remediation asserts that a host is off. Kubernetes then deletes its
/// pods and detaches their volumes (KEP-2268).
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// Host of a marked machine, according to its VirtualMachineInstance. The instance and the Node must be read from
/// stores that have been listed completely.
#[derive(Clone, Copy, Debug)]
pub enum HostOfMachine<'n> {
    /// The VM is on no host, or there is no VirtualMachineInstance.
    None,
    /// The Node of the host does not exist any more.
    Deleted,
    Node(&'n Node),
}

/// Returns true if a marked machine may be deleted. Its Node in the tenant's cluster is deleted before it, and only if
/// this function returns true.
///
/// Machines that are removed for another reason than the loss of their host may always be deleted. For a lost host
/// there must be proof that the VM does not run, or that a kubelet ends it: the VM is on no host, the Node is ready,
/// has the taint [`OUT_OF_SERVICE_TAINT`], or was deleted. Without proof, the tenant's Node must stay too: if it is
/// deleted, the tenant's cluster starts its pods elsewhere and attaches their volumes a second time.
#[must_use]
pub fn may_delete(removal: &RemovalMark, host: HostOfMachine<'_>) -> bool {
    if removal.reason != RemovalReason::HostLost {
        return true;
    }
    match host {
        HostOfMachine::None | HostOfMachine::Deleted => true,
        HostOfMachine::Node(node) => is_ready(node) || is_out_of_service(node),
    }
}

fn is_out_of_service(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == OUT_OF_SERVICE_TAINT)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeSpec, Taint};
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::host_loss::evidence::tests::node;

    fn tainted(mut node: Node, key: &str) -> Node {
        let taint = Taint {
            key: key.to_owned(),
            effect: "NoExecute".to_owned(),
            value: Some("nodeshutdown".to_owned()),
            ..Taint::default()
        };
        node.spec = Some(NodeSpec { taints: Some(vec![taint]), ..NodeSpec::default() });
        node
    }

    #[test]
    fn a_lost_machine_is_deleted_only_with_proof() {
        let mark = |reason| RemovalMark { reason, since: Timestamp::UNIX_EPOCH };
        let lost = mark(RemovalReason::HostLost);
        let since = "2026-01-01T00:00:00Z";
        let [away, here] = ["Unknown", "True"].map(|ready| node(ready, since));
        let may = |node: &Node| may_delete(&lost, HostOfMachine::Node(node));
        assert!(!may(&away));
        assert!(!may(&node("False", since)));
        assert!(!may(&Node::default()), "a Node without conditions proves nothing");
        assert!(!may(&tainted(away.clone(), "node.kubernetes.io/unreachable")));
        assert!(may(&tainted(away.clone(), OUT_OF_SERVICE_TAINT)));
        assert!(may(&here));
        assert!(may_delete(&lost, HostOfMachine::Deleted));
        assert!(may_delete(&lost, HostOfMachine::None));
        assert!(may_delete(&mark(RemovalReason::ScaleDown), HostOfMachine::Node(&away)));
    }
}
