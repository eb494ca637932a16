//! Interrupts and the CPUs they may go to. Only `check` and plans ask, as a host has hundreds.

use berth_api::CpuSet;

use super::kernel_files::kernel_list;
use crate::root::Root;

/// One interrupt line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irq {
    /// Its number.
    pub number: u32,
    /// CPUs it may go to.
    pub affinity: CpuSet,
    /// CPUs it goes to, where the kernel says.
    pub effective: Option<CpuSet>,
    /// The drivers' names for it; empty if nobody has requested it.
    pub users: String,
}

/// All interrupts with a readable affinity.
pub fn observe(root: &Root) -> Vec<Irq> {
    let irq = |(number, folder): (u32, String)| {
        let file = |name: &str| format!("proc/irq/{folder}/{name}");
        Some(Irq {
            number,
            affinity: kernel_list(root, &file("smp_affinity_list")).ok()?,
            effective: kernel_list(root, &file("effective_affinity_list")).ok(),
            users: users(root, number),
        })
    };
    root.numbered("proc/irq", "").into_iter().filter_map(irq).collect()
}

/// Interrupts that somebody has requested, without where they really go: a plan is made again and again,
/// and asks for no more than it needs.
pub fn requested(root: &Root) -> Vec<Irq> {
    let irq = |(number, folder): (u32, String)| {
        let users = users(root, number);
        if users.is_empty() {
            return None;
        }
        let affinity = kernel_list(root, &format!("proc/irq/{folder}/smp_affinity_list")).ok()?;
        Some(Irq { number, affinity, effective: None, users })
    };
    root.numbered("proc/irq", "").into_iter().filter_map(irq).collect()
}

/// Who has requested an interrupt: one file of sysfs, or where a capture has none, the folders that
/// procfs makes for handlers.
pub fn users(root: &Root, number: u32) -> String {
    root.read(&format!("sys/kernel/irq/{number}/actions")).unwrap_or_else(|_| {
        let folder = format!("proc/irq/{number}");
        let names = root.list(&folder).unwrap_or_default();
        let handler = |name: &String| root.list(&format!("{folder}/{name}")).is_ok();
        names.into_iter().filter(handler).collect::<Vec<_>>().join(",")
    })
}
