//! Checks whether a kubelet would admit a rejected pod with `topologyManagerScope: pod`.
//!
//! With `topologyManagerScope: container` (topologymanager/scope_container.go), the kubelet aligns the containers other
//! than `compute` independently, each in a single zone, because they are small. If a VM is too large for one zone, its
//! zones form a group, and the kubelet uses no zone of a group for a container that needs a single zone (`Allocate` of
//! memorymanager/policy_static.go). Therefore the console log container of a VM may be the reason why the kubelet
//! rejects the VM's own pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fleet::Fleet;
use berth_kubelet_admission::{HostState, KubeletHost, TopologyPolicy, TopologyScope};
use berth_placement::engine::{Engine, Request};
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::HostId;

/// Returns advice to set `topologyManagerScope: pod` on one of the hosts; `None` if this setting is not expected to
/// help on any of the hosts.
pub(super) fn pod_scope_remedy(
    fleet: &Fleet,
    engine: &Engine,
    request: &Request,
    hosts: impl Iterator<Item = HostId>,
) -> Option<String> {
    let pod = request.pod();
    let sidecars = pod.init_containers.iter().filter(|one| one.is_sidecar);
    let other_containers = sidecars.chain(&pod.containers).map(|one| one.name.as_str());
    let other_containers: Vec<&str> = other_containers.filter(|name| *name != "compute").collect();
    if other_containers.is_empty() {
        return None;
    }
    // Identical hosts would give the same result, so only one host of each kind is tried: the host with the most free
    // CPUs.
    let mut kinds: BTreeMap<Vec<(u32, u64)>, (u32, HostId)> = BTreeMap::new();
    for host in hosts {
        let (Some(facts), Some(state)) = (engine.reported_host(host), engine.kubelet_state(host))
        else {
            continue;
        };
        let kubelet = state.host().kubelet();
        if kubelet.topology_scope != TopologyScope::Container
            || kubelet.topology_policy == TopologyPolicy::None
        {
            continue;
        }
        let kind = facts.zones.iter().map(|zone| (zone.pinnable_cpus, zone.memory)).collect();
        let free = state.free_by_zone().fold(0_u32, |sum, zone| sum.saturating_add(zone.cpus));
        let best = kinds.entry(kind).or_insert((free, host));
        if best.0 < free {
            *best = (free, host);
        }
    }
    let candidates = kinds.into_values().filter_map(|(_, host)| {
        let facts = engine.reported_host(host)?;
        let other = with_pod_scope(fleet, &facts.name)?;
        // A kubelet is reconfigured while its host is drained, so the host's current pods are admitted again before
        // the VM.
        let mut state = HostState::new(&other);
        let uid = request.uid();
        let all_readmitted = engine
            .pods_on_host(host)
            .all(|existing| state.admit_as(existing.uid(), existing.pod()).is_ok());
        if all_readmitted && state.check_as(uid, pod).is_ok() {
            return Some((facts, ""));
        }
        HostState::new(&other)
            .check_as(uid, pod)
            .is_ok()
            .then_some((facts, " if the host were empty"))
    });
    // A host that would admit the VM in addition to its current pods is preferred to a host that would admit the VM
    // only if it were empty.
    let (facts, condition) = candidates.min_by_key(|(_, unless)| unless.len())?;
    let (name, other_containers) = (&facts.name, other_containers.join(", "));
    Some(format!(
        "set topologyManagerScope: pod in the configuration of the kubelet of {name}: the kubelet \
         would then admit the \
         VM{condition}; with the scope container it has no zones for {other_containers} in \
         addition to the VM"
    ))
}

/// Returns the host with scope `pod`, as its agent would report it after the change of the setting.
fn with_pod_scope(fleet: &Fleet, name: &str) -> Option<Arc<KubeletHost>> {
    let mut infra = fleet.infra_nodes.get(name)?.clone();
    let kubelet = infra.status.as_mut()?.capabilities.kubelet.as_mut()?;
    kubelet.topology_manager_scope = Some(TopologyScope::Pod.to_string());
    let facts = ReportedHost::read(&infra, fleet.nodes.get(name), &mut Vec::new()).ok()?;
    Some(facts.admission)
}
