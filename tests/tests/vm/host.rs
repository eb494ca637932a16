//! Emulated host with AMD-V that runs VMs: containerd, the real kubelet, Berth's agent, and virt-handler.

use std::path::Path;
use std::time::Duration;

use berth_tests::cluster::ControlPlane;
use berth_tests::host::{Host, HostOptions, Kernel, Machine, Trunk, archive_disk};
use berth_tests::kubevirt::{Assets, Nodes, VIRT_CHROOT, VIRT_HANDLER};
use berth_tests::repository;
use serde_json::{Value, json};

use crate::testbed::TIMEOUT;
use crate::{USES_EMULATION, objects};

/// Memory of a host. Each of the two NUMA zones has half of the memory.
const MEMORY_MIB: u32 = 4096;
/// Size of the disk of containerd.
const SCRATCH_GIB: u8 = 8;
/// Time limit for the import of an image on an emulated host.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(3600);
/// Number of archives of images.
const ARCHIVES: usize = 2;
/// Path of the manifest with the huge pages that the host has before its kubelet starts.
const MANIFEST_PATH: &str = "/etc/berth/hugepages.json";
/// Namespace of KubeVirt.
const KUBEVIRT_NAMESPACE: &str = "kubevirt";

pub(crate) struct VmHost {
    pub(crate) host: Host,
    /// Name of the Node.
    pub(crate) name: String,
}

/// Boots a host with these archives. Its uplink for tenants is the cable, or without a cable a card whose frames reach
/// no other host.
pub(crate) fn boot(number: u8, archives: &[&Path], trunk: Option<Trunk<'_>>) -> Host {
    let agent = berth_tests::program("berth-agent");
    let mut host = Host::boot(&HostOptions {
        agent: Some(&agent),
        number,
        machine: Machine::AmdV,
        kernel: Kernel::Stable,
        memory_mib: Some(MEMORY_MIB),
        trunk,
        has_loopback_access: true,
        archives,
        scratch_gib: Some(SCRATCH_GIB),
    })
    .unwrap();
    let uplink = match trunk {
        Some(_) => format!("52:54:00:be:27:{number:02x}"),
        // MAC address that QEMU gives to the second card.
        None => "52:54:00:12:34:57".to_owned(),
    };
    copy_script(&mut host, "vm-host.sh", "/usr/local/bin/vm-host");
    let prepare = format!("vm-host {} {uplink}", node_name(number));
    let prepared = host.run_for(&prepare, TIMEOUT).unwrap();
    assert_eq!(prepared.code, 0, "{prepare}: {}", prepared.output);
    host
}

/// Returns the name under which [`ControlPlane::join`] registers a host.
fn node_name(number: u8) -> String {
    format!("rack1-{number}")
}

/// Copies a script of `tests/host`.
fn copy_script(host: &mut Host, name: &str, path: &str) {
    host.copy_file(&repository().join("tests/host").join(name), path).unwrap();
}

impl VmHost {
    pub(crate) fn new(host: Host) -> Self {
        Self { name: node_name(host.number()), host }
    }

    /// Joins the host to the cluster, and starts the agent and virt-handler.
    pub(crate) fn prepare(&mut self, plane: &ControlPlane, assets: &Assets) {
        self.reserve_huge_pages();
        self.install_network_plugin(plane);
        let number = self.host.number();
        plane.join(&mut self.host, number).unwrap();
        self.start_agent(plane);
        self.import_images();
        self.read_processor_properties(plane, assets);
        self.start_virt_handler(plane, assets);
    }

    /// Reserves huge pages as `berth-hugepages.service` does, before the kubelet starts: a kubelet with a Memory
    /// Manager does not start again if their number changes.
    fn reserve_huge_pages(&mut self) {
        let manifest = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": self.name},
            "spec": {"hugepages": objects::huge_pages()},
        });
        let command = format!(
            "mkdir -p /etc/berth && cat >{MANIFEST_PATH} <<'END'\n{manifest}\nEND\n\
             berth-agent apply -f {MANIFEST_PATH} --only hugepages"
        );
        self.host.run_checked(&command).unwrap();
    }

    /// Installs the CNI plugin that attaches pods to the networks of tenants.
    fn install_network_plugin(&mut self, plane: &ControlPlane) {
        let token = berth_tests::cluster::ADMIN_TOKEN;
        let kubeconfig =
            plane.write_kubeconfig(&format!("cni-{}", self.name), token, true).unwrap();
        let host = &mut self.host;
        copy_script(host, "attach-networks.sh", "/usr/lib/cni/attach-networks");
        host.copy_file(&kubeconfig, "/etc/cni/kubeconfig").unwrap();
        host.copy_file(&plane.assets().join("kubectl"), "/usr/local/bin/kubectl").unwrap();
    }

    fn start_agent(&mut self, plane: &ControlPlane) {
        let token = plane.create_token("berth-agent").unwrap();
        let kubeconfig =
            plane.write_kubeconfig(&format!("agent-{}", self.name), &token, true).unwrap();
        self.host.copy_file(&kubeconfig, "/etc/berth/kubeconfig").unwrap();
        let command = format!(
            "systemd-run --unit berth-agent --property Restart=on-failure /usr/local/bin/berth-agent run \
             --node-name={} --kubeconfig=/etc/berth/kubeconfig --interval=10",
            self.name
        );
        self.host.run_checked(&command).unwrap();
    }

    fn import_images(&mut self) {
        for disk in (0..ARCHIVES).map(archive_disk) {
            let import = format!("ctr -n k8s.io images import {disk}");
            let imported = self.host.run_for(&import, IMPORT_TIMEOUT).unwrap();
            assert_eq!(imported.code, 0, "{import}: {}", imported.output);
        }
    }

    /// Runs KubeVirt's script that reads the properties of the host's CPUs, as an init container of virt-handler does.
    fn read_processor_properties(&mut self, plane: &ControlPlane, assets: &Assets) {
        let (pod_name, folder) =
            (format!("node-labeller-{}", self.name), "/var/lib/kubevirt-node-labeller");
        let image = assets.launcher_image(Nodes::Real { uses_emulation: USES_EMULATION });
        let variable = |name: &str| json!({"name": name, "value": "kvm"});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod_name, "namespace": KUBEVIRT_NAMESPACE},
            "spec": {
                "nodeName": self.name, "restartPolicy": "OnFailure", "hostNetwork": true,
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "virt-launcher", "image": image, "imagePullPolicy": "Never",
                    "command": ["/bin/sh", "-c", "node-labeller.sh"],
                    "env": [variable("PREFERRED_VIRTTYPE"), variable("HYPERVISOR_DEVICE")],
                    "securityContext": {"privileged": true, "runAsUser": 0},
                    "volumeMounts": [{"name": "properties", "mountPath": folder}],
                }],
                "volumes": [{"name": "properties", "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}],
            },
        });
        plane.kubectl_with(&plane.kubeconfig(), &["create", "-f", "-"], &pod.to_string()).unwrap();
        let get = ["pod", &pod_name, "-n", KUBEVIRT_NAMESPACE];
        let ended = plane.wait_until("node-labeller.sh has ended", TIMEOUT, |plane| {
            let pod = plane.get_json(&get).ok()?;
            (pod["status"]["phase"] == "Succeeded").then_some(())
        });
        ended.unwrap_or_else(|error| {
            let state = plane.get_json(&get).unwrap_or_default();
            panic!("{error:#}\n{:#}\n{}", state["status"], self.diagnose())
        });
    }

    fn start_virt_handler(&mut self, plane: &ControlPlane, assets: &Assets) {
        let node = plane.get_json(&["node", &self.name]).unwrap();
        let uid = node["metadata"]["uid"].as_str().unwrap();
        // virt-api accepts only a token that names the Node.
        let token = plane
            .kubectl(&[
                "create",
                "token",
                "kubevirt-handler",
                "-n",
                KUBEVIRT_NAMESPACE,
                "--bound-object-kind=Node",
                "--bound-object-name",
                &self.name,
                "--bound-object-uid",
                uid,
                "--duration=24h",
            ])
            .unwrap();
        let kubeconfig = format!("virt-handler-{}", self.name);
        let kubeconfig = plane.write_kubeconfig(&kubeconfig, token.trim(), true).unwrap();
        let host = &mut self.host;
        for program in [VIRT_HANDLER, VIRT_CHROOT] {
            host.copy_file(&assets.file(program), &format!("/usr/bin/{program}")).unwrap();
        }
        for file in ["handler.crt", "handler.key", "migration.crt", "migration.key"] {
            let path = format!("/etc/virt-handler/tls/{file}");
            host.copy_file(&plane.folder().join(file), &path).unwrap();
        }
        host.copy_file(&kubeconfig, "/etc/virt-handler/kubeconfig/config").unwrap();
        copy_script(host, "virt-handler.sh", "/usr/local/bin/start-virt-handler");
        host.run_checked(&format!("start-virt-handler {}", self.name)).unwrap();
    }

    /// Returns the kubelet's checkpoint of exclusive CPUs.
    pub(crate) fn cpu_checkpoint(&mut self) -> Value {
        let state = self.host.run_checked("cat /var/lib/kubelet/cpu_manager_state").unwrap();
        serde_json::from_str(&state).unwrap()
    }

    /// Returns the ends of the host's logs, for the error message of a failed test.
    pub(crate) fn diagnose(&mut self) -> String {
        let commands = "for unit in kubelet containerd virt-handler berth-agent kvm-in-use; do \
               echo \"--- $unit ---\"; journalctl -u $unit --no-pager | tail -n 25 | cut -c1-400; done; \
             cd /var/log/pods 2>/dev/null && for log in */*/*.log; do \
               echo \"--- $log ---\"; tail -n 15 $log | cut -c1-400; done; \
             cat /var/lib/kubelet/cpu_manager_state; echo; df -h / /var/lib/containerd; \
             grep . /sys/devices/system/node/node*/hugepages/hugepages-2048kB/*_hugepages; ip -br link";
        let result = self.host.run(commands);
        let result = result.map_or_else(|error| format!("{error:#}"), |result| result.output);
        format!("=== {} ===\n{result}\n", self.name)
    }
}
