//! Interrupts and their affinity. They are read only for `check` and for plans of changes, because a host has hundreds
//! of interrupts.

use berth_api::CpuSet;

use super::kernel_files::read_cpu_list;
use crate::root::Root;

/// One interrupt line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irq {
    /// Number of the interrupt.
    pub number: u32,
    /// CPUs that may handle the interrupt (`smp_affinity_list`).
    pub affinity: CpuSet,
    /// CPUs that actually handle the interrupt (`effective_affinity_list`), if the kernel has the file.
    pub effective_affinity: Option<CpuSet>,
    /// Names under which drivers have requested the interrupt; empty if no driver has requested it.
    pub driver_names: String,
}

/// Reads all interrupts whose affinity can be read.
pub fn observe(root: &Root) -> Vec<Irq> {
    let irq = |(number, folder): (u32, String)| {
        let file = |name: &str| format!("proc/irq/{folder}/{name}");
        Some(Irq {
            number,
            affinity: read_cpu_list(root, &file("smp_affinity_list")).ok()?,
            effective_affinity: read_cpu_list(root, &file("effective_affinity_list")).ok(),
            driver_names: read_driver_names(root, number),
        })
    };
    let listed = root.list_numbered("proc/irq", "").unwrap_or_default();
    listed.into_iter().filter_map(irq).collect()
}

/// Reads the interrupts that a driver has requested, without their effective affinity. Plans are made often, so they
/// read only the files that they need.
pub fn observe_requested(root: &Root) -> Vec<Irq> {
    let irq = |(number, folder): (u32, String)| {
        let drivers = read_driver_names(root, number);
        if drivers.is_empty() {
            return None;
        }
        let affinity = read_cpu_list(root, &format!("proc/irq/{folder}/smp_affinity_list")).ok()?;
        Some(Irq { number, affinity, effective_affinity: None, driver_names: drivers })
    };
    let listed = root.list_numbered("proc/irq", "").unwrap_or_default();
    listed.into_iter().filter_map(irq).collect()
}

/// Returns the names under which drivers have requested an interrupt, separated by commas. The names are in a file of
/// sysfs. For a capture without this file, the names of the folders that procfs creates for the interrupt's handlers
/// are returned.
pub fn read_driver_names(root: &Root, number: u32) -> String {
    root.read(&format!("sys/kernel/irq/{number}/actions")).unwrap_or_else(|_| {
        let folder = format!("proc/irq/{number}");
        let names = root.list(&folder).unwrap_or_default();
        let is_handler = |name: &String| root.list(&format!("{folder}/{name}")).is_ok();
        names.into_iter().filter(is_handler).collect::<Vec<_>>().join(",")
    })
}
