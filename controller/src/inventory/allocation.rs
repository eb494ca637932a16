//! What a kubelet has handed out, by pod, as its agent reports it.

use std::collections::BTreeMap;

use berth_api::{CpuSet, InfraNodeStatus, PageSize};

use super::problem::Problem;
use crate::admission::{MemoryKind, Restored, RestoredContainer};
use crate::pod::{Pod, Resources};

/// What one pod has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// `metadata.uid`.
    pub uid: String,
    /// Namespace and name, where known.
    pub name: Option<String>,
    /// CPUs that are exclusively its containers'.
    pub cpus: CpuSet,
    /// Zones of its CPUs and memory.
    pub zones: Vec<u32>,
    /// Bytes of huge pages.
    pub hugepages: BTreeMap<PageSize, u64>,
    /// Bytes that the Memory Manager guarantees to it.
    pub memory: u64,
    /// Devices.
    pub devices: BTreeMap<String, u32>,
}

impl Allocation {
    /// What it takes of the Node's totals, as far as the report says.
    #[must_use]
    pub fn requests(&self) -> Resources {
        let devices = self.devices.iter();
        Resources {
            cpu_millis: (self.cpus.len() as u64).saturating_mul(1000),
            memory: self.memory,
            hugepages: self.hugepages.clone(),
            extended: devices.map(|(name, count)| (name.clone(), (*count).into())).collect(),
        }
    }

    /// As admission takes it. The report knows no containers, and of memory only the sums; what the pod asks for by
    /// the Node's totals is better known from the pod, if there is one.
    pub(crate) fn restored(&self, pod: Option<&Pod>) -> Restored {
        let block = |kind, bytes: u64| (bytes > 0).then(|| (kind, self.zones.clone(), bytes));
        let pages =
            self.hugepages.iter().map(|(size, bytes)| (MemoryKind::HugePages(*size), *bytes));
        let kinds = [(MemoryKind::Memory, self.memory)].into_iter().chain(pages);
        let devices = self.devices.iter();
        let requests = pod.map_or_else(|| self.requests(), Pod::requests);
        let container = RestoredContainer {
            cpus: self.cpus.clone(),
            memory: kinds.filter_map(|(kind, bytes)| block(kind, bytes)).collect(),
            devices: devices
                .map(|(name, count)| (name.clone(), BTreeMap::from([(None, *count)])))
                .collect(),
        };
        Restored { containers: vec![container], requests }
    }
}

impl Restored {
    /// A pod that is on a host and of which nobody knows what it has there: only the Node's totals count it.
    pub(crate) fn without_zones(pod: &Pod) -> Self {
        Self { containers: Vec::new(), requests: pod.requests() }
    }
}

const TOO_MUCH: &str = "is more than the host has; counted as all of it";

/// The allocations of a report. One that makes no sense is told of, and what of it makes sense still counts as taken.
pub(super) fn allocations(
    object: &str,
    status: &InfraNodeStatus,
    problems: &mut Vec<Problem>,
) -> Vec<Allocation> {
    let mut by_uid: BTreeMap<String, Allocation> = BTreeMap::new();
    let mut taken = CpuSet::new();
    let online: CpuSet =
        status.zones.iter().filter_map(|zone| zone.cpus.as_ref()).flat_map(CpuSet::iter).collect();
    let most = status.zones.iter().try_fold(0_u64, |sum, zone| sum.checked_add(zone.memory?.0));
    let most = most.unwrap_or(u64::MAX);
    for (at, reported) in status.allocations.iter().enumerate() {
        let mut wrong = |field: &str, value: &dyn std::fmt::Display, message: &str| {
            let field = format!("status.allocations[{at}].{field}");
            problems.push(Problem::new(object, field, value, message));
        };
        let mut cpus = reported.cpus.clone().unwrap_or_default();
        let elsewhere = cpus.difference(&online);
        if !elsewhere.is_empty() {
            wrong("cpus", &elsewhere, "is in no zone; not counted");
            cpus = cpus.difference(&elsewhere);
        }
        let twice = cpus.intersection(&taken);
        if !twice.is_empty() {
            wrong("cpus", &twice, "belongs to another allocation too; counted once");
            cpus = cpus.difference(&twice);
        }
        taken = taken.union(&cpus);
        let mut zones = reported.zones.clone();
        zones.retain(|zone| {
            let is_there = status.zones.iter().any(|other| other.id == *zone);
            if !is_there {
                wrong("zones", zone, "is no zone of this host");
            }
            is_there
        });
        let mut hugepages: BTreeMap<PageSize, u64> = BTreeMap::new();
        for pages in &reported.hugepages {
            let bytes = pages.count.saturating_mul(pages.size.bytes());
            if bytes > most {
                wrong("hugepages", &pages.count, TOO_MUCH);
            }
            let bytes = bytes.min(most);
            let sum = hugepages.entry(pages.size).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let named = reported.namespace.iter().chain(&reported.pod).cloned().collect::<Vec<_>>();
        let memory = reported.memory.unwrap_or_default();
        if memory.0 > most {
            wrong("memory", &memory, TOO_MUCH);
        }
        let is_twice = by_uid.contains_key(&reported.pod_uid);
        if is_twice {
            wrong("podUID", &reported.pod_uid, "is there twice; what both have counts as taken");
        }
        let all = by_uid.entry(reported.pod_uid.clone()).or_insert_with(|| Allocation {
            uid: reported.pod_uid.clone(),
            ..Allocation::default()
        });
        all.name = all.name.take().or_else(|| (!named.is_empty()).then(|| named.join("/")));
        all.cpus = all.cpus.union(&cpus);
        all.zones.extend(zones);
        all.zones.sort_unstable();
        all.zones.dedup();
        all.memory = all.memory.saturating_add(memory.0.min(most));
        for (size, bytes) in hugepages {
            let sum = all.hugepages.entry(size).or_default();
            *sum = sum.saturating_add(bytes);
        }
        for devices in &reported.devices {
            let sum = all.devices.entry(devices.resource.clone()).or_default();
            *sum = sum.saturating_add(devices.count);
        }
    }
    by_uid.into_values().collect()
}
