//! CPUs that systemd allows its units.
//!
//! From the control group, which is what counts; a unit that is not active has none, and then systemd
//! itself is asked.

use std::collections::BTreeMap;

use berth_api::CpuSet;

use super::kernel_list;
use crate::root::Root;
use crate::setting::Unit;
use crate::systemd::Systemd;

/// The units whose CPUs are known; the empty set means all.
pub fn observe(root: &Root) -> BTreeMap<Unit, CpuSet> {
    let mut systemd = None;
    let allowed = |unit: Unit| {
        let folder = format!("sys/fs/cgroup/{}", unit.name());
        if root.exists(&folder) {
            // Without the controller cpuset there is no such file, and then no restriction.
            let read = kernel_list(root, &format!("{folder}/cpuset.cpus"));
            return match read {
                Err(error) if error.is_not_found() => Some((unit, CpuSet::new())),
                read => Some((unit, read.ok()?)),
            };
        }
        if !root.is_live() {
            return None;
        }
        let systemd = systemd.get_or_insert_with(Systemd::connect).as_ref().ok()?;
        Some((unit, systemd.allowed_cpus(unit).ok()?))
    };
    Unit::ALL.into_iter().filter_map(allowed).collect()
}
