//! Facts that are read only for plans of changes: the current values of settings, and the memory that is available for
//! new huge pages.

use std::collections::BTreeMap;

use berth_api::{Bytes, CpuSet};

use super::facts::HostFacts;
use super::irqs::{self, Irq, UnreadIrqs};
use super::memory::{TRANSPARENT_HUGEPAGES_FILE, bracketed_word, read_meminfo};
use super::pods::{self, Pods};
use super::units;
use crate::root::Root;
use crate::services::HostServices;
use crate::setting::{KsmSetting, SettingValue, SystemdUnit};

/// Current values of a host's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// Bytes of memory that are free or reclaimable, by NUMA zone.
    pub available_memory_by_zone: BTreeMap<u32, Bytes>,
    /// Bytes of available memory of the whole host (`MemAvailable`).
    pub available_memory: Option<Bytes>,
    /// Values of the files of kernel samepage merging (KSM); empty if the kernel has no KSM.
    pub ksm: BTreeMap<KsmSetting, SettingValue>,
    /// Mode of transparent huge pages, as the kernel names it.
    pub transparent_hugepages: Option<String>,
    /// Interrupts that a driver has requested.
    pub irqs: Vec<Irq>,
    /// Interrupts that are not in `irqs`, because they could not be read.
    pub unread_irqs: UnreadIrqs,
    /// Default affinity: CPUs that will handle the interrupts that drivers request later.
    pub default_irq_affinity: Option<CpuSet>,
    /// CPUs that run unbound workqueues.
    pub workqueue_cpus: Option<CpuSet>,
    /// CPUs on which systemd lets the processes of each unit run (`AllowedCPUs=`); an empty set means all CPUs.
    pub unit_cpus: BTreeMap<SystemdUnit, CpuSet>,
    pub pods: Pods,
}

/// Folder with the files of kernel samepage merging (KSM).
pub const KSM_FOLDER: &str = "sys/kernel/mm/ksm";
/// File with the default affinity of interrupts, as a CPU mask.
pub const DEFAULT_IRQ_AFFINITY_FILE: &str = "proc/irq/default_smp_affinity";
/// File with the CPUs of unbound workqueues, as a CPU mask.
pub const WORKQUEUE_CPUMASK_FILE: &str = "sys/devices/virtual/workqueue/cpumask";

/// Reads the current values of the settings.
#[must_use]
pub fn observe(root: &Root, facts: &HostFacts, services: &dyn HostServices) -> HostSettings {
    let available =
        read_meminfo(root, "proc/meminfo").ok().and_then(|info| info.bytes("MemAvailable"));
    let (irqs, unread_irqs) = irqs::observe_requested(root);
    HostSettings {
        available_memory_by_zone: facts
            .zones
            .iter()
            .filter_map(|zone| zone_available_memory(root, zone.id, available))
            .collect(),
        available_memory: available,
        ksm: KsmSetting::ALL
            .into_iter()
            .filter_map(|setting| Some((setting, read_ksm_setting(root, setting)?)))
            .collect(),
        transparent_hugepages: read_bracketed_word(root, TRANSPARENT_HUGEPAGES_FILE),
        irqs,
        unread_irqs,
        default_irq_affinity: read_cpu_mask(root, DEFAULT_IRQ_AFFINITY_FILE),
        workqueue_cpus: read_cpu_mask(root, WORKQUEUE_CPUMASK_FILE),
        unit_cpus: units::observe(root, services),
        pods: pods::observe(root, &facts.processes, &facts.kubelet),
    }
}

/// Returns the bytes of free memory, page cache and reclaimable slabs of a NUMA zone. On a kernel without NUMA, these
/// are the `available` bytes of the host for zone 0, and there are no other zones.
fn zone_available_memory(root: &Root, zone: u32, available: Option<Bytes>) -> Option<(u32, Bytes)> {
    let Ok(info) = read_meminfo(root, &format!("sys/devices/system/node/node{zone}/meminfo"))
    else {
        return (zone == 0).then_some(available).flatten().map(|room| (zone, room));
    };
    let free = info.bytes("MemFree")?;
    let reclaimable = ["Active(file)", "Inactive(file)", "SReclaimable"];
    let reclaimable_bytes: u64 =
        reclaimable.iter().filter_map(|name| info.bytes(name)).map(|bytes| bytes.0).sum();
    Some((zone, Bytes(free.0.saturating_add(reclaimable_bytes))))
}

/// Reads the file of a KSM setting; returns `None` if the kernel does not have the file or the value is invalid.
pub fn read_ksm_setting(root: &Root, setting: KsmSetting) -> Option<SettingValue> {
    let path = format!("{KSM_FOLDER}/{}", setting.file_name());
    match setting {
        KsmSetting::AdvisorMode => read_bracketed_word(root, &path).map(SettingValue::Keyword),
        _ => root.read_value(&path).ok().map(SettingValue::Number),
    }
}

/// Reads the selected word (in brackets) of a file such as `always [madvise] never`.
pub fn read_bracketed_word(root: &Root, path: &str) -> Option<String> {
    bracketed_word(&root.read(path).ok()?).map(str::to_owned)
}

/// Reads a file that contains a CPU mask.
pub fn read_cpu_mask(root: &Root, path: &str) -> Option<CpuSet> {
    CpuSet::from_mask(&root.read(path).ok()?).ok()
}
