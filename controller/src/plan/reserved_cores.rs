//! CPUs that a reservation of a HostProfile selects on a host, from the report of its agent. The agent applies the same
//! rules (`agent/src/plan/cpu.rs`) to the host itself.

use berth_api::infra_node::{ReservedCpus, Zone};
use berth_api::{CpuSet, InfraNodeStatus};

/// Reason why the reserved CPUs are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReservationError {
    #[error("cpu.reserved: exactly one of coresPerZone and cpus must be set")]
    Ambiguous,
    #[error("cpu.reserved.coresPerZone: the report does not have the cores of zone {0}")]
    UnknownCores(u32),
    #[error(
        "cpu.reserved.coresPerZone: {requested}: zone {zone} has {cores} cores: no core would be left for VMs"
    )]
    NoCoreLeft { requested: u32, zone: u32, cores: usize },
    #[error("cpu.reserved.cpus: {0}: the host has no such CPUs, or no CPU would be left for VMs")]
    InvalidCpus(CpuSet),
}

/// Returns the CPUs that are reserved: `coresPerZone` cores of every zone with CPUs, first the core of CPU 0, then those
/// with the lowest numbers, and isolated cores last; or the list.
pub(super) fn reserved_cpus(
    status: &InfraNodeStatus,
    reserved: &ReservedCpus,
) -> Result<CpuSet, ReservationError> {
    let requested = match (reserved.cores_per_zone, &reserved.cpus) {
        (Some(requested), None) => requested,
        (None, Some(cpus)) => return listed_cpus(status, cpus),
        _ => return Err(ReservationError::Ambiguous),
    };
    let cpu = &status.capabilities.cpu;
    let isolated = [&cpu.isolated, &cpu.nohz_full].into_iter().flatten();
    let isolated = isolated.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    let mut all = Vec::new();
    for zone in status.zones.iter().filter(|zone| has_cpus(zone)) {
        let cores = cores(zone).ok_or(ReservationError::UnknownCores(zone.id))?;
        if cores.len() <= requested as usize || requested == 0 {
            let (zone, cores) = (zone.id, cores.len());
            return Err(ReservationError::NoCoreLeft { requested, zone, cores });
        }
        all.push(cores);
    }
    if let Some(current) = current_reservation(status, &all, requested) {
        return Ok(current.clone());
    }
    let mut reserved = CpuSet::new();
    for mut cores in all {
        cores.sort_by_key(|core| (!core.contains(0), core.intersects(&isolated), core.first()));
        let chosen = cores.iter().take(requested as usize);
        reserved = chosen.fold(reserved, |all, core| all.union(core));
    }
    Ok(reserved)
}

/// Returns the CPUs that the kubelet reserves if they are as many whole cores of every zone, with the core of CPU 0. The
/// agent then keeps them.
fn current_reservation<'s>(
    status: &'s InfraNodeStatus,
    zones: &[Vec<CpuSet>],
    requested: u32,
) -> Option<&'s CpuSet> {
    let current = status.capabilities.kubelet.as_ref()?.reserved_system_cpus.as_ref()?;
    let mut whole = CpuSet::new();
    for cores in zones {
        let reserved: Vec<&CpuSet> = cores.iter().filter(|core| core.is_subset(current)).collect();
        if reserved.len() != requested as usize {
            return None;
        }
        whole = reserved.into_iter().fold(whole, |all, core| all.union(core));
    }
    (whole == *current && current.contains(0)).then_some(current)
}

fn listed_cpus(status: &InfraNodeStatus, cpus: &CpuSet) -> Result<CpuSet, ReservationError> {
    let zones = status.zones.iter().filter_map(|zone| zone.cpus.as_ref());
    let online = zones.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    let is_valid = !cpus.is_empty() && cpus.is_subset(&online) && *cpus != online;
    if is_valid { Ok(cpus.clone()) } else { Err(ReservationError::InvalidCpus(cpus.clone())) }
}

fn has_cpus(zone: &Zone) -> bool {
    zone.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty())
}

/// Returns the CPUs of each core; `None` if the report does not have the cores.
fn cores(zone: &Zone) -> Option<Vec<CpuSet>> {
    let threads: Vec<Vec<u32>> = zone.threads.iter().map(|set| set.iter().collect()).collect();
    let count = threads.first()?.len();
    let is_complete = threads.iter().all(|thread| thread.len() == count);
    let core = |at: usize| threads.iter().filter_map(|thread| thread.get(at).copied()).collect();
    is_complete.then(|| (0..count).map(core).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(reserved: &str) -> InfraNodeStatus {
        let zone = |id: u32, cpus: &str, threads: [&str; 2]| json!({"id": id, "cpus": cpus, "threads": threads});
        serde_json::from_value(json!({
            "capabilities": {
                "cpu": {"isolated": "4,12"}, "kubelet": {"reservedSystemCPUs": reserved},
            },
            "zones": [
                zone(0, "0-3,8-11", ["0-3", "8-11"]), zone(1, "4-7,12-15", ["4-7", "12-15"]),
                {"id": 2, "cpus": ""},
            ],
        }))
        .unwrap()
    }

    fn per_zone(cores: u32) -> ReservedCpus {
        ReservedCpus { cores_per_zone: Some(cores), cpus: None }
    }

    #[test]
    fn cores_of_every_zone_are_reserved() {
        for (current, cores, expected) in [
            ("0,8", 1, "0,5,8,13"),
            // The kubelet reserves as many cores, with that of CPU 0.
            ("0,6,8,14", 1, "0,6,8,14"),
            ("1,6,9,14", 1, "0,5,8,13"),
            ("0", 3, "0-2,5-10,13-15"),
        ] {
            let found = reserved_cpus(&status(current), &per_zone(cores));
            assert_eq!(found, Ok(expected.parse().unwrap()), "{current} {cores}");
        }
    }

    #[test]
    fn impossible_reservations_are_refused() {
        let status = status("0");
        let list = |cpus: &str| ReservedCpus {
            cpus: Some(cpus.parse().unwrap()),
            ..ReservedCpus::default()
        };
        assert_eq!(reserved_cpus(&status, &list("0,8")), Ok("0,8".parse().unwrap()));
        for (reserved, words) in [
            (per_zone(4), "coresPerZone: 4: zone 0 has 4 cores"),
            (per_zone(0), "coresPerZone: 0"),
            (list("0-15"), "cpus: 0-15"),
            (list("99"), "cpus: 99"),
            (ReservedCpus::default(), "exactly one"),
        ] {
            let text = reserved_cpus(&status, &reserved).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
        let unknown = json!({"zones": [{"id": 3, "cpus": "0-3"}], "capabilities": {}});
        let unknown: InfraNodeStatus = serde_json::from_value(unknown).unwrap();
        assert_eq!(reserved_cpus(&unknown, &per_zone(1)), Err(ReservationError::UnknownCores(3)));
    }
}
