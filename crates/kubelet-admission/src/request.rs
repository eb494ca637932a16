//! The amounts that a pod requests from the kubelet's managers and from the node's total resources.

use super::host::{KubeletHost, MemoryAmounts};
use super::refusal::Reason;
use crate::pod::{Container, Pod, Resources};

/// A pod, with properties that are computed once for all its containers.
#[derive(Clone, Copy)]
pub(super) struct Request<'p> {
    pub(super) pod: &'p Pod,
    pub(super) is_guaranteed: bool,
    /// True if the kubelet supports restartable init containers (sidecars).
    supports_sidecars: bool,
}

/// Role of a container in its pod, which determines how long the container runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ContainerRole {
    /// An init container that must end before the next container starts.
    Init,
    /// An init container that continues to run while later containers run.
    Sidecar,
    #[default]
    App,
}

impl<'p> Request<'p> {
    pub(super) fn new(host: &KubeletHost, pod: &'p Pod) -> Self {
        Self {
            pod,
            is_guaranteed: pod.is_guaranteed(),
            supports_sidecars: host.features.supports_sidecars,
        }
    }

    /// Returns the containers with their roles, in the order in which the kubelet allocates their resources.
    pub(super) fn containers(self) -> impl Iterator<Item = (&'p Container, ContainerRole)> {
        let init = self.pod.init_containers.iter();
        let init = init.map(move |c| {
            (c, if self.is_sidecar(c) { ContainerRole::Sidecar } else { ContainerRole::Init })
        });
        init.chain(self.pod.containers.iter().map(|c| (c, ContainerRole::App)))
    }

    const fn is_sidecar(self, container: &Container) -> bool {
        self.supports_sidecars && container.is_sidecar
    }

    /// Returns the number of exclusive CPUs of a container (`guaranteedCPUs`): its CPU request if the pod is Guaranteed
    /// and the request is an integer, otherwise 0.
    pub(super) const fn exclusive_cpus(self, container: &Container) -> u64 {
        let millis = container.requests.cpu_millis;
        if self.is_guaranteed && millis.is_multiple_of(1000) { millis / 1000 } else { 0 }
    }

    /// Returns the largest amount that the pod's containers need at the same time. `amount` returns the amount of one
    /// container. A sidecar runs at the same time as later init containers and as the other containers (KEP-753).
    pub(super) fn max_concurrent_amount(self, amount: impl Fn(&Container) -> u64) -> u64 {
        let (mut init, mut sidecars) = (0u64, 0u64);
        for container in &self.pod.init_containers {
            if self.is_sidecar(container) {
                sidecars = sidecars.saturating_add(amount(container));
            } else {
                init = init.max(sidecars.saturating_add(amount(container)));
            }
        }
        let apps = self.pod.containers.iter().map(amount).fold(sidecars, u64::saturating_add);
        apps.max(init)
    }

    /// Returns the bytes that a container requests, by kind of memory.
    pub(super) fn requested_memory(
        self,
        host: &KubeletHost,
        container: &Container,
    ) -> Result<MemoryAmounts, Reason> {
        memory_by_kind(host, &container.requests)
    }

    /// Returns the bytes that the whole pod needs at the same time, by kind of memory. As in the kubelet
    /// (`getPodRequestedResources`), the amount is 0 for a kind that only init containers request.
    pub(super) fn pod_memory(self, host: &KubeletHost) -> Result<MemoryAmounts, Reason> {
        let mut wanted = MemoryAmounts::default();
        for container in &self.pod.containers {
            let own = memory_by_kind(host, &container.requests)?;
            wanted.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.saturating_add(own));
        }
        for (kind, wanted) in wanted.iter_mut().enumerate().filter(|(_, wanted)| **wanted > 0) {
            let amount = |container: &Container| match kind.checked_sub(1) {
                None => container.requests.memory,
                Some(page) => {
                    let page = host.page_sizes.get(page);
                    let pages = page.and_then(|page| container.requests.hugepages.get(page));
                    pages.copied().unwrap_or(0)
                }
            };
            *wanted = self.max_concurrent_amount(amount);
        }
        Ok(wanted)
    }
}

/// Returns the requested bytes by kind of memory. Returns an error if the host does not have a requested page size,
/// because the kubelet would crash: its Memory Manager accesses the data of this page size without checking whether
/// they exist.
fn memory_by_kind(host: &KubeletHost, requests: &Resources) -> Result<MemoryAmounts, Reason> {
    let mut wanted = MemoryAmounts::default();
    wanted[0] = requests.memory;
    for (size, &bytes) in requests.hugepages.iter().filter(|&(_, &bytes)| bytes > 0) {
        let kind = host.page_sizes.iter().position(|page| page == size);
        let kind = kind.ok_or(Reason::KubeletCrash(
            "the Memory Manager crashes (nil pointer) if a pod requests a huge page size that the host does not have",
        ))?;
        wanted[kind + 1] = bytes;
    }
    Ok(wanted)
}
