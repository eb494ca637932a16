//! Random fleets, pods and sequences of events: the engine agrees with the reference model, and never allocates a
//! resource twice.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use berth_api::infra_node::AllocatedContainer;
use berth_kubelet_admission::HostState;
use berth_placement::engine::Engine;
use berth_placement::rules::HostId;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseResult, TestRng, TestRunner};

use super::allocation::reported_allocation;
use super::allocation_invariants::{check_allocations, free_resources, total_free_memory};
use super::host::HostDescription;
use super::pod::BuiltPod;
use super::random_choices::RandomChoices;
use super::reference_model::ReferenceModel;

/// The engine under test, a second engine that handles the same events, and the reference model.
struct Testbed {
    engine: Engine,
    second_engine: Engine,
    reference: ReferenceModel,
    descriptions: Vec<HostDescription>,
    ids: Vec<HostId>,
    counts: Rc<CaseCounts>,
}

impl Testbed {
    fn new(choices: &mut RandomChoices<'_>, tally: Rc<CaseCounts>) -> Self {
        let hosts = 1 + choices.next_below(12);
        let mut testbed = Self {
            engine: Engine::new(),
            second_engine: Engine::new(),
            reference: ReferenceModel::default(),
            descriptions: Vec::new(),
            ids: Vec::new(),
            counts: tally,
        };
        for _ in 0..hosts {
            let description = choices.random_host(testbed.descriptions.len());
            // Some descriptions are invalid: no kubelet would start on such a host.
            if description.reported_host().is_ok() {
                testbed.descriptions.push(description);
                testbed.set_host(testbed.descriptions.len() - 1);
            }
        }
        // Some fleets are large, because the engine does not scan all hosts of a large fleet.
        if choices.is_one_in(20) {
            for at in 0..testbed.descriptions.len() * 9 {
                let name = format!("host-{}", testbed.descriptions.len());
                testbed
                    .descriptions
                    .push(HostDescription { name, ..testbed.descriptions[at].clone() });
                testbed.set_host(testbed.descriptions.len() - 1);
            }
        }
        testbed
    }

    fn set_host(&mut self, at: usize) {
        let description = &self.descriptions[at];
        let (facts, _) = description.reported_host().expect("the description was valid before");
        let id =
            self.engine.set_host(facts.clone(), description.class).expect("the taints are valid");
        let twin = self
            .second_engine
            .set_host(facts.clone(), description.class)
            .expect("the taints are valid");
        assert_eq!(id, twin);
        self.reference.set_host(at, facts);
        if at == self.ids.len() {
            self.ids.push(id);
        }
    }

    fn host_index(&self, host: HostId) -> usize {
        self.ids.iter().position(|id| *id == host).expect("the host exists")
    }

    fn run_step(&mut self, choices: &mut RandomChoices<'_>, number: usize) -> TestCaseResult {
        let hosts = self.ids.len();
        match choices.next_below(10) {
            0..=4 => {
                let pod = choices.random_pod(format!("pod-{number}")).build();
                let among = self.random_hosts(choices);
                self.place(&pod, among.as_deref())
            }
            5 => {
                if let Some((pod, _)) = self.choose_assumed_pod(choices) {
                    let among = self.random_hosts(choices);
                    self.place(&pod, among.as_deref())?;
                }
                Ok(())
            }
            6 => {
                if let Some((pod, _)) = self.choose_assumed_pod(choices) {
                    let uid = pod.pod.uid.as_str();
                    prop_assert!(self.engine.remove_pod(uid) && self.second_engine.remove_pod(uid));
                    self.reference.remove(uid);
                }
                Ok(())
            }
            7 => {
                let pod = choices.random_pod(format!("pod-{number}")).build();
                let at = choices.next_below(hosts);
                self.bind(&pod, at)
            }
            8 => {
                if let Some((pod, at)) = self.choose_assumed_pod(choices) {
                    let at = if choices.is_one_in(2) { choices.next_below(hosts) } else { at };
                    if choices.is_one_in(2) { self.admit(&pod, at) } else { self.bind(&pod, at) }
                } else {
                    Ok(())
                }
            }
            _ => {
                self.report(choices);
                Ok(())
            }
        }
    }

    fn random_hosts(&self, choices: &mut RandomChoices<'_>) -> Option<Vec<HostId>> {
        let count = choices.next_below(self.ids.len() + 2);
        (count > 0).then(|| (1..count).map(|_| choices.choose(&self.ids)).collect())
    }

    fn choose_assumed_pod(&self, choices: &mut RandomChoices<'_>) -> Option<(BuiltPod, usize)> {
        let assumed = self.reference.assumed();
        assumed.get(choices.next_below(assumed.len())).cloned()
    }

    fn place(&mut self, pod: &BuiltPod, candidates: Option<&[HostId]>) -> TestCaseResult {
        let uid = pod.pod.uid.as_str();
        let request = pod.request(&mut self.engine);
        let twin = pod.request(&mut self.second_engine);
        let is_among = |at: &usize| candidates.is_none_or(|among| among.contains(&self.ids[*at]));
        // A pod that is in a host's report is bound to this host, and must not be placed.
        if (0..self.ids.len()).any(|at| self.reference.facts(at).allocation(uid).is_some()) {
            return Ok(());
        }
        let before = self.reference.host_of_pod(uid);
        if let Some(at) = before.filter(is_among) {
            let stays = Some(self.ids[at]);
            prop_assert_eq!(
                self.engine.place_pod(&request, candidates),
                stays,
                "{} was moved to another host",
                uid
            );
            prop_assert_eq!(self.second_engine.place_pod(&twin, candidates), stays);
            return Ok(());
        }
        if before.is_none() {
            let accepting_hosts = self.reference.accepting_hosts(pod);
            for (at, id) in self.ids.iter().enumerate() {
                let reasons = self.engine.rejection_reasons(&request, *id);
                prop_assert_eq!(
                    reasons.is_empty(),
                    accepting_hosts.contains(&at),
                    "kubelets and engine differ about {} on host {}: {:?}",
                    uid,
                    at,
                    reasons
                );
            }
            let chosen = self.engine.choose_host(&request, candidates);
            let placed = self.engine.place_pod(&request, candidates);
            prop_assert_eq!(chosen, placed, "the chosen host is the host of the placement");
            self.check_placement(pod, placed, &accepting_hosts, candidates)?;
            prop_assert_eq!(
                self.second_engine.place_pod(&twin, candidates),
                placed,
                "the second engine chooses the same host"
            );
        } else {
            self.reference.remove(uid);
            let accepting_hosts = self.reference.accepting_hosts(pod);
            let placed = self.engine.place_pod(&request, candidates);
            self.check_placement(pod, placed, &accepting_hosts, candidates)?;
            prop_assert_eq!(
                self.second_engine.place_pod(&twin, candidates),
                placed,
                "the second engine chooses the same host"
            );
        }
        Ok(())
    }

    fn check_placement(
        &mut self,
        pod: &BuiltPod,
        placed: Option<HostId>,
        accepting_hosts: &[usize],
        candidates: Option<&[HostId]>,
    ) -> TestCaseResult {
        let is_among = |at: &&usize| candidates.is_none_or(|among| among.contains(&self.ids[**at]));
        let allowed: Vec<usize> = accepting_hosts.iter().filter(is_among).copied().collect();
        match placed {
            Some(host) => {
                let at = self.host_index(host);
                prop_assert!(
                    allowed.contains(&at),
                    "{} was placed on host {}, allowed hosts: {:?}",
                    pod.pod.uid,
                    at,
                    allowed
                );
                increment(&self.counts.placed);
                if accepting_hosts.len() < self.ids.len() {
                    increment(&self.counts.placed_by_choice);
                }
                self.reference.add_pod(pod, at, false);
            }
            None => prop_assert!(
                allowed.is_empty(),
                "{} was not placed, allowed hosts: {:?}",
                pod.pod.uid,
                allowed
            ),
        }
        if accepting_hosts.is_empty() {
            increment(&self.counts.unplaced);
        }
        Ok(())
    }

    fn bind(&mut self, pod: &BuiltPod, at: usize) -> TestCaseResult {
        let request = pod.request(&mut self.engine);
        let twin = pod.request(&mut self.second_engine);
        self.reference.remove(&pod.pod.uid);
        let is_admitted = self.reference.facts(at).allocation(&pod.pod.uid).is_some()
            || self.reference.state(at).check(&pod.pod).is_ok();
        if !is_admitted {
            increment(&self.counts.refused_bound_pods);
        }
        self.reference.add_pod(pod, at, true);
        prop_assert_eq!(self.engine.add_bound_pod(&request, self.ids[at]).is_ok(), is_admitted);
        prop_assert_eq!(self.second_engine.add_bound_pod(&twin, self.ids[at]).is_ok(), is_admitted);
        Ok(())
    }

    fn admit(&mut self, pod: &BuiltPod, at: usize) -> TestCaseResult {
        let request = pod.request(&mut self.engine);
        let twin = pod.request(&mut self.second_engine);
        self.reference.remove(&pod.pod.uid);
        let is_admitted = self.reference.would_admit(&pod.pod, at);
        if is_admitted {
            self.reference.add_pod(pod, at, false);
        }
        prop_assert_eq!(
            self.engine.assume_if_admitted(&request, self.ids[at]).is_ok(),
            is_admitted
        );
        prop_assert_eq!(
            self.second_engine.assume_if_admitted(&twin, self.ids[at]).is_ok(),
            is_admitted
        );
        Ok(())
    }

    fn report(&mut self, choices: &mut RandomChoices<'_>) {
        increment(&self.counts.reports);
        let at = choices.next_below(self.ids.len());
        let state = self.engine.kubelet_state(self.ids[at]).expect("the host exists").clone();
        let uids: Vec<String> =
            self.engine.pods_on_host(self.ids[at]).map(|r| r.uid().to_owned()).collect();
        if choices.is_one_in(2) {
            choices.change_host(&mut self.descriptions[at]);
        }
        choices.change_report(&mut self.descriptions[at], &state, &uids);
        for one in &self.descriptions[at].allocations {
            let zones = |container: &AllocatedContainer| {
                container.memory.iter().map(|block| block.zones.clone()).collect::<Vec<_>>()
            };
            let sets: BTreeSet<Vec<u32>> = one.containers.iter().flat_map(zones).collect();
            if sets.len() > 1 {
                increment(&self.counts.reports_with_several_zones);
            }
            if one.containers.iter().any(|one| one.devices.iter().any(|one| one.zone.is_some())) {
                increment(&self.counts.reports_with_devices);
            }
        }
        if !Self::report_has_zones(&self.descriptions[at]) {
            increment(&self.counts.reports_with_sums_only);
        }
        self.set_host(at);
    }

    /// Checks the invariants that must hold in every state.
    fn check_invariants(&self) -> TestCaseResult {
        prop_assert_eq!(self.engine.pod_count(), self.reference.assumed().len());
        for (at, id) in self.ids.iter().enumerate() {
            let state = self.engine.kubelet_state(*id).expect("the host exists");
            let expected = self.reference.state(at);
            prop_assert_eq!(
                free_resources(state),
                free_resources(&expected),
                "the free resources of host {} differ from the reference",
                at
            );
            prop_assert_eq!(
                free_resources(state),
                free_resources(
                    self.second_engine.kubelet_state(*id).expect("both engines have the host")
                )
            );
            let here = self.reference.assumed().iter().filter(|(_, host)| *host == at);
            let here: BTreeSet<&str> = here.map(|(pod, _)| pod.pod.uid.as_str()).collect();
            let on: BTreeSet<&str> =
                self.engine.pods_on_host(*id).map(|request| request.uid()).collect();
            prop_assert_eq!(&on, &here);
            for uid in &here {
                prop_assert_eq!(self.engine.host_of_pod(uid), Some(*id));
            }
            let reported = self.reference.facts(at).allocations.iter().map(|one| one.uid.as_str());
            let empty = HostState::new(&self.reference.facts(at).admission);
            let knows_zones = self.are_zones_known(at);
            let all = reported.chain(here).collect();
            check_allocations(state, &empty, all, knows_zones)?;
        }
        Ok(())
    }

    /// Returns true if the report of a host contains the zones of all allocations.
    fn are_zones_known(&self, at: usize) -> bool {
        self.reference.facts(at).allocations.iter().all(|one| !one.has_unknown_zones)
    }

    /// Returns false if the report contains only the sum over several zones for at least one pod.
    fn report_has_zones(description: &HostDescription) -> bool {
        description.allocations.iter().all(|one| !one.containers.is_empty() || one.zones.len() < 2)
    }

    /// Checks an engine that is rebuilt from reports and bound pods: if every kubelet reports all its allocations,
    /// the rebuilt engine has the same free resources.
    fn check_rebuilt_engine(&mut self) -> TestCaseResult {
        for at in 0..self.ids.len() {
            let state = self.engine.kubelet_state(self.ids[at]).expect("the host exists");
            let assumed = self.reference.assumed().iter().filter(|(_, host)| *host == at);
            let mut has = std::mem::take(&mut self.descriptions[at].allocations);
            has.retain(|one| one.pod_uid.starts_with("stranger"));
            has.extend(assumed.filter_map(|(pod, _)| reported_allocation(state, &pod.pod.uid)));
            self.descriptions[at].allocations = has;
            self.set_host(at);
        }
        self.check_invariants()?;
        let mut rebuilt = Engine::new();
        for (at, description) in self.descriptions.iter().enumerate() {
            let (facts, _) = description.reported_host().expect("the description was valid before");
            let id = rebuilt.set_host(facts, description.class).expect("the taints are valid");
            prop_assert_eq!(id, self.ids[at]);
        }
        // Pods with an allocation in the report are added first, because the remaining resources for the other pods are
        // only known afterwards.
        let mut pods: Vec<_> = self.reference.assumed().iter().collect();
        pods.sort_by_key(|(pod, at)| self.reference.facts(*at).allocation(&pod.pod.uid).is_none());
        for (pod, at) in pods {
            let request = pod.request(&mut rebuilt);
            // The engine counts a bound pod even if it predicts that the kubelet would refuse the pod.
            drop(rebuilt.add_bound_pod(&request, self.ids[*at]));
        }
        for (_, id) in self.ids.iter().enumerate().filter(|(at, _)| self.are_zones_known(*at)) {
            let (before, after) = (self.engine.kubelet_state(*id), rebuilt.kubelet_state(*id));
            let (before, after) =
                (before.expect("the host exists"), after.expect("the host exists"));
            prop_assert_eq!(before.free_cpus(), after.free_cpus());
            prop_assert_eq!(total_free_memory(before), total_free_memory(after));
            prop_assert_eq!(before.pod_count(), after.pod_count());
        }
        Ok(())
    }
}

/// Counters over all test cases. The test checks them, because the properties also hold if no pod fits on any host.
#[derive(Debug, Default)]
struct CaseCounts {
    placed: Cell<usize>,
    unplaced: Cell<usize>,
    /// Placed pods that some hosts would accept and some hosts would refuse.
    placed_by_choice: Cell<usize>,
    refused_bound_pods: Cell<usize>,
    reports: Cell<usize>,
    /// Reported pods with containers whose memory is in different zones.
    reports_with_several_zones: Cell<usize>,
    /// Reported pods with a device whose zone is known.
    reports_with_devices: Cell<usize>,
    /// Pods with memory in several zones, in reports of old agents, which contain only the sum over the zones.
    reports_with_sums_only: Cell<usize>,
}

fn increment(cell: &Cell<usize>) {
    cell.set(cell.get() + 1);
}

#[test]
fn the_engine_agrees_with_the_reference_model() {
    let config =
        ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() };
    // Every run uses the same cases, because the test compares the counts below with fixed limits.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let tally = Rc::new(CaseCounts::default());
    let result = TestRunner::new_with_rng(config, rng).run(
        &prop::collection::vec(any::<u8>(), 0..1500),
        |bytes| {
            let mut choices = RandomChoices::new(&bytes);
            let mut testbed = Testbed::new(&mut choices, Rc::clone(&tally));
            if testbed.ids.is_empty() {
                return Ok(());
            }
            let mut number = 0;
            while !choices.is_empty() && number < 60 {
                number += 1;
                testbed.run_step(&mut choices, number)?;
                testbed.check_invariants()?;
            }
            testbed.check_rebuilt_engine()
        },
    );
    assert!(result.is_ok(), "{}", result.err().map(|error| error.to_string()).unwrap_or_default());
    for seen in [
        &tally.placed,
        &tally.unplaced,
        &tally.placed_by_choice,
        &tally.refused_bound_pods,
        &tally.reports,
    ] {
        assert!(seen.get() > 500, "{tally:?}");
    }
    for seen in [
        &tally.reports_with_several_zones,
        &tally.reports_with_devices,
        &tally.reports_with_sums_only,
    ] {
        assert!(seen.get() > 20, "{tally:?}");
    }
}
