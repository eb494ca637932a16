//! Steps that are necessary before the kubelet's checkpoints are removed.

use crate::plan::input::Input;
use berth_host_facts::HostFacts;

/// Returns the steps for checkpoints that the kubelet refuses. First the node must be drained, because without its
/// checkpoints the kubelet does not know which pods have which CPUs and pages. Then the kubelet must be stopped,
/// because a running kubelet would write the checkpoints again.
#[must_use]
pub(crate) fn restart_procedure(facts: &HostFacts, files: &[String]) -> String {
    let node = facts.node_name().unwrap_or("NODE");
    let (unit, files) = (&facts.kubelet.systemd_unit, files.join(" "));
    format!(
        "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data; on the host: systemctl stop {unit} && \
         rm -f {files} && systemctl start {unit}; then: kubectl uncordon {node}"
    )
}

impl Input<'_> {
    /// Returns the steps that are necessary before a change that removes checkpoints; `None` if no kubelet runs
    /// and the node is drained.
    pub(super) fn stop_precondition(self) -> Option<String> {
        let unit = &self.facts.kubelet.systemd_unit;
        if let Some(reason) = self.settings.pods.not_drained_reason() {
            return Some(format!(
                "waiting until the node is drained and its kubelet is stopped: {reason}"
            ));
        }
        self.facts.kubelet.is_running.then(|| {
            format!(
                "waiting until the kubelet is stopped, because it would write its checkpoints again: systemctl stop {unit}"
            )
        })
    }
}
