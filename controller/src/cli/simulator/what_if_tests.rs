//! Tests of simulated changes on a snapshot with two hosts.

use super::*;
use crate::plan::test_fleet::{fleet, vm};

/// A VM with exclusive CPUs that waits for a host.
fn waiting(name: &str, cores: u32) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}, namespace: cluster-a}}\n\
         spec: {{runStrategy: Always, template: {{spec: {{domain: {{cpu: {{cores: {cores}, \
         dedicatedCpuPlacement: true}}, memory: {{guest: 1Gi}}, devices: {{}}}}}}}}}}\n---\n"
    )
}

fn deployment(replicas: u32, cpus: u32, more: &str) -> InputObject {
    let text = format!(
        "apiVersion: cluster.k8s.io/v1alpha1\nkind: MachineDeployment\nmetadata: {{name: web}}\n\
         spec: {{replicas: {replicas}, {more} selector: {{matchLabels: {{a: b}}}}, template: {{metadata: {{labels: {{a: b}}}}, \
         spec: {{providerSpec: {{value: {{cloudProvider: kubevirt, operatingSystem: flatcar, operatingSystemSpec: {{}}, \
         cloudProviderSpec: {{virtualMachine: {{template: {{cpus: '{cpus}', memory: 1Gi, \
         primaryDisk: {{osImage: 'http://x/y.img', size: 10Gi}}}}}}}}}}}}}}}}}}"
    );
    super::super::input::read_deployment("cluster-a", &text).unwrap()
}

#[test]
fn additional_hosts_take_waiting_vms() {
    let objects =
        [vm("one", "a", 6, true), vm("two", "b", 6, true), waiting("three", 6), waiting("big", 7)];
    let report = add_hosts(&fleet(&objects.concat()), "a", 2).unwrap();
    assert_eq!((report.before.hosts, report.after.hosts), (2, 4));
    assert_eq!((report.before.waiting, report.after.waiting), (2, 1));
    assert_eq!((report.before.cpus.free, report.before.cpus.total), (0, 12));
    assert_eq!((report.after.cpus.free, report.after.cpus.total), (6, 24));
    let placed: Vec<_> =
        report.placed.iter().map(|one| (one.vm.as_str(), one.host.as_str())).collect();
    assert_eq!(placed, [("cluster-a/three", "a-1")]);
    assert_eq!(
        (report.unplaced[0].vm.as_str(), report.unplaced[0].is_new),
        ("cluster-a/big", false)
    );
    assert!(!report.unplaced[0].refusals.is_empty());
    assert_eq!(report.maps.len(), 2, "{:?}", report.maps);
    assert!(report.maps[0].before.is_none() && report.interruptions.is_empty());
    assert_eq!(report.maps[0].after[0].pinned_cpus, Some("1-3,5-7".parse().unwrap()));
    assert!(matches!(add_hosts(&fleet(""), "c", 1), Err(SimulationError::Unknown(_))));
}

#[test]
fn copies_of_a_cordoned_host_accept_vms_and_have_unused_names() {
    let mut fleet = fleet(&waiting("three", 6));
    for name in ["a", "b"] {
        let spec = fleet.nodes.get_mut(name).unwrap().spec.get_or_insert_default();
        spec.unschedulable = Some(true);
        let taint =
            serde_json::json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
        spec.taints = Some(vec![serde_json::from_value(taint).unwrap()]);
    }
    let mut infra = fleet.infra_nodes["b"].clone();
    infra.metadata.name = Some("a-1".to_owned());
    fleet.infra_nodes.insert("a-1".to_owned(), infra);
    fleet.nodes.insert("a-1".to_owned(), {
        let mut node = fleet.nodes["b"].clone();
        node.metadata.name = Some("a-1".to_owned());
        node
    });
    let report = add_hosts(&fleet, "a", 1).unwrap();
    assert_eq!(report.placed.len(), 1, "{:?}", report.unplaced);
    assert_eq!((report.placed[0].host.as_str(), report.after.hosts), ("a-2", 4));
}

#[test]
fn machines_of_a_deployment_are_placed_or_explained() {
    let report = add_machines(fleet(""), deployment(2, 2, "")).unwrap();
    let numbers = report.machines.clone().unwrap();
    assert_eq!(
        (numbers.deployment.as_str(), numbers.desired, numbers.existing),
        ("cluster-a/web", 2, 0)
    );
    assert_eq!((report.placed.len(), report.unplaced.len()), (2, 0), "{report:?}");
    let report = add_machines(fleet(""), deployment(2, 500, "")).unwrap();
    assert_eq!((report.placed.len(), report.unplaced.len()), (0, 2));
    assert!(report.unplaced.iter().all(|one| one.is_new), "{:?}", report.unplaced);
}

#[test]
fn machines_that_are_removed_or_replaced_are_named() {
    let old = |name: &str| vm(name, "a", 2, true);
    let objects = [old("web-0000000000-x"), old("web-adopted")].concat();
    let report = add_machines(fleet(&objects), deployment(1, 1, "")).unwrap();
    assert_eq!(report.machines.as_ref().map(|numbers| numbers.existing), Some(2));
    assert!(report.notes[0].contains("1 of 2 machines would be removed"), "{:?}", report.notes);
    let replaced: Vec<&str> = report.interruptions.iter().map(|one| one.vm.as_str()).collect();
    assert_eq!(replaced, ["cluster-a/web-0000000000-x"]);
    let paused = add_machines(fleet(&objects), deployment(2, 1, "paused: true,")).unwrap();
    assert!(paused.interruptions.is_empty() && paused.notes[0].contains("paused"), "{paused:?}");
}

#[test]
fn invalid_deployments_have_problems() {
    let mut found = deployment(1, 1, "");
    found.object["spec"]["template"]["spec"]["providerSpec"]["value"]["cloudProviderSpec"] =
        serde_json::json!({});
    match add_machines(fleet(""), found) {
        Err(SimulationError::Invalid(problems)) => {
            assert!(
                problems.iter().any(|one| one.object.contains("MachineDeployment cluster-a/web")),
                "{problems:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn profiles_list_what_they_interrupt() {
    let profile = "apiVersion: berth.dev/v1alpha1\nkind: HostProfile\nmetadata: {name: p}\n\
        spec: {cpu: {reserved: {coresPerZone: 3}}}";
    let profile = super::super::input::read_profile(profile).unwrap();
    let objects = [vm("one", "a", 2, false), vm("two", "a", 4, true)].concat();
    let hosts = || BTreeSet::from(["a".to_owned()]);
    let report = change_profile(fleet(&objects), profile.clone(), hosts());
    assert_eq!((report.before.cpus.total, report.after.cpus.total), (12, 4));
    let found: Vec<_> = report
        .interruptions
        .iter()
        .map(|one| (one.vm.as_str(), one.kind, one.after.clone()))
        .collect();
    assert_eq!(
        found,
        [
            ("cluster-a/one", InterruptionKind::Replaced, HostAfterChange::Same),
            ("cluster-a/two", InterruptionKind::Migrated, HostAfterChange::None),
        ]
    );
    assert_eq!((report.before.waiting, report.after.waiting), (0, 1));
    assert!(report.unplaced[0].is_new, "{:?}", report.unplaced);
    assert!(report.changes.iter().any(|change| change.host == "b" && change.field == "cpu"));
}
