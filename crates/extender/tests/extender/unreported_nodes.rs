//! Nodes whose agent has not reported: they accept no VM, but the affinity rules of VMs take their pods into account.

use std::collections::BTreeMap;
use std::time::Instant;

use berth_api::Class;
use berth_extender::{Extender, FilterAnswer};
use berth_kubelet_admission::pod::Resources;
use berth_placement::rules::NodeFields;
use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

use super::host::HostDescription;
use super::pod::{PodBuilder, bind_to, observe_pod};
use super::scenarios::extender_with_hosts;
use super::volumes::host_with_one_zone;

const ZONE: &str = "topology.kubernetes.io/zone";

fn host_in_zone(name: &str, zone: &str) -> HostDescription {
    HostDescription {
        labels: BTreeMap::from([(ZONE.to_owned(), zone.to_owned())]),
        ..host_with_one_zone(name)
    }
}

/// Delivers the watch event of a Node for which no InfraNode exists.
fn add_node(extender: &mut Extender, name: &str, zone: &str) {
    let labels = BTreeMap::from([(ZONE.to_owned(), zone.to_owned())]);
    let (allocatable, taints) = (Resources::default(), []);
    let parts = NodeFields {
        name,
        labels: Some(&labels),
        taints: &taints,
        is_cordoned: false,
        allocatable: &allocatable,
        pods_limit: 0,
    };
    extender.update_node(&parts).expect("the Node should be valid");
}

fn labelled_pod(name: &str, app: &str) -> v1::Pod {
    let mut pod = PodBuilder { instance: None, ..PodBuilder::vm(name, 1) }.build();
    pod.metadata.labels.get_or_insert_default().insert("app".to_owned(), app.to_owned());
    pod
}

/// Returns a VM's pod with the required rule `rule` (`podAffinity` or `podAntiAffinity`) about pods in the same zone
/// whose label `app` has the value of the argument `app`.
fn vm_with_rule(name: &str, rule: &str, app: &str) -> v1::Pod {
    let mut pod = PodBuilder::vm(name, 1).build();
    let required: Value =
        json!([{"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": app}}}]);
    let affinity = json!({rule: {"requiredDuringSchedulingIgnoredDuringExecution": required}});
    pod.spec.get_or_insert_default().affinity =
        serde_json::from_value(affinity).expect("the affinity should be valid");
    pod
}

fn add_bound_pod(extender: &mut Extender, now: Instant, pod: v1::Pod, node: &str) {
    let pod = bind_to(pod, node);
    extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod should be counted");
}

#[test]
fn pods_on_an_unreported_node_count_for_required_rules() {
    let now = Instant::now();
    // The Node's watch event may arrive before or after the pod's.
    for node_first in [true, false] {
        let mut extender =
            extender_with_hosts(&[host_in_zone("a", "one"), host_in_zone("b", "two")]);
        if node_first {
            add_node(&mut extender, "plain", "one");
        }
        add_bound_pod(&mut extender, now, labelled_pod("database", "db"), "plain");
        if !node_first {
            add_node(&mut extender, "plain", "one");
        }
        let beside = vm_with_rule("beside", "podAffinity", "db");
        assert_eq!(extender.answer_filter(now, &beside, &["a"]), FilterAnswer::ReservedHost("a"));
        let apart = vm_with_rule("apart", "podAntiAffinity", "db");
        assert_eq!(
            extender.answer_filter(now, &apart, &["a", "b"]),
            FilterAnswer::ReservedHost("b")
        );
        extender.delete_pod(now, "database");
        extender.expire_timeouts(now + std::time::Duration::from_secs(60));
        assert!(matches!(
            extender.answer_filter(now, &vm_with_rule("late", "podAffinity", "db"), &["a"]),
            FilterAnswer::Refused(_)
        ));
    }
}

#[test]
fn unreported_node_accepts_no_vm() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_in_zone("a", "one")]);
    add_node(&mut extender, "plain", "one");
    let pod = PodBuilder::vm("vm", 2).build();
    let FilterAnswer::Refused(reasons) = extender.answer_filter(now, &pod, &["plain"]) else {
        unreachable!("the Node has no agent report")
    };
    assert_eq!(reasons[0].1, "node(s) had no agent report");
    assert_eq!(extender.engine().hosts().count(), 1);
    add_bound_pod(&mut extender, now, PodBuilder::vm("there", 6).build(), "plain");
    // After the first report of the Node's agent, the pod still counts only once, for the rules of other pods and for
    // the host's CPUs.
    let (facts, _) =
        host_in_zone("plain", "one").reported_host().expect("the host report should be valid");
    extender
        .update_host(now, "plain", Some((facts, Class::Standard)), Some(1))
        .expect("the host report should be valid");
    assert!(matches!(
        extender.answer_filter(now, &PodBuilder::vm("large", 4).build(), &["plain"]),
        FilterAnswer::Refused(_)
    ));
    assert_eq!(extender.engine().pod_count(), 1);
}

#[test]
fn pods_of_a_deleted_unreported_node_are_not_counted() {
    let now = Instant::now();
    let mut extender = extender_with_hosts(&[host_in_zone("a", "one")]);
    add_node(&mut extender, "plain", "one");
    add_bound_pod(&mut extender, now, labelled_pod("database", "db"), "plain");
    extender.delete_node("plain");
    let beside = vm_with_rule("beside", "podAffinity", "db");
    assert!(matches!(extender.answer_filter(now, &beside, &["a"]), FilterAnswer::Refused(_)));
    assert_eq!(extender.engine().pod_count(), 0);
    add_node(&mut extender, "plain", "one");
    assert_eq!(extender.answer_filter(now, &beside, &["a"]), FilterAnswer::ReservedHost("a"));
}
