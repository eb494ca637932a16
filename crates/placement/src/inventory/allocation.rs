//! Allocations of a kubelet by pod, as the agent reports them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::infra_node::Allocation as Reported;
use berth_api::{CpuSet, InfraNodeStatus, PageSize, Problem};

use berth_kubelet_admission::pod::{Pod, Resources};
use berth_kubelet_admission::{MemoryKind, Restored, RestoredContainer, RestoredDevices};

/// Resources allocated to one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Field `metadata.uid`.
    pub uid: String,
    /// Namespace and name of the pod, if the report has them.
    pub name: Option<String>,
    /// Exclusive CPUs of the pod's containers.
    pub cpus: CpuSet,
    /// Zones of the pod's CPUs and memory.
    pub zones: Vec<u32>,
    /// Bytes of huge pages, by page size.
    pub hugepages: Vec<(PageSize, u64)>,
    /// Bytes of memory that the Memory Manager guarantees to the pod, without huge pages.
    pub memory: u64,
    /// Number of devices, by resource name.
    pub devices: Vec<(Arc<str>, u32)>,
    /// Resources of each container with their zones; empty if the report has only the sums of the pod.
    reported: Vec<RestoredContainer>,
    /// True if the pod's memory is on several zones and the report does not show how much is on each zone. Agents
    /// that report only sums per pod write such reports.
    pub is_unplaced: bool,
}

impl Allocation {
    /// Returns the requests of the pod that count in the Node's totals, as far as the report shows them.
    #[must_use]
    pub fn requests(&self) -> Resources {
        let devices = self.devices.iter();
        Resources {
            cpu_millis: (self.cpus.len() as u64).saturating_mul(1000),
            memory: self.memory,
            hugepages: self.hugepages.iter().copied().collect(),
            extended: devices.map(|(name, count)| (name.to_string(), (*count).into())).collect(),
        }
    }

    /// Returns the resources of each container with their zones. If the report has only the sums of the pod, returns
    /// them as one container.
    #[must_use]
    pub fn containers(&self) -> Cow<'_, [RestoredContainer]> {
        if self.reported.is_empty() {
            Cow::Owned(vec![self.as_one_container()])
        } else {
            Cow::Borrowed(&self.reported)
        }
    }

    /// Converts the allocation to the form that [`berth_kubelet_admission`] restores. If the pod is known, its own
    /// requests count in the Node's totals, because they are more accurate than the report.
    pub fn restored(&self, pod: Option<&Pod>) -> Restored {
        let requests = pod.map_or_else(|| self.requests(), Pod::requests);
        Restored { containers: self.containers().into_owned(), requests }
    }

    /// Returns the sums of the allocation as the resources of one container.
    fn as_one_container(&self) -> RestoredContainer {
        let block = |kind, bytes: u64| (bytes > 0).then(|| (kind, self.zones.clone(), bytes));
        let pages =
            self.hugepages.iter().map(|(size, bytes)| (MemoryKind::HugePages(*size), *bytes));
        let kinds = [(MemoryKind::Memory, self.memory)].into_iter().chain(pages);
        let devices = |(name, count): &(Arc<str>, u32)| RestoredDevices {
            resource: Arc::clone(name),
            zone: None,
            count: *count,
        };
        RestoredContainer {
            cpus: self.cpus.clone(),
            memory: kinds.filter_map(|(kind, bytes)| block(kind, bytes)).collect(),
            devices: self.devices.iter().map(devices).collect(),
        }
    }
}

/// Reads the allocations in a report. An invalid allocation is added to `problems`, but its valid parts still count
/// as allocated.
pub(super) fn allocations(
    object: &str,
    status: &InfraNodeStatus,
    problems: &mut Vec<Problem>,
) -> Vec<Allocation> {
    let mut by_uid: BTreeMap<String, Allocation> = BTreeMap::new();
    let most = status.zones.iter().try_fold(0_u64, |sum, zone| sum.checked_add(zone.memory?.0));
    let mut reader = Reader {
        object,
        status,
        problems,
        online: status
            .zones
            .iter()
            .filter_map(|z| z.cpus.as_ref())
            .flat_map(CpuSet::iter)
            .collect(),
        taken: CpuSet::new(),
        resources: BTreeSet::new(),
        most: most.unwrap_or(u64::MAX),
    };
    for (at, reported) in status.allocations.iter().enumerate() {
        let read = reader.allocation(at, reported);
        match by_uid.get_mut(&reported.pod_uid) {
            Some(all) => {
                let message = "is listed twice; the resources of both count as allocated";
                reader.report_problem(at, "podUID", &reported.pod_uid, message);
                all.add(read);
            }
            None => drop(by_uid.insert(reported.pod_uid.clone(), read)),
        }
    }
    by_uid.into_values().collect()
}

impl Allocation {
    /// Adds the resources of another entry of the same pod.
    fn add(&mut self, other: Self) {
        let mut containers = self.containers().into_owned();
        containers.extend(other.containers().into_owned());
        self.reported = containers;
        self.name = self.name.take().or(other.name);
        self.cpus = self.cpus.union(&other.cpus);
        self.zones.extend(other.zones);
        self.zones.sort_unstable();
        self.zones.dedup();
        self.memory = self.memory.saturating_add(other.memory);
        let own = std::mem::take(&mut self.hugepages);
        self.hugepages = sum_by_key(own.into_iter().chain(other.hugepages), u64::saturating_add);
        let own = std::mem::take(&mut self.devices);
        self.devices = sum_by_key(own.into_iter().chain(other.devices), u32::saturating_add);
        self.is_unplaced |= other.is_unplaced;
    }
}

/// Sums the values of each key. The returned vector has no spare capacity, because a fleet needs one vector for each
/// pod.
fn sum_by_key<K: Ord, N: Copy + Default>(
    numbers: impl IntoIterator<Item = (K, N)>,
    add: fn(N, N) -> N,
) -> Vec<(K, N)> {
    let mut sums = BTreeMap::new();
    for (key, number) in numbers {
        let sum: &mut N = sums.entry(key).or_default();
        *sum = add(*sum, number);
    }
    sums.into_iter().collect()
}

/// Reads the allocations of one report, one after the other.
struct Reader<'a> {
    object: &'a str,
    status: &'a InfraNodeStatus,
    problems: &'a mut Vec<Problem>,
    online: CpuSet,
    /// CPUs of the allocations that were read before.
    taken: CpuSet,
    /// Names of resources, each stored once.
    resources: BTreeSet<Arc<str>>,
    /// Memory of all zones in bytes. A larger amount in an allocation is invalid.
    most: u64,
}

impl Reader<'_> {
    fn report_problem(
        &mut self,
        at: usize,
        field: &str,
        value: &dyn std::fmt::Display,
        message: &str,
    ) {
        let field = format!("status.allocations[{at}].{field}");
        self.problems.push(Problem::new(self.object, field, value, message));
    }

    fn allocation(&mut self, at: usize, reported: &Reported) -> Allocation {
        let own = reported.containers.iter().filter_map(|container| container.cpus.as_ref());
        let cpus = own.fold(reported.cpus.clone().unwrap_or_default(), |all, own| all.union(own));
        let cpus = self.cpus(at, cpus);
        let zones = self.zones(at, "zones", &reported.zones);
        let mut hugepages = Vec::with_capacity(reported.hugepages.len());
        for pages in &reported.hugepages {
            let bytes = pages.count.saturating_mul(pages.size.bytes());
            let bytes = self.clamp_to_memory(at, "hugepages", bytes, &pages.count);
            hugepages.push((pages.size, bytes));
        }
        let memory = reported.memory.unwrap_or_default();
        let memory = self.clamp_to_memory(at, "memory", memory.0, &memory);
        let devices = reported.devices.iter();
        let devices: Vec<_> =
            devices.map(|one| (self.resource(&one.resource), one.count)).collect();
        let named = reported.namespace.iter().chain(&reported.pod).cloned().collect::<Vec<_>>();
        let mut read = Allocation {
            uid: reported.pod_uid.clone(),
            name: (!named.is_empty()).then(|| named.join("/")),
            cpus,
            zones,
            hugepages: sum_by_key(hugepages, u64::saturating_add),
            memory,
            devices: sum_by_key(devices, u32::saturating_add),
            ..Allocation::default()
        };
        if reported.containers.is_empty() {
            let has_memory = read.memory > 0 || !read.hugepages.is_empty();
            read.is_unplaced = has_memory && read.zones.len() > 1;
        } else {
            read.reported = self.containers(at, reported, &read.cpus);
        }
        read
    }

    fn resource(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.resources.get(name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = name.into();
        self.resources.insert(Arc::clone(&new));
        new
    }

    /// Returns the given CPUs without those that are in no zone and those that an earlier allocation contains.
    /// Reports the removed CPUs as problems.
    fn cpus(&mut self, at: usize, mut cpus: CpuSet) -> CpuSet {
        let elsewhere = cpus.difference(&self.online);
        if !elsewhere.is_empty() {
            self.report_problem(at, "cpus", &elsewhere, "is in no zone; not counted");
            cpus = cpus.difference(&elsewhere);
        }
        let twice = cpus.intersection(&self.taken);
        if !twice.is_empty() {
            self.report_problem(
                at,
                "cpus",
                &twice,
                "belongs to another allocation too; counted once",
            );
            cpus = cpus.difference(&twice);
        }
        self.taken = self.taken.union(&cpus);
        cpus
    }

    fn zones(&mut self, at: usize, field: &str, zones: &[u32]) -> Vec<u32> {
        let is_there = |zone: &u32| self.status.zones.iter().any(|other| other.id == *zone);
        let (known, unknown): (Vec<u32>, Vec<u32>) = zones.iter().copied().partition(is_there);
        for zone in unknown {
            self.report_problem(at, field, &zone, "is not a zone of this host");
        }
        known
    }

    fn clamp_to_memory(
        &mut self,
        at: usize,
        field: &str,
        bytes: u64,
        shown: &dyn std::fmt::Display,
    ) -> u64 {
        if bytes > self.most {
            self.report_problem(
                at,
                field,
                shown,
                "is more than the host has; counted as all of it",
            );
        }
        bytes.min(self.most)
    }

    fn containers(
        &mut self,
        at: usize,
        reported: &Reported,
        cpus: &CpuSet,
    ) -> Vec<RestoredContainer> {
        let mut all = Vec::with_capacity(reported.containers.len());
        let mut left = cpus.clone();
        for (number, container) in reported.containers.iter().enumerate() {
            let field = |name: &str| format!("containers[{number}].{name}");
            let mut read = RestoredContainer {
                cpus: container.cpus.as_ref().map(|own| own.intersection(cpus)).unwrap_or_default(),
                ..RestoredContainer::default()
            };
            left = left.difference(&read.cpus);
            read.memory.reserve_exact(container.memory.len());
            for block in &container.memory {
                let kind = block.page_size.map_or(MemoryKind::Memory, MemoryKind::HugePages);
                let zones = self.zones(at, &field("memory.zones"), &block.zones);
                let size =
                    self.clamp_to_memory(at, &field("memory.size"), block.size.0, &block.size);
                read.memory.push((kind, zones, size));
            }
            let devices = container.devices.iter().map(|devices| RestoredDevices {
                resource: self.resource(&devices.resource),
                zone: devices.zone,
                count: devices.count,
            });
            read.devices = devices.collect();
            all.push(read);
        }
        if !left.is_empty() {
            all.push(RestoredContainer { cpus: left, ..RestoredContainer::default() });
        }
        all
    }
}
