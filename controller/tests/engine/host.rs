//! Short description of a host, converted to the InfraNode of its agent and to its Node.

use std::collections::BTreeMap;

use berth_api::Problem;
use berth_api::infra_node::{
    Allocation, HugepagePool, Ksm, Kubelet, KvmState, Zone, ZoneDevices, ZoneDistance,
};
use berth_api::{Bytes, Class, InfraNode, InfraNodeStatus, PageSize};
use berth_api::{Condition, Time};
use berth_placement::inventory::ReportedHost;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct HostDescription {
    pub(crate) name: String,
    /// Zones of the host, in order.
    pub(crate) zones: Vec<ZoneDescription>,
    /// Number of threads per core.
    pub(crate) threads: u32,
    /// True for `cpuManagerPolicy: static`.
    #[serde(rename = "pins")]
    pub(crate) has_static_cpu_policy: bool,
    /// True for `memoryManagerPolicy: Static`.
    #[serde(rename = "keepsMemory")]
    pub(crate) has_static_memory_policy: bool,
    #[serde(rename = "policy")]
    pub(crate) topology_policy: String,
    #[serde(rename = "scope")]
    pub(crate) topology_scope: String,
    #[serde(rename = "options")]
    pub(crate) cpu_manager_options: Vec<String>,
    #[serde(rename = "version")]
    pub(crate) kubelet_version: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Taints of the Node, as `key:Effect`.
    pub(crate) taints: Vec<String>,
    #[serde(rename = "cordoned")]
    pub(crate) is_cordoned: bool,
    pub(crate) ksm: Option<bool>,
    pub(crate) kvm: Option<KvmState>,
    #[serde(rename = "stale")]
    pub(crate) is_stale: bool,
    pub(crate) class: Class,
    pub(crate) max_pods: u32,
    /// Number of KVM devices of KubeVirt's device plugin.
    pub(crate) kvm_devices: u32,
    /// Number of virtual functions of each zone.
    pub(crate) vfs: Vec<u32>,
    /// Number of units of each bridge that the agent reports as a resource of the Node.
    pub(crate) bridges: BTreeMap<String, u32>,
    /// True if the report contains no devices.
    #[serde(rename = "hidesDevices")]
    pub(crate) omits_devices: bool,
    /// Allocations in the report.
    #[serde(rename = "has")]
    pub(crate) allocations: Vec<Allocation>,
}

/// A zone: number of CPUs, GiB of memory, and the part of the memory in huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ZoneDescription {
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
    /// GiB of memory in pages of 1 GiB.
    #[serde(rename = "huge")]
    pub(crate) huge_pages_gib: u64,
    /// MiB of memory in pages of 2 MiB.
    #[serde(rename = "small")]
    pub(crate) small_pages_mib: u64,
}

impl Default for HostDescription {
    fn default() -> Self {
        Self {
            name: "host".to_owned(),
            zones: vec![
                ZoneDescription {
                    cpus: 8,
                    memory: 32,
                    huge_pages_gib: 16,
                    small_pages_mib: 0
                };
                2
            ],
            threads: 1,
            has_static_cpu_policy: true,
            has_static_memory_policy: true,
            topology_policy: "single-numa-node".to_owned(),
            topology_scope: "pod".to_owned(),
            cpu_manager_options: Vec::new(),
            kubelet_version: "v1.36.0".to_owned(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            is_cordoned: false,
            ksm: Some(false),
            kvm: Some(KvmState::Ready),
            is_stale: false,
            class: Class::Standard,
            max_pods: 110,
            kvm_devices: 1000,
            vfs: Vec::new(),
            bridges: BTreeMap::new(),
            omits_devices: false,
            allocations: Vec::new(),
        }
    }
}

pub(crate) const KVM_RESOURCE: &str = "devices.kubevirt.io/kvm";
pub(crate) const VF_RESOURCE: &str = "intel.com/vf";

impl HostDescription {
    /// Returns the CPUs by zone, core and thread. As on Intel hosts, the first threads of all cores have the lowest
    /// numbers.
    pub(crate) fn cpus_by_zone_and_thread(&self) -> Vec<Vec<Vec<u32>>> {
        let threads = self.threads.max(1);
        let mut zones = vec![Vec::new(); self.zones.len()];
        let mut next = 0;
        for _ in 0..threads {
            for (zone, description) in zones.iter_mut().zip(&self.zones) {
                let end = next + description.cpus / threads;
                zone.push((next..end).collect::<Vec<u32>>());
                next = end;
            }
        }
        zones
    }

    /// Returns the CPUs of the first core, which is reserved for the system.
    pub(crate) fn reserved_cpus(&self) -> Vec<u32> {
        let first = self.cpus_by_zone_and_thread().into_iter().find(|zone| !zone[0].is_empty());
        first.into_iter().flatten().filter_map(|thread| thread.first().copied()).collect()
    }

    pub(crate) fn infra_node(&self) -> InfraNode {
        let mut infra = InfraNode::new(&self.name, berth_api::InfraNodeSpec::default());
        let mut status = InfraNodeStatus::default();
        let has = &mut status.capabilities;
        has.kvm.state = self.kvm;
        has.cpu.threads_per_core = Some(self.threads);
        has.memory.ksm = self.ksm.map(|on| Ksm { running: Some(on), ..Ksm::default() });
        let word = |is: bool, yes: &str, no: &str| Some(if is { yes } else { no }.to_owned());
        has.kubelet = Some(Kubelet {
            cpu_manager_policy: word(self.has_static_cpu_policy, "static", "none"),
            cpu_manager_policy_options: self.cpu_manager_options.clone(),
            topology_manager_policy: Some(self.topology_policy.clone()),
            topology_manager_scope: Some(self.topology_scope.clone()),
            topology_manager_policy_options: Vec::new(),
            memory_manager_policy: word(self.has_static_memory_policy, "Static", "None"),
            reserved_system_cpus: Some(self.reserved_cpus().into_iter().collect()),
            allocatable_reservation: None,
            started_with: None,
        });
        for (at, (description, threads)) in
            (0u32..).zip(self.zones.iter().zip(self.cpus_by_zone_and_thread()))
        {
            let pool = |size: PageSize, bytes: u64| HugepagePool {
                size,
                total: bytes / size.bytes(),
                free: None,
                surplus: None,
                reserved: None,
            };
            let far = |zone: u32| if zone == at { 10 } else { 21 };
            let zones = u32::try_from(self.zones.len()).unwrap_or(0);
            status.zones.push(Zone {
                id: at,
                cpus: Some(threads.iter().flatten().copied().collect()),
                socket: Some(at),
                threads: threads.iter().map(|thread| thread.iter().copied().collect()).collect(),
                memory: Some(Bytes(description.memory << 30)),
                reserved_memory: (at == 0).then_some(Bytes(1 << 30)),
                hugepages: vec![
                    pool(PageSize::GIB_1, description.huge_pages_gib << 30),
                    pool(PageSize::MIB_2, description.small_pages_mib << 20),
                ],
                distances: (0..zones)
                    .map(|zone| ZoneDistance { zone, distance: far(zone) })
                    .collect(),
                ..Zone::default()
            });
        }
        if !self.omits_devices {
            let total = |zone: Option<u32>, resource: &str, total: u32| {
                let resource = resource.to_owned();
                (total > 0).then_some(ZoneDevices { resource, zone, total, free: total })
            };
            let vfs = (0..).zip(&self.vfs).map(|(zone, vfs)| total(Some(zone), VF_RESOURCE, *vfs));
            let all = vfs.chain([total(None, KVM_RESOURCE, self.kvm_devices)]);
            status.devices = all.flatten().collect();
        }
        status.allocations.clone_from(&self.allocations);
        if self.is_stale {
            status.conditions.push(Condition {
                type_: "Ready".to_owned(),
                status: "Unknown".to_owned(),
                message: "the agent's Lease has expired".to_owned(),
                reason: "LeaseExpired".to_owned(),
                last_transition_time: Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
                observed_generation: None,
            });
        }
        infra.status = Some(status);
        infra
    }

    pub(crate) fn node(&self) -> v1::Node {
        let cpus: u32 = self.zones.iter().map(|zone| zone.cpus).sum();
        let kept = if self.has_static_cpu_policy { self.reserved_cpus().len() } else { 0 };
        let sum = |of: fn(&ZoneDescription) -> u64| self.zones.iter().map(of).sum::<u64>();
        let plain =
            sum(|zone| (zone.memory << 10) - (zone.huge_pages_gib << 10) - zone.small_pages_mib);
        let amounts = [
            ("cpu", (cpus as usize - kept).to_string()),
            ("memory", format!("{}Mi", plain.saturating_sub(1024))),
            ("hugepages-1Gi", format!("{}Gi", sum(|zone| zone.huge_pages_gib))),
            ("hugepages-2Mi", format!("{}Mi", sum(|zone| zone.small_pages_mib))),
            ("pods", self.max_pods.to_string()),
            (KVM_RESOURCE, self.kvm_devices.to_string()),
            (VF_RESOURCE, self.vfs.iter().sum::<u32>().to_string()),
        ];
        let bridges = self.bridges.iter().map(|(name, units)| {
            (format!("bridge.network.kubevirt.io/{name}"), Quantity(units.to_string()))
        });
        let amounts = amounts.into_iter().map(|(name, text)| (name.to_owned(), Quantity(text)));
        let mut labels = self.labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), self.name.clone());
        let taint = |text: &String| {
            let (key, effect) = text.split_once(':').unwrap_or((text, "NoSchedule"));
            v1::Taint { key: key.to_owned(), effect: effect.to_owned(), ..v1::Taint::default() }
        };
        let mut node = v1::Node::default();
        node.metadata.name = Some(self.name.clone());
        node.metadata.labels = Some(labels);
        node.spec = Some(v1::NodeSpec {
            taints: Some(self.taints.iter().map(taint).collect()),
            unschedulable: Some(self.is_cordoned),
            ..v1::NodeSpec::default()
        });
        node.status = Some(v1::NodeStatus {
            allocatable: Some(amounts.chain(bridges).collect()),
            node_info: Some(v1::NodeSystemInfo {
                kubelet_version: self.kubelet_version.clone(),
                ..v1::NodeSystemInfo::default()
            }),
            ..v1::NodeStatus::default()
        });
        node
    }

    /// Parses the InfraNode and the Node with the functions that the controller uses.
    pub(crate) fn reported_host(&self) -> Result<(ReportedHost, Vec<Problem>), Problem> {
        let mut problems = Vec::new();
        let facts = ReportedHost::read(&self.infra_node(), Some(&self.node()), &mut problems)?;
        Ok((facts, problems))
    }
}
