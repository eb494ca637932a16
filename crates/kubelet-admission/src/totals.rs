//! The kubelet's last check, that the node's total resources are sufficient for a pod: lifecycle/predicate.go and
//! `Fits` of the scheduler plugin noderesources.

use super::host::KubeletHost;
use super::refusal::Reason;
use super::request::Request;
use crate::pod::{Container, Resources};

/// Sum of the requests of pods: CPU, memory, and `other_amounts`, which are huge pages and then extended resources in
/// the order of the host's allocatable resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestTotals {
    pub(super) cpu_millis: u64,
    pub(super) memory: u64,
    other_amounts: Vec<u64>,
}

impl RequestTotals {
    /// Returns the requests of one pod (`PodRequests`). Resources that are not among the host's allocatable resources
    /// are omitted, because [`check_totals`] does not need them.
    pub(super) fn from_pod(host: &KubeletHost, request: Request<'_>) -> Self {
        let pod = request.pod;
        let sum = |amount: &dyn Fn(&Resources) -> u64| {
            request
                .max_concurrent_amount(|container: &Container| amount(&container.requests))
                .saturating_add(amount(&pod.overhead))
        };
        let wants_others = |resources: &Resources| {
            !resources.hugepages.is_empty() || !resources.extended.is_empty()
        };
        let containers = || pod.init_containers.iter().chain(&pod.containers);
        let has_others = wants_others(&pod.overhead)
            || containers().any(|container| wants_others(&container.requests));
        let mut others = Vec::new();
        if has_others {
            let allocatable = &host.allocatable;
            others.reserve_exact(allocatable.hugepages.len() + allocatable.extended.len());
            for size in allocatable.hugepages.keys() {
                others.push(sum(&|from| from.hugepages.get(size).copied().unwrap_or(0)));
            }
            for name in allocatable.extended.keys() {
                others.push(sum(&|from| from.extended.get(name).copied().unwrap_or(0)));
            }
        }
        Self {
            cpu_millis: sum(&|from| from.cpu_millis),
            memory: sum(&|from| from.memory),
            other_amounts: others,
        }
    }

    /// Returns the requests of a pod for which only the sums over all containers are known.
    pub(super) fn from_resources(host: &KubeletHost, resources: &Resources) -> Self {
        let allocatable = &host.allocatable;
        let pages = allocatable.hugepages.keys();
        let pages = pages.map(|size| resources.hugepages.get(size).copied().unwrap_or(0));
        let extended = allocatable.extended.keys();
        let extended = extended.map(|name| resources.extended.get(name).copied().unwrap_or(0));
        Self {
            cpu_millis: resources.cpu_millis,
            memory: resources.memory,
            other_amounts: pages.chain(extended).collect(),
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.combine(other, u64::saturating_add);
    }

    pub(super) fn subtract(&mut self, other: &Self) {
        self.combine(other, u64::saturating_sub);
    }

    fn combine(&mut self, other: &Self, operation: fn(u64, u64) -> u64) {
        self.cpu_millis = operation(self.cpu_millis, other.cpu_millis);
        self.memory = operation(self.memory, other.memory);
        if self.other_amounts.len() < other.other_amounts.len() {
            self.other_amounts.resize(other.other_amounts.len(), 0);
        }
        for (mine, theirs) in self.other_amounts.iter_mut().zip(&other.other_amounts) {
            *mine = operation(*mine, *theirs);
        }
    }

    fn other_amount(&self, index: usize) -> u64 {
        self.other_amounts.get(index).copied().unwrap_or(0)
    }
}

/// Checks that the pod's requests and those of the other pods do not exceed the node's total resources. If several huge
/// page sizes or extended resources are insufficient, the kubelet names a random one of them; this function names the
/// first in alphabetical order.
pub(super) fn check_totals(
    host: &KubeletHost,
    request: Request<'_>,
    requested: &RequestTotals,
    used: &RequestTotals,
    pods: usize,
    devices: &[u32],
) -> Result<(), Reason> {
    let pods = u64::try_from(pods).unwrap_or(u64::MAX);
    if pods.saturating_add(1) > host.max_pods {
        return insufficient_total("pods", 1, pods, host.max_pods);
    }
    let allocatable = &host.allocatable;
    check_total("cpu", requested.cpu_millis, used.cpu_millis, allocatable.cpu_millis)?;
    check_total("memory", requested.memory, used.memory, allocatable.memory)?;
    // A huge page size that is not allocatable counts as insufficient. As in the kubelet, extended resources that are
    // not allocatable are not checked (`removeMissingExtendedResources`).
    let containers = || request.pod.init_containers.iter().chain(&request.pod.containers);
    let all = containers().map(|container| &container.requests).chain([&request.pod.overhead]);
    for size in all.flat_map(|requests| requests.hugepages.keys()) {
        if !allocatable.hugepages.contains_key(size) {
            let amount = |from: &Resources| from.hugepages.get(size).copied().unwrap_or(0);
            let wanted = request.max_concurrent_amount(|container| amount(&container.requests));
            let wanted = wanted.saturating_add(amount(&request.pod.overhead));
            if wanted > 0 {
                return insufficient_total(&size.resource_name(), wanted, 0, 0);
            }
        }
    }
    for (index, (size, &capacity)) in allocatable.hugepages.iter().enumerate() {
        let (wanted, used) = (requested.other_amount(index), used.other_amount(index));
        if wanted > capacity.saturating_sub(used) {
            return insufficient_total(&size.resource_name(), wanted, used, capacity);
        }
    }
    for (index, (name, &capacity)) in (allocatable.hugepages.len()..).zip(&allocatable.extended) {
        let (wanted, used) = (requested.other_amount(index), used.other_amount(index));
        if wanted > capacity.saturating_sub(used) {
            // If more devices are allocated than the Node reports as allocatable, the kubelet uses the number of
            // allocated devices as the capacity (`sanitizeNodeAllocatable`).
            let capacity = capacity.max(allocated_devices(host, name, devices));
            check_total(name, wanted, used, capacity)?;
        }
    }
    Ok(())
}

/// Returns the number of allocated devices of a resource, including the devices of the pod to be admitted.
fn allocated_devices(host: &KubeletHost, name: &str, devices: &[u32]) -> u64 {
    let zones = host.zones.len() + 1;
    let pool = host.device_pools.iter().position(|pool| pool.name == name);
    let start = pool.map_or(devices.len(), |pool| pool * zones);
    devices.iter().skip(start).take(zones).map(|&count| u64::from(count)).sum()
}

fn check_total(name: &str, wanted: u64, used: u64, capacity: u64) -> Result<(), Reason> {
    if wanted > 0 && wanted > capacity.saturating_sub(used) {
        return insufficient_total(name, wanted, used, capacity);
    }
    Ok(())
}

fn insufficient_total(name: &str, wanted: u64, used: u64, capacity: u64) -> Result<(), Reason> {
    Err(Reason::InsufficientTotal { name: name.to_owned(), wanted, used, capacity })
}
