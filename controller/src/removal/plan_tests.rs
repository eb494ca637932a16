//! Tests of the steps of a removal, also in simulated clusters with faults.

use berth_runtime::untrusted::Explanation;
use proptest::prelude::*;

use super::*;

fn second(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn pod(name: &str) -> DrainPod {
    DrainPod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        terminating: None,
    }
}

const CORDONED: TenantState = TenantState::Node { is_cordoned: true, is_ready: true };

fn state<'a>(tenant: TenantState, outcomes: &'a EvictionOutcomes) -> RemovalState<'a> {
    RemovalState {
        removal: RemovalMark::new(RemovalReason::Rollout, second(1000)),
        now: second(1100),
        deadline: second(2000),
        tenant,
        has_ended: false,
        is_host_lost: false,
        is_host_ready: false,
        pods: None,
        outcomes,
        volume_count: None,
        failure: None,
    }
}

#[test]
fn a_node_is_drained_step_by_step() {
    let mut outcomes = EvictionOutcomes::new();
    let uncordoned = TenantState::Node { is_cordoned: false, is_ready: true };
    assert_eq!(next_step(&state(uncordoned, &outcomes)), Step::Cordon);
    assert_eq!(next_step(&state(CORDONED, &outcomes)), Step::ListPods);
    let mut pods = vec![pod("a"), pod("b")];
    let drain = |pods: &[DrainPod], outcomes: &EvictionOutcomes, volume_count| {
        let state = RemovalState { pods: Some(pods), volume_count, ..state(CORDONED, outcomes) };
        format!("{:?}", next_step(&state)).split(['(', ' ']).next().unwrap_or_default().to_owned()
    };
    assert_eq!(drain(&pods, &outcomes, None), "Evict");
    outcomes.insert("a".to_owned(), EvictionOutcome::Accepted);
    outcomes.insert("b".to_owned(), EvictionOutcome::Budget(Some("web".to_owned())));
    assert_eq!(drain(&pods, &outcomes, Some(0)), "WaitForPods");
    pods.remove(1);
    assert_eq!(drain(&pods, &outcomes, Some(0)), "WaitForPods", "a is stopping");
    assert_eq!(drain(&[], &outcomes, None), "ListVolumes");
    assert_eq!(drain(&[], &outcomes, Some(1)), "WaitForVolumes");
    assert_eq!(drain(&[], &outcomes, Some(0)), "DeleteNode");
    let gone = |is_confirmed| {
        let tenant = TenantState::NoNode { is_confirmed };
        RemovalState { volume_count: Some(0), ..state(tenant, &outcomes) }
    };
    assert_eq!(next_step(&gone(false)), Step::ConfirmNoNode);
    assert_eq!(next_step(&gone(true)), Step::DeleteMachine(RemovalOutcome::Drained));
    let late = RemovalState { now: second(2000), volume_count: None, ..gone(false) };
    assert_eq!(next_step(&late), Step::ConfirmNoNode);
}

#[test]
fn blocked_pods_are_named() {
    let outcomes = EvictionOutcomes::from([(
        "a".to_owned(),
        EvictionOutcome::Refused(403, Explanation::default()),
    )]);
    let (mut stopping, blocked) = (pod("b"), pod("a"));
    stopping.terminating = Some(second(0));
    let pods = [blocked.clone(), stopping];
    let waiting = RemovalState { pods: Some(&pods), ..state(CORDONED, &outcomes) };
    let outcome = EvictionOutcome::Refused(403, Explanation::default());
    let expected = vec![(&blocked, &outcome)];
    assert_eq!(next_step(&waiting), Step::WaitForPods { blocked: expected.clone(), stopping: 1 });
    // The kubelet does not report that a pod has stopped.
    let tenant = TenantState::Node { is_cordoned: true, is_ready: false };
    let unready = RemovalState { tenant, ..waiting };
    assert_eq!(next_step(&unready), Step::WaitForPods { blocked: expected, stopping: 0 });
}

#[test]
fn machines_without_a_drain_are_deleted_at_once() {
    let outcomes = EvictionOutcomes::new();
    let without = state(TenantState::NotUsed, &outcomes);
    assert_eq!(next_step(&without), Step::DeleteMachine(RemovalOutcome::NotDrained));
    let without_limit = RemovalState { deadline: second(1000), ..state(CORDONED, &outcomes) };
    assert_eq!(next_step(&without_limit), Step::DeleteNode);
    let ended = RemovalState { has_ended: true, ..state(CORDONED, &outcomes) };
    assert_eq!(next_step(&ended), Step::DeleteNode);
    let never_joined = state(TenantState::NoNode { is_confirmed: false }, &outcomes);
    assert_eq!(next_step(&never_joined), Step::ListVolumes);
}

#[test]
fn an_unreachable_tenant_is_waited_for_until_the_deadline() {
    let outcomes = EvictionOutcomes::new();
    let unreachable = TenantState::Unknown(ConditionReason::TenantUnreachable);
    let early = state(unreachable, &outcomes);
    assert_eq!(next_step(&early), Step::WaitForTenant(ConditionReason::TenantUnreachable));
    let late = RemovalState { now: second(2000), ..early };
    assert_eq!(next_step(&late), Step::DeleteMachine(RemovalOutcome::DeadlineExceeded));
    let failing =
        RemovalState { failure: Some(ConditionReason::AccessDenied), ..state(CORDONED, &outcomes) };
    assert_eq!(next_step(&failing), Step::WaitForTenant(ConditionReason::AccessDenied));
}

#[test]
fn a_machine_on_a_lost_host_is_kept() {
    let outcomes = EvictionOutcomes::new();
    let removal = RemovalMark::new(RemovalReason::HostLost, second(1000));
    let lost = RemovalState {
        removal,
        is_host_lost: true,
        now: second(9000),
        ..state(CORDONED, &outcomes)
    };
    assert_eq!(next_step(&lost), Step::WaitForHost);
    assert_eq!(next_step(&RemovalState { is_host_lost: false, ..lost }), Step::DeleteNode);
    // With proof that the host is off, nothing is drained. A VM that still runs is drained.
    let proven = |is_ready| {
        let tenant = TenantState::Node { is_cordoned: false, is_ready };
        RemovalState { tenant, is_host_lost: false, now: second(1100), ..lost }
    };
    assert_eq!(next_step(&proven(false)), Step::DeleteNode);
    assert_eq!(next_step(&proven(true)), Step::Cordon);
    // The host is back, but the kubelet of the VM has not reported yet.
    let returned = RemovalState { is_host_ready: true, ..proven(false) };
    assert_eq!(next_step(&returned), Step::Cordon);
}

/// A simulated tenant's cluster. Pods stop some time after they are evicted, and volumes are detached after the pods.
#[derive(Debug)]
struct Cluster {
    node: Option<bool>,
    pods: Vec<DrainPod>,
    budget: usize,
    healthy: usize,
    volumes: usize,
}

proptest! {
    /// In any cluster, with requests that fail and a controller that restarts between all steps, the machine is deleted,
    /// and not before its Node was drained or the deadline has passed. No eviction exceeds the budget.
    #[test]
    fn machines_are_deleted_after_the_drain_or_the_deadline(
        count in 0_usize..6, budget in 0_usize..4, volumes in 0_usize..3, late in 0_usize..3,
        faults in prop::collection::vec(0_u8..10, 400),
    ) {
        let pods = (0..count).map(|number| pod(&format!("p{number}"))).collect();
        let mut cluster = Cluster { node: Some(false), pods, budget, healthy: count, volumes };
        let deadline = second(1300);
        let (mut listed, mut volume_count) = (None::<Vec<DrainPod>>, None);
        let (mut is_confirmed, mut late) = (false, 0..late);
        let mut outcomes = EvictionOutcomes::new();
        for (now, fault) in (1000_i64..).zip(faults) {
            // A restart of the controller, or the wait between two reconciles.
            if fault == 0 || fault == 1 {
                (listed, volume_count) = (None, None);
                outcomes.clear();
            }
            let tenant = match cluster.node {
                _ if fault == 2 => TenantState::Unknown(ConditionReason::TenantUnreachable),
                None => TenantState::NoNode { is_confirmed },
                Some(is_cordoned) => TenantState::Node { is_cordoned, is_ready: true },
            };
            let state = RemovalState {
                removal: RemovalMark::new(RemovalReason::ScaleDown, second(1000)),
                now: second(now), deadline, tenant, has_ended: false, is_host_lost: false, is_host_ready: true,
                pods: listed.as_deref(), outcomes: &outcomes, volume_count,
                failure: (fault == 3).then_some(ConditionReason::TenantUnreachable),
            };
            let mut tried = Vec::new();
            match next_step(&state) {
                Step::Cordon => cluster.node = Some(true),
                Step::ListPods => listed = Some(cluster.pods.clone()),
                Step::ListVolumes => {
                    volume_count = Some(cluster.volumes);
                    if cluster.volumes == 0 {
                        listed = None;
                    }
                    // A pod waited for its volume, and is bound after the cordon.
                    if !late.is_empty() && cluster.node.is_some() {
                        cluster.pods.extend(late.next().map(|number| pod(&format!("late{number}"))));
                        cluster.volumes += 1;
                        cluster.healthy += 1;
                    }
                }
                Step::Evict(due) => {
                    prop_assert_eq!(cluster.node, Some(true));
                    tried = due.iter().map(|pod| pod.uid.clone()).collect();
                }
                Step::ConfirmNoNode => is_confirmed = true,
                Step::DeleteNode => {
                    let is_drained = cluster.pods.is_empty() && cluster.volumes == 0;
                    prop_assert!(is_drained || second(now) >= deadline, "{cluster:?}");
                    cluster.node = None;
                    (listed, volume_count) = (None, None);
                }
                Step::DeleteMachine(outcome) => {
                    let is_drained = cluster.pods.is_empty() && cluster.volumes == 0;
                    prop_assert!(is_drained || outcome == RemovalOutcome::DeadlineExceeded);
                    prop_assert!(is_drained || second(now) >= deadline, "{cluster:?}");
                    return Ok(());
                }
                Step::WaitForPods { .. } | Step::WaitForVolumes(_) => {
                    (listed, volume_count) = (None, None);
                    outcomes.clear();
                }
                Step::WaitForTenant(_) => {}
                Step::WaitForHost => prop_assert!(false, "the host is not lost"),
            }
            for uid in tried {
                let is_permitted = cluster.healthy > cluster.budget;
                let outcome = if is_permitted {
                    cluster.healthy -= 1;
                    if let Some(pod) = cluster.pods.iter_mut().find(|pod| pod.uid == uid) {
                        pod.terminating = Some(second(now));
                    }
                    EvictionOutcome::Accepted
                } else {
                    EvictionOutcome::Budget(None)
                };
                outcomes.insert(uid, outcome);
                (listed, volume_count) = (None, None);
            }
            if fault >= 6 {
                // A pod stops, and starts on another Node; without pods, a volume is detached.
                match cluster.pods.iter().position(|pod| pod.terminating.is_some()) {
                    Some(at) => {
                        cluster.pods.remove(at);
                        cluster.healthy += usize::from(fault >= 7);
                    }
                    None if cluster.pods.is_empty() => {
                        cluster.volumes = cluster.volumes.saturating_sub(1);
                    }
                    None => {}
                }
            }
        }
        prop_assert!(false, "the machine is not deleted: {cluster:?}");
    }
}
