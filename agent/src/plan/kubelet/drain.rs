//! What must happen before the kubelet's checkpoints are removed.

use crate::plan::input::Input;
use berth_host_facts::HostFacts;

/// The steps for checkpoints that the kubelet refuses. The node must be empty first: without them the kubelet does not know
/// any more which CPUs and pages are whose. And the kubelet must not run, as it would write them again.
#[must_use]
pub(crate) fn drain_stop_remove_start(facts: &HostFacts, files: &[String]) -> String {
    let node = facts.node_name().unwrap_or("NODE");
    let (unit, files) = (&facts.kubelet.unit, files.join(" "));
    format!(
        "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data; on the host: systemctl stop {unit} && \
         rm -f {files} && systemctl start {unit}; then: kubectl uncordon {node}"
    )
}

impl Input<'_> {
    /// What must happen first where checkpoints go with a change; `None` if no kubelet runs and the node is drained.
    pub(super) fn waits_for_stop(self) -> Option<String> {
        let unit = &self.facts.kubelet.unit;
        if let Some(why) = self.shape.pods.not_drained() {
            return Some(format!("waits until the node is drained and its kubelet stopped: {why}"));
        }
        self.facts.kubelet.runs.then(|| {
            format!(
                "waits until the kubelet is stopped, which would write its checkpoints again: systemctl stop {unit}"
            )
        })
    }
}
