//! Tests that a launcher pod which does not request the device plugin resources of its networks (feature gate
//! `ExternalNetResourceInjection` of KubeVirt) is placed only on a host that has these resources.

use std::time::Instant;

use berth_extender::{Extender, FilterAnswer};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::host::HostDescription;
use super::pod::{PodBuilder, bind_to, observe_pod};
use super::scenarios::{extender_with_hosts, report_host};

const NETWORK: &str = "red/tenant";
const RESOURCE: &str = "bridge.network.kubevirt.io/br-red";

fn host(name: &str, bridge_units: u32) -> HostDescription {
    let bridges = [("br-red".to_owned(), bridge_units)].into_iter().filter(|(_, units)| *units > 0);
    let bridges = bridges.collect();
    HostDescription { name: name.to_owned(), bridges, ..HostDescription::default() }
}

/// Returns an extender with two hosts: a, which has no bridge, and b, which has the bridge `br-red`.
fn extender_with_network() -> Extender {
    let mut extender = extender_with_hosts(&[host("a", 0), host("b", 1000)]);
    extender.update_network_resources(NETWORK, &[RESOURCE]);
    extender
}

fn vm(name: &str) -> PodBuilder {
    PodBuilder { network: Some(NETWORK.to_owned()), ..PodBuilder::vm(name, 2) }
}

#[test]
fn vm_is_placed_only_on_a_host_with_its_network() {
    let (mut extender, now) = (extender_with_network(), Instant::now());
    let answer = extender.answer_filter(now, &PodBuilder::vm("plain", 2).build(), &["a", "b"]);
    assert_eq!(
        answer,
        FilterAnswer::ReservedHost("a"),
        "a VM without this network should get the first host"
    );
    let pod = vm("red").build();
    assert_eq!(extender.answer_filter(now, &pod, &["a", "b"]), FilterAnswer::ReservedHost("b"));
    let FilterAnswer::Refused(refusals) = extender.answer_filter(now, &vm("other").build(), &["a"])
    else {
        unreachable!("host a, which has no bridge, should refuse the pod")
    };
    assert!(refusals[0].1.contains(RESOURCE), "{refusals:?}");
    // Users can set the labels of a launcher pod. Therefore only the owner reference to a VM makes a pod a launcher
    // pod.
    let mut not_owned = vm("not-owned").build();
    not_owned.metadata.owner_references = None;
    assert_eq!(extender.answer_filter(now, &not_owned, &["a"]), FilterAnswer::ReservedHost("a"));
}

#[test]
fn vm_waits_for_a_host_with_all_resources_of_its_network() {
    let (mut extender, now) = (extender_with_network(), Instant::now());
    let ready = "network.berth.dev/cluster-red";
    extender.update_network_resources(NETWORK, &[RESOURCE, ready]);
    let pod = vm("red").build();
    extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod is queued");
    let FilterAnswer::Refused(refusals) = extender.answer_filter(now, &pod, &["b"]) else {
        unreachable!("host b, whose network is not ready, should refuse the pod")
    };
    assert!(refusals[0].1.contains(ready), "{refusals:?}");
    extender.update_network_resources(NETWORK, &[RESOURCE]);
    assert_eq!(extender.answer_filter(now, &pod, &["b"]), FilterAnswer::ReservedHost("b"));
}

#[test]
fn requests_of_the_pod_are_not_counted_twice() {
    let (mut extender, now) = (extender_with_network(), Instant::now());
    report_host(&mut extender, &host("b", 1), 2);
    let mut pod = vm("red").build();
    let container = &mut pod.spec.as_mut().expect("the pod should have a spec").containers[0];
    let resources = container.resources.as_mut().expect("the container should have resources");
    for amounts in [&mut resources.requests, &mut resources.limits] {
        amounts.get_or_insert_default().insert(RESOURCE.to_owned(), Quantity("1".to_owned()));
    }
    assert_eq!(extender.answer_filter(now, &pod, &["a", "b"]), FilterAnswer::ReservedHost("b"));
    let bound = bind_to(pod, "b");
    extender.update_pod(now, bound.clone(), &observe_pod(&bound)).expect("the pod is counted");
    let next = extender.answer_filter(now, &vm("next").build(), &["a", "b"]);
    assert!(matches!(next, FilterAnswer::Refused(_)), "the only unit is in use: {next:?}");
}

#[test]
fn refused_vm_is_retried_when_its_network_changes() {
    let (mut extender, now) = (extender_with_network(), Instant::now());
    report_host(&mut extender, &host("b", 0), 2);
    let pod = vm("red").build();
    extender.update_pod(now, pod.clone(), &observe_pod(&pod)).expect("the pod is queued");
    let refused = extender.answer_filter(now, &pod, &["a", "b"]);
    assert!(matches!(refused, FilterAnswer::Refused(_)), "no host has the bridge: {refused:?}");
    assert!(extender.take_hosts_to_patch().is_empty());
    extender.update_network_resources(NETWORK, &[]);
    assert_eq!(
        extender.take_hosts_to_patch().len(),
        1,
        "the pod should be retried when the network needs no resource"
    );
    assert_eq!(extender.answer_filter(now, &pod, &["a", "b"]), FilterAnswer::ReservedHost("a"));
}
