//! Made-up hosts and launcher pods for the benchmarks of placement: what an agent would report, and what `KubeVirt`
//! would ask for.

use anyhow::{Context, Result, anyhow};
use berth_api::PageSize;
use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_placement::inventory::ReportedHost;
use serde_json::{Value, json};

/// CPUs of a host that can be pinned: 44 in zone 0, whose first two cores are kept, and 48 in zone 1.
pub(crate) const PINNABLE: u32 = 92;
/// The widest VM that one zone takes, in CPUs.
pub(crate) const ZONE_CPUS: u32 = 48;
/// GiB of huge pages in each zone.
pub(crate) const ZONE_GIB: u64 = 192;
/// Devices that a launcher asks for.
const DEVICES: [&str; 3] = ["kvm", "tun", "vhost-net"];
const MIB: u64 = 1 << 20;

/// What a VM is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Size {
    /// CPUs of its own.
    pub(crate) cpus: u32,
    /// GiB of huge pages.
    pub(crate) gib: u64,
    /// Whether a container without CPUs of its own runs beside it, as a hook of `KubeVirt`'s does.
    pub(crate) has_sidecar: bool,
}

impl Size {
    /// Whether an empty host takes it, without regard to a sidecar.
    pub(crate) const fn fits_a_zone(self) -> bool {
        self.cpus <= ZONE_CPUS && self.gib <= ZONE_GIB
    }
}

/// The InfraNode of a two-zone host with 96 CPUs, as its agent writes it.
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
        // An API server of 1.20 that was built with a newer Go takes an empty text for null.
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

/// A host as the controller knows it, through the same door as in a cluster.
pub(crate) fn host(name: &str, page: PageSize) -> Result<ReportedHost> {
    let infra = serde_json::from_value(infra_node(name, page, &[])).context("InfraNode")?;
    let mut problems = Vec::new();
    let facts =
        ReportedHost::read(&infra, None, &mut problems).map_err(|problem| anyhow!("{problem}"))?;
    match problems.first() {
        Some(problem) => Err(anyhow!("{problem}")),
        None => Ok(facts),
    }
}

/// A launcher pod: whole CPUs and huge pages for the guest, memory for what runs around it. All in one zone.
pub(crate) fn launcher(uid: String, size: Size, page: PageSize) -> Pod {
    let cpus = u64::from(size.cpus);
    let mut compute = Resources {
        cpu_millis: cpus * 1000,
        memory: (256 + 8 * cpus) * MIB,
        ..Resources::default()
    };
    compute.hugepages.insert(page, size.gib << 30);
    let devices = DEVICES.map(|name| (format!("devices.kubevirt.io/{name}"), 1));
    compute.extended.extend(devices);
    let mut containers = vec![both("compute", compute)];
    if size.has_sidecar {
        // As `KubeVirt` gives to hooks (`sidecarResources` of renderresources.go).
        let hook = Resources { cpu_millis: 200, memory: 64_000_000, ..Resources::default() };
        containers.push(both("hook-sidecar-0", hook));
    }
    Pod { uid, containers, ..Pod::default() }
}

fn both(name: &str, resources: Resources) -> Container {
    Container {
        name: name.to_owned(),
        is_sidecar: false,
        requests: resources.clone(),
        limits: resources,
    }
}

#[cfg(test)]
mod tests {
    use berth_kubelet_admission::State;

    use super::*;

    #[test]
    fn the_host_is_as_described() {
        let facts = host("a", PageSize::GIB_1).unwrap();
        let zones: Vec<(u32, u64)> = State::new(&facts.admission)
            .free_by_zone()
            .map(|zone| (zone.cpus, zone.pages(PageSize::GIB_1).0 >> 30))
            .collect();
        assert_eq!(zones, [(44, ZONE_GIB), (ZONE_CPUS, ZONE_GIB)]);
        assert_eq!(zones.iter().map(|zone| zone.0).sum::<u32>(), PINNABLE);
    }

    #[test]
    fn the_widest_vm_is_taken_by_the_larger_zone_only_once() {
        let facts = host("a", PageSize::GIB_1).unwrap();
        let mut state = State::new(&facts.admission);
        let widest = Size { cpus: ZONE_CPUS, gib: ZONE_GIB, has_sidecar: true };
        assert!(widest.fits_a_zone());
        let pod = |uid: &str| launcher(uid.to_owned(), widest, PageSize::GIB_1);
        let admission = state.admit(&pod("a")).unwrap().clone();
        let placements = admission.placements(&facts.admission);
        assert_eq!(placements[0].affinity, Some(vec![1]));
        assert!(placements[1].cpus.is_empty());
        assert!(state.admit(&pod("b")).is_err());
    }
}
