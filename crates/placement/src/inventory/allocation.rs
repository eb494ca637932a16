//! Allocations of a kubelet by pod, as the agent reports them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::infra_node::Allocation as Reported;
use berth_api::{CpuSet, InfraNodeStatus, PageSize, Problem};

use berth_kubelet_admission::pod::{Pod, Resources};
use berth_kubelet_admission::{MemoryKind, ReportedContainer, ReportedDevices, ReportedPod};

/// Resources allocated to one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Field `metadata.uid`.
    pub uid: String,
    /// Namespace and name of the pod; `None` if the report does not contain them.
    pub name: Option<String>,
    /// Exclusive CPUs of the pod's containers.
    pub cpus: CpuSet,
    /// Zones in which the pod has CPUs or memory.
    pub zones: Vec<u32>,
    /// Huge pages in bytes, by page size.
    pub hugepages: Vec<(PageSize, u64)>,
    /// Memory in bytes that the Memory Manager guarantees to the pod, without huge pages.
    pub memory: u64,
    /// Number of devices, by the name of the resource.
    pub devices: Vec<(Arc<str>, u32)>,
    /// Resources of each container, with their zones; empty if the report has only the pod's sums.
    reported_containers: Vec<ReportedContainer>,
    /// True if the pod's memory is in several zones and the report does not show how much is in each zone. Agents that
    /// report only the sums of a pod send such reports.
    pub has_unknown_zones: bool,
    /// True if the pod has a control group; `None` if the report does not contain this information.
    pub has_control_group: Option<bool>,
}

impl Allocation {
    /// Returns true if the pod does not use the allocation: the kubelet has not created the pod's control group yet, or
    /// it has removed the control group after the pod ended, and has released the exclusive CPUs.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.has_control_group == Some(false) && self.cpus.is_empty()
    }

    /// Returns the requests of the pod that count in the Node's totals, as far as the report contains them.
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

    /// Returns the resources of each container, with their zones. If the report has only the pod's sums, returns these
    /// as one container.
    #[must_use]
    pub fn containers(&self) -> Cow<'_, [ReportedContainer]> {
        if self.reported_containers.is_empty() {
            Cow::Owned(vec![self.to_single_container()])
        } else {
            Cow::Borrowed(&self.reported_containers)
        }
    }

    /// Converts the allocation to the form in which [`berth_kubelet_admission`] restores it. If the pod is known, its
    /// own requests count in the Node's totals, because they are more accurate than the report.
    pub fn to_restored(&self, pod: Option<&Pod>) -> ReportedPod {
        let requests = pod.map_or_else(|| self.requests(), Pod::requests);
        ReportedPod { containers: self.containers().into_owned(), requests }
    }

    /// Returns the sums of the allocation as the resources of a single container.
    fn to_single_container(&self) -> ReportedContainer {
        let block = |kind, bytes: u64| (bytes > 0).then(|| (kind, self.zones.clone(), bytes));
        let pages =
            self.hugepages.iter().map(|(size, bytes)| (MemoryKind::HugePages(*size), *bytes));
        let kinds = [(MemoryKind::Memory, self.memory)].into_iter().chain(pages);
        let devices = |(name, count): &(Arc<str>, u32)| ReportedDevices {
            resource: Arc::clone(name),
            zone: None,
            count: *count,
        };
        ReportedContainer {
            cpus: self.cpus.clone(),
            memory: kinds.filter_map(|(kind, bytes)| block(kind, bytes)).collect(),
            devices: self.devices.iter().map(devices).collect(),
        }
    }
}

/// Reads the allocations in a report. An invalid allocation is added to `problems`, but its valid resources still count
/// as allocated.
pub(super) fn read_allocations(
    object: &str,
    status: &InfraNodeStatus,
    problems: &mut Vec<Problem>,
) -> Vec<Allocation> {
    let mut by_uid: BTreeMap<String, Allocation> = BTreeMap::new();
    let total_memory =
        status.zones.iter().try_fold(0_u64, |sum, zone| sum.checked_add(zone.memory?.0));
    let mut reader = AllocationReader {
        object,
        status,
        problems,
        online_cpus: status
            .zones
            .iter()
            .filter_map(|z| z.cpus.as_ref())
            .flat_map(CpuSet::iter)
            .collect(),
        allocated_cpus: CpuSet::new(),
        resource_names: BTreeSet::new(),
        total_memory: total_memory.unwrap_or(u64::MAX),
    };
    for (at, reported) in status.allocations.iter().enumerate() {
        let read = reader.read_allocation(at, reported);
        match by_uid.get_mut(&reported.pod_uid) {
            Some(all) => {
                let message = "is listed twice; the resources of both entries count as allocated";
                reader.report_problem(at, "podUID", &reported.pod_uid, message);
                all.add(read);
            }
            None => drop(by_uid.insert(reported.pod_uid.clone(), read)),
        }
    }
    by_uid.into_values().collect()
}

impl Allocation {
    /// Adds the resources of another entry for the same pod.
    fn add(&mut self, other: Self) {
        let mut containers = self.containers().into_owned();
        containers.extend(other.containers().into_owned());
        self.reported_containers = containers;
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
        self.has_unknown_zones |= other.has_unknown_zones;
        if other.has_control_group != Some(false) {
            self.has_control_group = other.has_control_group;
        }
    }
}

/// Sums the values that have the same key. The returned vector has no spare capacity, because a fleet needs one vector
/// for each pod.
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
struct AllocationReader<'a> {
    object: &'a str,
    status: &'a InfraNodeStatus,
    problems: &'a mut Vec<Problem>,
    online_cpus: CpuSet,
    /// CPUs of the allocations that have been read.
    allocated_cpus: CpuSet,
    /// Names of resources. Each name is stored once and shared by the allocations.
    resource_names: BTreeSet<Arc<str>>,
    /// Memory of all zones in bytes. An allocation with more memory is invalid.
    total_memory: u64,
}

impl AllocationReader<'_> {
    fn report_problem(
        &mut self,
        index: usize,
        field: &str,
        value: &dyn std::fmt::Display,
        message: &str,
    ) {
        let field = format!("status.allocations[{index}].{field}");
        self.problems.push(Problem::new(self.object, field, value, message));
    }

    fn read_allocation(&mut self, index: usize, reported: &Reported) -> Allocation {
        let own = reported.containers.iter().filter_map(|container| container.cpus.as_ref());
        let cpus = own.fold(reported.cpus.clone().unwrap_or_default(), |all, own| all.union(own));
        let cpus = self.validate_cpus(index, cpus);
        let zones = self.validate_zones(index, "zones", &reported.zones);
        let mut hugepages = Vec::with_capacity(reported.hugepages.len());
        for pages in &reported.hugepages {
            let bytes = pages.count.saturating_mul(pages.size.bytes());
            let bytes = self.clamp_to_memory(index, "hugepages", bytes, &pages.count);
            hugepages.push((pages.size, bytes));
        }
        let memory = reported.memory.unwrap_or_default();
        let memory = self.clamp_to_memory(index, "memory", memory.0, &memory);
        let devices = reported.devices.iter();
        let devices: Vec<_> =
            devices.map(|one| (self.intern_resource_name(&one.resource), one.count)).collect();
        let name_parts =
            reported.namespace.iter().chain(&reported.pod).cloned().collect::<Vec<_>>();
        let mut read = Allocation {
            uid: reported.pod_uid.clone(),
            name: (!name_parts.is_empty()).then(|| name_parts.join("/")),
            cpus,
            zones,
            hugepages: sum_by_key(hugepages, u64::saturating_add),
            memory,
            devices: sum_by_key(devices, u32::saturating_add),
            has_control_group: reported.has_control_group,
            ..Allocation::default()
        };
        if reported.containers.is_empty() {
            let has_memory = read.memory > 0 || !read.hugepages.is_empty();
            read.has_unknown_zones = has_memory && read.zones.len() > 1;
        } else {
            read.reported_containers = self.read_containers(index, reported, &read.cpus);
        }
        read
    }

    fn intern_resource_name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.resource_names.get(name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = name.into();
        self.resource_names.insert(Arc::clone(&new));
        new
    }

    /// Returns `cpus` without the CPUs that are in no zone and without those of earlier allocations. Reports the
    /// removed CPUs as problems.
    fn validate_cpus(&mut self, index: usize, mut cpus: CpuSet) -> CpuSet {
        let unknown_cpus = cpus.difference(&self.online_cpus);
        if !unknown_cpus.is_empty() {
            self.report_problem(
                index,
                "cpus",
                &unknown_cpus,
                "is in no NUMA zone of this host; ignored",
            );
            cpus = cpus.difference(&unknown_cpus);
        }
        let duplicate_cpus = cpus.intersection(&self.allocated_cpus);
        if !duplicate_cpus.is_empty() {
            self.report_problem(
                index,
                "cpus",
                &duplicate_cpus,
                "also belongs to another allocation; counted once",
            );
            cpus = cpus.difference(&duplicate_cpus);
        }
        self.allocated_cpus = self.allocated_cpus.union(&cpus);
        cpus
    }

    fn validate_zones(&mut self, index: usize, field: &str, zones: &[u32]) -> Vec<u32> {
        let exists = |zone: &u32| self.status.zones.iter().any(|other| other.id == *zone);
        let (known, unknown): (Vec<u32>, Vec<u32>) = zones.iter().copied().partition(exists);
        for zone in unknown {
            self.report_problem(index, field, &zone, "is not a NUMA zone of this host");
        }
        known
    }

    fn clamp_to_memory(
        &mut self,
        index: usize,
        field: &str,
        bytes: u64,
        reported_value: &dyn std::fmt::Display,
    ) -> u64 {
        if bytes > self.total_memory {
            self.report_problem(
                index,
                field,
                reported_value,
                "exceeds the host's memory; counted as the host's total memory",
            );
        }
        bytes.min(self.total_memory)
    }

    fn read_containers(
        &mut self,
        index: usize,
        reported: &Reported,
        cpus: &CpuSet,
    ) -> Vec<ReportedContainer> {
        let mut all = Vec::with_capacity(reported.containers.len());
        let mut remaining_cpus = cpus.clone();
        for (number, container) in reported.containers.iter().enumerate() {
            let field = |name: &str| format!("containers[{number}].{name}");
            let mut read = ReportedContainer {
                cpus: container.cpus.as_ref().map(|own| own.intersection(cpus)).unwrap_or_default(),
                ..ReportedContainer::default()
            };
            remaining_cpus = remaining_cpus.difference(&read.cpus);
            read.memory.reserve_exact(container.memory.len());
            for block in &container.memory {
                let kind = block.page_size.map_or(MemoryKind::Memory, MemoryKind::HugePages);
                let zones = self.validate_zones(index, &field("memory.zones"), &block.zones);
                let size =
                    self.clamp_to_memory(index, &field("memory.size"), block.size.0, &block.size);
                read.memory.push((kind, zones, size));
            }
            let devices = container.devices.iter().map(|devices| ReportedDevices {
                resource: self.intern_resource_name(&devices.resource),
                zone: devices.zone,
                count: devices.count,
            });
            read.devices = devices.collect();
            all.push(read);
        }
        if !remaining_cpus.is_empty() {
            all.push(ReportedContainer { cpus: remaining_cpus, ..ReportedContainer::default() });
        }
        all
    }
}
