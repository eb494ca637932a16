//! Reference model of the engine. The model is slow and simple: it rebuilds the state from the events, and caches
//! no results.

use std::sync::Arc;

use berth_api::Class;
use berth_api::infra_node::KvmState;
use berth_kubelet_admission::pod::{Pod, Resources};
use berth_kubelet_admission::{
    Admission, CpuPolicy, HostState, MemoryPolicy, ReportedPod, TopologyPolicy,
};
use berth_placement::engine::VmRequirements;
use berth_placement::inventory::{Allocation, ReportedHost};
use berth_placement::rules::{ClusterState, HostId, Rules};

use super::pod::BuiltPod;

/// An event about a pod on a host.
#[derive(Clone, Debug)]
enum Event {
    /// The pod was added, and gets the resources that the kubelet would allocate; if the kubelet would refuse the pod,
    /// only its requests count.
    Added(Pod),
    /// The pod has the resources in the report.
    Reported(String, ReportedPod),
    Removed(String),
}

#[derive(Debug)]
struct ModelHost {
    facts: ReportedHost,
    events: Vec<Event>,
}

/// State of the reference model: all hosts and pods.
#[derive(Debug, Default)]
pub(crate) struct ReferenceModel {
    hosts: Vec<ModelHost>,
    /// Pods and their hosts, in the order in which the pods were assumed.
    assumed: Vec<(BuiltPod, usize)>,
}

impl ReferenceModel {
    pub(crate) fn set_host(&mut self, at: usize, facts: ReportedHost) {
        let mut events = Vec::new();
        let mut allocations: Vec<_> = facts.allocations.iter().collect();
        allocations.sort_by_key(|one| one.zones.len());
        for allocation in allocations {
            let pod = self.assumed.iter().map(|(pod, _)| &pod.pod);
            let pod = pod.into_iter().find(|pod| pod.uid == allocation.uid);
            events.push(Event::Reported(
                allocation.uid.clone(),
                restored_allocation(allocation, pod),
            ));
        }
        for (pod, _) in self.assumed.iter().filter(|(_, host)| *host == at) {
            if facts.allocation(&pod.pod.uid).is_none() {
                events.push(Event::Added(pod.pod.clone()));
            }
        }
        let host = ModelHost { facts, events };
        if at < self.hosts.len() { self.hosts[at] = host } else { self.hosts.push(host) }
    }

    pub(crate) fn facts(&self, at: usize) -> &ReportedHost {
        &self.hosts[at].facts
    }

    pub(crate) fn assumed(&self) -> &[(BuiltPod, usize)] {
        &self.assumed
    }

    pub(crate) fn host_of_pod(&self, uid: &str) -> Option<usize> {
        Some(self.assumed.iter().find(|(pod, _)| pod.pod.uid == uid)?.1)
    }

    /// Adds a pod to a host. A bound pod that the host's report contains gets the resources in the report.
    pub(crate) fn add_pod(&mut self, pod: &BuiltPod, at: usize, bound: bool) {
        self.remove(&pod.pod.uid);
        let host = &mut self.hosts[at];
        host.events.push(match host.facts.allocation(&pod.pod.uid) {
            Some(allocation) if bound => Event::Reported(
                pod.pod.uid.clone(),
                restored_allocation(allocation, Some(&pod.pod)),
            ),
            _ => Event::Added(pod.pod.clone()),
        });
        self.assumed.push((pod.clone(), at));
    }

    pub(crate) fn remove(&mut self, uid: &str) {
        let Some(at) = self.assumed.iter().position(|(pod, _)| pod.pod.uid == uid) else { return };
        let (_, host) = self.assumed.remove(at);
        let host = &mut self.hosts[host];
        if host.facts.allocation(uid).is_none() {
            host.events.push(Event::Removed(uid.to_owned()));
        }
    }

    /// Returns the allocations of a host's kubelet.
    pub(crate) fn state(&self, at: usize) -> HostState {
        let host = &self.hosts[at];
        let mut state = HostState::new(&host.facts.admission);
        for event in &host.events {
            match event {
                Event::Added(pod) if state.check(pod).is_ok() => {
                    state.admit(pod).expect("the pod was checked before");
                }
                Event::Added(pod) => {
                    let requests = pod.requests();
                    state.restore(&pod.uid, &ReportedPod { containers: Vec::new(), requests });
                }
                Event::Reported(uid, restored) => state.restore(uid, restored),
                Event::Removed(uid) => drop(state.remove(uid)),
            }
        }
        state
    }

    /// Returns true if the kubelet of a host would admit a pod, as far as this is predictable.
    pub(crate) fn would_admit(&self, pod: &Pod, at: usize) -> bool {
        is_predictable(pod, self.facts(at)) && self.state(at).check(pod).is_ok()
    }

    /// Returns the hosts that would accept a pod that has no host yet.
    pub(crate) fn accepting_hosts(&self, pod: &BuiltPod) -> Vec<usize> {
        let (mut cluster, ids) = self.cluster_state();
        let rules = pod.rules(&mut cluster);
        let filter = cluster.pod_filter(&rules);
        let fits = |at: &usize| {
            let facts = &self.hosts[*at].facts;
            let state = self.state(*at);
            filter.allows(ids[*at])
                && meets_vm_requirements(&pod.requirements, facts)
                && is_predictable(&pod.pod, facts)
                && state.check(&pod.pod).is_ok_and(|admission| {
                    !admission.takes_cpus_in_use()
                        && has_enough_pages(pod, &admission, &state, facts)
                })
        };
        (0..self.hosts.len()).filter(fits).collect()
    }

    fn cluster_state(&self) -> (ClusterState, Vec<HostId>) {
        let mut cluster = ClusterState::new();
        let mut ids = Vec::new();
        for ModelHost { facts, .. } in &self.hosts {
            ids.push(cluster.set_host(&facts.node_fields()).expect("the taints are valid"));
        }
        for (pod, at) in &self.assumed {
            let rules: Rules = pod.rules(&mut cluster);
            cluster.add_pod(Arc::new(rules), ids[*at]);
        }
        (cluster, ids)
    }
}

fn meets_vm_requirements(needs: &VmRequirements, host: &ReportedHost) -> bool {
    !needs.is_vm
        || (needs.is_emulated || host.kvm_state.is_none_or(|state| state == KvmState::Ready))
            && !(needs.is_pinned && host.stale_reason.is_some())
            && !(needs.is_pinned && host.admission.kubelet().cpu_policy == CpuPolicy::None)
            && !(needs.class == Class::Performance && host.is_ksm_enabled == Some(true))
}

/// Returns true if the zones have enough pages. KubeVirt requires the same number of pages from each zone of the VM's
/// CPUs; the first zones provide one page more if the number is not divisible.
fn has_enough_pages(
    pod: &BuiltPod,
    admission: &Admission,
    before: &HostState,
    host: &ReportedHost,
) -> bool {
    let Some(numa) = pod.requirements.numa_guest_memory else { return true };
    let placements = admission.placements(&host.admission);
    let Some(pinned) = placements.into_iter().find(|one| !one.cpus.is_empty()) else { return true };
    let zones = host.zones.iter().zip(before.free_by_zone());
    let zones: Vec<_> = zones.filter(|(zone, _)| zone.cpus.intersects(&pinned.cpus)).collect();
    let (pages, count) = (numa.memory / numa.page_size.bytes(), zones.len() as u64);
    (0..).zip(zones).all(|(at, (_, free))| {
        let own = pages / count + u64::from(at < pages % count);
        free.free_and_total_pages(numa.page_size).0 >= own * numa.page_size.bytes()
    })
}

/// Returns true if the report contains all facts on which the kubelet's decision depends.
fn is_predictable(pod: &Pod, facts: &ReportedHost) -> bool {
    let kubelet = facts.admission.kubelet();
    let is_spread = facts.allocations.iter().any(|one| one.has_unknown_zones);
    if is_spread && kubelet.memory_policy == MemoryPolicy::Static && pod.is_guaranteed() {
        return false;
    }
    let aligns = matches!(
        kubelet.topology_policy,
        TopologyPolicy::Restricted | TopologyPolicy::SingleNumaNode
    );
    !(aligns
        && pod
            .requests()
            .extended
            .keys()
            .any(|name| facts.devices_with_unknown_zones.contains(name)))
}

fn restored_allocation(allocation: &Allocation, pod: Option<&Pod>) -> ReportedPod {
    let requests = match pod {
        Some(pod) => pod.requests(),
        None => Resources {
            cpu_millis: allocation.cpus.len() as u64 * 1000,
            memory: allocation.memory,
            hugepages: allocation.hugepages.iter().copied().collect(),
            extended: allocation
                .devices
                .iter()
                .map(|(n, c)| (n.to_string(), (*c).into()))
                .collect(),
        },
    };
    ReportedPod { containers: allocation.containers().into_owned(), requests }
}
