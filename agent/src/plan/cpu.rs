//! Selects the CPUs that are reserved for the host: whole physical cores in every zone, including the core
//! of CPU 0.

use std::collections::BTreeSet;

use berth_api::CpuSet;
use berth_api::infra_node::Zone;

use super::input::Input;
use super::target::Targets;
use crate::manifest::Fault;
use berth_host_facts::topology::Topology;

/// Returns the reserved CPUs; `None` if the spec reserves none, or if they cannot be reserved.
pub(super) fn reserved_cpus(input: Input, targets: &mut Targets) -> Option<CpuSet> {
    let spec = input.spec.cpu.as_ref()?;
    let Some(reserved) = &spec.reserved else {
        if spec.housekeeping == Some(true) {
            let message = "requires spec.cpu.reserved, the CPUs for host tasks";
            targets.faults.push(Fault::new("spec.cpu.housekeeping", true, message));
        }
        return None;
    };
    let found = match (reserved.cores_per_zone, &reserved.cpus) {
        (Some(cores), None) => reserve_per_zone(input, cores),
        (None, Some(cpus)) => reserved_cpus_by_list(&input.facts.topology, cpus),
        (both, cpus) => {
            let shown = format!("coresPerZone: {both:?}, cpus: {cpus:?}");
            let message = "exactly one of coresPerZone and cpus must be set";
            Err(Fault::new("spec.cpu.reserved", shown, message))
        }
    };
    match found {
        Ok(cpus) => Some(cpus),
        Err(fault) => {
            targets.faults.push(fault);
            None
        }
    }
}

/// Returns `cores` cores of every zone: first the core of CPU 0, then the cores with the lowest numbers. Cores that are
/// isolated from the scheduler come last, because they are unsuitable for host tasks. If the kubelet already reserves
/// `cores` whole cores of every zone, including the core of CPU 0, returns the CPUs that the kubelet reserves.
fn reserve_per_zone(input: Input, cores: u32) -> Result<CpuSet, Fault> {
    let field = "spec.cpu.reserved.coresPerZone";
    let facts = input.facts;
    if cores == 0 {
        return Err(Fault::new(field, cores, "must be at least 1: the host itself needs CPUs"));
    }
    if !facts.topology.are_core_ids_known || facts.zones.is_empty() {
        return Err(Fault::new(field, cores, "the cores or zones of this host are not known"));
    }
    let config = facts.kubelet.config.as_ref();
    let kubelet_reserved = config.and_then(|config| config.reserved_system_cpus.as_ref());
    let fits = |set: &&CpuSet| {
        has_whole_cores(&facts.topology, set)
            && set.is_subset(&facts.topology.online)
            && set.intersects(&boot_cpu_core(&facts.topology))
            && zones_with_cores(input).all(|(_, zone_cores)| {
                let reserved_cores = zone_cores.iter().filter(|core| core.is_subset(set)).count();
                reserved_cores == cores as usize && reserved_cores < zone_cores.len()
            })
    };
    if let Some(set) = kubelet_reserved.filter(fits) {
        return Ok(set.clone());
    }
    let isolated = [&facts.cpu.isolated, &facts.cpu.nohz_full]
        .into_iter()
        .flatten()
        .fold(CpuSet::new(), |all, set| all.union(set));
    let first = boot_cpu_core(&facts.topology);
    let mut reserved = CpuSet::new();
    for (zone, zone_cores) in zones_with_cores(input) {
        if zone_cores.len() <= cores as usize {
            let message = format!(
                "zone {} has {} cores: no core would be left for VMs",
                zone.id,
                zone_cores.len()
            );
            return Err(Fault::new(field, cores, message));
        }
        let mut candidates: Vec<&CpuSet> = zone_cores.into_iter().collect();
        candidates.sort_by_key(|core| (**core != first, core.intersects(&isolated), core.first()));
        for core in candidates.into_iter().take(cores as usize) {
            reserved = reserved.union(core);
        }
    }
    Ok(reserved)
}

fn reserved_cpus_by_list(topology: &Topology, cpus: &CpuSet) -> Result<CpuSet, Fault> {
    let fault = |message: String| Err(Fault::new("spec.cpu.reserved.cpus", cpus, message));
    if cpus.is_empty() {
        return fault("is empty; the host itself needs CPUs".to_owned());
    }
    let absent = cpus.difference(&topology.online);
    if !absent.is_empty() {
        return fault(format!("CPUs {absent} are not online; this host has {}", topology.online));
    }
    if topology.online.is_subset(cpus) {
        return fault("all CPUs are reserved: none would be left for VMs".to_owned());
    }
    if !has_whole_cores(topology, cpus) {
        let whole = topology
            .cores_with_cpus(cpus)
            .into_iter()
            .fold(CpuSet::new(), |all, core| all.union(core));
        return fault(format!("splits a physical core; with all siblings the CPUs are {whole}"));
    }
    Ok(cpus.clone())
}

/// Returns the zones that have CPUs, with their cores. If a firmware fault puts a core into two
/// zones, the core belongs to the first zone.
fn zones_with_cores(input: Input<'_>) -> impl Iterator<Item = (&Zone, BTreeSet<&CpuSet>)> {
    let topology = &input.facts.topology;
    input.facts.zones.iter().filter_map(move |zone| {
        let is_in_zone =
            |id: u32| topology.cpus.get(&id).is_some_and(|cpu| cpu.zone == Some(zone.id));
        let cpus: CpuSet = zone.cpus.as_ref()?.iter().filter(|id| is_in_zone(*id)).collect();
        let cores = topology.cores_with_cpus(&cpus);
        (!cores.is_empty()).then_some((zone, cores))
    })
}

/// Returns the core of CPU 0, which runs kernel tasks that no other CPU runs. If CPU 0 is offline, returns
/// the core of the first CPU that is online.
fn boot_cpu_core(topology: &Topology) -> CpuSet {
    let first = topology.online.first().and_then(|id| topology.cpus.get(&id));
    first.map(|cpu| (*cpu.thread_siblings).clone()).unwrap_or_default()
}

fn has_whole_cores(topology: &Topology, cpus: &CpuSet) -> bool {
    topology.cores_with_cpus(cpus).into_iter().all(|core| core.is_subset(cpus))
}
