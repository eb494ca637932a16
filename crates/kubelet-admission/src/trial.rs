//! A trial of the admission of one pod, on a copy of the allocated resources: topologymanager/scope_*.go.
//!
//! The kubelet allocates resources to one container after the other, init containers first. A container gets its
//! devices, CPUs and memory before the next container gets any. If the kubelet then rejects the pod, it releases the
//! pod's resources before it admits the next pod.

use super::cpu;
use super::cpu_bits::{CompactCpuBits, CpuBits};
use super::devices::{self, DeviceCounts};
use super::grant::{Grant, subtract_reused_memory};
use super::hints::{Affinity, Hints, merge_hints};
use super::host::KubeletHost;
use super::kubelet::{CpuPolicy, MemoryPolicy, TopologyPolicy, TopologyScope};
use super::memory::{self, ReusableMemory, ZoneMemories};
use super::refusal::Reason;
use super::request::{ContainerRole, Request};
use crate::pod::Container;

/// A copy of the allocated resources, to which the resources of the pod's containers are added.
pub(super) struct Trial<'h> {
    host: &'h KubeletHost,
    pub(super) shared_cpus: CpuBits,
    pub(super) memory: ZoneMemories,
    /// Numbers of used devices after the allocations of the trial. Empty until the trial allocates a device, to avoid a
    /// copy.
    pub(super) used_devices_after: DeviceCounts,
    /// Numbers of used devices before the trial.
    used_devices_before: &'h [u32],
    pub(super) grants: Vec<Grant>,
    /// True if the kubelet always makes the same allocation of CPUs and devices.
    pub(super) is_deterministic: bool,
    /// True if the kubelet allocates CPUs that are reserved or in use (see
    /// [`Admission::takes_cpus_in_use`](super::state::Admission::takes_cpus_in_use)).
    pub(super) includes_used_cpus: bool,
    reusable_cpus: CpuBits,
    reusable_memory: ReusableMemory,
    reusable_devices: DeviceCounts,
}

impl<'h> Trial<'h> {
    pub(super) fn new(
        host: &'h KubeletHost,
        shared: CpuBits,
        memory: ZoneMemories,
        used_devices_before: &'h [u32],
    ) -> Self {
        Self {
            host,
            shared_cpus: shared,
            memory,
            used_devices_after: DeviceCounts::new(),
            used_devices_before,
            grants: Vec::new(),
            is_deterministic: true,
            includes_used_cpus: false,
            reusable_cpus: CpuBits::default(),
            reusable_memory: ReusableMemory::default(),
            reusable_devices: DeviceCounts::new(),
        }
    }

    /// For all containers, generates topology hints, merges them and allocates resources. After an error,
    /// [`Self::grants`] contains the resources that were allocated before the error.
    pub(super) fn admit_containers(&mut self, request: Request<'_>) -> Result<(), Reason> {
        let count = request.pod.init_containers.len().saturating_add(request.pod.containers.len());
        self.grants.reserve_exact(count);
        let kubelet = &self.host.kubelet;
        if kubelet.topology_policy == TopologyPolicy::None {
            return request.containers().try_for_each(|(container, role)| {
                self.allocate(request, container, role, Affinity::default())
            });
        }
        match kubelet.topology_scope {
            TopologyScope::Pod => {
                let affinity = merge_hints(self.host, &self.pod_hints(request)?)?;
                request.containers().try_for_each(|(container, role)| {
                    self.allocate(request, container, role, affinity)
                })
            }
            TopologyScope::Container => request.containers().try_for_each(|(container, role)| {
                let affinity = merge_hints(self.host, &self.container_hints(request, container)?)?;
                self.allocate(request, container, role, affinity)
            }),
        }
    }

    /// Returns the numbers of used devices, including the devices that the trial has allocated so far.
    fn used_devices(&self) -> &[u32] {
        if self.used_devices_after.is_empty() {
            self.used_devices_before
        } else {
            &self.used_devices_after
        }
    }

    fn container_hints(
        &self,
        request: Request<'_>,
        container: &Container,
    ) -> Result<Vec<Hints>, Reason> {
        let mut hints = Vec::with_capacity(4);
        for (pool_index, pool, wanted) in
            devices::requested_pools(self.host, &container.limits.extended)
        {
            let (used, reusable) = (self.used_devices(), &self.reusable_devices);
            hints
                .push(devices::generate_hints(self.host, used, reusable, pool_index, pool, wanted));
        }
        if self.host.kubelet.cpu_policy == CpuPolicy::Static {
            let wanted = request.exclusive_cpus(container);
            if wanted > 0 {
                hints.push(cpu::generate_hints(
                    self.host,
                    &self.shared_cpus,
                    &self.reusable_cpus,
                    wanted,
                ));
            }
        }
        if self.is_memory_managed(request) {
            let wanted = request.requested_memory(self.host, container)?;
            self.memory_hints(&wanted, &mut hints);
        }
        Ok(hints)
    }

    /// Returns the topology hints for the whole pod. No resources of init containers are reusable here, because nothing
    /// has been allocated to the pod yet.
    fn pod_hints(&self, request: Request<'_>) -> Result<Vec<Hints>, Reason> {
        let mut hints = Vec::with_capacity(4);
        for (pool_index, pool) in self.host.device_pools.iter().enumerate() {
            let amount = |container: &Container| {
                container.limits.extended.get(&pool.name).copied().unwrap_or(0)
            };
            let wanted = request.max_concurrent_amount(amount);
            if wanted > 0 {
                let used = self.used_devices();
                hints.push(devices::generate_hints(self.host, used, &[], pool_index, pool, wanted));
            }
        }
        if self.host.kubelet.cpu_policy == CpuPolicy::Static {
            let wanted =
                request.max_concurrent_amount(|container| request.exclusive_cpus(container));
            if wanted > 0 {
                hints.push(cpu::generate_hints(
                    self.host,
                    &self.shared_cpus,
                    &CpuBits::default(),
                    wanted,
                ));
            }
        }
        if self.is_memory_managed(request) {
            let wanted = request.pod_memory(self.host)?;
            self.memory_hints(&wanted, &mut hints);
        }
        Ok(hints)
    }

    fn is_memory_managed(&self, request: Request<'_>) -> bool {
        request.is_guaranteed && self.host.kubelet.memory_policy == MemoryPolicy::Static
    }

    /// Adds the Memory Manager's hints once for each requested kind of memory. The hints of all kinds are equal, but
    /// the Topology Manager may combine different hints of different kinds.
    fn memory_hints(&self, wanted: &[u64], hints: &mut Vec<Hints>) {
        let mut amounts = super::host::MemoryAmounts::default();
        amounts.iter_mut().zip(wanted).for_each(|(amount, wanted)| *amount = *wanted);
        let found =
            memory::generate_hints(self.host, &self.memory, &amounts, &self.reusable_memory);
        let kinds = wanted.iter().filter(|&&wanted| wanted > 0).count();
        hints.extend(std::iter::repeat_n(found, kinds));
    }

    /// Allocates devices, then CPUs, and then memory to a container (`allocateAlignedResources`).
    fn allocate(
        &mut self,
        request: Request<'_>,
        container: &Container,
        role: ContainerRole,
        affinity: Affinity,
    ) -> Result<(), Reason> {
        self.grants.push(Grant { role, affinity, ..Grant::default() });
        self.allocate_devices(container, role, affinity)?;
        self.allocate_cpus(request, container, role, affinity)?;
        self.allocate_memory(request, container, role, affinity)
    }

    fn allocate_devices(
        &mut self,
        container: &Container,
        role: ContainerRole,
        affinity: Affinity,
    ) -> Result<(), Reason> {
        let mut device_grants = Vec::new();
        let mut result = Ok(());
        for wanted in devices::requested_pools(self.host, &container.limits.extended) {
            if self.used_devices_after.is_empty() {
                self.used_devices_after = self.used_devices_before.to_vec();
            }
            let (used, reusable) = (&mut self.used_devices_after, &self.reusable_devices);
            match devices::allocate(self.host, used, reusable, affinity.zones, wanted) {
                Ok((grants, is_deterministic)) => {
                    device_grants.extend(grants);
                    self.is_deterministic &= is_deterministic;
                }
                Err(reason) => {
                    result = Err(reason);
                    break;
                }
            }
        }
        let is_init = role == ContainerRole::Init;
        devices::update_reusable(self.host, &mut self.reusable_devices, is_init, &device_grants);
        if let Some(grant) = self.grants.last_mut() {
            grant.devices = device_grants;
        }
        result
    }

    fn allocate_cpus(
        &mut self,
        request: Request<'_>,
        container: &Container,
        role: ContainerRole,
        affinity: Affinity,
    ) -> Result<(), Reason> {
        let wanted = request.exclusive_cpus(container);
        if wanted == 0 || self.host.kubelet.cpu_policy == CpuPolicy::None {
            return Ok(());
        }
        let reusable = &self.reusable_cpus;
        let taken = cpu::allocate(self.host, &self.shared_cpus, affinity.zones, reusable, wanted)?;
        self.is_deterministic &= taken.is_deterministic;
        self.includes_used_cpus |= taken.includes_used_cpus;
        self.shared_cpus = self.shared_cpus.difference(&taken.cpus);
        // The kubelet updates the reusable CPUs in `updateCPUsToReuse`.
        self.reusable_cpus = match role {
            ContainerRole::Init => self.reusable_cpus.union(&taken.cpus),
            ContainerRole::Sidecar | ContainerRole::App => {
                self.reusable_cpus.difference(&taken.cpus)
            }
        };
        if let Some(grant) = self.grants.last_mut() {
            grant.cpus = CompactCpuBits::from(&taken.cpus);
        }
        Ok(())
    }

    fn allocate_memory(
        &mut self,
        request: Request<'_>,
        container: &Container,
        role: ContainerRole,
        affinity: Affinity,
    ) -> Result<(), Reason> {
        if !self.is_memory_managed(request) {
            return Ok(());
        }
        let wanted = request.requested_memory(self.host, container)?;
        let reusable = &self.reusable_memory;
        let blocks = memory::allocate(self.host, &mut self.memory, affinity, &wanted, reusable)?;
        self.reusable_memory.update(role == ContainerRole::Init, &blocks);
        if let Some((grant, before)) = self.grants.split_last_mut() {
            subtract_reused_memory(before, &blocks);
            grant.blocks = blocks;
        }
        Ok(())
    }
}

/// Releases the resources in the grants (`removeStaleState` of the CPU, Memory and Device Managers).
pub(super) fn release(
    host: &KubeletHost,
    grants: &[Grant],
    shared: &mut CpuBits,
    zones: &mut ZoneMemories,
    used_devices: &mut [u32],
) {
    for grant in grants {
        if !grant.cpus.is_empty() {
            *shared = shared.union(&grant.cpus.to_cpu_bits());
        }
        memory::release(zones, &grant.blocks);
        devices::release(host, used_devices, &grant.devices);
    }
}
