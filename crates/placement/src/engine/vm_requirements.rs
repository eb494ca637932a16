//! Requirements of VMs in addition to the requirements of all pods.

use berth_api::infra_node::KvmState;
use std::collections::BTreeMap;

use berth_api::{Bytes, Class, PageSize};

use super::reason::Reason;
use crate::inventory::ReportedHost;
use berth_kubelet_admission::pod::{Guest, Pod};
use berth_kubelet_admission::{Admission, CpuPolicy, HostState};

/// Requirements that a VM's pod has for its host. Pods that run no VM have no such requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct VmRequirements {
    /// True if the pod runs a VM. A host without KVM is unsuitable for a VM, unless `is_emulated` is true.
    pub is_vm: bool,
    /// True if QEMU emulates the VM's CPUs instead of using KVM.
    pub is_emulated: bool,
    /// True if the VM has exclusive CPUs. A host with a stale report, or without the CPU Manager policy `static`, is
    /// unsuitable for such a VM.
    pub is_pinned: bool,
    /// Class of the VM, which affects the suitability and the points of hosts.
    pub class: Class,
    /// Guest memory that KubeVirt splits evenly over the zones of the VM's CPUs (`guestMappingPassthrough`), with its
    /// page size; `None` if KubeVirt does not split the memory.
    pub numa_guest_memory: Option<NumaGuestMemory>,
}

/// Guest memory that KubeVirt allocates in the zones of the VM's CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NumaGuestMemory {
    /// Size of the memory in bytes.
    pub memory: u64,
    pub page_size: PageSize,
}

/// Parses the value of the annotation that contains the class of a VM.
#[must_use]
pub fn parse_class(value: &str) -> Option<Class> {
    Some(match value {
        "Performance" => Class::Performance,
        "Density" => Class::Density,
        "Standard" => Class::Standard,
        _ => return None,
    })
}

impl VmRequirements {
    /// Returns the requirements of a VM's pod. If `class` is `None`, the class is derived from the pod's requests.
    #[must_use]
    pub fn for_vm(pod: &Pod, guest: &Guest, class: Option<Class>) -> Self {
        let requests = pod.requests();
        let page = requests.hugepages.iter().find(|(_, bytes)| **bytes > 0).map(|(size, _)| *size);
        let is_overcommitted = page.is_none() && requests.memory < guest.memory;
        let derived_class = match (guest.is_dedicated, is_overcommitted) {
            (true, _) => Class::Performance,
            (false, true) => Class::Density,
            (false, false) => Class::Standard,
        };
        let page = page.unwrap_or(PageSize::MIB_2);
        Self {
            is_vm: true,
            is_emulated: pod.is_emulated(),
            is_pinned: guest.is_dedicated,
            class: class.unwrap_or(derived_class),
            numa_guest_memory: guest
                .has_numa_passthrough
                .then_some(NumaGuestMemory { memory: guest.memory, page_size: page }),
        }
    }

    /// Returns the reason why a host cannot run the VM, independent of the other pods on the host.
    pub(crate) fn host_rejection(&self, host: &ReportedHost) -> Option<Reason> {
        if !self.is_vm {
            return None;
        }
        let kvm = host.kvm_state.filter(|_| !self.is_emulated);
        if let Some(state) = kvm.filter(|state| *state != KvmState::Ready) {
            return Some(Reason::NoKvm(state));
        }
        if let Some(reason) = host.stale_reason.as_ref().filter(|_| self.is_pinned) {
            return Some(Reason::StaleReport(reason.clone()));
        }
        // The kubelet would admit the pod, but would run it on shared CPUs.
        if self.is_pinned && host.admission.kubelet().cpu_policy == CpuPolicy::None {
            return Some(Reason::NoStaticCpuPolicy);
        }
        if self.class == Class::Performance && host.is_ksm_enabled == Some(true) {
            return Some(Reason::MergesPages);
        }
        None
    }

    /// Returns the reason if KubeVirt could not start the VM although the kubelet would admit the pod: each zone of the
    /// VM's CPUs must have enough free memory for its share of the guest's memory, which the kubelet does not check.
    /// `state_before` is the state of the host without the pod.
    ///
    /// If the kubelet does not account for memory by zone, the share of a zone is compared with the total memory of the
    /// zone.
    pub(crate) fn insufficient_zone_memory(
        &self,
        admission: &Admission,
        state_before: &HostState,
    ) -> Option<Reason> {
        let numa = self.numa_guest_memory?;
        let host = state_before.host();
        let shares = (0..MAX_CONTAINERS)
            .map(|at| admission.guest_memory_by_zone(host, at, numa.memory, Some(numa.page_size)))
            .find(|shares| !shares.is_empty())?;
        let count = shares.len();
        let free: BTreeMap<u32, u64> = host
            .zone_numbers()
            .zip(state_before.free_by_zone())
            .map(|(zone, free)| (zone, free.free_and_total_pages(numa.page_size).0))
            .collect();
        shares.into_iter().find_map(|(zone, share)| {
            let free = free.get(&zone).copied().unwrap_or_default();
            let (required, available) = (Bytes(share).to_human_readable(), Bytes(free).to_human_readable());
            let page = numa.page_size;
            (free < share).then(|| {
                Reason::InsufficientZoneMemory(format!(
                    "KubeVirt requires {required} of {page} pages in each of the VM's {count} NUMA zones, and zone {zone} has {available} free"
                ))
            })
        })
    }
}

/// Upper bound for the number of containers of a launcher pod, far above the real number.
const MAX_CONTAINERS: usize = 64;
