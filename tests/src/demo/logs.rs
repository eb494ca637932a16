//! Logs that remain after the end of the demo: logs of the control plane, of kubelets, agents and pods, and the hosts'
//! consoles.

#![expect(clippy::disallowed_methods, reason = "the demo reads and writes its own files")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::hosts::HOSTS;
use crate::host::Host;

/// Time limit for a host that does not answer. A busy host needs more than 15 s to print its journal.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Copies logs and consoles from the folder of temporary files. Files that cannot be copied are skipped.
pub fn copy_temporary_logs(temporary: &Path, folder: &Path) {
    let mut pending = vec![temporary.to_path_buf()];
    while let Some(at) = pending.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(path);
            } else if name == "console" {
                let parent = at.file_name().map(|of| of.to_string_lossy().into_owned());
                let name =
                    format!("console-{}.log", parent.unwrap_or_default().trim_start_matches('.'));
                fs::copy(&path, folder.join(name)).map(drop).unwrap_or_default();
            } else if path.extension().is_some_and(|ending| ending == "log") {
                let mut target = folder.join(&name);
                // The folders of several control planes contain logs with the same names.
                if target.exists() {
                    let parent = at.file_name().map(|of| of.to_string_lossy().into_owned());
                    let parent = parent.unwrap_or_default();
                    let name = name.to_string_lossy();
                    target = folder.join(format!("{}-{name}", parent.trim_start_matches('.')));
                }
                fs::copy(&path, target).map(drop).unwrap_or_default();
            }
        }
    }
}

/// Copies the logs of the hosts that are running.
pub(super) fn copy_host_logs(hosts: &mut [Host], folder: &Path) {
    let command = "journalctl --no-pager -b; for log in /var/log/pods/*/*/*.log; do echo \"=== $log\"; cat \"$log\"; done";
    std::thread::scope(|scope| {
        for (demo_host, host) in HOSTS.iter().zip(hosts) {
            scope.spawn(move || {
                if let Ok(result) = host.run_for(command, TIMEOUT) {
                    let file = folder.join(format!("{}.log", demo_host.name));
                    fs::write(file, result.output).unwrap_or_default();
                }
            });
        }
    });
}
