//! Calls of `filter` and `bind` in fixed scenarios with one or two hosts.

use std::time::{Duration, Instant};

use berth_api::Class;
use berth_extender::{BindAnswer, Extender, FilterAnswer};

use super::host::{HostDescription, ZoneDescription};
use super::pod::{PodBuilder, bind_to, observe_pod};

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn host_with_one_zone(name: &str, cpus: u32) -> HostDescription {
    let zone =
        ZoneDescription { cpus: cpus + 1, memory: 64, huge_pages_gib: 16, small_pages_mib: 0 };
    HostDescription { name: name.to_owned(), zones: vec![zone], ..HostDescription::default() }
}

pub(crate) fn report_host(extender: &mut Extender, description: &HostDescription, version: u64) {
    let (facts, _) = description.reported_host().expect("the host report should be valid");
    let facts = Some((facts, Class::Standard));
    extender
        .update_host(Instant::now(), &description.name, facts, Some(version))
        .expect("the host report should be valid");
}

pub(crate) fn extender_with_hosts(hosts: &[HostDescription]) -> Extender {
    let mut extender = Extender::new();
    for description in hosts {
        report_host(&mut extender, description, 1);
    }
    extender
}

#[test]
fn filter_returns_one_host_and_reserves_it() {
    let mut extender =
        extender_with_hosts(&[host_with_one_zone("a", 8), host_with_one_zone("b", 8)]);
    let now = Instant::now();
    let names = ["a", "unknown", "b"];
    let first = PodBuilder::vm("first", 8).build();
    assert_eq!(extender.answer_filter(now, &first, &names), FilterAnswer::ReservedHost("a"));
    assert_eq!(
        extender.answer_filter(now, &first, &names),
        FilterAnswer::ReservedHost("a"),
        "a repeated call should return the same host"
    );
    assert_eq!(
        extender.answer_filter(now, &first, &["b"]),
        FilterAnswer::ReservedHost("b"),
        "the reservation should move to the only offered host"
    );
    assert_eq!(extender.answer_filter(now, &first, &["a"]), FilterAnswer::ReservedHost("a"));
    let second = PodBuilder::vm("second", 8).build();
    assert_eq!(extender.answer_filter(now, &second, &names), FilterAnswer::ReservedHost("b"));
    let third = PodBuilder::vm("third", 8).build();
    let FilterAnswer::Refused(refusals) = extender.answer_filter(now, &third, &names) else {
        unreachable!("full hosts should refuse the pod")
    };
    let reasons: Vec<(&str, &str)> =
        refusals.iter().map(|(name, why)| (*name, why.as_ref())).collect();
    assert_eq!(reasons[1], ("unknown", "node(s) had no agent report"));
    assert_eq!(reasons[0].1, reasons[2].1, "full hosts should have the same reason");
    assert!(!reasons[0].1.contains(|c: char| c.is_ascii_digit()), "{reasons:?}");
    // After the reservations have expired, the waiting pod fits on a host, which `take_hosts_to_patch` then returns.
    assert!(extender.take_hosts_to_patch().is_empty());
    extender.expire_timeouts(now + MINUTE);
    assert_eq!(extender.take_hosts_to_patch().len(), 1);
    assert!(
        extender.take_hosts_to_patch().is_empty(),
        "a host should be returned once for each refusal"
    );
    assert!(matches!(
        extender.answer_filter(now + MINUTE, &third, &names),
        FilterAnswer::ReservedHost(_)
    ));
}

#[test]
fn bind_checks_the_reservation() {
    let mut extender =
        extender_with_hosts(&[host_with_one_zone("a", 8), host_with_one_zone("b", 8)]);
    let now = Instant::now();
    let pod = PodBuilder::vm("vm", 8).build();
    assert_eq!(extender.answer_filter(now, &pod, &["a", "b"]), FilterAnswer::ReservedHost("a"));
    assert!(
        matches!(extender.answer_bind(now, "vm", "b", None), BindAnswer::Refused(_)),
        "the binding to a host that is not reserved should be refused"
    );
    assert_eq!(extender.answer_bind(now, "vm", "a", None), BindAnswer::SendBinding);
    assert!(matches!(extender.answer_bind(now, "vm", "a", None), BindAnswer::NotReady(_)));
    extender.record_binding_success(now, "vm");
    assert_eq!(extender.answer_bind(now, "vm", "a", None), BindAnswer::AlreadyBound);
    // After a restart of the extender, `bind` may be called for a pod without a reservation.
    let late = PodBuilder::vm("late", 4).build();
    assert_eq!(extender.answer_bind(now, "late", "b", None), BindAnswer::PodRequired);
    assert!(
        matches!(extender.answer_bind(now, "other", "b", Some(&late)), BindAnswer::Refused(_)),
        "the binding of a pod with another UID should be refused"
    );
    assert_eq!(extender.answer_bind(now, "late", "b", Some(&late)), BindAnswer::SendBinding);
    let full = PodBuilder::vm("full", 4).build();
    assert!(matches!(extender.answer_bind(now, "full", "a", Some(&full)), BindAnswer::Refused(_)));
    assert!(matches!(
        extender.answer_bind(now, "full", "no-such-host", Some(&full)),
        BindAnswer::Refused(_)
    ));
}

/// The kubelet admits pods in the order in which they arrive, and allocates CPUs of the first zone that has enough free
/// CPUs.
#[test]
fn bindings_in_another_order_preserve_earlier_reservations() {
    let zone = |cpus| ZoneDescription { cpus, memory: 32, huge_pages_gib: 0, small_pages_mib: 0 };
    // Because one CPU of the first zone is reserved for the system, pods can use eight and four CPUs.
    let host = HostDescription {
        name: "a".to_owned(),
        zones: vec![zone(9), zone(4)],
        ..HostDescription::default()
    };
    let mut extender = extender_with_hosts(&[host]);
    let now = Instant::now();
    let large = PodBuilder::vm("large", 6).build();
    assert_eq!(extender.answer_filter(now, &large, &["a"]), FilterAnswer::ReservedHost("a"));
    // The small pod fits beside the large pod, but if the kubelet admitted it first, it would get the zone that the
    // large pod needs.
    let small = PodBuilder::vm("small", 4).build();
    assert!(matches!(extender.answer_filter(now, &small, &["a"]), FilterAnswer::Refused(_)));
    assert!(matches!(
        extender.answer_bind(now, "small", "a", Some(&small)),
        BindAnswer::Refused(_)
    ));
    assert_eq!(extender.answer_bind(now, "large", "a", None), BindAnswer::SendBinding);
    assert_eq!(extender.answer_filter(now, &small, &["a"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(extender.answer_bind(now, "small", "a", None), BindAnswer::SendBinding);
}

#[test]
fn binding_outcome_may_arrive_before_or_after_the_watch_event() {
    for watch_first in [true, false] {
        let mut extender = extender_with_hosts(&[host_with_one_zone("a", 8)]);
        let now = Instant::now();
        let pod = PodBuilder::vm("vm", 6).build();
        assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
        assert_eq!(extender.answer_bind(now, "vm", "a", None), BindAnswer::SendBinding);
        let bound_pod = bind_to(pod.clone(), "a");
        if watch_first {
            extender
                .update_pod(now, bound_pod.clone(), &observe_pod(&bound_pod))
                .expect("the pod should be counted");
            extender.record_binding_success(now, "vm");
        } else {
            extender.record_binding_success(now, "vm");
            extender
                .update_pod(now, bound_pod.clone(), &observe_pod(&bound_pod))
                .expect("the pod should be counted");
        }
        extender.expire_timeouts(now + 10 * MINUTE);
        assert_eq!(extender.stage_counts().bound, 1);
        let other = PodBuilder::vm("other", 6).build();
        assert!(matches!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::Refused(_)));
        // No report has listed the pod, so the extender assumes that the kubelet still runs the pod for a moment.
        extender.delete_pod(now, "vm");
        assert!(matches!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::Refused(_)));
        assert!(
            matches!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::Failed(_)),
            "the pod is deleted"
        );
        extender.expire_timeouts(now + MINUTE);
        assert_eq!(extender.take_hosts_to_patch(), ["a"]);
        assert_eq!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::ReservedHost("a"));
    }
}

#[test]
fn a_binding_with_an_unknown_outcome_keeps_its_host() {
    let mut extender = extender_with_hosts(&[host_with_one_zone("a", 8)]);
    let now = Instant::now();
    let pod = PodBuilder::vm("vm", 6).build();
    assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
    assert_eq!(extender.answer_bind(now, "vm", "a", None), BindAnswer::SendBinding);
    assert!(matches!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::NotReady(_)));
    let other = PodBuilder::vm("other", 6).build();
    assert!(matches!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::Refused(_)));
    extender.record_binding_failure(now, "vm");
    // kube-scheduler retries the pod only after a change of the Node.
    assert_eq!(extender.take_hosts_to_patch(), ["a"]);
    assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
}

#[test]
fn host_with_stale_report_accepts_no_pinned_vm_until_fresh_report() {
    let fresh = host_with_one_zone("a", 8);
    let mut extender = extender_with_hosts(&[HostDescription { is_stale: true, ..fresh.clone() }]);
    let now = Instant::now();
    let pod = PodBuilder::vm("vm", 6).build();
    let FilterAnswer::Refused(reasons) = extender.answer_filter(now, &pod, &["a"]) else {
        unreachable!("a host with a stale report should refuse the pod")
    };
    assert_eq!(reasons[0].1, "node(s) had a stale agent report");
    report_host(&mut extender, &fresh, 2);
    assert_eq!(extender.take_hosts_to_patch(), ["a"]);
    // A report with a lower version than the last one is ignored.
    report_host(&mut extender, &HostDescription { is_stale: true, ..fresh.clone() }, 1);
    assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::ReservedHost("a"));
    // If a Node or InfraNode is unreadable, the pods on its host still count, but the host accepts no new pods.
    extender
        .update_host(Instant::now(), "a", None, Some(3))
        .expect("the host report should be valid");
    let other = PodBuilder::vm("other", 1).build();
    assert!(matches!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::Refused(_)));
    assert!(matches!(extender.answer_bind(now, "vm", "a", None), BindAnswer::Refused(_)));
}

#[test]
fn migration_source_and_target_have_separate_reservations() {
    let mut extender =
        extender_with_hosts(&[host_with_one_zone("a", 8), host_with_one_zone("b", 8)]);
    let now = Instant::now();
    let source = bind_to(PodBuilder::vm("vm", 6).build(), "a");
    extender
        .update_pod(now, source.clone(), &observe_pod(&source))
        .expect("the pod should be counted");
    let builder = PodBuilder {
        name: "target".to_owned(),
        migration: Some("migration".to_owned()),
        ..PodBuilder::vm("vm", 6)
    };
    let target = builder.build();
    assert_eq!(extender.answer_filter(now, &target, &["b"]), FilterAnswer::ReservedHost("b"));
    assert_eq!(extender.stage_counts().bound, 1);
    // The migration fails, and its target pod is deleted before it was bound.
    extender.delete_pod(now, "target");
    let other = PodBuilder::vm("other", 6).build();
    assert_eq!(extender.answer_filter(now, &other, &["a", "b"]), FilterAnswer::ReservedHost("b"));
}

/// kube-scheduler 1.36 calls `filter` for each placement that it simulates, and does not report which placements it
/// discards.
#[test]
fn a_simulated_reservation_of_a_pod_group_is_replaced_and_expires_soon() {
    let mut extender =
        extender_with_hosts(&[host_with_one_zone("a", 8), host_with_one_zone("b", 8)]);
    let now = Instant::now();
    let pods = ["first", "second"].map(|name| PodBuilder::vm(name, 8).build());
    for hosts in [["a"], ["b"]] {
        assert_eq!(
            extender.answer_pod_group_filter(now, &pods[0], &hosts),
            FilterAnswer::ReservedHost(hosts[0])
        );
        assert_eq!(extender.stage_counts().reserved, 1);
    }
    assert_eq!(
        extender.answer_pod_group_filter(now, &pods[1], &["a"]),
        FilterAnswer::ReservedHost("a")
    );
    let other = PodBuilder::vm("other", 8).build();
    assert!(matches!(extender.answer_filter(now, &other, &["a", "b"]), FilterAnswer::Refused(_)));
    let later = now + Duration::from_secs(11);
    extender.expire_timeouts(later);
    assert_eq!(extender.stage_counts().reserved, 0);
    // Although the reservation has expired, `bind` permits the binding, because the host still has enough free
    // resources.
    assert_eq!(extender.answer_bind(later, "second", "a", Some(&pods[1])), BindAnswer::SendBinding);
    assert_eq!(extender.answer_filter(later, &other, &["a", "b"]), FilterAnswer::ReservedHost("b"));
    extender.expire_timeouts(later + Duration::from_secs(11));
    assert_eq!(
        extender.stage_counts().reserved,
        1,
        "a reservation without a PodGroup has a longer timeout"
    );
}

/// A newer API server accepts rules with values that this crate does not know. The CPUs of a bound pod with such a rule
/// are nevertheless in use.
#[test]
fn bound_pod_with_invalid_rules_is_counted() {
    let mut extender = extender_with_hosts(&[host_with_one_zone("a", 8)]);
    let now = Instant::now();
    let mut pod = bind_to(PodBuilder::vm("vm", 6).build(), "a");
    let constraint = serde_json::json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "Perhaps",
        "labelSelector": {}});
    let constraint = serde_json::from_value(constraint).expect("the constraint should be valid");
    pod.spec.get_or_insert_default().topology_spread_constraints = Some(vec![constraint]);
    let error = extender
        .update_pod(now, pod.clone(), &observe_pod(&pod))
        .expect_err("the rule should be invalid")
        .to_string();
    assert!(error.contains("default/vm") && error.contains("`Perhaps`"), "{error}");
    assert_eq!(extender.stage_counts().bound, 1);
    let other = PodBuilder::vm("other", 4).build();
    assert!(matches!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::Refused(_)));
    assert!(matches!(
        extender.answer_filter(now, &PodBuilder::vm("small", 2).build(), &["a"]),
        FilterAnswer::ReservedHost(_)
    ));
}

#[test]
fn unreadable_pod_is_reported() {
    let mut extender = extender_with_hosts(&[host_with_one_zone("a", 8)]);
    let now = Instant::now();
    let mut pod = PodBuilder::vm("vm", 1).build();
    pod.metadata.uid = None;
    assert!(
        matches!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::Failed(why) if why.to_string().contains("default/vm"))
    );
    let mut pod =
        PodBuilder { anti_affinity_app: Some("web".to_owned()), ..PodBuilder::vm("vm", 1) }.build();
    let affinity = pod.spec.as_mut().and_then(|spec| spec.affinity.as_mut());
    let terms = affinity.and_then(|all| all.pod_anti_affinity.as_mut());
    let terms =
        terms.and_then(|all| all.required_during_scheduling_ignored_during_execution.as_mut());
    terms.expect("the pod should have an anti-affinity term")[0].topology_key = String::new();
    assert!(
        matches!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::Failed(why) if why.to_string().contains("topologyKey"))
    );
}
