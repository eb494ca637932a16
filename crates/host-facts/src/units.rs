//! CPUs on which systemd lets the processes of its units run.
//!
//! The CPUs are read from the unit's control group, because this is the value that the kernel enforces. If a unit is
//! not active and therefore has no control group, its CPUs are requested from systemd.

use std::collections::BTreeMap;

use berth_api::CpuSet;

use super::kernel_files::read_cpu_list;
use crate::root::Root;
use crate::services::HostServices;
use crate::setting::SystemdUnit;

/// Returns the CPUs of every unit whose CPUs are known. An empty set means all CPUs.
pub fn observe(root: &Root, services: &dyn HostServices) -> BTreeMap<SystemdUnit, CpuSet> {
    let allowed = |unit: SystemdUnit| Some((unit, read_allowed_cpus(root, unit, services)?));
    SystemdUnit::ALL.into_iter().filter_map(allowed).collect()
}

/// Returns the CPUs of one unit; `None` if they are unknown. An empty set means all CPUs. If the unit's set contains
/// all online CPUs, an empty set is returned too, because the kernel refuses to make a set empty again after a
/// restriction.
pub fn read_allowed_cpus(
    root: &Root,
    unit: SystemdUnit,
    services: &dyn HostServices,
) -> Option<CpuSet> {
    let folder = format!("sys/fs/cgroup/{}", unit.unit_name());
    let cpus = if root.exists(&folder) {
        match read_cpu_list(root, &format!("{folder}/cpuset.cpus")) {
            // The file does not exist without the cpuset controller, which means that the CPUs are not restricted.
            Err(error) if error.is_not_found() => CpuSet::new(),
            read => read.ok()?,
        }
    } else if root.is_live() {
        services.request_allowed_cpus(unit)?
    } else {
        return None;
    };
    let online = read_cpu_list(root, "sys/devices/system/cpu/online").unwrap_or_default();
    Some(if !online.is_empty() && online.is_subset(&cpus) { CpuSet::new() } else { cpus })
}
