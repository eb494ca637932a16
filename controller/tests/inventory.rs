//! Invalid reports and Nodes: problems name the object and the field, valid parts are used, and no resource that does
//! not exist is allocated.

#![expect(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "inventory/cases.rs"]
mod cases;
#[path = "inventory/mutation.rs"]
mod mutation;

use std::collections::BTreeMap;

use berth_api::Problem;
use berth_api::{Class, CpuSet, InfraNode, PageSize};
use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_kubelet_admission::{HostState, MemoryKind};
use berth_placement::engine::{Engine, VmRequirements};
use berth_placement::inventory::ReportedHost;
use berth_placement::rules::PodFields;
use k8s_openapi::api::core::v1;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use serde_json::Value;

use mutation::any_mutation;

pub(crate) fn valid_infra_node() -> Value {
    serde_saphyr::from_str(include_str!("inventory/good.yaml")).expect("the YAML should be valid")
}

pub(crate) fn valid_node() -> Value {
    serde_saphyr::from_str(include_str!("inventory/node.yaml")).expect("the YAML should be valid")
}

/// Parses an InfraNode and a Node with the functions that the controller uses.
pub(crate) fn read_host(
    infra: Value,
    node: Option<Value>,
) -> anyhow::Result<(ReportedHost, Vec<Problem>)> {
    let infra: InfraNode = deserialize(infra)?;
    let node: Option<v1::Node> = node.map(deserialize).transpose()?;
    let mut problems = Vec::new();
    match ReportedHost::read(&infra, node.as_ref(), &mut problems) {
        Ok(facts) => Ok((facts, problems)),
        Err(problem) => {
            assert_problem_is_specific(&problem);
            Err(anyhow::anyhow!("{problem}"))
        }
    }
}

fn deserialize<T: serde::de::DeserializeOwned>(value: Value) -> anyhow::Result<T> {
    Ok(serde_path_to_error::deserialize(value)?)
}

/// Asserts that a problem names object and field, so that the author of the object can find the mistake.
fn assert_problem_is_specific(problem: &Problem) {
    let kind = problem.object.split(' ').next().unwrap_or_default();
    assert!(kind == "InfraNode" || kind == "Node", "{problem:?}");
    let top = problem.field.split(['.', '[']).next().unwrap_or_default();
    assert!(["metadata", "spec", "status"].contains(&top), "{problem:?}");
    assert!(!problem.message.is_empty() && problem.value.len() < 260, "{problem:?}");
}

fn vm_pod(name: &str) -> Pod {
    let requests = Resources {
        cpu_millis: 2000,
        memory: 1 << 30,
        hugepages: [(PageSize::GIB_1, 4 << 30)].into(),
        extended: BTreeMap::new(),
    };
    let limits = requests.clone();
    let compute = Container { name: "compute".to_owned(), is_sidecar: false, requests, limits };
    Pod { uid: name.to_owned(), containers: vec![compute], ..Pod::default() }
}

/// Fills a host with VMs, and checks that no resource is allocated twice, and that all allocated resources exist.
fn fill_with_vms(facts: ReportedHost) -> TestCaseResult {
    let zones = facts.zones.clone();
    let reported: CpuSet = facts.allocations.iter().flat_map(|one| one.cpus.iter()).collect();
    let sum: usize = facts.allocations.iter().map(|one| one.cpus.len()).sum();
    prop_assert_eq!(sum, reported.len(), "a CPU is in several allocations");
    let empty = HostState::new(&facts.admission);
    let mut engine = Engine::new();
    let Ok(host) = engine.set_host(facts, Class::Standard) else { return Ok(()) };
    let mut taken = reported;
    for number in 0..40 {
        let pod = vm_pod(&format!("vm-{number}"));
        let fields = PodFields {
            namespace: "default",
            labels: None,
            is_terminating: false,
            node_selector: None,
            affinity: None,
            tolerations: &[],
            spread_constraints: &[],
            containers: &pod,
            claims: &[],
        };
        let needs = VmRequirements { is_vm: true, is_pinned: true, ..VmRequirements::default() };
        let request = engine.compile_request(&fields, needs).expect("the rules are valid");
        let reasons = engine.rejection_reasons(&request, host);
        let placed = engine.place_pod(&request, None);
        prop_assert_eq!(placed.is_some(), reasons.is_empty(), "{:?}", reasons);
        if placed.is_none() {
            break;
        }
        let state = engine.kubelet_state(host).expect("the host exists");
        let admission = state.admission(&pod.uid).expect("the pod was placed");
        let cpus = admission.cpus(state.host());
        prop_assert_eq!(cpus.len(), 2);
        prop_assert!(
            !cpus.intersects(&taken),
            "CPUs {} overlap with the CPUs {} of other pods",
            cpus,
            taken
        );
        prop_assert!(cpus.is_subset(&empty.free_cpus()));
        taken = taken.union(&cpus);
    }
    let state = engine.kubelet_state(host).expect("the host exists");
    for (zone, size) in state.memory_by_zone().iter().zip(&zones) {
        let free: u64 = zone.free.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes));
        prop_assert!(free <= size.memory, "{:?}", zone.free);
        prop_assert!(zone.free.iter().any(|(kind, _)| *kind == MemoryKind::Memory));
    }
    Ok(())
}

#[test]
fn valid_report_has_no_problems() {
    let (facts, problems) =
        read_host(valid_infra_node(), Some(valid_node())).expect("the report should be valid");
    assert_eq!(problems, []);
    let empty = HostState::new(&facts.admission);
    assert_eq!(empty.free_cpus().len(), 28);
    assert_eq!(facts.allocations.len(), 2);
    fill_with_vms(facts).expect("no resource is allocated twice");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invalid_reports_cause_no_double_allocation(
        of_infra in prop::collection::vec(any_mutation(), 0..6),
        of_node in prop::collection::vec(any_mutation(), 0..3),
        has_node in any::<bool>(),
    ) {
        let (mut infra, mut node) = (valid_infra_node(), valid_node());
        of_infra.iter().for_each(|one| one.apply(&mut infra));
        of_node.iter().for_each(|one| one.apply(&mut node));
        match read_host(infra, has_node.then_some(node)) {
            Ok((facts, problems)) => {
                problems.iter().for_each(assert_problem_is_specific);
                fill_with_vms(facts)?;
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
