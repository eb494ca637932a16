//! The NodeResourceTopology (`topology.node.k8s.io/v1alpha2`), as NodeResourceTopologyMatch of scheduler-plugins reads
//! it: per NUMA zone what pods can have and what is left. Its words are that project's, not ours.
//!
//! The plugin judges a pod by `available`, and takes what no zone names for what no zone has. Three things are
//! not told:
//! * Devices of plugins: the status does not say how many a zone has. The plugin counts them by host then.
//! * The fingerprint of pods: it is over all pods that the kubelet's list names, and the allocations are of those
//!   alone that hold something. One that is wrong is worse than none, as the plugin would never take a report.
//! * `topologyPolicies`, which the attributes have replaced.

use std::collections::BTreeMap;

use berth_api::infra_node::{self, Allocation, Kubelet};
use berth_api::{Bytes, InfraNodeStatus, PageSize};
use serde::Serialize;
use serde_json::{Value, json};

use crate::observe::kubelet::MemoryManagerState;
use crate::observe::kubelet::memory_state::MemoryTable;

/// Group and version, as in `apiVersion`.
pub const API_VERSION: &str = "topology.node.k8s.io/v1alpha2";
/// Kind.
pub const KIND: &str = "NodeResourceTopology";
/// Its fields that only one may write.
pub const FIELDS: [&str; 3] = ["attributes", "topologyPolicies", "zones"];

/// What the object says, apart from its metadata.
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

/// Above, the plugin fails on its own table (`maxNUMAId`); kubelets stop at 64 too.
const ZONES: u32 = 64;
/// Numbers that no zone has, as many as are made up for: the plugin tries sets of zones.
const GAPS: usize = 8;

/// What a host with this status says. `memory` is the checkpoint of the Memory Manager.
///
/// # Errors
/// A sentence, if what is known would keep pods away that could run.
pub fn topology(
    status: &InfraNodeStatus,
    memory: Option<&MemoryManagerState>,
) -> Result<Topology, String> {
    let Some(kubelet) = &status.capabilities.kubelet else {
        return Err("the kubelet's configuration is not known".to_owned());
    };
    let known: BTreeMap<u32, &infra_node::Zone> =
        status.zones.iter().rev().map(|zone| (zone.id, zone)).collect();
    let known: BTreeMap<_, _> = known.into_iter().filter(|(id, _)| *id < ZONES).collect();
    let Some(last) = known.keys().last().copied() else {
        return Err("no NUMA zone is known".to_owned());
    };
    // The plugin uses zones' numbers as places in its list (`numaScores[numa.NUMAID]`) and would panic on gaps.
    let gaps = (0..last).filter(|id| !known.contains_key(id)).count();
    if gaps > GAPS {
        return Err(format!("its {} NUMA zones are numbered up to {last}", known.len()));
    }
    let host = Host { kubelet, memory, allocations: &status.allocations };
    let zone = |id| known.get(&id).map_or_else(|| empty(id), |zone| host.zone(zone));
    let zones: Vec<Zone> = (0..=last).map(zone).collect();
    if kubelet.topology_manager_policy.as_deref() == Some("single-numa-node") {
        for name in ["cpu", "memory"] {
            if !zones.iter().flat_map(|zone| &zone.resources).any(|resource| resource.name == name)
            {
                return Err(format!(
                    "of no NUMA zone is it known how much {name} pods can have, and under single-numa-node the scheduler \
                     would place none here"
                ));
            }
        }
    }
    Ok(Topology { attributes: attributes(kubelet), zones })
}

/// What the plugin reads of the kubelet; what it does not find it takes for the kubelet's default.
fn attributes(kubelet: &Kubelet) -> Vec<Attribute> {
    let most = kubelet
        .topology_manager_policy_options
        .iter()
        .find_map(|option| option.strip_prefix("max-allowable-numa-nodes="));
    [
        ("topologyManagerPolicy", kubelet.topology_manager_policy.as_deref()),
        ("topologyManagerScope", kubelet.topology_manager_scope.as_deref()),
        ("topologyManagerMaxNUMANodes", most),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(Attribute { name, value: value?.to_owned() }))
    .collect()
}

fn name(id: u32) -> String {
    format!("node-{id}")
}

fn empty(id: u32) -> Zone {
    Zone { name: name(id), type_: "Node", costs: Vec::new(), resources: Vec::new() }
}

/// An amount, and what of it pods can have, and what of that is left.
struct Amount {
    capacity: u64,
    allocatable: u64,
    available: u64,
}

impl Amount {
    /// Sources may disagree for a moment; the smaller one is told.
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

fn bytes(amount: u64) -> String {
    Bytes(amount).to_string()
}

/// What counts for all zones.
struct Host<'a> {
    kubelet: &'a Kubelet,
    memory: Option<&'a MemoryManagerState>,
    allocations: &'a [Allocation],
}

impl Host<'_> {
    fn zone(&self, zone: &infra_node::Zone) -> Zone {
        let cpu = self.cpu(zone).map(|amount| amount.resource("cpu", |count| count.to_string()));
        let memory = self.memory(zone).map(|amount| amount.resource("memory", bytes));
        let pools: BTreeMap<PageSize, _> =
            zone.hugepages.iter().map(|pool| (pool.size, pool)).collect();
        let pages = pools.into_values().filter_map(|pool| {
            let name = pool.size.resource();
            Some(self.pages(zone, pool, &name)?.resource(name, bytes))
        });
        let costs = zone.distances.iter().filter(|to| to.zone < ZONES);
        Zone {
            costs: costs.map(|to| Cost { name: name(to.zone), value: to.distance }).collect(),
            resources: cpu.into_iter().chain(memory).chain(pages).collect(),
            ..empty(zone.id)
        }
    }

    /// Under the static policy what can be had exclusively. Under `none` no zone binds anybody, and a zone that
    /// names no CPUs would keep all pods away: so all but those kept by name.
    fn cpu(&self, zone: &infra_node::Zone) -> Option<Amount> {
        let cpus = zone.cpus.as_ref()?;
        let (allocatable, taken) = match self.kubelet.cpu_manager_policy.as_deref()? {
            "static" => {
                let pinnable = zone.pinnable_cpus.as_ref()?.intersection(cpus);
                let taken = zone.pinned_cpus.as_ref()?.intersection(&pinnable).len();
                (pinnable.len(), taken)
            }
            "none" => {
                let reserved = zone.reserved_cpus.clone().unwrap_or_default();
                (cpus.difference(&reserved).len(), 0)
            }
            _ => return None,
        };
        let count = |cpus: usize| u64::try_from(cpus).unwrap_or(u64::MAX);
        Some(Amount {
            capacity: count(cpus.len()),
            allocatable: count(allocatable),
            available: count(allocatable.saturating_sub(taken)),
        })
    }

    /// As the Memory Manager counts; without one nothing is bound to a zone, so all that is not huge pages.
    fn memory(&self, zone: &infra_node::Zone) -> Option<Amount> {
        let capacity = zone.memory?.0;
        match self.kubelet.memory_manager_policy.as_deref()? {
            "None" => {
                let pool =
                    |pool: &infra_node::HugepagePool| pool.total.saturating_mul(pool.size.bytes());
                let pages = zone.hugepages.iter().map(pool).fold(0, u64::saturating_add);
                let free = capacity.saturating_sub(pages);
                Some(Amount { capacity, allocatable: free, available: free })
            }
            "Static" => {
                let table = self.promised(zone.id, "memory")?;
                Some(Amount { capacity, allocatable: table.allocatable, available: table.free })
            }
            _ => None,
        }
    }

    /// What is not used and not promised. The kernel knows of uses that are no pod's, the kubelet of pods that have
    /// not touched their pages yet.
    fn pages(
        &self,
        zone: &infra_node::Zone,
        pool: &infra_node::HugepagePool,
        name: &str,
    ) -> Option<Amount> {
        let in_bytes = |pages: u64| pages.saturating_mul(pool.size.bytes());
        let capacity = in_bytes(pool.total);
        match self.kubelet.memory_manager_policy.as_deref()? {
            "None" => {
                let promised = pool.total.saturating_sub(self.given_from(zone.id, pool.size));
                let available = in_bytes(pool.free?.min(promised));
                Some(Amount { capacity, allocatable: capacity, available })
            }
            "Static" => {
                let table = self.promised(zone.id, name)?;
                let available = table.free.min(pool.free.map_or(u64::MAX, in_bytes));
                Some(Amount { capacity, allocatable: table.allocatable, available })
            }
            _ => None,
        }
    }

    fn promised(&self, zone: u32, resource: &str) -> Option<&MemoryTable> {
        let state = self.memory.filter(|state| state.policy_name == "Static")?;
        state.machine_state.get(&zone)?.memory_map.get(resource)
    }

    /// Pages of pods that have all they have from this zone.
    fn given_from(&self, zone: u32, size: PageSize) -> u64 {
        let here = self.allocations.iter().filter(|allocation| allocation.zones == [zone]);
        let pages = here.flat_map(|allocation| &allocation.hugepages);
        pages
            .filter(|pages| pages.size == size)
            .map(|pages| pages.count)
            .fold(0, u64::saturating_add)
    }
}

impl Topology {
    /// The body of a server-side apply: of the object with this UID if there is one, owned by its Node.
    #[must_use]
    pub fn apply(&self, node: &str, node_uid: &str, uid: Option<&str>) -> Value {
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

    /// Whether an object with these fields says the same.
    #[must_use]
    pub fn is_said_by(&self, fields: &Value) -> bool {
        let wanted = json!(self);
        FIELDS.iter().all(|field| wanted.get(field) == fields.get(field))
    }
}

#[cfg(test)]
mod tests;
