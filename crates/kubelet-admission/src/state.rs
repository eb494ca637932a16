//! What a kubelet has handed out, and what becomes of it when a pod comes, starts or goes.

use std::sync::Arc;

use berth_api::{CpuSet, PageSize};

use super::bits::{CpuBits, FewBits};
use super::by_uid::ByUid;
use super::devices::{self, DeviceGrant};
use super::hints::Affinity;
use super::host::Host;
use super::kubelet::{CpuPolicy, MemoryPolicy};
use super::memory::{self, Block, ZoneMemory, Zones};
use super::refusal::{Reason, Refusal};
use super::request::{Request, Role};
use super::totals::{self, Totals};
use super::trial::{self, Grant, Trial};
use super::view::MemoryKind;
use crate::pod::{Pod, Resources};

/// The pods of one host and what they have of it.
#[derive(Clone, Debug)]
pub struct State {
    host: Arc<Host>,
    /// `defaultCpuSet` of the CPU Manager.
    pub(super) shared: CpuBits,
    memory: Box<[ZoneMemory]>,
    pub(super) devices: Box<[u32]>,
    used: Totals,
    pods: ByUid<Admission>,
}

/// What the kubelet gives a pod that it takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    pub(super) grants: Vec<Grant>,
    totals: Totals,
    is_sure: bool,
    in_use: bool,
    /// Names of the containers, only if there are init containers whose memory is given back when others start.
    names: Vec<String>,
}

impl Admission {
    /// Whether the kubelet could have taken no other CPUs and devices. Up to 1.22 its order of CPUs is not always one,
    /// and which devices of an init container others take over is chance in all versions.
    #[must_use]
    pub const fn is_sure(&self) -> bool {
        self.is_sure
    }

    /// Whether the kubelet hands out CPUs that are reserved or another pod's. It does so on hosts with unequal sockets
    /// or cores, as it takes those for free whose free CPUs are as many as all have on average (`isSocketFree`,
    /// `isCoreFree` of cpu_assignment.go). No pod should be sent there then.
    #[must_use]
    pub const fn takes_cpus_in_use(&self) -> bool {
        self.in_use
    }
}

/// A pod known from what its host reports, not from an admission here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// What its containers have. A report that does not tell them apart is one container.
    pub containers: Vec<RestoredContainer>,
    /// What it requests in all, for the node's totals.
    pub requests: Resources,
}

impl Restored {
    /// Returns a pod that is on a host without a known allocation: only the Node's totals count it.
    #[must_use]
    pub fn without_zones(pod: &Pod) -> Self {
        Self { containers: Vec::new(), requests: pod.requests() }
    }
}

/// What one container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredContainer {
    /// CPUs of its own.
    pub cpus: CpuSet,
    /// Blocks of the Memory Manager: kind, zones and bytes.
    pub memory: Vec<(MemoryKind, Vec<u32>, u64)>,
    /// Devices by resource and zone.
    pub devices: Vec<RestoredDevices>,
}

/// Devices of one resource and zone that a container has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredDevices {
    /// The resource; its name is shared by all that have devices of it.
    pub resource: Arc<str>,
    /// Their zone, if they are of one.
    pub zone: Option<u32>,
    /// How many.
    pub count: u32,
}

impl State {
    /// A host without pods.
    #[must_use]
    pub fn new(host: &Arc<Host>) -> Self {
        let mut shared = host.all_cpus;
        // `strict-cpu-reservation` keeps the reserved CPUs out of the shared ones.
        if host.kubelet.cpu_options.strict_reservation {
            shared = shared.without(&host.reserved);
        }
        let memory = match host.kubelet.memory_policy {
            MemoryPolicy::None => Box::default(),
            MemoryPolicy::Static => {
                memory::unused(host).into_iter().take(host.zones.len()).collect()
            }
        };
        let devices = devices::none(host).into();
        Self {
            host: Arc::clone(host),
            shared,
            memory,
            devices,
            used: Totals::default(),
            pods: ByUid::default(),
        }
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// How many pods there are.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.pods.len()
    }

    /// What a pod has.
    #[must_use]
    pub fn admission(&self, uid: &str) -> Option<&Admission> {
        self.pods.get(uid)
    }

    pub(super) fn admissions(&self) -> impl Iterator<Item = &Admission> {
        self.pods.values()
    }

    pub(super) fn zones(&self) -> Zones {
        let mut zones = Zones::default();
        zones.iter_mut().zip(&self.memory).for_each(|(to, from)| *to = *from);
        zones
    }

    fn set_zones(&mut self, zones: &Zones) {
        self.memory.iter_mut().zip(zones).for_each(|(to, from)| *to = *from);
    }

    /// What the kubelet would do with a pod.
    ///
    /// # Errors
    ///
    /// Why it would not take it.
    pub fn check(&self, pod: &Pod) -> Result<Admission, Refusal> {
        self.check_as(&pod.uid, pod)
    }

    /// The same for a pod of this uid, whatever its own is: pods that ask for the same are kept once.
    pub fn check_as(&self, uid: &str, pod: &Pod) -> Result<Admission, Refusal> {
        if let Some(known) = self.pods.get(uid) {
            return Ok(known.clone());
        }
        let mut trial = Trial::new(self);
        self.attempt(&mut trial, pod).map_err(|reason| reason.refusal())
    }

    fn attempt(&self, trial: &mut Trial<'_>, pod: &Pod) -> Result<Admission, Reason> {
        let request = Request::new(&self.host, pod);
        trial.run(request)?;
        let totals = Totals::of(&self.host, request);
        totals::fit(&self.host, request, &totals, &self.used, self.pods.len(), &trial.devices)?;
        let grants = std::mem::take(&mut trial.grants);
        let gives_back =
            grants.iter().any(|grant| grant.role == Role::Init && !grant.blocks.is_empty());
        let names = match gives_back {
            true => request.containers().map(|(container, _)| container.name.clone()).collect(),
            false => Vec::new(),
        };
        Ok(Admission { grants, totals, is_sure: trial.is_sure, in_use: trial.in_use, names })
    }

    /// A pod comes. A pod that is there already keeps what it has.
    ///
    /// # Errors
    ///
    /// Why the kubelet does not take it. What it had been given by then is collected again, as before the kubelet's
    /// next admission. Memory of a group of zones can then be accounted to other zones of the group than before.
    pub fn admit(&mut self, pod: &Pod) -> Result<&Admission, Refusal> {
        self.admit_as(&pod.uid, pod)
    }

    /// The same for a pod of this uid, as [`Self::check_as`].
    pub fn admit_as(&mut self, uid: &str, pod: &Pod) -> Result<&Admission, Refusal> {
        if !self.pods.has(uid) {
            let mut trial = Trial::new(self);
            let result = self.attempt(&mut trial, pod);
            let Trial { mut shared, mut memory, mut devices, grants, .. } = trial;
            match result {
                Ok(admission) => {
                    self.used.add(&admission.totals);
                    self.pods.insert(uid, admission);
                    self.keep(shared, &memory, &devices);
                }
                Err(reason) => {
                    trial::release(&self.host, &grants, &mut shared, &mut memory, &mut devices);
                    self.keep(shared, &memory, &devices);
                    return Err(reason.refusal());
                }
            }
        }
        self.pods.get(uid).ok_or_else(|| {
            Reason::CpuError("the pod was admitted, and is not there".to_owned()).refusal()
        })
    }

    /// A pod comes as [`Self::check_as`] has just said that it would, and nothing else has come or gone since.
    ///
    /// # Errors
    ///
    /// As [`Self::admit`], which it leaves pods to that have init containers: these pass on what they have.
    pub fn accept(&mut self, uid: &str, pod: &Pod, admission: Admission) -> Result<(), Refusal> {
        if !pod.init_containers.is_empty() {
            return self.admit_as(uid, pod).map(|_| ());
        }
        if self.pods.has(uid) {
            return Ok(());
        }
        let mut zones = self.zones();
        for grant in &admission.grants {
            if !grant.cpus.is_empty() {
                self.shared = self.shared.without(&grant.cpus.bits());
            }
            for block in &grant.blocks {
                memory::put(&mut zones, block.zones, block.kind, block.size);
            }
            for device in &grant.devices {
                devices::hold(&self.host, &mut self.devices, device);
            }
        }
        self.set_zones(&zones);
        self.used.add(&admission.totals);
        self.pods.insert(uid, admission);
        Ok(())
    }

    fn keep(&mut self, shared: CpuBits, memory: &Zones, devices: &[u32]) {
        self.shared = shared;
        self.set_zones(memory);
        if !devices.is_empty() {
            self.devices.copy_from_slice(devices);
        }
    }

    /// Containers of a pod start: the Memory Manager gives back the memory of init containers before each of them
    /// (`AddContainer` of memorymanager/memory_manager.go); their CPUs stay with the pod.
    pub fn start_containers<'n>(&mut self, uid: &str, names: impl IntoIterator<Item = &'n str>) {
        let mut zones = self.zones();
        let Some(pod) = self.pods.get_mut(uid) else { return };
        for name in names {
            let Some(place) = pod.names.iter().position(|known| known == name) else { continue };
            for grant in pod.grants.iter_mut().take(place).filter(|grant| grant.role == Role::Init)
            {
                memory::release(&mut zones, &std::mem::take(&mut grant.blocks));
            }
        }
        self.set_zones(&zones);
    }

    /// A pod goes. False if it was not there.
    pub fn remove(&mut self, uid: &str) -> bool {
        let Some(pod) = self.pods.remove(uid) else { return false };
        let mut zones = self.zones();
        let (shared, devices) = (&mut self.shared, &mut self.devices);
        trial::release(&self.host, &pod.grants, shared, &mut zones, devices);
        self.set_zones(&zones);
        self.used.subtract(&pod.totals);
        true
    }

    /// Puts a pod there as its host reports it; one of the same uid goes first. CPUs, zones, huge pages and devices
    /// that the host does not have are left out.
    pub fn restore(&mut self, uid: &str, restored: &Restored) {
        self.remove(uid);
        let mut zones = self.zones();
        let host = Arc::clone(&self.host);
        let mut grants = Vec::with_capacity(restored.containers.len());
        for container in &restored.containers {
            let mut grant = Grant { affinity: Affinity::default(), ..Grant::default() };
            if host.kubelet.cpu_policy == CpuPolicy::Static {
                let cpus = host.places(&container.cpus);
                self.shared = self.shared.without(&cpus);
                grant.cpus = FewBits::from(&cpus);
            }
            if host.kubelet.memory_policy == MemoryPolicy::Static {
                for (kind, on, size) in &container.memory {
                    if let Some(block) = block(&host, *kind, on, *size) {
                        memory::put(&mut zones, block.zones, block.kind, block.size);
                        grant.blocks.push(block);
                    }
                }
            }
            grant
                .devices
                .extend(container.devices.iter().filter_map(|one| device_grant(&host, one)));
            for device in &grant.devices {
                devices::hold(&host, &mut self.devices, device);
            }
            grants.push(grant);
        }
        self.set_zones(&zones);
        let totals = Totals::of_resources(&host, &restored.requests);
        self.used.add(&totals);
        let admission = Admission { grants, totals, is_sure: true, ..Admission::default() };
        self.pods.insert(uid, admission);
    }
}

fn block(host: &Host, kind: MemoryKind, on: &[u32], size: u64) -> Option<Block> {
    let kind = match kind {
        MemoryKind::Memory => 0,
        MemoryKind::HugePages(size) => page_kind(host, size)?,
    };
    let known = host.zones.iter().enumerate().filter(|(_, zone)| on.contains(&zone.id));
    let zones = known.fold(0, |mask, (place, _)| mask | 1 << place);
    (zones != 0).then_some(Block { kind, zones, size })
}

fn page_kind(host: &Host, size: PageSize) -> Option<u8> {
    let place = host.pages.iter().position(|known| *known == size)?;
    u8::try_from(place + 1).ok()
}

fn device_grant(host: &Host, devices: &RestoredDevices) -> Option<DeviceGrant> {
    let pool = host.pools.iter().position(|pool| pool.name == *devices.resource)?;
    let place = match devices.zone {
        None => host.zones.len(),
        Some(id) => host.zones.iter().position(|known| known.id == id)?,
    };
    let (pool, zone) = (u16::try_from(pool).ok()?, u8::try_from(place).ok()?);
    Some(DeviceGrant { pool, zone, count: devices.count, reused: 0 })
}
