//! Joins an emulated host with a real kubelet and containerd to the control plane.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{ControlPlane, HOST_GATEWAY};
use crate::host::Host;

/// Time limit for the Node to become Ready: under emulation a kubelet is slow.
const READY_TIMEOUT: Duration = Duration::from_secs(600);

impl ControlPlane {
    /// Joins a host as the Node of this name, which must be `rack1-<number>`, and waits until the Node is Ready.
    ///
    /// # Errors
    /// Fails if the programs include no kubelet, or the Node does not become Ready.
    pub fn join(&self, host: &mut Host, number: u8) -> Result<()> {
        let name = format!("rack1-{number}");
        let kubelet = self.assets().join("kubelet");
        ensure!(kubelet.exists(), "no kubelet in {}", self.assets().display());
        let kubeconfig =
            self.write_kubeconfig(&format!("kubelet-{number}"), &format!("node-{number}"), true)?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("host/kubelet.sh");
        host.copy_file(&kubelet, "/etc/kubelet/kubelet")?;
        host.copy_file(&kubeconfig, "/etc/kubelet/kubeconfig")?;
        host.copy_file(&script, "/usr/local/bin/join-cluster")?;
        let server = format!("{HOST_GATEWAY}:{}", self.port());
        let result = host.run_for(&format!("join-cluster {name} {server}"), READY_TIMEOUT)?;
        ensure!(result.code == 0, "join-cluster {name}: {}", result.output);
        let ready = self.wait_until("the Node is Ready", READY_TIMEOUT, |plane| {
            let node = plane.get_json(&["node", &name]).ok()?;
            let conditions = node["status"]["conditions"].as_array()?;
            conditions
                .iter()
                .any(|one| one["type"] == "Ready" && one["status"] == "True")
                .then_some(())
        });
        if ready.is_err() {
            let log = host.run("journalctl -u kubelet -u containerd --no-pager | tail -40")?;
            ensure!(false, "Node {name} is not Ready:\n{}", log.output);
        }
        Ok(())
    }
}
