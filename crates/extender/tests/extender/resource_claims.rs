//! Pods with ResourceClaims: kube-scheduler chooses their host, because only its DynamicResources plugin knows the
//! devices of the claims. The extender counts the CPUs and memory of these pods when they are bound.

use std::collections::HashMap;
use std::time::Instant;

use berth_extender::{BindAnswer, FilterAnswer};
use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};

use super::pod::{PodBuilder, bind_to, observe_pod};
use super::scenarios::extender_with_hosts;
use super::volumes::{extender_after_first_consumer, host_with_one_zone, vm_instance};

fn pod_with_claim(name: &str, cpus: u64) -> Pod {
    let mut pod = PodBuilder::vm(name, cpus).build();
    let claim = PodResourceClaim { name: "gpu".to_owned(), ..PodResourceClaim::default() };
    pod.spec.get_or_insert_default().resource_claims = Some(vec![claim]);
    pod
}

#[test]
fn scheduler_chooses_among_all_hosts_with_room() {
    let hosts = ["a", "b", "c"].map(host_with_one_zone);
    let (mut extender, now) = (extender_with_hosts(&hosts), Instant::now());
    let names = ["a", "b", "c"];
    let full = PodBuilder::vm("full", 8).build();
    assert_eq!(extender.answer_filter(now, &full, &["b"]), FilterAnswer::ReservedHost("b"));
    let pod = pod_with_claim("claim", 8);
    for _ in 0..2 {
        let answer = extender.answer_filter(now, &pod, &names);
        assert_eq!(answer, FilterAnswer::UnreservedHosts(vec!["a", "c"]), "host b is full");
        assert_eq!(extender.stage_counts().reserved, 1, "only the other pod has a reservation");
    }
    assert_eq!(extender.answer_bind(now, "claim", "c", Some(&pod)), BindAnswer::SendBinding);
    extender.record_binding_success(now, "claim");
    let bound = bind_to(pod, "c");
    extender.update_pod(now, bound.clone(), &observe_pod(&bound)).expect("the pod is counted");
    let other = PodBuilder::vm("other", 8).build();
    assert_eq!(
        extender.answer_filter(now, &other, &["b", "c", "a"]),
        FilterAnswer::ReservedHost("a")
    );
    let refused = extender.answer_filter(now, &pod_with_claim("late", 8), &names);
    assert!(matches!(refused, FilterAnswer::Refused(_)), "all hosts are full: {refused:?}");
}

#[test]
fn host_without_room_is_refused_at_the_binding() {
    let (mut extender, now) = (extender_with_hosts(&[host_with_one_zone("a")]), Instant::now());
    let pod = pod_with_claim("claim", 8);
    assert_eq!(extender.answer_filter(now, &pod, &["a"]), FilterAnswer::UnreservedHosts(vec!["a"]));
    // Between the `filter` call and the `bind` call, another pod reserves the free CPUs of the host.
    let other = PodBuilder::vm("other", 8).build();
    assert_eq!(extender.answer_filter(now, &other, &["a"]), FilterAnswer::ReservedHost("a"));
    let answer = extender.answer_bind(now, "claim", "a", Some(&pod));
    assert!(matches!(answer, BindAnswer::Refused(_)), "{answer:?}");
    assert_eq!(extender.stage_counts().reserved, 1);
}

/// The VM's volumes are on host a, on which resources are reserved for the VM, so no other host can be chosen.
#[test]
fn existing_reservation_of_the_vm_is_used() {
    let now = Instant::now();
    let mut extender = extender_after_first_consumer(now);
    extender.replace_instances(HashMap::from([vm_instance("vmi-vm", "Pending")]));
    let answer = extender.answer_filter(now, &pod_with_claim("vm", 8), &["a", "b"]);
    assert_eq!(answer, FilterAnswer::ReservedHost("a"));
}
