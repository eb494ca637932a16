//! What is kept when all ends: logs of the control plane, of kubelets, agents and pods, and the hosts' consoles.

#![expect(clippy::disallowed_methods, reason = "the demo's own files")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::hosts::HOSTS;
use crate::cluster::ControlPlane;
use crate::host::Host;

/// A host that does not answer is not waited for much longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Copies what can be had; there is nobody to tell of what cannot.
pub(super) fn keep(plane: &ControlPlane, hosts: &mut [Host], folder: &Path) {
    for entry in fs::read_dir(plane.folder()).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == "log") {
            fs::copy(&path, folder.join(entry.file_name())).map(drop).unwrap_or_default();
        }
    }
    for (kind, host) in HOSTS.iter().zip(hosts) {
        let what = "journalctl --no-pager -b; for log in /var/log/pods/*/*/*.log; do echo \"=== $log\"; cat \"$log\"; done";
        if let Ok(said) = host.run_for(what, PATIENCE) {
            let file = folder.join(format!("{}.log", kind.name));
            fs::write(file, said.output).unwrap_or_default();
        }
    }
}
