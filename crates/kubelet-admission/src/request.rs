//! Requests of a pod to the managers, and to the node's totals.

use super::host::{Amounts, KubeletHost};
use super::refusal::Reason;
use crate::pod::{Container, Pod, Resources};

/// A pod with values that are computed once for all its containers.
#[derive(Clone, Copy)]
pub(super) struct Request<'p> {
    pub(super) pod: &'p Pod,
    pub(super) is_guaranteed: bool,
    /// True if the kubelet supports restartable init containers.
    sidecars: bool,
}

/// Lifetime of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// An init container that runs until the next container starts.
    Init,
    /// An init container that keeps running.
    Sidecar,
    #[default]
    App,
}

impl<'p> Request<'p> {
    pub(super) fn new(host: &KubeletHost, pod: &'p Pod) -> Self {
        Self { pod, is_guaranteed: pod.is_guaranteed(), sidecars: host.features.sidecars }
    }

    /// Returns the containers in the order in which the kubelet allocates their resources.
    pub(super) fn containers(self) -> impl Iterator<Item = (&'p Container, Role)> {
        let init = self.pod.init_containers.iter();
        let init =
            init.map(move |c| (c, if self.is_sidecar(c) { Role::Sidecar } else { Role::Init }));
        init.chain(self.pod.containers.iter().map(|c| (c, Role::App)))
    }

    const fn is_sidecar(self, container: &Container) -> bool {
        self.sidecars && container.is_sidecar
    }

    /// Returns the number of exclusive CPUs of a container (`guaranteedCPUs`): integer requests of Guaranteed pods.
    pub(super) const fn cpus(self, container: &Container) -> u64 {
        let millis = container.requests.cpu_millis;
        if self.is_guaranteed && millis.is_multiple_of(1000) { millis / 1000 } else { 0 }
    }

    /// Returns the maximum amount that the containers need at the same time: a sidecar runs at the same time as the
    /// init containers after it and as the containers (KEP-753).
    pub(super) fn most(self, of: impl Fn(&Container) -> u64) -> u64 {
        let (mut init, mut sidecars) = (0u64, 0u64);
        for container in &self.pod.init_containers {
            if self.is_sidecar(container) {
                sidecars = sidecars.saturating_add(of(container));
            } else {
                init = init.max(sidecars.saturating_add(of(container)));
            }
        }
        let apps = self.pod.containers.iter().map(of).fold(sidecars, u64::saturating_add);
        apps.max(init)
    }

    /// Returns the memory that a container gets from its zones, by kind.
    pub(super) fn memory(
        self,
        host: &KubeletHost,
        container: &Container,
    ) -> Result<Amounts, Reason> {
        memory(host, &container.requests)
    }

    /// Returns the memory of all containers, by kind. As in the kubelet (`getPodRequestedResources`), a kind that no
    /// app container requests is left out.
    pub(super) fn pod_memory(self, host: &KubeletHost) -> Result<Amounts, Reason> {
        let mut wanted = Amounts::default();
        for container in &self.pod.containers {
            let own = memory(host, &container.requests)?;
            wanted.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.saturating_add(own));
        }
        for (kind, wanted) in wanted.iter_mut().enumerate().filter(|(_, wanted)| **wanted > 0) {
            let of = |container: &Container| match kind.checked_sub(1) {
                None => container.requests.memory,
                Some(page) => {
                    let page = host.pages.get(page);
                    let pages = page.and_then(|page| container.requests.hugepages.get(page));
                    pages.copied().unwrap_or(0)
                }
            };
            *wanted = self.most(of);
        }
        Ok(wanted)
    }
}

/// Returns the requested memory by kind. The Memory Manager indexes a page size without a check that the host has the
/// size.
fn memory(host: &KubeletHost, requests: &Resources) -> Result<Amounts, Reason> {
    let mut wanted = Amounts::default();
    wanted[0] = requests.memory;
    for (size, &bytes) in requests.hugepages.iter().filter(|&(_, &bytes)| bytes > 0) {
        let kind = host.pages.iter().position(|page| page == size);
        let kind = kind.ok_or(Reason::Crash(
            "the Memory Manager looks up huge pages of a size the host does not have: nil pointer",
        ))?;
        wanted[kind + 1] = bytes;
    }
    Ok(wanted)
}
