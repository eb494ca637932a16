//! Simulated hosts and launcher pods for the placement benchmarks: the InfraNode that an agent would report, and
//! the resources that KubeVirt would request.

use anyhow::{Context, Result, anyhow};
use berth_api::PageSize;
use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_placement::inventory::ReportedHost;
use serde_json::{Value, json};

/// Number of pinnable CPUs of a host: 44 in zone 0, where the first two cores (four CPUs) are reserved, and 48 in
/// zone 1.
pub(crate) const PINNABLE_CPUS: u32 = 92;
/// Number of CPUs of the largest VM that fits into one zone (zone 1).
pub(crate) const ZONE_CPUS: u32 = 48;
/// Huge pages in each zone, in GiB.
pub(crate) const ZONE_GIB: u64 = 192;
/// Devices that a launcher pod requests.
const DEVICES: [&str; 3] = ["kvm", "tun", "vhost-net"];
const MIB: u64 = 1 << 20;

/// Resources of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Size {
    /// Number of exclusive CPUs.
    pub(crate) cpus: u32,
    /// Memory in huge pages, in GiB.
    pub(crate) gib: u64,
    /// True if the pod has an additional container without exclusive CPUs, such as a hook sidecar of `KubeVirt`.
    pub(crate) has_sidecar: bool,
}

impl Size {
    /// Returns true if the VM fits into one zone of an empty host. A sidecar is not considered.
    pub(crate) const fn fits_a_zone(self) -> bool {
        self.cpus <= ZONE_CPUS && self.gib <= ZONE_GIB
    }
}

/// Returns the InfraNode that the agent of a host with two zones and 96 CPUs writes.
pub(crate) fn infra_node(name: &str, page: PageSize, allocations: &[Value]) -> Value {
    let zone = |id: u32, first: u32, reserved: &str, kept: u64| {
        let (last, other) = (first + 23, first + 48);
        let cpus = format!("{first}-{last},{other}-{}", other + 23);
        let mut zone = json!({
            "id": id, "cpus": cpus, "cores": 24, "socket": id,
            "threads": [format!("{first}-{last}"), format!("{other}-{}", other + 23)],
            "memory": "256Gi", "reservedMemory": kept.to_string(),
            "hugepages": [{"size": page.to_string(), "total": ZONE_GIB * (1 << 30) / page.bytes()}],
            "distances": [{"zone": id, "distance": 10}, {"zone": 1 - id, "distance": 21}],
        });
        // An API server 1.20 that was built with a newer Go version reads an empty string as null.
        if !reserved.is_empty() {
            zone["reservedCPUs"] = reserved.into();
        }
        zone
    };
    json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
        "metadata": {"name": name},
        "spec": {},
        "status": {
            "capabilities": {
                "cpu": {"vendor": "GenuineIntel", "sockets": 2, "cores": 48, "threads": 96, "threadsPerCore": 2},
                "kvm": {"state": "Ready", "tun": true, "vhostNet": true, "vhostVsock": true},
                "kubelet": {
                    "cpuManagerPolicy": "static", "cpuManagerPolicyOptions": ["full-pcpus-only"],
                    "memoryManagerPolicy": "Static", "topologyManagerPolicy": "single-numa-node",
                    "topologyManagerScope": "container", "reservedSystemCPUs": "0-1,48-49",
                },
            },
            "zones": [zone(0, 0, "0-1,48-49", 4 << 30), zone(1, 24, "", 0)],
            "allocations": allocations,
        },
    })
}

/// Returns a host as the controller parses it from an InfraNode.
pub(crate) fn reported_host(name: &str, page: PageSize) -> Result<ReportedHost> {
    let infra =
        serde_json::from_value(infra_node(name, page, &[])).context("parse the InfraNode")?;
    let mut problems = Vec::new();
    let facts =
        ReportedHost::read(&infra, None, &mut problems).map_err(|problem| anyhow!("{problem}"))?;
    match problems.first() {
        Some(problem) => Err(anyhow!("{problem}")),
        None => Ok(facts),
    }
}

/// Returns a launcher pod with whole CPUs, huge pages for the guest, and other memory for the processes of the pod.
/// All resources are in one zone.
pub(crate) fn launcher_pod(uid: String, size: Size, page: PageSize) -> Pod {
    let cpus = u64::from(size.cpus);
    let mut compute = Resources {
        cpu_millis: cpus * 1000,
        memory: (256 + 8 * cpus) * MIB,
        ..Resources::default()
    };
    compute.hugepages.insert(page, size.gib << 30);
    let devices = DEVICES.map(|name| (format!("devices.kubevirt.io/{name}"), 1));
    compute.extended.extend(devices);
    let mut containers = vec![guaranteed_container("compute", compute)];
    if size.has_sidecar {
        // Resources that KubeVirt requests for a hook sidecar (`sidecarResources` of renderresources.go).
        let hook = Resources { cpu_millis: 200, memory: 64_000_000, ..Resources::default() };
        containers.push(guaranteed_container("hook-sidecar-0", hook));
    }
    Pod { uid, containers, ..Pod::default() }
}

fn guaranteed_container(name: &str, resources: Resources) -> Container {
    Container {
        name: name.to_owned(),
        is_sidecar: false,
        requests: resources.clone(),
        limits: resources,
    }
}

#[cfg(test)]
mod tests {
    use berth_kubelet_admission::HostState;

    use super::*;

    #[test]
    fn host_has_the_described_zones() {
        let facts = reported_host("a", PageSize::GIB_1).unwrap();
        let zones: Vec<(u32, u64)> = HostState::new(&facts.admission)
            .free_by_zone()
            .map(|zone| (zone.cpus, zone.free_and_total_pages(PageSize::GIB_1).0 >> 30))
            .collect();
        assert_eq!(zones, [(44, ZONE_GIB), (ZONE_CPUS, ZONE_GIB)]);
        assert_eq!(zones.iter().map(|zone| zone.0).sum::<u32>(), PINNABLE_CPUS);
    }

    #[test]
    fn widest_vm_fits_only_once_and_in_the_larger_zone() {
        let facts = reported_host("a", PageSize::GIB_1).unwrap();
        let mut state = HostState::new(&facts.admission);
        let widest = Size { cpus: ZONE_CPUS, gib: ZONE_GIB, has_sidecar: true };
        assert!(widest.fits_a_zone());
        let pod = |uid: &str| launcher_pod(uid.to_owned(), widest, PageSize::GIB_1);
        let admission = state.admit(&pod("a")).unwrap().clone();
        let placements = admission.placements(&facts.admission);
        assert_eq!(placements[0].affinity, Some(vec![1]));
        assert!(placements[1].cpus.is_empty());
        assert!(state.admit(&pod("b")).is_err());
    }
}
