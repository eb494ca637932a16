//! CPUs that systemd allows its units.
//!
//! The CPUs come from the control group, which is authoritative. A unit that is not active has no control group, and
//! then systemd answers.

use std::collections::BTreeMap;

use berth_api::CpuSet;

use super::kernel_files::kernel_list;
use crate::root::Root;
use crate::services::HostServices;
use crate::setting::Unit;

/// Reads the units whose CPUs are known; the empty set means all.
pub fn observe(root: &Root, services: &dyn HostServices) -> BTreeMap<Unit, CpuSet> {
    let allowed = |unit: Unit| Some((unit, allowed(root, unit, services)?));
    Unit::ALL.into_iter().filter_map(allowed).collect()
}

/// Reads the CPUs of one unit. The empty set means all, and so does a set of all online CPUs: the kernel does not let
/// the set become empty again.
pub fn allowed(root: &Root, unit: Unit, services: &dyn HostServices) -> Option<CpuSet> {
    let folder = format!("sys/fs/cgroup/{}", unit.name());
    let cpus = if root.exists(&folder) {
        match kernel_list(root, &format!("{folder}/cpuset.cpus")) {
            // Without the cpuset controller the file does not exist, and CPUs are not restricted.
            Err(error) if error.is_not_found() => CpuSet::new(),
            read => read.ok()?,
        }
    } else if root.is_live() {
        services.allowed_cpus(unit)?
    } else {
        return None;
    };
    let online = kernel_list(root, "sys/devices/system/cpu/online").unwrap_or_default();
    Some(if !online.is_empty() && online.is_subset(&cpus) { CpuSet::new() } else { cpus })
}
