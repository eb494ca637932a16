//! A host with the data that placement needs, read from the agent's report and, if there is one, from the Node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::infra_node::{KvmState, NetworkScenario, NetworkSpec, Zone};
use berth_api::names::{label, resource};
use berth_api::{CpuSet, InfraNode, InfraNodeSpec, InfraNodeStatus, Problem, feature_labels};
use k8s_openapi::api::core::v1;

use super::allocation::{Allocation, read_allocations};
use super::cores::zone_cores;
use super::devices::{self, DeviceInventory, KUBEVIRT_PREFIX};
use super::{kubelet, node, ready_networks};
use crate::rules::NodeFields;
use berth_kubelet_admission::pod::{Pod, Resources};
use berth_kubelet_admission::{
    self as admission, HostSpec, MemoryPolicy, TopologyPolicy, ZoneSpec,
};

/// A host as its agent reports it, after validation.
#[derive(Clone, Debug)]
pub struct ReportedHost {
    /// `metadata.name` of the InfraNode and of the Node.
    pub name: String,
    /// Labels of the Node. If there is no Node, the labels that the agent, the kubelet and KubeVirt would set.
    pub labels: BTreeMap<String, String>,
    /// `spec.taints` of the Node.
    pub taints: Vec<v1::Taint>,
    /// `spec.unschedulable` of the Node.
    pub is_cordoned: bool,
    /// `status.allocatable` of the Node. If there is no Node, the amounts that the kubelet would report.
    pub allocatable: Resources,
    /// Field `status.allocatable.pods`.
    pub pods_limit: u64,
    /// Input for the prediction of kubelet admission.
    pub admission: Arc<admission::KubeletHost>,
    /// KVM state; `None` if unknown.
    pub kvm_state: Option<KvmState>,
    /// True if KSM merges pages of different VMs on the host; `None` if unknown.
    pub is_ksm_enabled: Option<bool>,
    /// Reason why the report is stale; `None` if it is not stale.
    pub stale_reason: Option<String>,
    /// Resources that the kubelet has allocated to pods, sorted by the pods' UIDs.
    pub allocations: Vec<Allocation>,
    /// Resources of device plugins whose zones are unknown.
    pub devices_with_unknown_zones: BTreeSet<String>,
    /// CPUs and memory of each zone, for messages.
    pub zones: Vec<ZoneCapacity>,
}

/// CPUs and memory of a zone that VMs can use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneCapacity {
    /// The kernel's number of the zone.
    pub id: u32,
    pub cpus: CpuSet,
    /// Number of CPUs that the kubelet can allocate exclusively.
    pub pinnable_cpus: u32,
    /// Memory in bytes, including huge pages.
    pub memory: u64,
}

/// Information that the report lacks although the kubelet's decision depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingInformation {
    /// The zones in which a pod has memory. The value is the name of the pod.
    MemoryZones(String),
    /// The zones of the devices of a resource. The value is the name of the resource.
    DeviceZones(String),
}

/// The kubelet's default of `maxPods`.
const DEFAULT_MAX_PODS: u64 = 110;
/// Number of devices that KubeVirt's device plugins offer for each of `/dev/kvm` and similar files (`maxDevices` of
/// virt-handler).
const KUBEVIRT_DEVICE_COUNT: u64 = 1000;

impl ReportedHost {
    /// Reads a host from its InfraNode and, if it exists, its Node.
    ///
    /// # Errors
    ///
    /// Returns the invalid field and the problem if the problem makes the host unusable for all pods. Other problems
    /// are added to `problems`.
    pub fn read(
        infra: &InfraNode,
        node: Option<&v1::Node>,
        problems: &mut Vec<Problem>,
    ) -> Result<Self, Problem> {
        let name = infra.metadata.name.clone().unwrap_or_default();
        let object = format!("InfraNode {name}");
        let unusable = |field: &str, value: &dyn std::fmt::Display, problem: &str| {
            Problem::new(&object, field, value, problem)
                .into_fatal("no pods are placed on this host")
        };
        if name.is_empty() {
            return Err(unusable("metadata.name", &"", "is missing"));
        }
        let Some(status) = &infra.status else {
            return Err(unusable("status", &"", "is missing: the agent has not reported yet"));
        };
        if let Some(other) = owner_uid_mismatch(infra, node) {
            return Err(unusable(
                "metadata.ownerReferences",
                &other,
                "is the UID of an earlier Node with this name: the agent has not reported for the current Node yet",
            ));
        }
        if status.zones.is_empty() {
            return Err(unusable(
                "status.zones",
                &"",
                "is empty: the agent has reported no NUMA zones",
            ));
        }
        let version = node::kubelet_version(node, problems);
        let settings = kubelet::read_settings(&object, status, version, problems);
        let settings = settings.map_err(|(field, problem)| unusable(&field, &"", &problem))?;
        let mut zones = Vec::with_capacity(status.zones.len());
        for (at, zone) in status.zones.iter().enumerate() {
            let field_path = format!("status.zones[{at}]");
            let spec = zone_spec(status, zone, at).map_err(|(field, problem)| {
                unusable(&format!("{field_path}.{field}"), &"", &problem)
            })?;
            zones.push(spec);
        }
        let mut spec = HostSpec {
            zones,
            devices: Vec::new(),
            allocatable: Resources::default(),
            max_pods: DEFAULT_MAX_PODS,
        };
        let reserved = kubelet::reserved_cpus(&settings, &spec, node);
        let settings = admission::Kubelet { reserved_cpus: reserved, ..settings };
        let defaults = default_allocatable(&spec, &settings, infra, status);
        let (mut allocatable, pods_limit) =
            node::read_allocatable(node, &defaults, DEFAULT_MAX_PODS, problems);
        spec.allocatable = allocatable.clone();
        spec.max_pods = pods_limit;
        let DeviceInventory { pools, resources_with_unknown_zones: unknown_zones } =
            devices::read_devices(&object, status, &allocatable, problems);
        spec.devices = pools;
        ready_networks::add_resources(infra, status, &mut allocatable, &mut spec.allocatable);
        let pinnable = |zone: &ZoneSpec| {
            let cpus = zone.cores.iter().flat_map(|core| &core.cpus);
            let free = cpus.filter(|cpu| !settings.reserved_cpus.contains(**cpu)).count();
            let is_static = settings.cpu_policy == admission::CpuPolicy::Static;
            if is_static { u32::try_from(free).unwrap_or(u32::MAX) } else { 0 }
        };
        let sizes = spec.zones.iter().map(|zone| ZoneCapacity {
            id: zone.id,
            cpus: zone.cores.iter().flat_map(|core| &core.cpus).copied().collect(),
            pinnable_cpus: pinnable(zone),
            memory: zone.memory,
        });
        let sizes = sizes.collect();
        let admission = admission::KubeletHost::new(&spec, &settings)
            .map_err(|fault| unusable("status", &"", &fault.to_string()))?;
        let capabilities = &status.capabilities;
        Ok(Self {
            labels: node_labels(&name, status, node),
            taints: node.and_then(|node| node.spec.as_ref()?.taints.clone()).unwrap_or_default(),
            is_cordoned: node.and_then(|node| node.spec.as_ref()?.unschedulable).unwrap_or(false),
            allocations: read_allocations(&object, status, problems),
            name,
            allocatable,
            pods_limit,
            admission: Arc::new(admission),
            kvm_state: capabilities.kvm.state,
            is_ksm_enabled: capabilities.memory.ksm.as_ref().and_then(|ksm| ksm.running),
            stale_reason: stale_reason(infra),
            devices_with_unknown_zones: unknown_zones,
            zones: sizes,
        })
    }
}

impl ReportedHost {
    /// Returns the fields of the host that the rules of kube-scheduler read.
    #[must_use]
    pub fn node_fields(&self) -> NodeFields<'_> {
        NodeFields {
            name: &self.name,
            labels: Some(&self.labels),
            taints: &self.taints,
            is_cordoned: self.is_cordoned,
            allocatable: &self.allocatable,
            pods_limit: self.pods_limit,
        }
    }

    /// Returns the information that is missing from the report and on which the kubelet's decision about the pod
    /// depends; `None` if nothing is missing.
    #[must_use]
    pub fn missing_information(&self, pod: &Pod) -> Option<MissingInformation> {
        let kubelet = self.admission.kubelet();
        if kubelet.memory_policy == MemoryPolicy::Static
            && pod.is_guaranteed()
            && let Some(one) = self.allocations.iter().find(|one| one.has_unknown_zones)
        {
            let name = one.name.clone().unwrap_or_else(|| one.uid.clone());
            return Some(MissingInformation::MemoryZones(name));
        }
        let aligning_policies = [TopologyPolicy::Restricted, TopologyPolicy::SingleNumaNode];
        if !aligning_policies.contains(&kubelet.topology_policy)
            || self.devices_with_unknown_zones.is_empty()
        {
            return None;
        }
        let containers = pod.init_containers.iter().chain(&pod.containers);
        let mut requested = containers.flat_map(|container| container.limits.extended.keys());
        let resource = requested.find(|name| self.devices_with_unknown_zones.contains(*name))?;
        Some(MissingInformation::DeviceZones(resource.clone()))
    }

    /// Returns the allocation of a pod, if the report lists it.
    #[must_use]
    pub fn allocation(&self, uid: &str) -> Option<&Allocation> {
        let at = self.allocations.binary_search_by(|one| one.uid.as_str().cmp(uid)).ok()?;
        self.allocations.get(at)
    }
}

/// Reads a zone of the report. Returns the invalid field and its problem if the zone is invalid.
fn zone_spec(
    status: &InfraNodeStatus,
    zone: &Zone,
    zone_index: usize,
) -> Result<ZoneSpec, (String, String)> {
    let memory = zone.memory.map_or(0, |memory| memory.0);
    let mut hugepages = BTreeMap::new();
    for (number, pool) in zone.hugepages.iter().enumerate() {
        let bytes = pool.total.checked_mul(pool.size.bytes());
        let invalid_pool = |problem: String| (format!("hugepages[{number}]"), problem);
        let Some(bytes) = bytes.filter(|bytes| *bytes <= memory || memory == 0) else {
            let (size, total) = (pool.size, pool.total);
            return Err(invalid_pool(format!("{total} pages of {size} exceed the zone's memory")));
        };
        if hugepages.insert(pool.size, bytes).is_some() {
            return Err(invalid_pool(format!("page size {} is listed twice", pool.size)));
        }
    }
    let mut distances: Vec<u64> = Vec::new();
    for other in &status.zones {
        let entry = zone.distances.iter().find(|distance| distance.zone == other.id);
        distances.extend(entry.map(|to| u64::from(to.distance)));
    }
    if distances.len() != status.zones.len() {
        distances.clear();
    }
    Ok(ZoneSpec {
        id: zone.id,
        cores: zone_cores(status, zone, zone_index),
        memory,
        hugepages,
        distances,
    })
}

/// Returns the resources that the kubelet would offer to pods, for a host without a Node: all resources except the
/// kubelet's reservations, with huge pages separate from memory. With a Memory Manager, the sum of `reservedMemory`
/// over all zones is the Node's reservation. Without a Memory Manager, only the Node's reservation is configured.
fn default_allocatable(
    spec: &HostSpec,
    kubelet: &admission::Kubelet,
    infra: &InfraNode,
    status: &InfraNodeStatus,
) -> Resources {
    let mut all = Resources::default();
    let mut cpus = 0_u64;
    let mut reserved_memory = 0_u64;
    for zone in &spec.zones {
        let in_zone = zone.cores.iter().flat_map(|core| &core.cpus);
        cpus += in_zone.filter(|cpu| !kubelet.reserved_cpus.contains(**cpu)).count() as u64;
        let reserved = kubelet.reserved_memory.iter().find(|kept| kept.zone == zone.id);
        reserved_memory = reserved_memory.saturating_add(reserved.map_or(0, |kept| kept.memory));
        let huge: u64 = zone.hugepages.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        all.memory = all.memory.saturating_add(zone.memory.saturating_sub(huge));
        for (size, bytes) in &zone.hugepages {
            let reserved_bytes = reserved.and_then(|kept| kept.hugepages.get(size)).copied();
            let sum = all.hugepages.entry(*size).or_default();
            *sum = sum.saturating_add(bytes.saturating_sub(reserved_bytes.unwrap_or_default()));
        }
    }
    all.cpu_millis = cpus.saturating_mul(1000);
    let reservation = status.capabilities.kubelet.as_ref();
    let reservation = reservation.and_then(|kubelet| kubelet.allocatable_reservation);
    let reserved_memory = reserved_memory.max(reservation.unwrap_or_default().0);
    all.memory = all.memory.saturating_sub(reserved_memory);
    let kvm = &status.capabilities.kvm;
    // Files that were captured from a host cannot show whether these devices exist. Therefore a device is left out only
    // if the report lists it as missing or unusable.
    let devices = [
        ("kvm", kvm.state.map(|state| state == KvmState::Ready)),
        ("tun", kvm.tun),
        ("vhost-net", kvm.vhost_net),
        ("vhost-vsock", kvm.vhost_vsock),
    ];
    let available = devices.into_iter().filter(|(_, is_there)| *is_there != Some(false));
    all.extended.extend(
        available.map(|(name, _)| (format!("{KUBEVIRT_PREFIX}{name}"), KUBEVIRT_DEVICE_COUNT)),
    );
    all.extended.extend(devices::device_counts(status));
    all.extended.extend(bridge_resources(&infra.spec).map(|name| (name, KUBEVIRT_DEVICE_COUNT)));
    all
}

/// Returns the names of the resources that the agent would write to the Node for the bridges in `spec`.
fn bridge_resources(spec: &InfraNodeSpec) -> impl Iterator<Item = String> + '_ {
    let is_vlan_aware =
        |network: &&NetworkSpec| network.scenario == NetworkScenario::VlanAwareBridge;
    let shared_bridges = spec
        .networks
        .iter()
        .filter(is_vlan_aware)
        .filter_map(|network| network.shared_bridge().ok());
    let tenant_bridges = spec.tenant_networks.iter().filter_map(|tenant| {
        let network = spec.networks.iter().find(|network| network.name == tenant.network)?;
        let id = tenant.vlan.map(|vlan| u16::from(vlan).into()).or(tenant.vni)?;
        network.tenant_bridge(id).ok()?
    });
    shared_bridges
        .chain(tenant_bridges)
        .map(|bridge| format!("{}{bridge}", resource::BRIDGE_PREFIX))
}

/// Returns the UID of the Node that owns the InfraNode, if the current Node has another UID; otherwise `None`. If the
/// UIDs differ, the Node was deleted and created again, and the report belongs to the deleted Node. The garbage
/// collector deletes such an InfraNode.
fn owner_uid_mismatch(infra: &InfraNode, node: Option<&v1::Node>) -> Option<String> {
    let uid = node?.metadata.uid.as_ref()?;
    let owners = infra.metadata.owner_references.iter().flatten();
    let mut nodes = owners.filter(|owner| owner.kind == "Node").map(|owner| &owner.uid);
    let first = nodes.next()?;
    (first != uid && nodes.all(|other| other != uid)).then(|| first.clone())
}

fn node_labels(
    name: &str,
    status: &InfraNodeStatus,
    node: Option<&v1::Node>,
) -> BTreeMap<String, String> {
    if let Some(node) = node {
        return node.metadata.labels.clone().unwrap_or_default();
    }
    let known = feature_labels(status);
    let known = known.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let mut all: BTreeMap<String, String> = known.collect();
    let has_label = |key: &str, value: &str| all.get(key).is_some_and(|found| found == value);
    let arch = if ["intel", "amd", "hygon"].iter().any(|maker| has_label(label::CPU_VENDOR, maker))
    {
        Some(("kubernetes.io/arch", "amd64"))
    } else {
        None
    };
    let others = [
        Some(("kubernetes.io/hostname", name)),
        Some(("kubernetes.io/os", "linux")),
        arch,
        (!has_label(label::KVM, "false")).then_some(("kubevirt.io/schedulable", "true")),
        has_label(label::CPU_MANAGER, "static").then_some(("cpumanager", "true")),
        has_label(label::CPU_MANAGER, "static").then_some(("kubevirt.io/cpumanager", "true")),
    ];
    let others =
        others.into_iter().flatten().map(|(key, value)| (key.to_owned(), value.to_owned()));
    all.extend(others.collect::<Vec<_>>());
    all
}

/// Returns the reason why the report is stale; `None` if it is not stale. A report is stale if the controller has set
/// the conditions to Unknown, which it does after the agent's Lease has expired.
fn stale_reason(infra: &InfraNode) -> Option<String> {
    let conditions = &infra.status.as_ref()?.conditions;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status == "Unknown").then(|| {
        let since = ready.last_transition_time.0;
        format!("the agent's report has been stale since {since}: {}", ready.message)
    })
}
