//! Nodes and InfraNodes of the simulated hosts.

use std::collections::BTreeMap;

use berth_kubelet_admission::HostState;
use berth_placement::inventory::ReportedHost;
use berth_tests::cluster::ControlPlane;
use berth_tests::kubevirt::SimulatedHost;
use serde_json::{Value, json};

use crate::allocation::reported_allocation;
use crate::host::{HostDescription, ZoneDescription};

/// Hosts with the bridge of tenants' networks.
pub(crate) const TENANT_HOSTS: [&str; 3] = ["rack1-a", "rack1-b", "rack1-c"];
/// The host of [`TENANT_HOSTS`] with devices of [`VF_RESOURCE`](crate::host::VF_RESOURCE), and the zone of these devices.
pub(crate) const DEVICE_HOST: (&str, u32) = (TENANT_HOSTS[2], 1);
/// Host like [`TENANT_HOSTS`], but without the bridge.
pub(crate) const HOST_WITHOUT_BRIDGE: &str = "rack2-a";
/// Hosts that each have room for only one VM of the migration test. Other VMs do not tolerate their taint.
pub(crate) const MIGRATION_HOSTS: [&str; 2] = ["rack3-a", "rack3-b"];
/// Hosts of VMs with local disks. Two such VMs fit on the first host, one in each zone. The Node of the second host has
/// enough resources for one such VM, but no zone of this host has enough huge pages. Other VMs do not tolerate their
/// taint.
pub(crate) const DISK_HOSTS: [&str; 2] = ["rack4-a", "rack4-b"];
/// Node resource for the bridge of the host network `tenant-trunk` in `examples/tenants/config.yaml`.
pub(crate) const BRIDGE_RESOURCE: &str = "bridge.network.kubevirt.io/br-tenant";
/// Taint of [`MIGRATION_HOSTS`].
pub(crate) const MIGRATION_TAINT: &str = "example.com/migrations";
/// Taint of [`DISK_HOSTS`].
pub(crate) const DISK_TAINT: &str = "example.com/disks";
/// Label by which HostProfiles select the hosts.
pub(crate) const PURPOSE_LABEL: &str = "example.com/purpose";

/// Labels of a Node with virt-handler. Launcher pods select most of them. virt-controller selects the target Node of a
/// migration by the CPU model and the CPU vendor of the source Node.
const KUBEVIRT_LABELS: [&str; 7] = [
    "cpu-model-migration.node.kubevirt.io/Skylake-Server",
    "cpu-vendor.node.kubevirt.io/Intel",
    "cpumanager",
    "host-model-cpu.node.kubevirt.io/Skylake-Server",
    "kubevirt.io/cpumanager",
    "kubevirt.io/schedulable",
    "machine-type.node.kubevirt.io/q35",
];

/// Creates the Nodes and the InfraNodes, and returns the hosts for their simulation.
pub(crate) fn create_hosts(plane: &ControlPlane) -> Vec<SimulatedHost> {
    let hosts = TENANT_HOSTS.map(|name| tenant_host(name, true)).into_iter();
    let hosts = hosts.chain([tenant_host(HOST_WITHOUT_BRIDGE, false)]);
    let hosts = hosts.chain(MIGRATION_HOSTS.map(migration_host));
    let [roomy, small] = DISK_HOSTS;
    let hosts = hosts.chain([disk_host(roomy, 8 << 10), disk_host(small, 4 << 10)]);
    hosts.map(|description| create_host(plane, &description)).collect()
}

/// Describes a host with room for one VM `performance-4` in each of its two zones.
fn tenant_host(name: &str, has_bridge: bool) -> HostDescription {
    let zone =
        ZoneDescription { cpus: 16, memory: 64, huge_pages_gib: 0, small_pages_mib: 24 << 10 };
    let purpose = if has_bridge { "tenants" } else { "none" };
    HostDescription {
        name: name.to_owned(),
        zones: vec![zone; 2],
        labels: BTreeMap::from([(PURPOSE_LABEL.to_owned(), purpose.to_owned())]),
        bridges: has_bridge.then(|| ("br-tenant".to_owned(), 1000)).into_iter().collect(),
        vfs: if name == DEVICE_HOST.0 { vec![0, 2] } else { Vec::new() },
        ..HostDescription::default()
    }
}

fn migration_host(name: &str) -> HostDescription {
    let zone = ZoneDescription { cpus: 8, memory: 32, huge_pages_gib: 0, small_pages_mib: 0 };
    dedicated_host(name, "migrations", MIGRATION_TAINT, zone)
}

/// Describes a host with this amount of huge pages in each of its two zones, in MiB.
fn disk_host(name: &str, small_pages_mib: u64) -> HostDescription {
    let zone = ZoneDescription { cpus: 6, memory: 16, huge_pages_gib: 0, small_pages_mib };
    dedicated_host(name, "disks", DISK_TAINT, zone)
}

/// Describes a host with two zones like `zone`, whose taint excludes all VMs that do not tolerate it.
fn dedicated_host(
    name: &str,
    purpose: &str,
    taint: &str,
    zone: ZoneDescription,
) -> HostDescription {
    HostDescription {
        name: name.to_owned(),
        zones: vec![zone; 2],
        labels: BTreeMap::from([(PURPOSE_LABEL.to_owned(), purpose.to_owned())]),
        taints: vec![format!("{taint}:NoSchedule")],
        ..HostDescription::default()
    }
}

fn create_host(plane: &ControlPlane, description: &HostDescription) -> SimulatedHost {
    let node = node_object(description);
    let infra_node = description.infra_node();
    for object in [&node, &serde_json::to_value(&infra_node).unwrap()] {
        let create = ["create", "--validate=false", "-f", "-"];
        plane.kubectl_with(&plane.kubeconfig(), &create, &object.to_string()).unwrap();
    }
    let node = serde_json::from_value(node).unwrap();
    let facts = ReportedHost::read(&infra_node, Some(&node), &mut Vec::new()).unwrap();
    SimulatedHost {
        name: description.name.clone(),
        state: HostState::new(&facts.admission),
        report: infra_node.status.unwrap(),
        report_allocation: reported_allocation,
    }
}

/// Returns the Node as its kubelet and virt-handler write it.
fn node_object(description: &HostDescription) -> Value {
    let mut node = serde_json::to_value(description.node()).unwrap();
    node["apiVersion"] = "v1".into();
    node["kind"] = "Node".into();
    let labels = &mut node["metadata"]["labels"];
    labels["kubernetes.io/arch"] = "amd64".into();
    labels["kubernetes.io/os"] = "linux".into();
    for label in KUBEVIRT_LABELS {
        labels[label] = "true".into();
    }
    let status = &mut node["status"];
    for device in ["tun", "vhost-net"] {
        status["allocatable"][format!("devices.kubevirt.io/{device}")] = "1000".into();
    }
    status["allocatable"]["ephemeral-storage"] = "100Gi".into();
    status["capacity"] = status["allocatable"].clone();
    status["conditions"] = json!([{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "set by a test",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    node
}
