//! The NodeResourceTopology (`topology.node.k8s.io/v1alpha2`) for the plugin NodeResourceTopologyMatch of
//! scheduler-plugins: the allocatable and available resources of each NUMA zone, as that plugin defines them.
//!
//! The plugin filters by `available`, and treats a resource that no zone lists as unavailable in every zone. Three
//! facts are not published:
//! * Devices of device plugins. The scheduler plugin then counts them by host.
//! * The fingerprint of pods: it covers all pods in the kubelet's list, but the allocations cover only pods with
//!   exclusive resources. A wrong fingerprint is worse than none, because the plugin would never accept a report.
//! * `topologyPolicies`, which the attributes replace.

use std::collections::BTreeMap;

use berth_api::infra_node::{self, Allocation, Kubelet};
use berth_api::{Bytes, InfraNodeStatus, PageSize};
use serde::Serialize;
use serde_json::{Value, json};

use berth_host_facts::kubelet::MemoryManagerState;
use berth_host_facts::kubelet::memory_state::MemoryTable;

/// `apiVersion` of the object.
pub const API_VERSION: &str = "topology.node.k8s.io/v1alpha2";
/// `kind` of the object.
pub const KIND: &str = "NodeResourceTopology";
/// Fields of the object. Each of these fields has a single owner (field manager).
pub const FIELDS: [&str; 3] = ["attributes", "topologyPolicies", "zones"];

/// The object, apart from its metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Topology {
    attributes: Vec<Attribute>,
    zones: Vec<Zone>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Attribute {
    name: &'static str,
    value: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Zone {
    name: String,
    #[serde(rename = "type")]
    type_: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    costs: Vec<Cost>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resources: Vec<Resource>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Cost {
    name: String,
    value: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Resource {
    name: String,
    capacity: String,
    allocatable: String,
    available: String,
}

/// Number of zone ids that the plugin supports: larger ids than 63 are outside its table (`maxNUMAId`). Kubelets
/// have the same limit.
const MAX_ZONES: u32 = 64;
/// Maximum number of missing zone ids that are filled with empty zones. The plugin enumerates sets of zones, so
/// empty zones cost time.
const MAX_GAPS: usize = 8;

/// Reason why no object is published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// The configuration of the kubelet is unknown.
    #[error("the kubelet's configuration is unknown")]
    NoKubelet,
    /// No zone is known.
    #[error("no NUMA zone is known")]
    NoZone,
    /// Zone ids have too many gaps.
    #[error("the NUMA zone ids have too many gaps: {zones} zones, highest id {last}")]
    TooManyGaps {
        /// Number of zones.
        zones: usize,
        /// Largest id.
        last: u32,
    },
    /// A resource is unknown for all zones, so the plugin would filter the host for all pods.
    #[error(
        "the allocatable {0} is unknown for all NUMA zones, and under single-numa-node the scheduler would place no pod here"
    )]
    UnknownResource(&'static str),
}

/// Returns the object of a host with this status. `memory` is the checkpoint of the kubelet's Memory Manager.
///
/// # Errors
/// If the known facts would make the scheduler filter the host for pods that could run on it.
pub fn build_topology(
    status: &InfraNodeStatus,
    memory: Option<&MemoryManagerState>,
) -> Result<Topology, TopologyError> {
    let Some(kubelet) = &status.capabilities.kubelet else {
        return Err(TopologyError::NoKubelet);
    };
    let known: BTreeMap<u32, &infra_node::Zone> =
        status.zones.iter().rev().map(|zone| (zone.id, zone)).collect();
    let known: BTreeMap<_, _> = known.into_iter().filter(|(id, _)| *id < MAX_ZONES).collect();
    let Some(last) = known.keys().last().copied() else {
        return Err(TopologyError::NoZone);
    };
    // The plugin uses zone ids as indexes of its list (`numaScores[numa.NUMAID]`), and would panic if an id is
    // missing.
    let gaps = (0..last).filter(|id| !known.contains_key(id)).count();
    if gaps > MAX_GAPS {
        return Err(TopologyError::TooManyGaps { zones: known.len(), last });
    }
    let host = HostResources { kubelet, memory, allocations: &status.allocations };
    let zone = |id| known.get(&id).map_or_else(|| empty_zone(id), |zone| host.zone_resources(zone));
    let zones: Vec<Zone> = (0..=last).map(zone).collect();
    if kubelet.topology_manager_policy.as_deref() == Some("single-numa-node") {
        for name in ["cpu", "memory"] {
            if !zones.iter().flat_map(|zone| &zone.resources).any(|resource| resource.name == name)
            {
                return Err(TopologyError::UnknownResource(name));
            }
        }
    }
    Ok(Topology { attributes: attributes(kubelet), zones })
}

/// Returns the settings of the kubelet that the plugin reads. For a setting that is missing here, the plugin
/// assumes the default.
fn attributes(kubelet: &Kubelet) -> Vec<Attribute> {
    let max_numa_nodes = kubelet
        .topology_manager_policy_options
        .iter()
        .find_map(|option| option.strip_prefix("max-allowable-numa-nodes="));
    [
        ("topologyManagerPolicy", kubelet.topology_manager_policy.as_deref()),
        ("topologyManagerScope", kubelet.topology_manager_scope.as_deref()),
        ("topologyManagerMaxNUMANodes", max_numa_nodes),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(Attribute { name, value: value?.to_owned() }))
    .collect()
}

fn zone_name(id: u32) -> String {
    format!("node-{id}")
}

fn empty_zone(id: u32) -> Zone {
    Zone { name: zone_name(id), type_: "Node", costs: Vec::new(), resources: Vec::new() }
}

/// Capacity, allocatable and available amount of a resource in a zone.
struct ResourceAmounts {
    capacity: u64,
    allocatable: u64,
    available: u64,
}

impl ResourceAmounts {
    /// Returns the resource with these amounts. The amounts come from different sources, which may contradict each
    /// other for a short time; in this case the smaller amount is published.
    fn resource(self, name: impl Into<String>, unit: fn(u64) -> String) -> Resource {
        let allocatable = self.allocatable.min(self.capacity);
        Resource {
            name: name.into(),
            capacity: unit(self.capacity),
            allocatable: unit(allocatable),
            available: unit(self.available.min(allocatable)),
        }
    }
}

fn format_bytes(amount: u64) -> String {
    Bytes(amount).to_string()
}

/// Facts about the whole host from which the amounts of a zone are computed.
struct HostResources<'a> {
    kubelet: &'a Kubelet,
    memory: Option<&'a MemoryManagerState>,
    allocations: &'a [Allocation],
}

impl HostResources<'_> {
    fn zone_resources(&self, zone: &infra_node::Zone) -> Zone {
        let cpu =
            self.cpu_amount(zone).map(|amount| amount.resource("cpu", |count| count.to_string()));
        let memory = self.memory_amount(zone).map(|amount| amount.resource("memory", format_bytes));
        let pools: BTreeMap<PageSize, _> =
            zone.hugepages.iter().map(|pool| (pool.size, pool)).collect();
        let pages = pools.into_values().filter_map(|pool| {
            let name = pool.size.resource_name();
            Some(self.hugepage_amount(zone, pool, &name)?.resource(name, format_bytes))
        });
        let costs = zone.distances.iter().filter(|to| to.zone < MAX_ZONES);
        Zone {
            costs: costs.map(|to| Cost { name: zone_name(to.zone), value: to.distance }).collect(),
            resources: cpu.into_iter().chain(memory).chain(pages).collect(),
            ..empty_zone(zone.id)
        }
    }

    /// Returns the amounts of CPUs of a zone. Under the policy `static`: the CPUs that the kubelet can allocate
    /// exclusively. Under the policy `none`: all CPUs except those reserved by list (`reservedSystemCPUs`), because pods
    /// are not bound to a zone then, and the plugin would filter out the host for every pod if a zone had no CPUs.
    fn cpu_amount(&self, zone: &infra_node::Zone) -> Option<ResourceAmounts> {
        let cpus = zone.cpus.as_ref()?;
        let (allocatable, taken) = match self.kubelet.cpu_manager_policy.as_deref()? {
            "static" => {
                let pinnable = zone.pinnable_cpus.as_ref()?.intersection(cpus);
                let pinned = zone.pinned_cpus.as_ref()?.intersection(&pinnable).len();
                (pinnable.len(), pinned)
            }
            "none" => {
                let reserved = zone.reserved_cpus.clone().unwrap_or_default();
                (cpus.difference(&reserved).len(), 0)
            }
            _ => return None,
        };
        let count = |cpus: usize| u64::try_from(cpus).unwrap_or(u64::MAX);
        Some(ResourceAmounts {
            capacity: count(cpus.len()),
            allocatable: count(allocatable),
            available: count(allocatable.saturating_sub(taken)),
        })
    }

    /// Returns the memory that the Memory Manager can allocate. Without a Memory Manager pods are not bound to the
    /// memory of a zone, so all memory except huge pages is returned.
    fn memory_amount(&self, zone: &infra_node::Zone) -> Option<ResourceAmounts> {
        let capacity = zone.memory?.0;
        match self.kubelet.memory_manager_policy.as_deref()? {
            "None" => {
                let pool =
                    |pool: &infra_node::HugepagePool| pool.total.saturating_mul(pool.size.bytes());
                let pages = zone.hugepages.iter().map(pool).fold(0, u64::saturating_add);
                let free = capacity.saturating_sub(pages);
                Some(ResourceAmounts { capacity, allocatable: free, available: free })
            }
            "Static" => {
                let table = self.memory_table(zone.id, "memory")?;
                Some(ResourceAmounts {
                    capacity,
                    allocatable: table.allocatable,
                    available: table.free,
                })
            }
            _ => None,
        }
    }

    /// Returns the huge pages that are neither used nor allocated. The kernel's counters include pages that
    /// programs outside of pods use; only the kubelet's checkpoint includes pages that are allocated to pods but
    /// not used yet.
    fn hugepage_amount(
        &self,
        zone: &infra_node::Zone,
        pool: &infra_node::HugepagePool,
        name: &str,
    ) -> Option<ResourceAmounts> {
        let in_bytes = |pages: u64| pages.saturating_mul(pool.size.bytes());
        let capacity = in_bytes(pool.total);
        match self.kubelet.memory_manager_policy.as_deref()? {
            "None" => {
                let unallocated =
                    pool.total.saturating_sub(self.allocated_pages(zone.id, pool.size));
                let available = in_bytes(pool.free?.min(unallocated));
                Some(ResourceAmounts { capacity, allocatable: capacity, available })
            }
            "Static" => {
                let table = self.memory_table(zone.id, name)?;
                let available = table.free.min(pool.free.map_or(u64::MAX, in_bytes));
                Some(ResourceAmounts { capacity, allocatable: table.allocatable, available })
            }
            _ => None,
        }
    }

    fn memory_table(&self, zone: u32, resource: &str) -> Option<&MemoryTable> {
        let state = self.memory.filter(|state| state.policy_name == "Static")?;
        state.machine_state.get(&zone)?.memory_map.get(resource)
    }

    /// Returns the number of pages of this size that are allocated to pods that have resources only in this zone.
    fn allocated_pages(&self, zone: u32, size: PageSize) -> u64 {
        let in_zone = self.allocations.iter().filter(|allocation| allocation.zones == [zone]);
        let pages = in_zone.flat_map(|allocation| &allocation.hugepages);
        pages
            .filter(|pages| pages.size == size)
            .map(|pages| pages.count)
            .fold(0, u64::saturating_add)
    }
}

impl Topology {
    /// Returns the body of a server-side apply of the object, which the Node owns. `uid` is the UID of the existing
    /// object; `None` creates the object.
    #[must_use]
    pub fn apply_body(&self, node: &str, node_uid: &str, uid: Option<&str>) -> Value {
        let mut metadata = json!({
            "name": node,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}],
        });
        if let Some(uid) = uid {
            metadata["uid"] = uid.into();
        }
        json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": metadata,
            "attributes": self.attributes,
            "zones": self.zones,
        })
    }

    /// Returns true if an object's `fields` ([`FIELDS`]) have the same content as this value.
    #[must_use]
    pub fn has_same_content(&self, fields: &Value) -> bool {
        let desired = json!(self);
        FIELDS.iter().all(|field| desired.get(field) == fields.get(field))
    }
}

#[cfg(test)]
mod tests;
