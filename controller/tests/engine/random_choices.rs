//! Generates random fleets, pods and reports from bytes, so that a failing case shrinks to fewer and smaller bytes.

use berth_api::infra_node::{AllocatedHugepages, Allocation, KvmState};
use berth_api::{Class, CpuSet, PageSize};
use berth_kubelet_admission::HostState;

use super::allocation::reported_allocation;
use super::host::{HostDescription, ZoneDescription};
use super::pod::{
    AffinityDescription, ContainerDescription, PodDescription, PreferenceDescription,
    SpreadDescription,
};

/// Random choices that are derived from bytes, one byte for each choice. After the last byte, each choice is derived
/// from a zero.
#[derive(Debug)]
pub(crate) struct RandomChoices<'a> {
    bytes: &'a [u8],
}

const ZONE_LABEL: &str = "zone";
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
const APPS: [&str; 3] = ["web", "db", "job"];

impl<'a> RandomChoices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn next_below(&mut self, limit: usize) -> usize {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        usize::from(*first) % limit.max(1)
    }

    /// Returns true with a probability of 1 in `one_in`.
    pub(crate) fn is_one_in(&mut self, one_in: usize) -> bool {
        self.next_below(one_in) == one_in - 1
    }

    pub(crate) fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.next_below(all.len())]
    }

    pub(crate) fn random_host(&mut self, at: usize) -> HostDescription {
        let zones = self.choose(&[2, 1, 2, 3, 4]);
        let threads = self.choose(&[1, 2]);
        let zone = ZoneDescription {
            cpus: self.choose(&[4, 6, 8, 12]),
            memory: self.choose(&[8, 16, 12]),
            huge_pages_gib: self.choose(&[4, 0, 6, 2]),
            small_pages_mib: self.choose(&[0, 512, 1024]),
        };
        let mut description = HostDescription {
            name: format!("host-{at}"),
            zones: vec![zone; zones],
            threads,
            has_static_cpu_policy: !self.is_one_in(8),
            has_static_memory_policy: !self.is_one_in(3),
            topology_policy: self
                .choose(&["single-numa-node", "restricted", "best-effort", "none"])
                .to_owned(),
            topology_scope: self.choose(&["pod", "container"]).to_owned(),
            cpu_manager_options: if self.is_one_in(3) {
                vec!["full-pcpus-only".to_owned()]
            } else {
                Vec::new()
            },
            kubelet_version: self.choose(&["v1.36.0", "v1.27.3", "v1.31.0"]).to_owned(),
            class: self.random_class(),
            max_pods: self.choose(&[110, 110, 3]),
            kvm_devices: self.choose(&[1000, 1000, 2]),
            vfs: (0..zones).map(|_| self.choose(&[0, 2, 4])).collect(),
            omits_devices: self.is_one_in(6),
            ..HostDescription::default()
        };
        if self.is_one_in(4) {
            // The last zone has only memory, or more CPUs than the others.
            let last = description.zones.len() - 1;
            description.zones[last].cpus = if last > 0 && self.is_one_in(2) { 0 } else { 16 };
        }
        description.labels.insert(ZONE_LABEL.to_owned(), self.choose(&["a", "b", "c"]).to_owned());
        if self.is_one_in(4) {
            description.labels.remove(ZONE_LABEL);
        }
        self.change_host(&mut description);
        description
    }

    fn random_class(&mut self) -> Class {
        self.choose(&[Class::Standard, Class::Performance, Class::Density])
    }

    /// Changes the properties of a host that can change without a reboot.
    pub(crate) fn change_host(&mut self, description: &mut HostDescription) {
        description.is_cordoned = self.is_one_in(10);
        description.is_stale = self.is_one_in(8);
        description.ksm = self.choose(&[Some(false), Some(true), None]);
        description.kvm = self.choose(&[Some(KvmState::Ready), Some(KvmState::Ready), None]);
        if self.is_one_in(10) {
            description.kvm = Some(KvmState::DisabledInFirmware);
        }
        description.taints = match self.next_below(6) {
            4 => vec!["special:NoSchedule".to_owned()],
            5 => vec!["special:PreferNoSchedule".to_owned()],
            _ => Vec::new(),
        };
        if self.is_one_in(6) {
            description.labels.insert("fast".to_owned(), "yes".to_owned());
        }
    }

    pub(crate) fn random_pod(&mut self, name: String) -> PodDescription {
        let app = self.choose(&APPS);
        let mut description = PodDescription {
            name,
            is_plain_pod: self.is_one_in(3),
            is_emulated: self.is_one_in(6),
            cpus: self.choose(&[2, 1, 4, 0, 8, 6]),
            millis: 500,
            memory: self.choose(&[None, Some(2), Some(5)]),
            huge_pages_gib: self.choose(&[0, 1, 2, 5]),
            small_pages_mib: self.choose(&[0, 0, 512]),
            class: self.random_class(),
            has_numa_passthrough: self.is_one_in(4),
            ..PodDescription::default()
        };
        description.labels.insert("app".to_owned(), app.to_owned());
        if description.cpus > 0 && !description.is_plain_pod && !self.is_one_in(3) {
            // This is a typical VM: KubeVirt logs the guest's console in an additional container, and the VM may
            // have a virtual function.
            description.additional_containers.push(ContainerDescription {
                millis: 15,
                memory: 60,
                is_init: true,
                is_sidecar: true,
            });
            description.vfs = self.choose(&[0, 1, 1, 2]);
        } else if self.is_one_in(3) {
            let beside = ContainerDescription {
                millis: self.choose(&[100, 1000, 2000, 4000]),
                memory: self.choose(&[64, 1024]),
                is_init: self.is_one_in(2),
                is_sidecar: self.is_one_in(2),
            };
            description.additional_containers.push(beside);
        }
        if self.is_one_in(5) {
            description
                .node_selector
                .insert(ZONE_LABEL.to_owned(), self.choose(&["a", "b"]).to_owned());
        }
        if self.is_one_in(3) {
            description.tolerated_taints.push("special".to_owned());
        }
        let by = self.choose(&[HOSTNAME_LABEL, ZONE_LABEL]).to_owned();
        let weight = self.choose(&[None, Some(100), Some(1)]);
        let near = AffinityDescription {
            app: self.choose(&APPS).to_owned(),
            topology_key: by.clone(),
            weight,
        };
        match self.next_below(8) {
            4 => description.anti_affinities.push(near),
            5 => description.affinities.push(near),
            6 | 7 => {
                let (max, soft) = (self.choose(&[1, 2]), self.is_one_in(2));
                description.spread.push(SpreadDescription {
                    topology_key: by,
                    max_skew: max,
                    is_soft: soft,
                });
            }
            _ => {}
        }
        if self.is_one_in(5) {
            let (label, value, weight) = ("fast".to_owned(), "yes".to_owned(), 10);
            description.preferences.push(PreferenceDescription { label, value, weight });
        }
        description
    }

    /// Replaces the allocations in the report of a host by some allocations of assumed pods, and by pods that only the
    /// report contains. The latter may have the CPUs of an assumed pod that the report lacks because the kubelet has
    /// not started it yet.
    pub(crate) fn change_report(
        &mut self,
        description: &mut HostDescription,
        state: &HostState,
        assumed: &[String],
    ) {
        let known: Vec<Allocation> = std::mem::take(&mut description.allocations);
        for uid in assumed {
            if self.is_one_in(2)
                && let Some(mut allocation) = reported_allocation(state, uid)
            {
                if self.is_one_in(3) {
                    // Old agents report only the sums of a pod.
                    allocation.containers.clear();
                }
                description.allocations.push(allocation);
            }
        }
        let strangers = known.into_iter().filter(|one| one.pod_uid.starts_with("stranger"));
        description.allocations.extend(strangers.filter(|_| self.is_one_in(2)));
        if self.is_one_in(3) {
            let stranger = self.unknown_allocation(description);
            description.allocations.push(stranger);
        }
    }

    fn unknown_allocation(&mut self, description: &HostDescription) -> Allocation {
        let taken: CpuSet = description
            .allocations
            .iter()
            .filter_map(|one| one.cpus.as_ref())
            .flat_map(CpuSet::iter)
            .collect();
        let at = self.next_below(description.zones.len());
        let reserved = description.reserved_cpus();
        let mut free: Vec<u32> = description.cpus_by_zone_and_thread()[at].concat();
        free.retain(|cpu| !taken.contains(*cpu) && !reserved.contains(cpu));
        free.truncate(self.next_below(5));
        let zone = u32::try_from(at).unwrap_or(0);
        let used: u64 = description
            .allocations
            .iter()
            .flat_map(|one| &one.hugepages)
            .map(|one| one.count)
            .sum();
        let free_pages = description.zones[at].huge_pages_gib.saturating_sub(used);
        let count = if description.has_static_memory_policy {
            free_pages.min(self.next_below(3) as u64)
        } else {
            0
        };
        Allocation {
            pod_uid: format!("stranger-{}", self.next_below(200)),
            cpus: (description.has_static_cpu_policy && !free.is_empty())
                .then(|| free.into_iter().collect()),
            zones: vec![zone],
            hugepages: if count > 0 {
                vec![AllocatedHugepages { size: PageSize::GIB_1, count }]
            } else {
                Vec::new()
            },
            ..Allocation::default()
        }
    }
}
