//! Evidence that a host is down, from its Node and its InfraNode.

use berth_api::{ConditionReason, InfraNode};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;

/// Evidence about one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostEvidence {
    /// Time since which the Node is not ready; `None` if it is ready, or has no condition Ready.
    pub not_ready_since: Option<Timestamp>,
    /// Time at which the controller reported that the agent is unresponsive; `None` if it is not reported.
    pub unresponsive_since: Option<Timestamp>,
}

impl HostEvidence {
    /// Reads the evidence. Returns `None` if there is no Node, or if no agent has ever reported: such a host is never
    /// lost.
    #[must_use]
    pub fn read(node: Option<&Node>, infra_node: &InfraNode) -> Option<Self> {
        let status = infra_node.status.as_ref().filter(|status| status.agent.is_some())?;
        let unresponsive = status
            .conditions
            .iter()
            .filter(|one| one.reason.parse() == Ok(ConditionReason::AgentUnresponsive));
        Some(Self {
            not_ready_since: not_ready_since(node?),
            unresponsive_since: unresponsive.map(|one| one.last_transition_time.0).max(),
        })
    }

    /// Returns true if the Node is not ready or the agent is unresponsive.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        self.not_ready_since.is_some() || self.unresponsive_since.is_some()
    }

    /// Returns the time since which the Node is not ready and the agent is unresponsive; `None` if the Node is ready or
    /// the agent is responsive.
    #[must_use]
    pub fn down_since(&self) -> Option<Timestamp> {
        Some(self.not_ready_since?.max(self.unresponsive_since?))
    }
}

/// Returns true if the kubelet reports that the Node is ready.
#[must_use]
pub fn is_ready(node: &Node) -> bool {
    ready_condition(node).is_some_and(|(status, _)| status == "True")
}

fn not_ready_since(node: &Node) -> Option<Timestamp> {
    let (status, since) = ready_condition(node)?;
    (status != "True").then_some(since)
}

/// Returns the status of the condition Ready, and its transition time. A condition without a time is treated as if it
/// had changed at the latest possible time, so that only the controller's own observation counts.
fn ready_condition(node: &Node) -> Option<(&str, Timestamp)> {
    let mut all = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = all.find(|one| one.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref().map_or(Timestamp::MAX, |time| time.0);
    Some((&ready.status, since))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in crate::host_loss) fn node(ready: &str, since: &str) -> Node {
        let ready = json!({"type": "Ready", "status": ready, "lastTransitionTime": since});
        serde_json::from_value(
            json!({"metadata": {"name": "a"}, "status": {"conditions": [ready]}}),
        )
        .unwrap()
    }

    fn infra_node(status: Value) -> InfraNode {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": "a"}, "spec": {}, "status": status});
        serde_json::from_value(object).unwrap()
    }

    fn reported(reason: &str, since: &str) -> Value {
        json!({"agent": {"version": "1"}, "conditions": [{"type": "Ready", "status": "Unknown",
            "reason": reason, "message": "", "lastTransitionTime": since}]})
    }

    #[test]
    fn a_host_is_down_if_node_and_agent_are_away() {
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
        let away = infra_node(reported("AgentUnresponsive", early));
        let here = infra_node(reported("Applied", early));
        let down = |node: &Node, infra_node: &InfraNode| {
            HostEvidence::read(Some(node), infra_node).unwrap().down_since()
        };
        assert_eq!(down(&node("Unknown", late), &away), Some(late.parse().unwrap()));
        assert_eq!(down(&node("False", early), &away), Some(early.parse().unwrap()));
        assert_eq!(down(&node("True", late), &away), None);
        assert_eq!(down(&node("Unknown", late), &here), None);
        let one = HostEvidence::read(Some(&node("Unknown", late)), &here).unwrap();
        assert!(one.is_away());
        assert!(!HostEvidence::read(Some(&node("True", late)), &here).unwrap().is_away());
    }

    #[test]
    fn a_host_without_node_agent_or_condition_is_never_down() {
        let away = infra_node(reported("AgentUnresponsive", "2026-01-01T00:00:00Z"));
        assert_eq!(HostEvidence::read(None, &away), None);
        let never = infra_node(json!({"conditions": []}));
        let unready = node("Unknown", "2026-01-01T00:00:00Z");
        assert_eq!(HostEvidence::read(Some(&unready), &never), None);
        let evidence = HostEvidence::read(Some(&Node::default()), &away).unwrap();
        assert_eq!(evidence.down_since(), None);
    }
}
