//! Nodes without a report: no VM goes there, and the pods that are on them count for the rules of VMs.

use std::collections::BTreeMap;
use std::time::Instant;

use berth_api::Class;
use berth_extender::{Answer, Desk};
use berth_kubelet_admission::pod::Resources;
use berth_placement::rules::HostParts;
use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

use super::host::HostForm;
use super::pod::{PodForm, on, seen};
use super::scenes::desk;
use super::volumes::host;

const ZONE: &str = "topology.kubernetes.io/zone";

fn in_zone(name: &str, zone: &str) -> HostForm {
    HostForm { labels: BTreeMap::from([(ZONE.to_owned(), zone.to_owned())]), ..host(name) }
}

/// The watch tells of a Node that has no InfraNode.
fn node(desk: &mut Desk, name: &str, zone: &str) {
    let labels = BTreeMap::from([(ZONE.to_owned(), zone.to_owned())]);
    let (allocatable, taints) = (Resources::default(), []);
    let parts = HostParts {
        name,
        labels: Some(&labels),
        taints: &taints,
        is_cordoned: false,
        allocatable: &allocatable,
        pods_limit: 0,
    };
    desk.node(&parts).expect("a node");
}

fn labelled(name: &str, app: &str) -> v1::Pod {
    let mut pod = PodForm { instance: None, ..PodForm::vm(name, 1) }.build();
    pod.metadata.labels.get_or_insert_default().insert("app".to_owned(), app.to_owned());
    pod
}

/// A VM with a required rule about pods of this label in its zone.
fn vm(name: &str, rule: &str, app: &str) -> v1::Pod {
    let mut pod = PodForm::vm(name, 1).build();
    let required: Value =
        json!([{"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": app}}}]);
    let affinity = json!({rule: {"requiredDuringSchedulingIgnoredDuringExecution": required}});
    pod.spec.get_or_insert_default().affinity =
        serde_json::from_value(affinity).expect("an affinity");
    pod
}

fn is_on(desk: &mut Desk, now: Instant, pod: v1::Pod, node: &str) {
    let pod = on(pod, node);
    desk.pod(now, pod.clone(), &seen(&pod)).expect("counted");
}

#[test]
fn pods_there_count_for_required_rules() {
    let now = Instant::now();
    // In each order of the watches.
    for node_first in [true, false] {
        let mut desk = desk(&[in_zone("a", "one"), in_zone("b", "two")]);
        if node_first {
            node(&mut desk, "plain", "one");
        }
        is_on(&mut desk, now, labelled("database", "db"), "plain");
        if !node_first {
            node(&mut desk, "plain", "one");
        }
        let beside = vm("beside", "podAffinity", "db");
        assert_eq!(desk.filter(now, &beside, &["a"]), Answer::Host("a"));
        let apart = vm("apart", "podAntiAffinity", "db");
        assert_eq!(desk.filter(now, &apart, &["a", "b"]), Answer::Host("b"));
        desk.pod_is_gone(now, "database");
        desk.tick(now + std::time::Duration::from_secs(60));
        assert!(matches!(
            desk.filter(now, &vm("late", "podAffinity", "db"), &["a"]),
            Answer::Refused(_)
        ));
    }
}

#[test]
fn no_vm_goes_there_until_its_agent_reports() {
    let now = Instant::now();
    let mut desk = desk(&[in_zone("a", "one")]);
    node(&mut desk, "plain", "one");
    let pod = PodForm::vm("vm", 2).build();
    let Answer::Refused(why) = desk.filter(now, &pod, &["plain"]) else {
        unreachable!("no report")
    };
    assert_eq!(why[0].1, "node(s) had no agent report");
    assert_eq!(desk.engine().hosts().count(), 1);
    is_on(&mut desk, now, PodForm::vm("there", 6).build(), "plain");
    // What is there is counted once, by rules and by CPUs.
    let (facts, _) = in_zone("plain", "one").facts().expect("a host");
    desk.host(now, "plain", Some((facts, Class::Standard)), Some(1)).expect("a host");
    assert!(matches!(
        desk.filter(now, &PodForm::vm("large", 4).build(), &["plain"]),
        Answer::Refused(_)
    ));
    assert_eq!(desk.engine().pods(), 1);
}

#[test]
fn a_node_that_goes_takes_its_pods_with_it() {
    let now = Instant::now();
    let mut desk = desk(&[in_zone("a", "one")]);
    node(&mut desk, "plain", "one");
    is_on(&mut desk, now, labelled("database", "db"), "plain");
    desk.node_is_gone("plain");
    let beside = vm("beside", "podAffinity", "db");
    assert!(matches!(desk.filter(now, &beside, &["a"]), Answer::Refused(_)));
    assert_eq!(desk.engine().pods(), 0);
    node(&mut desk, "plain", "one");
    assert_eq!(desk.filter(now, &beside, &["a"]), Answer::Host("a"));
}
