//! Three emulated bare-metal hosts: two sockets each, systemd, containerd and a real kubelet, connected by one
//! trunk.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::EMULATION_TIMEOUT;
use super::hub::Hub;
use super::screen::Screen;
use crate::cluster::ControlPlane;
use crate::host::{Host, HostOptions, Kernel, Machine};
use crate::repository;

/// Installation method of the agent on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallMethod {
    /// Debian package, with a systemd unit and a client certificate for this host.
    Package,
    /// Pod of a DaemonSet.
    DaemonSet,
}

#[derive(Debug, Clone, Copy)]
pub struct DemoHost {
    /// Number of the host, also part of its name.
    pub number: u8,
    /// Name of the Node.
    pub name: &'static str,
    /// Value of the label by which a HostProfile selects the host.
    pub purpose: &'static str,
    /// Installation method of the agent.
    pub install_method: InstallMethod,
    /// `cpuManagerPolicy` of the kubelet.
    pub cpu_manager_policy: &'static str,
    /// `topologyManagerPolicy` of the kubelet.
    pub topology_manager_policy: &'static str,
}

/// The hosts of the demo, each of a different kind.
pub static HOSTS: [DemoHost; 3] = [
    DemoHost {
        number: 31,
        name: "rack1-31",
        purpose: "performance",
        install_method: InstallMethod::Package,
        cpu_manager_policy: "static",
        topology_manager_policy: "single-numa-node",
    },
    DemoHost {
        number: 32,
        name: "rack1-32",
        purpose: "density",
        install_method: InstallMethod::DaemonSet,
        cpu_manager_policy: "none",
        topology_manager_policy: "none",
    },
    DemoHost {
        number: 33,
        name: "rack1-33",
        purpose: "mixed",
        install_method: InstallMethod::DaemonSet,
        cpu_manager_policy: "static",
        topology_manager_policy: "restricted",
    },
];

/// Label of Nodes that HostProfiles select by.
pub const PURPOSE_LABEL: &str = "example.com/purpose";
/// Name of the second uplink in `examples/tenants`.
const UPLINK_NAME: &str = "eth1";
/// Folder of images that are on the host before the kubelet starts.
const IMAGE_FOLDER: &str = "/var/lib/kubelet-tests";

impl DemoHost {
    /// Boots the host.
    ///
    /// # Errors
    /// Fails like [`Host::boot`].
    pub fn boot(&self, hub: &Hub, cable: usize, screen: &Screen) -> Result<Host> {
        let mut host = Host::boot(&HostOptions {
            number: self.number,
            machine: Machine::IntelNoSmt,
            kernel: Kernel::Stable,
            trunk: hub.cable(cable),
            has_loopback_access: true,
            ..HostOptions::default()
        })?;
        let name = self.name;
        host.run_checked(&format!("echo {name} >/etc/hostname && hostname {name}"))?;
        self.configure_uplink(&mut host)?;
        host.copy_file(&repository().join("tests/host/tenants.sh"), "/usr/local/bin/tenants")?;
        screen.print_step(&format!(
            "{name} has booted: two sockets, systemd, an uplink on the trunk"
        ));
        Ok(host)
    }

    /// Renames the uplink to its name in `examples/` and sets it up. Needed once after each boot.
    ///
    /// # Errors
    /// Fails if the host has no such link.
    pub fn configure_uplink(&self, host: &mut Host) -> Result<()> {
        let number = self.number;
        host.run_checked(&format!(
            "udevadm settle --timeout 100; modprobe -a 8021q bridge
             for link in /sys/class/net/*; do
               if [ \"$(cat $link/address)\" = 52:54:00:be:27:{number:02x} ] && [ -e $link/device ]; then
                 ip link set ${{link##*/}} down && ip link set ${{link##*/}} name {UPLINK_NAME}; fi; done
             ip link set {UPLINK_NAME} up"
        ))?;
        Ok(())
    }

    /// Joins the host to the cluster as a Node, with these images.
    ///
    /// # Errors
    /// Fails like [`ControlPlane::join`].
    pub fn join(
        &self,
        host: &mut Host,
        plane: &ControlPlane,
        images: &[PathBuf],
        screen: &Screen,
    ) -> Result<()> {
        let needed = |image: &&PathBuf| {
            self.install_method == InstallMethod::DaemonSet || !image.ends_with("berth-agent.tar")
        };
        for image in images.iter().filter(needed) {
            let name = image
                .file_name()
                .and_then(|name| name.to_str())
                .context("the image has no file name")?;
            host.copy_file(image, &format!("{IMAGE_FOLDER}/{name}"))?;
        }
        let configuration = self.kubelet_configuration();
        host.run_checked(&format!(
            "mkdir -p /var/lib/kubelet && cat >/var/lib/kubelet/config.yaml <<'END'\n{configuration}END"
        ))?;
        plane.join(host, self.number)?;
        let Self {
            name,
            cpu_manager_policy: cpu_manager,
            topology_manager_policy: topology_manager,
            ..
        } = self;
        screen.print_step(&format!(
            "{name} is a Ready Node: CPU manager {cpu_manager}, topology manager {topology_manager}"
        ));
        Ok(())
    }

    fn kubelet_configuration(&self) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             cgroupDriver: cgroupfs\nfailSwapOn: false\n\
             authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}\n\
             authorization: {{mode: AlwaysAllow}}\n\
             evictionHard: {{memory.available: 20Mi, nodefs.available: 1%, imagefs.available: 1%}}\n\
             cpuManagerPolicy: {}\ntopologyManagerPolicy: {}\nreservedSystemCPUs: \"0\"\n",
            self.cpu_manager_policy, self.topology_manager_policy
        )
    }

    /// Installs the agent as a package, as `deploy/README.md` describes.
    ///
    /// # Errors
    /// Fails if the package cannot be installed.
    pub fn install_agent(&self, host: &mut Host, package: &Path, kubeconfig: &Path) -> Result<()> {
        host.copy_file(package, "/root/berth-agent.deb")?;
        let install = "dpkg --install /root/berth-agent.deb 2>&1 && rm /root/berth-agent.deb";
        let result = host.run_for(install, EMULATION_TIMEOUT)?;
        ensure!(result.code == 0, "{}: {install}: {}", self.name, result.output);
        host.copy_file(kubeconfig, "/etc/berth/kubeconfig")?;
        host.run_checked(
            "chmod 600 /etc/berth/kubeconfig && \
             install -D -m 644 /usr/share/doc/berth-agent/examples/berth-agent-cluster.conf \
               /etc/systemd/system/berth-agent.service.d/cluster.conf && \
             systemctl daemon-reload && systemctl restart berth-agent",
        )?;
        Ok(())
    }
}
