//! Resources that a kubelet has allocated to pods, and how they change when a pod is admitted, started or removed.

use std::sync::Arc;

use berth_api::{CpuSet, PageSize};

use super::cpu_bits::{CompactCpuBits, CpuBits};
use super::devices::{self, DeviceGrant};
use super::grant::Grant;
use super::hints::Affinity;
use super::host::KubeletHost;
use super::kubelet::{CpuPolicy, MemoryPolicy};
use super::memory::{self, Block, MemoryKind, ZoneMemories, ZoneMemory};
use super::refusal::{Reason, Refusal};
use super::request::{ContainerRole, Request};
use super::totals::{self, RequestTotals};
use super::trial::{self, Trial};
use super::uid_map::UidMap;
use crate::pod::{Pod, Resources};

/// The pods of one host, and the resources that are allocated to them.
#[derive(Clone, Debug)]
pub struct HostState {
    host: Arc<KubeletHost>,
    /// CPUs on which containers without exclusive CPUs run: `defaultCpuSet` of the CPU Manager.
    pub(super) shared_cpus: CpuBits,
    /// Memory of the zones for which the Memory Manager accounts: at most the first
    /// [`MAX_HINT_ZONES`](super::zones::MAX_HINT_ZONES), and none without the policy `Static`.
    pub(super) memory: Box<[ZoneMemory]>,
    pub(super) devices: Box<[u32]>,
    /// Sum of the requests of all pods.
    used_totals: RequestTotals,
    pods: UidMap<Admission>,
}

/// Resources that the kubelet allocates to a pod when it admits the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    pub(super) grants: Vec<Grant>,
    totals: RequestTotals,
    is_deterministic: bool,
    includes_used_cpus: bool,
    /// Names of the pod's containers, in order. They are stored only if the pod has init containers with memory,
    /// because this memory is released when later containers start.
    container_names: Vec<String>,
}

impl Admission {
    /// Returns true if the kubelet always makes this allocation of CPUs and devices. Otherwise its choice is partly
    /// random: the order of CPUs is not total in versions up to 1.22, and in all versions it is random which devices of
    /// an init container are reused.
    #[must_use]
    pub const fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }

    /// Returns true if the kubelet would allocate CPUs that are reserved or that another pod uses, so that the pod must
    /// not be bound to this host. This happens if sockets or cores have different sizes: the kubelet treats a socket or
    /// core as free if its number of free CPUs equals the average size (`isSocketFree`, `isCoreFree` of
    /// cpu_assignment.go).
    #[must_use]
    pub const fn takes_cpus_in_use(&self) -> bool {
        self.includes_used_cpus
    }
}

/// The resources of a pod that its host's report lists, for a pod that was not admitted by [`HostState::admit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedPod {
    /// Resources of the pod's containers. If the report has only the sums for the pod, they are listed as a single
    /// container.
    pub containers: Vec<ReportedContainer>,
    /// Requests of the pod, which count in the node's total resources.
    pub requests: Resources,
}

impl ReportedPod {
    /// Creates the data for a pod that runs on a host but whose allocation is unknown. Such a pod counts only in the
    /// node's total resources.
    #[must_use]
    pub fn without_zones(pod: &Pod) -> Self {
        Self { containers: Vec::new(), requests: pod.requests() }
    }
}

/// Resources that are allocated to one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedContainer {
    /// Exclusive CPUs of the container.
    pub cpus: CpuSet,
    /// Memory that the Memory Manager has allocated, as blocks: kind, numbers of the zones, and bytes.
    pub memory: Vec<(MemoryKind, Vec<u32>, u64)>,
    /// Devices of the container, with one entry for each resource and zone.
    pub devices: Vec<ReportedDevices>,
}

/// The devices of one resource in one zone that are allocated to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedDevices {
    /// Name of the resource. The devices of a resource share one string to save memory.
    pub resource: Arc<str>,
    /// Number of the devices' zone; `None` for devices without a zone.
    pub zone: Option<u32>,
    /// Number of devices.
    pub count: u32,
}

impl HostState {
    /// Creates the state of a host without pods.
    #[must_use]
    pub fn new(host: &Arc<KubeletHost>) -> Self {
        let mut shared = host.all_cpus;
        // Containers without exclusive CPUs may run on the reserved CPUs, except with the option
        // `strict-cpu-reservation`.
        if host.kubelet.cpu_options.strict_reservation {
            shared = shared.difference(&host.reserved_cpus);
        }
        let memory = match host.kubelet.memory_policy {
            MemoryPolicy::None => Box::default(),
            MemoryPolicy::Static => {
                memory::empty_zones(host).into_iter().take(host.zones.len()).collect()
            }
        };
        let devices = devices::empty_counts(host).into();
        Self {
            host: Arc::clone(host),
            shared_cpus: shared,
            memory,
            devices,
            used_totals: RequestTotals::default(),
            pods: UidMap::default(),
        }
    }

    /// Returns the host.
    #[must_use]
    pub fn host(&self) -> &KubeletHost {
        &self.host
    }

    /// Returns the number of pods.
    #[must_use]
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// Returns the resources that are allocated to the pod with this UID.
    #[must_use]
    pub fn admission(&self, uid: &str) -> Option<&Admission> {
        self.pods.get(uid)
    }

    pub(super) fn admissions(&self) -> impl Iterator<Item = &Admission> {
        self.pods.values()
    }

    pub(super) fn zones(&self) -> ZoneMemories {
        let mut zones = ZoneMemories::default();
        zones.iter_mut().zip(&self.memory).for_each(|(to, from)| *to = *from);
        zones
    }

    fn set_zones(&mut self, zones: &ZoneMemories) {
        self.memory.iter_mut().zip(zones).for_each(|(to, from)| *to = *from);
    }

    /// Predicts whether the kubelet would admit a pod, and with which resources. The state is not changed.
    ///
    /// # Errors
    ///
    /// Returns the reason if the kubelet would reject the pod.
    pub fn check(&self, pod: &Pod) -> Result<Admission, Refusal> {
        self.check_as(&pod.uid, pod)
    }

    /// Like [`Self::check`], but the pod has the UID `uid` instead of `pod.uid`. This allows pods with equal requests
    /// to share one [`Pod`].
    pub fn check_as(&self, uid: &str, pod: &Pod) -> Result<Admission, Refusal> {
        if let Some(known) = self.pods.get(uid) {
            return Ok(known.clone());
        }
        let mut trial = self.trial();
        self.run_trial(&mut trial, pod).map_err(|reason| reason.to_refusal())
    }

    /// Starts a trial admission on a copy of the allocated resources.
    fn trial(&self) -> Trial<'_> {
        Trial::new(&self.host, self.shared_cpus, self.zones(), &self.devices)
    }

    fn run_trial(&self, trial: &mut Trial<'_>, pod: &Pod) -> Result<Admission, Reason> {
        let request = Request::new(&self.host, pod);
        trial.admit_containers(request)?;
        let totals = RequestTotals::from_pod(&self.host, request);
        totals::check_totals(
            &self.host,
            request,
            &totals,
            &self.used_totals,
            self.pods.len(),
            &trial.used_devices_after,
        )?;
        let grants = std::mem::take(&mut trial.grants);
        let releases_memory = grants
            .iter()
            .any(|grant| grant.role == ContainerRole::Init && !grant.blocks.is_empty());
        let names = match releases_memory {
            true => request.containers().map(|(container, _)| container.name.clone()).collect(),
            false => Vec::new(),
        };
        Ok(Admission {
            grants,
            totals,
            is_deterministic: trial.is_deterministic,
            includes_used_cpus: trial.includes_used_cpus,
            container_names: names,
        })
    }

    /// Admits a pod. The resources of a pod that was already admitted do not change.
    ///
    /// # Errors
    ///
    /// Returns the reason if the kubelet rejects the pod. The resources that the kubelet has allocated before the
    /// rejection are released, as the kubelet does before it admits the next pod. If a group of zones is involved,
    /// memory may afterwards be accounted to other zones of the group than before.
    pub fn admit(&mut self, pod: &Pod) -> Result<&Admission, Refusal> {
        self.admit_as(&pod.uid, pod)
    }

    /// Like [`Self::admit`], but the pod has the UID `uid`, as in [`Self::check_as`].
    pub fn admit_as(&mut self, uid: &str, pod: &Pod) -> Result<&Admission, Refusal> {
        if !self.pods.contains(uid) {
            let mut trial = self.trial();
            let result = self.run_trial(&mut trial, pod);
            let Trial {
                shared_cpus: mut shared,
                mut memory,
                used_devices_after: mut devices,
                grants,
                ..
            } = trial;
            match result {
                Ok(admission) => {
                    self.used_totals.add(&admission.totals);
                    self.pods.insert(uid, admission);
                    self.commit_resources(shared, &memory, &devices);
                }
                Err(reason) => {
                    trial::release(&self.host, &grants, &mut shared, &mut memory, &mut devices);
                    self.commit_resources(shared, &memory, &devices);
                    return Err(reason.to_refusal());
                }
            }
        }
        self.pods.get(uid).ok_or_else(|| {
            Reason::CpuError("the admitted pod is not in the state".to_owned()).to_refusal()
        })
    }

    /// Allocates the resources of an admission that [`Self::check_as`] has returned. The state must not have changed
    /// since that call.
    ///
    /// # Errors
    ///
    /// Returns the reason if the kubelet rejects the pod. This is possible only for a pod with init containers: because
    /// its containers reuse resources, it is admitted again by [`Self::admit_as`].
    pub fn commit_admission(
        &mut self,
        uid: &str,
        pod: &Pod,
        admission: Admission,
    ) -> Result<(), Refusal> {
        if !pod.init_containers.is_empty() {
            return self.admit_as(uid, pod).map(|_| ());
        }
        if self.pods.contains(uid) {
            return Ok(());
        }
        let mut zones = self.zones();
        for grant in &admission.grants {
            if !grant.cpus.is_empty() {
                self.shared_cpus = self.shared_cpus.difference(&grant.cpus.to_cpu_bits());
            }
            for block in &grant.blocks {
                memory::allocate_in_zones(&mut zones, block.zones, block.kind, block.size);
            }
            for device in &grant.devices {
                devices::add_used(&self.host, &mut self.devices, device);
            }
        }
        self.set_zones(&zones);
        self.used_totals.add(&admission.totals);
        self.pods.insert(uid, admission);
        Ok(())
    }

    fn commit_resources(&mut self, shared: CpuBits, memory: &ZoneMemories, devices: &[u32]) {
        self.shared_cpus = shared;
        self.set_zones(memory);
        if !devices.is_empty() {
            self.devices.copy_from_slice(devices);
        }
    }

    /// Updates the state after containers of a pod have started. Before a container starts, the Memory Manager releases
    /// the memory of the pod's init containers (`AddContainer` of memorymanager/memory_manager.go). The CPUs of the
    /// init containers are not released.
    pub fn start_containers<'n>(&mut self, uid: &str, names: impl IntoIterator<Item = &'n str>) {
        let mut zones = self.zones();
        let Some(pod) = self.pods.get_mut(uid) else { return };
        for name in names {
            let Some(index) = pod.container_names.iter().position(|known| known == name) else {
                continue;
            };
            for grant in
                pod.grants.iter_mut().take(index).filter(|grant| grant.role == ContainerRole::Init)
            {
                memory::release(&mut zones, &std::mem::take(&mut grant.blocks));
            }
        }
        self.set_zones(&zones);
    }

    /// Removes a pod and releases its resources. Returns false if the pod was unknown.
    pub fn remove(&mut self, uid: &str) -> bool {
        let Some(pod) = self.pods.remove(uid) else { return false };
        let mut zones = self.zones();
        let (shared, devices) = (&mut self.shared_cpus, &mut self.devices);
        trial::release(&self.host, &pod.grants, shared, &mut zones, devices);
        self.set_zones(&zones);
        self.used_totals.subtract(&pod.totals);
        true
    }

    /// Adds a pod with the resources that its host's report lists, and removes an earlier pod with the same UID. CPUs,
    /// zones, page sizes and devices that the host does not have are ignored.
    pub fn restore(&mut self, uid: &str, restored: &ReportedPod) {
        self.remove(uid);
        let mut zones = self.zones();
        let host = Arc::clone(&self.host);
        let mut grants = Vec::with_capacity(restored.containers.len());
        for container in &restored.containers {
            let mut grant = Grant { affinity: Affinity::default(), ..Grant::default() };
            if host.kubelet.cpu_policy == CpuPolicy::Static {
                let cpus = host.cpu_bits(&container.cpus);
                self.shared_cpus = self.shared_cpus.difference(&cpus);
                grant.cpus = CompactCpuBits::from(&cpus);
            }
            if host.kubelet.memory_policy == MemoryPolicy::Static {
                for (kind, zone_ids, size) in &container.memory {
                    if let Some(block) = to_memory_block(&host, *kind, zone_ids, *size) {
                        memory::allocate_in_zones(&mut zones, block.zones, block.kind, block.size);
                        grant.blocks.push(block);
                    }
                }
            }
            grant
                .devices
                .extend(container.devices.iter().filter_map(|one| to_device_grant(&host, one)));
            for device in &grant.devices {
                devices::add_used(&host, &mut self.devices, device);
            }
            grants.push(grant);
        }
        self.set_zones(&zones);
        let totals = RequestTotals::from_resources(&host, &restored.requests);
        self.used_totals.add(&totals);
        let admission =
            Admission { grants, totals, is_deterministic: true, ..Admission::default() };
        self.pods.insert(uid, admission);
    }
}

fn to_memory_block(
    host: &KubeletHost,
    kind: MemoryKind,
    zone_ids: &[u32],
    size: u64,
) -> Option<Block> {
    let kind = match kind {
        MemoryKind::Memory => 0,
        MemoryKind::HugePages(size) => memory_kind_index(host, size)?,
    };
    let known = host.zones.iter().enumerate().filter(|(_, zone)| zone_ids.contains(&zone.id));
    let zones = known.fold(0, |mask, (index, _)| mask | 1 << index);
    (zones != 0).then_some(Block { kind, zones, size })
}

fn memory_kind_index(host: &KubeletHost, size: PageSize) -> Option<u8> {
    let index = host.page_sizes.iter().position(|known| *known == size)?;
    u8::try_from(index + 1).ok()
}

fn to_device_grant(host: &KubeletHost, devices: &ReportedDevices) -> Option<DeviceGrant> {
    let pool = host.device_pools.iter().position(|pool| pool.name == *devices.resource)?;
    let zone_index = match devices.zone {
        None => host.zones.len(),
        Some(id) => host.zones.iter().position(|known| known.id == id)?,
    };
    let (pool, zone) = (u16::try_from(pool).ok()?, u8::try_from(zone_index).ok()?);
    Some(DeviceGrant { pool, zone, count: devices.count, reused: 0 })
}
