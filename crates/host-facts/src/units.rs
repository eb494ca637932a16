//! CPUs that systemd allows its units.
//!
//! From the control group, which is what counts; a unit that is not active has none, and then systemd
//! itself is asked.

use std::collections::BTreeMap;

use berth_api::CpuSet;

use super::kernel_list;
use crate::root::Root;
use crate::setting::Unit;
use crate::systemd::{Systemd, SystemdError};

/// A connection that is made when it is first needed.
pub(crate) type Asked = Option<Result<Systemd, SystemdError>>;

/// The units whose CPUs are known; the empty set means all.
pub fn observe(root: &Root) -> BTreeMap<Unit, CpuSet> {
    let mut systemd = None;
    let allowed = |unit: Unit| Some((unit, allowed(root, unit, &mut systemd)?));
    Unit::ALL.into_iter().filter_map(allowed).collect()
}

/// The CPUs of one unit; the empty set means all, and so does a set of all CPUs that are online: the kernel
/// does not let it be emptied again.
pub(crate) fn allowed(root: &Root, unit: Unit, systemd: &mut Asked) -> Option<CpuSet> {
    let folder = format!("sys/fs/cgroup/{}", unit.name());
    let cpus = if root.exists(&folder) {
        match kernel_list(root, &format!("{folder}/cpuset.cpus")) {
            // Without the controller cpuset there is no such file, and then no restriction.
            Err(error) if error.is_not_found() => CpuSet::new(),
            read => read.ok()?,
        }
    } else if root.is_live() {
        systemd.get_or_insert_with(Systemd::connect).as_ref().ok()?.allowed_cpus(unit).ok()?
    } else {
        return None;
    };
    let online = kernel_list(root, "sys/devices/system/cpu/online").unwrap_or_default();
    Some(if !online.is_empty() && online.is_subset(&cpus) { CpuSet::new() } else { cpus })
}
