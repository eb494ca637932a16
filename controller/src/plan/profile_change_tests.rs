//! Tests of simulated profiles, on two hosts with eight CPUs each.

use super::*;
use crate::plan::ChangeEffect;
use crate::plan::test_fleet::{fleet, vm};

fn change(spec: serde_json::Value, hosts: &[&str]) -> ProfileChange {
    let object = serde_json::json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "HostProfile", "metadata": {"name": "p"}, "spec": spec,
    });
    let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
    ProfileChange { profile: serde_json::from_value(object).unwrap(), hosts }
}

fn pinnable(outcome: &Outcome, host: &str) -> u64 {
    let host = outcome.plan.hosts.iter().find(|one| one.name == host).unwrap();
    host.zones.iter().map(|zone| zone.cpus.total).sum()
}

#[test]
fn a_larger_reservation_moves_the_vms_that_no_longer_fit() {
    let spec = serde_json::json!({
        "nodeSelector": {"pool": "x"}, "cpu": {"reserved": {"coresPerZone": 2}},
    });
    let vms = [vm("large", "a", 4, true), vm("small", "a", 2, false), vm("other", "b", 2, true)];
    let result = simulate_profile(&mut fleet(&vms.concat()), &change(spec.clone(), &["a"]));
    assert_eq!((pinnable(&result.before, "a"), pinnable(&result.after, "a")), (6, 4));
    assert_eq!(pinnable(&result.after, "b"), 6);
    assert_eq!(result.hosts.len(), 1, "{:?}", result.hosts);
    let (host, changes) = &result.hosts[0];
    assert_eq!(host, "a");
    assert!(changes.iter().any(|one| one.effect == ChangeEffect::AfterDrain), "{changes:?}");
    let local = ReplacementCause::NotMigratable("local disk".to_owned());
    let found: Vec<_> = result
        .vms
        .iter()
        .map(|one| (one.vm.as_str(), one.host.as_str(), &one.departure, &one.result))
        .collect();
    assert_eq!(
        found,
        [
            ("cluster-a/large", "a", &Departure::Migrated, &VmResult::SameHost),
            (
                "cluster-a/small",
                "a",
                &Departure::Replaced(local),
                &VmResult::OtherHost("b".to_owned())
            ),
        ]
    );
    let zone = &result.after.zones["a"][0];
    assert_eq!(zone.pinnable_cpus, Some("2-3,6-7".parse().unwrap()));
    assert_eq!(zone.pinned_cpus, zone.pinnable_cpus);
    // Without hosts, the labels of the Nodes decide.
    let result = simulate_profile(&mut fleet(&vms.concat()), &change(spec, &[]));
    assert!(result.hosts.is_empty() && result.vms.is_empty(), "{result:?}");
}

#[test]
fn vms_without_another_host_are_explained() {
    let spec = serde_json::json!({"cpu": {"reserved": {"coresPerZone": 3}}});
    let vms = [vm("one", "a", 2, true), vm("two", "a", 2, true), vm("three", "b", 2, true)];
    let result = simulate_profile(&mut fleet(&vms.concat()), &change(spec, &[]));
    assert_eq!(result.hosts.len(), 2);
    let lost: Vec<_> = result.vms.iter().filter(|one| one.result == VmResult::NoHost).collect();
    assert_eq!(lost.len(), 1, "{:?}", result.vms);
    assert_eq!(result.after.plan.unplaced.len(), 1);
    assert_eq!(result.after.plan.unplaced[0].vm, lost[0].vm);
    assert!(result.before.plan.unplaced.is_empty());
}

#[test]
fn ksm_changes_no_vm_but_the_host_accepts_it_no_more() {
    let spec = serde_json::json!({"ksm": {"mode": "On"}, "class": "Density"});
    let vm = vm("one", "a", 2, true);
    let result = simulate_profile(&mut fleet(&vm), &change(spec, &[]));
    assert_eq!(result.vms.len(), 1, "{:?}", result.vms);
    assert_eq!(result.vms[0].departure, Departure::Stays);
    assert!(matches!(result.vms[0].result, VmResult::NotAccepted(_)), "{:?}", result.vms);
    assert!(result.hosts[0].1.iter().any(|one| one.field == "class" && one.after == "Density"));
}

#[test]
fn vms_that_lose_their_network_are_listed() {
    let network = |uplink: &str, allow: bool| {
        serde_json::json!({"networks": [{
            "name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": uplink}, "allowDisruption": allow,
        }]})
    };
    for (allow, expected) in [
        (true, (Departure::Stays, VmResult::NetworkInterrupted)),
        (false, (Departure::Migrated, VmResult::SameHost)),
    ] {
        let mut fleet = fleet(&vm("one", "a", 2, true));
        let spec = serde_json::from_value(network("eth1", false)).unwrap();
        fleet.infra_nodes.get_mut("a").unwrap().spec = spec;
        let result = simulate_profile(&mut fleet, &change(network("eth2", allow), &["a"]));
        assert_eq!(result.vms.len(), 1, "{:?}", result.hosts);
        let vm = &result.vms[0];
        assert_eq!((vm.departure.clone(), vm.result.clone()), expected);
    }
}

#[test]
fn profiles_that_do_not_apply_are_reported() {
    let other = "
apiVersion: berth.dev/v1alpha1
kind: HostProfile
metadata: {name: q}
spec: {priority: 5}
---
";
    for (priority, words) in [(1, "HostProfile q has a higher priority"), (5, "same priority")] {
        let change = change(serde_json::json!({"priority": priority}), &["a"]);
        let result = simulate_profile(&mut fleet(other), &change);
        assert!(result.hosts.is_empty(), "{:?}", result.hosts);
        assert!(result.problems[0].to_string().contains(words), "{:?}", result.problems);
    }
    let result = simulate_profile(&mut fleet(""), &change(serde_json::json!({}), &["c"]));
    assert!(result.problems[0].to_string().contains("Node c"), "{:?}", result.problems);
    let own = serde_json::json!({"nodeSelector": {"berth.dev/class": "Density"}});
    let result = simulate_profile(&mut fleet(""), &change(own, &["a"]));
    assert!(result.hosts.is_empty() && !result.problems.is_empty(), "{result:?}");
}
