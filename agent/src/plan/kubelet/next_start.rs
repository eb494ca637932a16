//! Checks if the kubelet would start again, and if it needs a restart.

use std::fmt;

use super::checkpoint::refused_checkpoints;
use super::drain::restart_procedure;
use super::paths::checkpoint_path;
use berth_host_facts::HostFacts;

/// Checkpoints that the kubelet would refuse at its next start, so that a restart is not advisable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextStartFailure {
    /// The reasons, in the words of the kubelet.
    pub reasons: Vec<String>,
    pub remedy: String,
}

impl fmt::Display for NextStartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kubelet would not start again: {}. {}", self.reasons.join("; "), self.remedy)
    }
}

/// Returns the checkpoints that a kubelet would refuse if it started now; `None` if it would accept
/// all of them.
#[must_use]
pub fn next_start_failure(facts: &HostFacts) -> Option<NextStartFailure> {
    let config = facts.kubelet.config.as_ref().filter(|config| config.invalid_fields.is_empty())?;
    let (names, reasons): (Vec<&str>, Vec<String>) =
        refused_checkpoints(facts, config).into_iter().unzip();
    if names.is_empty() {
        return None;
    }
    let files: Vec<String> =
        names.iter().map(|name| checkpoint_path(&facts.kubelet, name)).collect();
    Some(NextStartFailure { reasons, remedy: restart_procedure(facts, &files) })
}

/// Returns the reason and the steps if the kubelet must be restarted to read the huge pages or its
/// configuration files; `None` if no restart is needed, or if the need is unknown.
pub(crate) fn restart_reason(facts: &HostFacts) -> Option<String> {
    let kubelet = &facts.kubelet;
    let started = kubelet.start_id.as_ref().map(|start| start.after_boot);
    let changed = facts.ledger.hugepages_changed_at;
    let mut reasons = Vec::new();
    if started.zip(changed).is_some_and(|(started, changed)| started < changed) {
        reasons.push("huge pages have changed since the kubelet counted them".to_owned());
    }
    let fields = kubelet.fields_pending_restart();
    if !fields.is_empty() {
        reasons.push(format!(
            "{} changed since the kubelet read its configuration",
            fields.join(", ")
        ));
    }
    if reasons.is_empty() {
        return None;
    }
    let reasons = reasons.join("; ");
    Some(match next_start_failure(facts) {
        None => {
            format!(
                "kubelet restart needed: {reasons} (systemctl restart {})",
                kubelet.systemd_unit
            )
        }
        Some(refused) => format!("{reasons}; but {refused}"),
    })
}
