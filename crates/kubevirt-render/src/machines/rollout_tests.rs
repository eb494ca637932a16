//! Tests of the decision which machines to create and delete.

use proptest::prelude::*;

use super::super::deployment::UpdateStrategy as DeploymentStrategy;
use super::*;

fn deployment_spec(replicas: i32, surge: &str, unavailable: &str) -> DeploymentSpec {
    let value = |text: &str| match text.parse() {
        Ok(number) => IntOrString::Int(number),
        Err(_) => IntOrString::String(text.to_owned()),
    };
    DeploymentSpec {
        replicas: Some(replicas),
        strategy: Some(DeploymentStrategy {
            strategy_type: "RollingUpdate".to_owned(),
            rolling_update: Some(RollingUpdate {
                max_surge: Some(value(surge)),
                max_unavailable: Some(value(unavailable)),
            }),
        }),
        ..DeploymentSpec::default()
    }
}

fn decide(
    spec: &DeploymentSpec,
    machines: &[ExistingMachine],
    now: i64,
    backoff: Option<u32>,
) -> Result<RolloutDecision, StrategyError> {
    decide_rollout(spec, machines, DeletePolicy::default(), now, backoff)
}

fn machine(name: &str, is_current: bool, ready_since: Option<i64>) -> ExistingMachine {
    ExistingMachine {
        name: name.to_owned(),
        is_current,
        creation_time: 0,
        ready_since,
        is_deleting: false,
        has_failed: false,
        removal: RemovalMark::None,
        is_removed_first: false,
        is_readiness_unknown: false,
    }
}

#[test]
fn a_paused_deployment_replaces_without_surge() {
    let mut spec = deployment_spec(4, "25%", "0");
    let limits =
        |max_surge, max_unavailable| ReplacementLimits { desired: 4, max_surge, max_unavailable };
    assert_eq!(replacement_limits(&spec).unwrap(), limits(1, 0));
    spec.paused = true;
    assert_eq!(replacement_limits(&spec).unwrap(), limits(0, 1));
}

#[test]
fn surge_creates_a_machine_before_one_is_deleted() {
    let spec = deployment_spec(2, "1", "0");
    let decision = decide(&spec, &[], 100, None).unwrap();
    assert_eq!((decision.create_count, decision.machines_to_delete.len()), (2, 0));
    let mut machines = vec![machine("a", false, Some(1)), machine("b", false, Some(1))];
    let decision = decide(&spec, &machines, 100, None).unwrap();
    assert_eq!((decision.create_count, decision.machines_to_delete.len()), (1, 0));
    machines.push(machine("c", true, None));
    let decision = decide(&spec, &machines, 100, None).unwrap();
    assert_eq!((decision.create_count, decision.machines_to_delete.len()), (0, 0));
    machines[2].ready_since = Some(90);
    let decision = decide(&spec, &machines, 100, None).unwrap();
    assert_eq!((decision.create_count, decision.machines_to_delete.len()), (0, 1));
    assert!(!decision.is_complete);
}

#[test]
fn unavailable_machines_are_deleted_first_and_failed_machines_at_once() {
    let spec = deployment_spec(2, "0", "1");
    let mut machines = vec![machine("a", false, Some(1)), machine("b", false, None)];
    let decision = decide(&spec, &machines, 100, None).unwrap();
    assert_eq!(decision.machines_to_delete, ["b"]);
    machines[1].has_failed = true;
    let decision = decide(&spec, &machines, 100, Some(20)).unwrap();
    assert_eq!(
        (decision.machines_to_delete, decision.create_count, decision.requeue_after),
        (vec!["b".to_owned()], 0, Some(20))
    );
    assert_eq!(decide(&spec, &machines, 100, None).unwrap().create_count, 1);
}

#[test]
fn a_paused_deployment_scales_but_replaces_no_machine() {
    let mut spec = deployment_spec(2, "1", "0");
    spec.paused = true;
    let old = [machine("a", false, Some(1))];
    assert_eq!(decide(&spec, &old, 100, None).unwrap().create_count, 0);
    let new = [machine("a", true, Some(1))];
    assert_eq!(decide(&spec, &new, 100, None).unwrap().create_count, 1);
    spec.replicas = Some(0);
    assert_eq!(decide(&spec, &old, 100, None).unwrap().machines_to_delete, ["a"]);
}

#[test]
fn a_machine_is_available_after_min_ready_seconds() {
    let mut spec = deployment_spec(1, "1", "0");
    spec.min_ready_seconds = Some(30);
    let decision = decide(&spec, &[machine("a", true, Some(90))], 100, None).unwrap();
    assert_eq!(
        (decision.counts.ready, decision.counts.available, decision.requeue_after),
        (1, 0, Some(20))
    );
    assert!(decide(&spec, &[machine("a", true, Some(60))], 100, None).unwrap().is_complete);
}

#[test]
fn marked_machines_are_replaced_within_the_strategy() {
    let marked = |mark| ExistingMachine { removal: mark, ..machine("b", true, Some(1)) };
    let create_count = |surge: &str, mark| {
        let machines = [machine("a", true, Some(1)), marked(mark)];
        let decision = decide(&deployment_spec(2, surge, "1"), &machines, 100, None).unwrap();
        assert_eq!((decision.counts.replicas, decision.counts.available), (1, 1));
        assert!(decision.machines_to_delete.is_empty(), "{decision:?}");
        decision.create_count
    };
    assert_eq!(create_count("1", RemovalMark::Draining), 1);
    assert_eq!(create_count("0", RemovalMark::Draining), 0);
    assert_eq!(create_count("0", RemovalMark::Lost), 1);
    // While a machine is being drained, no other machine is removed, because too few machines would remain available.
    let machines = [
        machine("a", false, Some(1)),
        ExistingMachine { removal: RemovalMark::Draining, ..machine("b", false, Some(1)) },
        machine("c", true, Some(1)),
    ];
    let decision = decide(&deployment_spec(2, "1", "0"), &machines, 100, None).unwrap();
    assert_eq!((decision.create_count, decision.machines_to_delete.len()), (0, 0));
    // In a stale store, b has no removal mark yet, so a is deleted. As soon as the store has the mark of b, a must stay
    // available.
    let spec = deployment_spec(2, "0", "1");
    let mut machines = [machine("a", false, Some(1)), machine("b", false, Some(1))];
    assert_eq!(decide(&spec, &machines, 100, None).unwrap().machines_to_delete, ["a"]);
    machines[1].removal = RemovalMark::Draining;
    assert!(decide(&spec, &machines, 100, None).unwrap().machines_to_delete.is_empty());
}

#[test]
fn users_choose_the_machines_to_delete() {
    let at = |name: &str, creation_time| ExistingMachine {
        creation_time,
        ..machine(name, true, Some(creation_time))
    };
    let mut machines = vec![at("old", 1), at("middle", 2), at("young", 3)];
    let spec = deployment_spec(2, "1", "0");
    let delete = |machines: &[ExistingMachine], policy| {
        decide_rollout(&spec, machines, policy, 100, None).unwrap().machines_to_delete
    };
    assert_eq!(delete(&machines, DeletePolicy::Newest), ["young"]);
    assert_eq!(delete(&machines, DeletePolicy::Oldest), ["old"]);
    machines[0].ready_since = None;
    assert_eq!(delete(&machines, DeletePolicy::Newest), ["old"], "not available");
    machines[1].is_removed_first = true;
    assert_eq!(delete(&machines, DeletePolicy::Newest), ["middle"]);
}

#[test]
fn unknown_readiness_replaces_no_machine() {
    let unknown = |name: &str, is_current| ExistingMachine {
        is_readiness_unknown: true,
        ..machine(name, is_current, None)
    };
    let machines =
        [unknown("a", false), unknown("b", false), unknown("c", false), unknown("d", true)];
    let decide = |replicas: i32, machines: &[ExistingMachine]| {
        let decision = decide(&deployment_spec(replicas, "1", "1"), machines, 100, None).unwrap();
        assert!(decision.is_readiness_unknown);
        decision.machines_to_delete
    };
    assert!(decide(3, &machines).is_empty());
    assert_eq!(decide(2, &machines), ["a"]);
    assert_eq!(decide(0, &machines).len(), 4);
    assert_eq!(decide(1, &machines[..2]), ["a"], "no rollout is in progress");
}

#[test]
fn invalid_fields_are_reported() {
    for (spec, words) in [
        (deployment_spec(-1, "1", "0"), "spec.replicas: `-1`: must not be negative"),
        (deployment_spec(1, "-1", "0"), "maxSurge: `-1`"),
        (deployment_spec(1, "x%", "0"), "maxSurge: `x%`"),
        (deployment_spec(1, "1", "99999999999%"), "maxUnavailable: `99999999999%`"),
    ] {
        assert!(decide(&spec, &[], 0, None).unwrap_err().to_string().contains(words));
    }
    let mut other = deployment_spec(1, "1", "0");
    other.strategy.as_mut().unwrap().strategy_type = "Recreate".to_owned();
    assert!(decide(&other, &[], 0, None).unwrap_err().to_string().contains("`Recreate`"));
    assert_eq!(resolve_amount(Some(&IntOrString::String("25%".into())), 0, 5, true), Ok(2));
    assert_eq!(resolve_amount(Some(&IntOrString::String("25%".into())), 0, 5, false), Ok(1));
}

proptest! {
    /// From any initial state, the rollout ends with the desired number of current machines. During the rollout, the
    /// number of machines never exceeds the limit, and once enough machines are ready, their number never falls below
    /// the minimum.
    #[test]
    fn every_rollout_completes(
        replicas in 0_i32..6, surge in 0_u32..4, unavailable in 0_u32..4,
        start in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 0..8),
        luck in prop::collection::vec(any::<bool>(), 40)
    ) {
        let spec = deployment_spec(replicas, &surge.to_string(), &unavailable.to_string());
        let mut machines: Vec<ExistingMachine> = start.iter().enumerate().map(|(at, &(is_current, runs, failed))| ExistingMachine {
            has_failed: failed && !runs,
            ..machine(&format!("s{at}"), is_current, runs.then_some(0))
        }).collect();
        let (desired, surge) = (replicas.unsigned_abs() as usize, surge as usize);
        let missing = if surge == 0 && unavailable == 0 { 1 } else { unavailable as usize };
        let mut now = 0;
        for step in 0..200 {
            now += 1;
            let before = machines.iter().filter(|m| m.removal == RemovalMark::None && m.ready_since.is_some()).count();
            let decision = decide(&spec, &machines, now, None).unwrap();
            let is_marked = |m: &ExistingMachine| m.removal != RemovalMark::None;
            if decision.is_complete && decision.create_count == 0 && decision.machines_to_delete.is_empty() && !machines.iter().any(is_marked) {
                prop_assert_eq!(machines.len(), desired);
                return Ok(());
            }
            for machine in machines.iter_mut().filter(|m| decision.machines_to_delete.contains(&m.name)) {
                prop_assert_eq!(machine.removal, RemovalMark::None, "a marked machine is deleted again");
                machine.removal = if machine.has_failed { RemovalMark::Lost } else { RemovalMark::Draining };
            }
            let is_counted = |m: &&ExistingMachine| m.removal == RemovalMark::None && m.ready_since.is_some();
            let runs = machines.iter().filter(is_counted).count();
            prop_assert!(runs >= desired.saturating_sub(missing).min(before), "too few machines are ready: {decision:?}");
            for at in 0..decision.create_count {
                machines.push(machine(&format!("n{step}-{at}"), true, None));
            }
            if decision.create_count > 0 {
                let count = machines.iter().filter(|m| m.removal != RemovalMark::Lost).count();
                prop_assert!(count <= desired + surge.max(usize::from(surge == 0 && missing == 0)), "too many machines exist: {decision:?}");
            }
            // Depending on `luck`, machines become ready and marked machines finish their drain in this step. After 40
            // steps, both always occur.
            if luck.get(step).copied().unwrap_or(true) {
                for machine in machines.iter_mut().filter(|m| m.ready_since.is_none() && !m.has_failed) {
                    machine.ready_since = Some(now);
                }
            }
            if luck.get(step * 7 % 40).copied().unwrap_or(true) || step > 40 {
                let drained = machines.iter().position(is_marked);
                if let Some(at) = drained {
                    machines.remove(at);
                }
            }
        }
        prop_assert!(false, "the rollout does not complete: {machines:?}");
    }
}
