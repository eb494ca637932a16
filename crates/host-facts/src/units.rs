//! CPUs on which systemd lets the processes of its units run.
//!
//! The CPUs are read from the unit's control group, which is authoritative. A unit that is not active has no control
//! group; in this case, systemd reports the CPUs.

use std::collections::BTreeMap;

use berth_api::CpuSet;

use super::kernel_files::read_cpu_list;
use crate::root::Root;
use crate::services::HostServices;
use crate::setting::SystemdUnit;

/// Reads the CPUs of all units for which they are known. An empty set means all CPUs.
pub fn observe(root: &Root, services: &dyn HostServices) -> BTreeMap<SystemdUnit, CpuSet> {
    let allowed = |unit: SystemdUnit| Some((unit, read_allowed_cpus(root, unit, services)?));
    SystemdUnit::ALL.into_iter().filter_map(allowed).collect()
}

/// Reads the CPUs of one unit. An empty set means all CPUs. A set of all online CPUs is also returned as an empty set:
/// if a unit was restricted before, its set cannot become empty again, because the kernel refuses this.
pub fn read_allowed_cpus(
    root: &Root,
    unit: SystemdUnit,
    services: &dyn HostServices,
) -> Option<CpuSet> {
    let folder = format!("sys/fs/cgroup/{}", unit.unit_name());
    let cpus = if root.exists(&folder) {
        match read_cpu_list(root, &format!("{folder}/cpuset.cpus")) {
            // Without the cpuset controller, the file does not exist, and the CPUs are not restricted.
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
