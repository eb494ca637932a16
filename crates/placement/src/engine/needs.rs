//! What a VM needs of a host beyond what every pod does.

use berth_api::infra_node::KvmState;
use std::collections::BTreeMap;

use berth_api::{Bytes, Class, PageSize};

use super::reason::Reason;
use crate::inventory::HostFacts;
use berth_kubelet_admission::pod::{Guest, Pod};
use berth_kubelet_admission::{Admission, CpuPolicy, State};

/// What a VM needs of a host; a pod that is none needs nothing of this.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Needs {
    /// Whether it is a VM, and so needs KVM.
    pub is_vm: bool,
    /// Whether it runs without KVM after all.
    pub is_emulated: bool,
    /// Whether it has CPUs of its own, so that only a fresh report will do.
    pub is_pinned: bool,
    /// What it is.
    pub class: Class,
    /// Guest memory that KubeVirt spreads evenly over the zones of its CPUs (`guestMappingPassthrough`), and its pages.
    pub numa: Option<Numa>,
}

/// Guest memory that must be where the CPUs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numa {
    /// Bytes.
    pub memory: u64,
    /// What it is made of.
    pub page: PageSize,
}

/// The class of a name, as annotations have it.
#[must_use]
pub fn class_named(word: &str) -> Option<Class> {
    Some(match word {
        "Performance" => Class::Performance,
        "Density" => Class::Density,
        "Standard" => Class::Standard,
        _ => return None,
    })
}

impl Needs {
    /// What the pod of a VM needs. Without a class it is told by its shape.
    #[must_use]
    pub fn of_vm(pod: &Pod, guest: &Guest, class: Option<Class>) -> Self {
        let requests = pod.requests();
        let page = requests.hugepages.iter().find(|(_, bytes)| **bytes > 0).map(|(size, _)| *size);
        let is_overcommitted = page.is_none() && requests.memory < guest.memory;
        let by_shape = match (guest.is_dedicated, is_overcommitted) {
            (true, _) => Class::Performance,
            (false, true) => Class::Density,
            (false, false) => Class::Standard,
        };
        let page = page.unwrap_or(PageSize::MIB_2);
        Self {
            is_vm: true,
            is_emulated: pod.is_emulated(),
            is_pinned: guest.is_dedicated,
            class: class.unwrap_or(by_shape),
            numa: guest.is_mapped.then_some(Numa { memory: guest.memory, page }),
        }
    }

    /// What of a host speaks against it for good; nothing of this changes by pods that come and go.
    pub(crate) fn unmet(&self, host: &HostFacts) -> Option<Reason> {
        if !self.is_vm {
            return None;
        }
        let kvm = host.kvm.filter(|_| !self.is_emulated);
        if let Some(state) = kvm.filter(|state| *state != KvmState::Ready) {
            return Some(Reason::NoKvm(state));
        }
        if let Some(why) = host.stale.as_ref().filter(|_| self.is_pinned) {
            return Some(Reason::Stale(why.clone()));
        }
        // The kubelet would take it, and have it share its CPUs.
        if self.is_pinned && host.admission.kubelet().cpu_policy == CpuPolicy::None {
            return Some(Reason::SharesCpus);
        }
        if self.class == Class::Performance && host.merges_pages == Some(true) {
            return Some(Reason::MergesPages);
        }
        None
    }

    /// What of an admission speaks against it, that the kubelet does not look at: each zone of its CPUs must have its
    /// part of the guest's memory. `before` is the host without it.
    ///
    /// Where the kubelet keeps no account of memory by zone, a zone is only known to be too small as a whole.
    pub(crate) fn unmet_by(&self, admission: &Admission, before: &State) -> Option<Reason> {
        let numa = self.numa?;
        let host = before.host();
        let shares = (0..CONTAINERS)
            .map(|at| admission.guest_memory(host, at, numa.memory, Some(numa.page)))
            .find(|shares| !shares.is_empty())?;
        let count = shares.len();
        let free: BTreeMap<u32, u64> = host
            .zone_numbers()
            .zip(before.free_by_zone())
            .map(|(zone, free)| (zone, free.pages(numa.page).0))
            .collect();
        shares.into_iter().find_map(|(zone, share)| {
            let free = free.get(&zone).copied().unwrap_or_default();
            let (wanted, there) = (Bytes(share).human(), Bytes(free).human());
            let page = numa.page;
            (free < share).then(|| {
                Reason::Numa(format!(
                    "KubeVirt would need {wanted} of {page} pages in each of its {count} zones, and zone {zone} has {there}"
                ))
            })
        })
    }
}

/// More than a launcher pod has.
const CONTAINERS: usize = 64;
