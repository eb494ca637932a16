//! Interrupts and the CPUs they may go to. Only `check` asks, as a host has hundreds.

use berth_api::CpuSet;

use super::kernel_list;
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
}

/// All interrupts with a readable affinity.
pub fn observe(root: &Root) -> Vec<Irq> {
    let irq = |(number, folder): (u32, String)| {
        let file = |name: &str| format!("proc/irq/{folder}/{name}");
        Some(Irq {
            number,
            affinity: kernel_list(root, &file("smp_affinity_list")).ok()?,
            effective: kernel_list(root, &file("effective_affinity_list")).ok(),
        })
    };
    root.numbered("proc/irq", "").into_iter().filter_map(irq).collect()
}
