//! Forecast of the hosts to which VMs can migrate.

use std::time::Instant;

use berth_extender::{Extender, FilterAnswer, MigrationQuery, MigrationTarget};

use super::pod::{PodBuilder, bind_to, observe_pod};
use super::scenarios::{extender_with_hosts, host_with_one_zone};

fn migration_query(vm: &str) -> MigrationQuery {
    MigrationQuery { instance_uid: format!("vmi-{vm}"), source_host: "a".to_owned() }
}

fn add_bound_pod(extender: &mut Extender, pod: PodBuilder, host: &str) {
    let pod = bind_to(pod.build(), host);
    extender
        .update_pod(Instant::now(), pod.clone(), &observe_pod(&pod))
        .expect("the pod should be counted");
}

fn find_targets(extender: &mut Extender, vms: &[&str], excluded: &str) -> Vec<MigrationTarget> {
    let queries: Vec<MigrationQuery> = vms.iter().map(|vm| migration_query(vm)).collect();
    extender.find_migration_targets(Instant::now(), &queries, |host| host == excluded)
}

#[test]
fn targets_do_not_overlap_and_are_not_reserved() {
    let mut extender =
        extender_with_hosts(&[host_with_one_zone("a", 8), host_with_one_zone("b", 4)]);
    add_bound_pod(&mut extender, PodBuilder::vm("one", 4), "a");
    add_bound_pod(&mut extender, PodBuilder::vm("two", 4), "a");
    let host = |name: &str| MigrationTarget::Host(name.to_owned());
    let answer = find_targets(&mut extender, &["one", "two", "other"], "");
    assert_eq!(answer[0], host("b"));
    assert!(matches!(answer[1], MigrationTarget::NoHost(_)), "{answer:?}");
    assert_eq!(answer[2], MigrationTarget::UnknownVm);
    // The forecast makes no reservation, so a second forecast returns the same host.
    assert_eq!(find_targets(&mut extender, &["two"], ""), [host("b")]);
    let MigrationTarget::NoHost(refused) = find_targets(&mut extender, &["two"], "b").remove(0)
    else {
        unreachable!("the only other host is excluded")
    };
    assert_eq!(refused, [("node(s) were unschedulable".to_owned(), 1)]);
}

#[test]
fn host_of_a_target_pod_is_the_target() {
    let mut extender =
        extender_with_hosts(&[host_with_one_zone("a", 8), host_with_one_zone("b", 4)]);
    add_bound_pod(&mut extender, PodBuilder::vm("one", 4), "a");
    let target = PodBuilder {
        name: "one-target".to_owned(),
        migration: Some("m".to_owned()),
        ..PodBuilder::vm("one", 4)
    };
    let names = ["b"];
    let answer = extender.answer_filter(Instant::now(), &target.build(), &names);
    assert_eq!(answer, FilterAnswer::ReservedHost("b"));
    assert_eq!(find_targets(&mut extender, &["one"], ""), [MigrationTarget::Host("b".to_owned())]);
}
