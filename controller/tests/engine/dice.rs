//! Generates random fleets, pods and reports from bytes, so that a failing case shrinks to fewer and smaller bytes.

use berth_api::infra_node::{AllocatedHugepages, Allocation, KvmState};
use berth_api::{Class, CpuSet, PageSize};
use berth_kubelet_admission::State;

use super::allocation::allocation;
use super::host::{HostForm, ZoneForm};
use super::pod::{AffinityForm, ContainerForm, PodForm, PreferForm, SpreadForm};

/// Bytes that are read in sequence. After the last byte, zeros are read.
#[derive(Debug)]
pub(crate) struct Dice<'a> {
    bytes: &'a [u8],
}

const ZONE: &str = "zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const APPS: [&str; 3] = ["web", "db", "job"];

impl<'a> Dice<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        usize::from(*first) % limit.max(1)
    }

    /// Returns true in one of `one_in` cases.
    pub(crate) fn rarely(&mut self, one_in: usize) -> bool {
        self.below(one_in) == one_in - 1
    }

    pub(crate) fn choose<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub(crate) fn host(&mut self, at: usize) -> HostForm {
        let zones = self.choose(&[2, 1, 2, 3, 4]);
        let threads = self.choose(&[1, 2]);
        let zone = ZoneForm {
            cpus: self.choose(&[4, 6, 8, 12]),
            memory: self.choose(&[8, 16, 12]),
            huge: self.choose(&[4, 0, 6, 2]),
            small: self.choose(&[0, 512, 1024]),
        };
        let mut form = HostForm {
            name: format!("host-{at}"),
            zones: vec![zone; zones],
            threads,
            pins: !self.rarely(8),
            keeps_memory: !self.rarely(3),
            policy: self
                .choose(&["single-numa-node", "restricted", "best-effort", "none"])
                .to_owned(),
            scope: self.choose(&["pod", "container"]).to_owned(),
            options: if self.rarely(3) { vec!["full-pcpus-only".to_owned()] } else { Vec::new() },
            version: self.choose(&["v1.36.0", "v1.27.3", "v1.31.0"]).to_owned(),
            class: self.class(),
            max_pods: self.choose(&[110, 110, 3]),
            kvm_devices: self.choose(&[1000, 1000, 2]),
            vfs: (0..zones).map(|_| self.choose(&[0, 2, 4])).collect(),
            hides_devices: self.rarely(6),
            ..HostForm::default()
        };
        if self.rarely(4) {
            // The last zone has only memory, or is a larger zone.
            let last = form.zones.len() - 1;
            form.zones[last].cpus = if last > 0 && self.rarely(2) { 0 } else { 16 };
        }
        form.labels.insert(ZONE.to_owned(), self.choose(&["a", "b", "c"]).to_owned());
        if self.rarely(4) {
            form.labels.remove(ZONE);
        }
        self.change(&mut form);
        form
    }

    fn class(&mut self) -> Class {
        self.choose(&[Class::Standard, Class::Performance, Class::Density])
    }

    /// Changes the properties of a host that can change without a reboot.
    pub(crate) fn change(&mut self, form: &mut HostForm) {
        form.cordoned = self.rarely(10);
        form.stale = self.rarely(8);
        form.ksm = self.choose(&[Some(false), Some(true), None]);
        form.kvm = self.choose(&[Some(KvmState::Ready), Some(KvmState::Ready), None]);
        if self.rarely(10) {
            form.kvm = Some(KvmState::DisabledInFirmware);
        }
        form.taints = match self.below(6) {
            4 => vec!["special:NoSchedule".to_owned()],
            5 => vec!["special:PreferNoSchedule".to_owned()],
            _ => Vec::new(),
        };
        if self.rarely(6) {
            form.labels.insert("fast".to_owned(), "yes".to_owned());
        }
    }

    pub(crate) fn pod(&mut self, name: String) -> PodForm {
        let app = self.choose(&APPS);
        let mut form = PodForm {
            name,
            plain: self.rarely(3),
            emulated: self.rarely(6),
            cpus: self.choose(&[2, 1, 4, 0, 8, 6]),
            millis: 500,
            memory: self.choose(&[None, Some(2), Some(5)]),
            huge: self.choose(&[0, 1, 2, 5]),
            small: self.choose(&[0, 0, 512]),
            class: self.class(),
            numa: self.rarely(4),
            ..PodForm::default()
        };
        form.labels.insert("app".to_owned(), app.to_owned());
        if form.cpus > 0 && !form.plain && !self.rarely(3) {
            // This is a typical VM: KubeVirt logs the guest's console in an additional container, and the VM may
            // have a virtual function.
            form.beside.push(ContainerForm { millis: 15, memory: 60, first: true, sidecar: true });
            form.vfs = self.choose(&[0, 1, 1, 2]);
        } else if self.rarely(3) {
            let beside = ContainerForm {
                millis: self.choose(&[100, 1000, 2000, 4000]),
                memory: self.choose(&[64, 1024]),
                first: self.rarely(2),
                sidecar: self.rarely(2),
            };
            form.beside.push(beside);
        }
        if self.rarely(5) {
            form.selector.insert(ZONE.to_owned(), self.choose(&["a", "b"]).to_owned());
        }
        if self.rarely(3) {
            form.tolerates.push("special".to_owned());
        }
        let by = self.choose(&[HOSTNAME, ZONE]).to_owned();
        let weight = self.choose(&[None, Some(100), Some(1)]);
        let near = AffinityForm { app: self.choose(&APPS).to_owned(), by: by.clone(), weight };
        match self.below(8) {
            4 => form.apart.push(near),
            5 => form.together.push(near),
            6 | 7 => {
                let (max, soft) = (self.choose(&[1, 2]), self.rarely(2));
                form.spread.push(SpreadForm { by, max, soft });
            }
            _ => {}
        }
        if self.rarely(5) {
            let (label, value, weight) = ("fast".to_owned(), "yes".to_owned(), 10);
            form.prefer.push(PreferForm { label, value, weight });
        }
        form
    }

    /// Generates a report with some allocations of a host, and with pods that only the report contains. Such a pod may
    /// have the same CPUs as an assumed pod, if the report lacks the assumed pod because the kubelet has not started it
    /// yet.
    pub(crate) fn report(&mut self, form: &mut HostForm, state: &State, assumed: &[String]) {
        let known: Vec<Allocation> = std::mem::take(&mut form.has);
        for uid in assumed {
            if self.rarely(2)
                && let Some(mut allocation) = allocation(state, uid)
            {
                if self.rarely(3) {
                    // This is the report of an agent that only reports sums.
                    allocation.containers.clear();
                }
                form.has.push(allocation);
            }
        }
        let strangers = known.into_iter().filter(|one| one.pod_uid.starts_with("stranger"));
        form.has.extend(strangers.filter(|_| self.rarely(2)));
        if self.rarely(3) {
            let stranger = self.stranger(form);
            form.has.push(stranger);
        }
    }

    fn stranger(&mut self, form: &HostForm) -> Allocation {
        let taken: CpuSet =
            form.has.iter().filter_map(|one| one.cpus.as_ref()).flat_map(CpuSet::iter).collect();
        let at = self.below(form.zones.len());
        let reserved = form.reserved();
        let mut free: Vec<u32> = form.threads()[at].concat();
        free.retain(|cpu| !taken.contains(*cpu) && !reserved.contains(cpu));
        free.truncate(self.below(5));
        let zone = u32::try_from(at).unwrap_or(0);
        let used: u64 = form.has.iter().flat_map(|one| &one.hugepages).map(|one| one.count).sum();
        let free_pages = form.zones[at].huge.saturating_sub(used);
        let count = if form.keeps_memory { free_pages.min(self.below(3) as u64) } else { 0 };
        Allocation {
            pod_uid: format!("stranger-{}", self.below(200)),
            cpus: (form.pins && !free.is_empty()).then(|| free.into_iter().collect()),
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
