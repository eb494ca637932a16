//! The same decisions, slow and plain: everything is rebuilt from what happened, nothing is remembered of an answer.

use std::sync::Arc;

use berth_api::Class;
use berth_api::infra_node::KvmState;
use berth_kubelet_admission::pod::{Pod, Resources};
use berth_kubelet_admission::{
    Admission, CpuPolicy, MemoryPolicy, Restored, State, TopologyPolicy,
};
use berth_placement::engine::Needs;
use berth_placement::inventory::{Allocation, HostFacts};
use berth_placement::rules::{Counts, HostId, Rules};

use super::pod::Built;

/// What happened to the pods of a host, in order.
#[derive(Clone, Debug)]
enum Event {
    /// It came, and has what the kubelet gives it; or it is only counted, if that would be nothing.
    Came(Pod),
    /// It has what the report says.
    Reported(String, Restored),
    Went(String),
}

#[derive(Debug)]
struct SlowHost {
    facts: HostFacts,
    events: Vec<Event>,
}

/// All hosts and pods.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    hosts: Vec<SlowHost>,
    /// In the order in which they were booked.
    booked: Vec<(Built, usize)>,
}

impl Slow {
    pub(crate) fn set_host(&mut self, at: usize, facts: HostFacts) {
        let mut events = Vec::new();
        let mut allocations: Vec<_> = facts.allocations.iter().collect();
        allocations.sort_by_key(|one| one.zones.len());
        for allocation in allocations {
            let pod = self.booked.iter().map(|(pod, _)| &pod.pod);
            let pod = pod.into_iter().find(|pod| pod.uid == allocation.uid);
            events.push(Event::Reported(allocation.uid.clone(), restored(allocation, pod)));
        }
        for (pod, _) in self.booked.iter().filter(|(_, host)| *host == at) {
            if facts.allocation(&pod.pod.uid).is_none() {
                events.push(Event::Came(pod.pod.clone()));
            }
        }
        let host = SlowHost { facts, events };
        if at < self.hosts.len() { self.hosts[at] = host } else { self.hosts.push(host) }
    }

    pub(crate) fn facts(&self, at: usize) -> &HostFacts {
        &self.hosts[at].facts
    }

    pub(crate) fn booked(&self) -> &[(Built, usize)] {
        &self.booked
    }

    pub(crate) fn where_is(&self, uid: &str) -> Option<usize> {
        Some(self.booked.iter().find(|(pod, _)| pod.pod.uid == uid)?.1)
    }

    /// A pod comes to a host; what its report says of the pod counts, if `bound` is true.
    pub(crate) fn book(&mut self, pod: &Built, at: usize, bound: bool) {
        self.remove(&pod.pod.uid);
        let host = &mut self.hosts[at];
        host.events.push(match host.facts.allocation(&pod.pod.uid) {
            Some(allocation) if bound => {
                Event::Reported(pod.pod.uid.clone(), restored(allocation, Some(&pod.pod)))
            }
            _ => Event::Came(pod.pod.clone()),
        });
        self.booked.push((pod.clone(), at));
    }

    pub(crate) fn remove(&mut self, uid: &str) {
        let Some(at) = self.booked.iter().position(|(pod, _)| pod.pod.uid == uid) else { return };
        let (_, host) = self.booked.remove(at);
        let host = &mut self.hosts[host];
        if host.facts.allocation(uid).is_none() {
            host.events.push(Event::Went(uid.to_owned()));
        }
    }

    /// What the kubelet of a host has handed out.
    pub(crate) fn state(&self, at: usize) -> State {
        let host = &self.hosts[at];
        let mut state = State::new(&host.facts.admission);
        for event in &host.events {
            match event {
                Event::Came(pod) if state.check(pod).is_ok() => {
                    state.admit(pod).expect("what was checked");
                }
                Event::Came(pod) => {
                    let requests = pod.requests();
                    state.restore(&pod.uid, &Restored { containers: Vec::new(), requests });
                }
                Event::Reported(uid, restored) => state.restore(uid, restored),
                Event::Went(uid) => drop(state.remove(uid)),
            }
        }
        state
    }

    /// Whether the kubelet of a host would take a pod, as far as can be told.
    pub(crate) fn would_take(&self, pod: &Pod, at: usize) -> bool {
        is_told(pod, self.facts(at)) && self.state(at).check(pod).is_ok()
    }

    /// Hosts that would take a pod that is on none.
    pub(crate) fn takers(&self, pod: &Built) -> Vec<usize> {
        let (mut counts, ids) = self.counts();
        let rules = pod.rules(&mut counts);
        let question = counts.ask(&rules);
        let fits = |at: &usize| {
            let facts = &self.hosts[*at].facts;
            let state = self.state(*at);
            question.allows(ids[*at])
                && suits(&pod.needs, facts)
                && is_told(&pod.pod, facts)
                && state.check(&pod.pod).is_ok_and(|given| {
                    !given.takes_cpus_in_use() && has_pages(pod, &given, &state, facts)
                })
        };
        (0..self.hosts.len()).filter(fits).collect()
    }

    fn counts(&self) -> (Counts, Vec<HostId>) {
        let mut counts = Counts::new();
        let mut ids = Vec::new();
        for SlowHost { facts, .. } in &self.hosts {
            ids.push(counts.set_host(&facts.parts()).expect("taints that are right"));
        }
        for (pod, at) in &self.booked {
            let rules: Rules = pod.rules(&mut counts);
            counts.add(Arc::new(rules), ids[*at]);
        }
        (counts, ids)
    }
}

fn suits(needs: &Needs, host: &HostFacts) -> bool {
    !needs.is_vm
        || (needs.is_emulated || host.kvm.is_none_or(|state| state == KvmState::Ready))
            && !(needs.is_pinned && host.stale.is_some())
            && !(needs.is_pinned && host.admission.kubelet().cpu_policy == CpuPolicy::None)
            && !(needs.class == Class::Performance && host.merges_pages == Some(true))
}

/// KubeVirt gives each zone of the VM's CPUs the same number of pages, the first ones what does not divide.
fn has_pages(pod: &Built, given: &Admission, before: &State, host: &HostFacts) -> bool {
    let Some(numa) = pod.needs.numa else { return true };
    let placements = given.placements(&host.admission);
    let Some(pinned) = placements.into_iter().find(|one| !one.cpus.is_empty()) else { return true };
    let zones = host.zones.iter().zip(before.free_by_zone());
    let zones: Vec<_> = zones.filter(|(zone, _)| zone.cpus.intersects(&pinned.cpus)).collect();
    let (pages, count) = (numa.memory / numa.page.bytes(), zones.len() as u64);
    (0..).zip(zones).all(|(at, (_, free))| {
        let own = pages / count + u64::from(at < pages % count);
        free.pages(numa.page).0 >= own * numa.page.bytes()
    })
}

/// Whether the report tells all that the kubelet decides by.
fn is_told(pod: &Pod, facts: &HostFacts) -> bool {
    let kubelet = facts.admission.kubelet();
    let is_spread = facts.allocations.iter().any(|one| one.is_unplaced);
    if is_spread && kubelet.memory_policy == MemoryPolicy::Static && pod.is_guaranteed() {
        return false;
    }
    let aligns = matches!(
        kubelet.topology_policy,
        TopologyPolicy::Restricted | TopologyPolicy::SingleNumaNode
    );
    !(aligns && pod.requests().extended.keys().any(|name| facts.unplaced_devices.contains(name)))
}

fn restored(allocation: &Allocation, pod: Option<&Pod>) -> Restored {
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
    Restored { containers: allocation.containers().into_owned(), requests }
}
