//! Tests of the rows with objects as the API server returns them, and with hostile ones.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::hosts::{self, HostState};
use crate::machines::{self, MachineFilter, MachineState};
use crate::{Kind, ObjectName, Severity, Snapshot, host_detail, networks, tenants};

fn snapshot(objects: &[(Kind, Value)]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    objects.iter().for_each(|(kind, object)| snapshot.add(*kind, object));
    snapshot
}

fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn infra_node(name: &str, conditions: Value) -> (Kind, Value) {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": name}, "spec": {},
        "status": {"conditions": conditions},
    });
    (Kind::InfraNode, object)
}

fn node(name: &str, ready: &str, is_cordoned: bool) -> (Kind, Value) {
    let object = json!({
        "metadata": {"name": name}, "spec": {"unschedulable": is_cordoned},
        "status": {"conditions": [{"type": "Ready", "status": ready, "message": "m"}]},
    });
    (Kind::Node, object)
}

fn states(objects: &[(Kind, Value)]) -> Vec<HostState> {
    hosts::rows(&snapshot(objects)).remove(0).states
}

#[test]
fn the_states_of_a_host_are_sorted_by_severity() {
    let ready = json!([condition("Ready", "True", "Applied")]);
    assert_eq!(
        states(&[infra_node("a", ready.clone()), node("a", "True", false)]),
        [HostState::Ready]
    );
    assert_eq!(states(&[infra_node("a", ready.clone())]), [HostState::Ready]);
    assert_eq!(states(&[node("a", "True", true)]), [HostState::NoReport, HostState::Cordoned]);
    assert_eq!(
        states(&[infra_node("a", ready), node("a", "Unknown", true)]),
        [HostState::NodeNotReady, HostState::Cordoned]
    );
    let all = json!([
        condition("Ready", "Unknown", "AgentUnresponsive"),
        condition("HostLost", "True", "NoMachines"),
        condition("Draining", "True", "HostCordoned"),
    ]);
    let expected = [HostState::Lost, HostState::AgentUnresponsive, HostState::Draining];
    assert_eq!(states(&[infra_node("a", all)]), expected);
    let false_conditions = json!([
        condition("VirtualizationReady", "False", "DisabledInFirmware"),
        condition("Draining", "False", "DrainCancelled"),
        condition("HostLost", "False", "NoMachines"),
    ]);
    assert_eq!(states(&[infra_node("a", false_conditions)]), [HostState::NoVirtualization]);
    let malformed = json!({"metadata": {"name": "a"}, "spec": {"networks": 1}});
    assert_eq!(states(&[(Kind::InfraNode, malformed)]), [HostState::Malformed]);
}

#[test]
fn unhealthy_conditions_have_remedies() {
    let conditions = json!([
        condition("Ready", "False", "VlansMissing"),
        condition("TrunkVerified", "False", "VlansMissing"),
        condition("CredentialValid", "True", "ExpiresSoon"),
        condition("Unheard", "False", "NotKnown"),
        condition("ProfileOverridden", "True", "FieldsOwnedByOthers"),
    ]);
    let row = hosts::rows(&snapshot(&[infra_node("a", conditions)])).remove(0);
    let issues: Vec<_> = row
        .issues
        .iter()
        .map(|one| (one.source.as_str(), one.severity, one.remedy.is_some()))
        .collect();
    assert_eq!(
        issues,
        [
            ("TrunkVerified", Severity::Failure, true),
            ("Unheard", Severity::Failure, false),
            ("CredentialValid", Severity::Warning, true),
            ("ProfileOverridden", Severity::Warning, true),
        ]
    );
}

#[test]
fn the_cpus_of_a_host_are_counted_by_zone() {
    let object = json!({
        "metadata": {"name": "a"}, "spec": {},
        "status": {"zones": [
            {"id": 0, "pinnableCPUs": "2-7", "pinnedCPUs": "2-3,9", "hugepages": [{"size": "2Mi", "total": 10, "free": 4}]},
            {"id": 2, "pinnableCPUs": "8-11", "pinnedCPUs": "",
             "hugepages": [{"size": "1Gi", "total": 2, "free": 1}, {"size": "2Mi", "total": 0}]},
            {"id": 3, "pinnableCPUs": "", "pinnedCPUs": ""},
        ]},
    });
    let row = hosts::rows(&snapshot(&[(Kind::InfraNode, object)])).remove(0);
    let cpus = row.pinnable_cpus.unwrap();
    assert_eq!((cpus.used, cpus.total, cpus.free()), (2, 10, 8));
    let free: Vec<Option<&str>> = row.zones.iter().map(|zone| zone.free_cpus.as_deref()).collect();
    assert_eq!(free, [Some("4-7"), Some("8-11"), None]);
    let pages = row.hugepages.unwrap();
    assert_eq!((pages.used, pages.total), ((6 << 21) + (1 << 30), (10 << 21) + (2 << 30)));
    assert_eq!(row.zones[2].pinnable_cpus, None);
}

#[test]
fn unknown_cpus_and_pages_are_neither_free_nor_used() {
    let object = json!({
        "metadata": {"name": "a"}, "spec": {},
        "status": {"zones": [
            {"id": 0, "pinnableCPUs": "2-7", "pinnedCPUs": "2", "hugepages": [{"size": "2Mi", "total": 10, "free": 4}]},
            {"id": 1, "pinnableCPUs": "8-11", "hugepages": [{"size": "1Gi", "total": 2}]},
        ]},
    });
    let row = hosts::rows(&snapshot(&[(Kind::InfraNode, object)])).remove(0);
    assert_eq!((row.pinnable_cpus, row.hugepages), (None, None));
    let zone = &row.zones[1];
    assert_eq!((zone.pinnable_cpus, &zone.free_cpus, &zone.pinned_cpus), (None, &None, &None));
    assert_eq!((zone.hugepages[0].used, zone.hugepages[0].total), (None, 2));
    assert_eq!(row.zones[0].pinnable_cpus.unwrap().total, 6);
}

fn machine_state(objects: &[(Kind, Value)]) -> MachineState {
    machines::rows(&snapshot(objects), &MachineFilter::default()).remove(0).state
}

#[test]
fn the_state_of_a_machine_is_that_of_its_objects() {
    let metadata = json!({"namespace": "cluster-a", "name": "web-1"});
    let vm = |spec: Value, status: Value| {
        (Kind::VirtualMachine, json!({"metadata": metadata, "spec": spec, "status": status}))
    };
    let instance = |status: Value| {
        (Kind::VirtualMachineInstance, json!({"metadata": metadata, "status": status}))
    };
    let always = vm(json!({"runStrategy": "Always"}), json!({}));
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let running = instance(json!({"phase": "Running", "nodeName": "a", "conditions": ready}));
    let pod = |node: Value| {
        let pod = json!({
            "metadata": {"namespace": "cluster-a", "name": "p", "labels": {"vm.kubevirt.io/name": "web-1"}},
            "spec": {"nodeName": node},
            "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"},
            ]},
        });
        (Kind::LauncherPod, pod)
    };
    let state = |objects: &[&(Kind, Value)]| {
        let objects: Vec<_> = objects.iter().map(|one| (*one).clone()).collect();
        machine_state(&objects)
    };
    assert_eq!(state(&[&always, &running]), MachineState::Running);
    assert_eq!(state(&[&running]), MachineState::Running);
    let phase = |phase: &str| instance(json!({"phase": phase}));
    assert_eq!(state(&[&always, &phase("Running")]), MachineState::NotReady);
    assert_eq!(state(&[&always, &phase("Scheduling")]), MachineState::Starting);
    assert_eq!(
        state(&[&always, &phase("Scheduling"), &pod(Value::Null)]),
        MachineState::Unschedulable
    );
    assert_eq!(state(&[&always, &phase("Failed")]), MachineState::Failed);
    assert_eq!(state(&[&always, &phase("Succeeded")]), MachineState::Stopped);
    assert_eq!(state(&[&vm(json!({"runStrategy": "Halted"}), json!({}))]), MachineState::Stopped);
    let failed = vm(json!({}), json!({"printableStatus": "ErrImagePull"}));
    assert_eq!(state(&[&failed]), MachineState::Failed);
    let migrating = instance(
        json!({"phase": "Running", "conditions": ready, "migrationState": {"completed": false}}),
    );
    assert_eq!(state(&[&always, &migrating]), MachineState::Migrating);
    let removed = json!({"metadata": {
        "namespace": "cluster-a", "name": "web-1", "annotations": {"berth.dev/removal": "ScaleDown"},
    }});
    assert_eq!(state(&[&(Kind::VirtualMachine, removed), &running]), MachineState::Removing);
    let unscheduled = snapshot(&[always, pod(Value::Null)]);
    let name = ObjectName::new("cluster-a", "web-1");
    let row = machines::find(&unscheduled, &name).unwrap();
    assert_eq!(row.message.as_deref(), Some("0/3 nodes are available"));
}

#[test]
fn unread_kinds_hide_only_their_values() {
    let mut snapshot = snapshot(&[infra_node("a", json!([]))]);
    assert_eq!(hosts::rows(&snapshot)[0].vms, Some(0));
    snapshot.set_unread(Kind::VirtualMachineInstance, Some("cluster-a"), "forbidden");
    assert_eq!(hosts::rows(&snapshot)[0].vms, None);
    assert!(!snapshot.is_refused(Kind::VirtualMachineInstance));
    let unread = snapshot.unread[0].to_string();
    assert_eq!(unread, "virtualmachineinstances outside namespace cluster-a: forbidden");
}

#[test]
fn the_state_of_a_host_is_unknown_without_its_report_or_node() {
    let state = |objects: &[(Kind, Value)], unread: Kind| {
        let mut snapshot = snapshot(objects);
        snapshot.set_unread(unread, None, "forbidden");
        let row = hosts::rows(&snapshot).remove(0);
        (row.states, row.severity)
    };
    let unknown = (vec![], Severity::Warning);
    let report = infra_node("a", json!([condition("Ready", "True", "Applied")]));
    assert_eq!(state(&[node("a", "True", false)], Kind::InfraNode), unknown);
    assert_eq!(state(&[node("a", "True", true)], Kind::InfraNode).0, [HostState::Cordoned]);
    assert_eq!(state(std::slice::from_ref(&report), Kind::Node), unknown);
    assert_eq!(state(&[report], Kind::VirtualMachineInstance).0, [HostState::Ready]);
}

#[test]
fn numbers_of_unread_objects_of_a_network_are_unknown() {
    let tenant = json!({"metadata": {"name": "bank"}, "spec": {"network": {"name": "trunk"}}});
    let mut snapshot = snapshot(&[(Kind::TenantCluster, tenant)]);
    let row = networks::rows(&snapshot).remove(0);
    assert_eq!((row.hosts, row.tenants, row.vlans.as_deref()), (Some(0), Some(1), Some("")));
    assert_eq!(row.counts, Some(networks::TenantNetworkCounts::default()));
    for kind in [Kind::InfraNode, Kind::TenantCluster, Kind::VlanClaim] {
        snapshot.set_unread(kind, None, "forbidden");
    }
    let row = networks::rows(&snapshot).remove(0);
    assert_eq!((row.hosts, row.tenants, row.vlans, row.counts), (None, None, None, None));
    let json = serde_json::to_value(networks::NetworkRow::default()).unwrap();
    assert!(json.get("ready").is_none() && json.get("hosts").is_none(), "{json}");
}

#[test]
fn a_changed_object_replaces_the_previous_one() {
    let mut snapshot = snapshot(&[infra_node("a", json!([]))]);
    snapshot.add(Kind::InfraNode, &json!({"metadata": {"name": "a"}, "spec": []}));
    assert_eq!(snapshot.problems().count(), 1);
    assert!(snapshot.infra_nodes.is_empty());
    let (kind, object) = infra_node("a", json!([]));
    snapshot.add(kind, &object);
    assert_eq!(snapshot.problems().count(), 0);
    snapshot.remove(kind, &ObjectName::new("", "a"));
    assert!(hosts::rows(&snapshot).is_empty());
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,8}|[\u{0}-\u{1f}]{1,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let keys = prop::sample::select(vec![
            "metadata",
            "name",
            "namespace",
            "labels",
            "annotations",
            "spec",
            "status",
            "template",
            "domain",
            "cpu",
            "cores",
            "memory",
            "conditions",
            "type",
            "interfaces",
            "ipAddress",
            "networks",
            "zones",
            "hugepages",
        ]);
        let key = keys.prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

proptest! {
    /// A malformed object is a problem or has absent fields; it never prevents the other rows.
    #[test]
    fn no_object_hides_the_others(kind in prop::sample::select(Kind::ALL.to_vec()), object in any_value()) {
        let mut object = object;
        if let Some(fields) = object.as_object_mut() {
            let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("name".to_owned(), "other".into());
            }
        }
        let all = snapshot(&[infra_node("a", json!([])), (kind, object)]);
        let rows = hosts::rows(&all);
        prop_assert!(rows.iter().any(|row| row.name == "a"));
        prop_assert!(host_detail::detail(&all, "a").is_some());
        drop(tenants::rows(&all));
        drop(networks::rows(&all));
        drop(machines::rows(&all, &MachineFilter::default()));
    }
}
