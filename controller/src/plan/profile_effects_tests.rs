//! Tests of the effects of changed specs.

use serde_json::{Value, json};

use super::*;

fn host() -> (InfraNode, Node) {
    let infra = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": "a"},
        "spec": {
            "ksm": {"mode": "Off"},
            "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}}],
        },
        "status": {
            "capabilities": {
                "memory": {"ksm": {"running": false}},
                "kubelet": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0,4"},
            },
            "zones": [{
                "id": 0, "cpus": "0-7", "threads": ["0-3", "4-7"], "memory": "64Gi",
                "reservedCPUs": "0,4", "pinnableCPUs": "1-3,5-7", "pinnedCPUs": "1,5",
            }],
        },
    });
    let node = json!({"metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "6"}}});
    (serde_json::from_value(infra).unwrap(), serde_json::from_value(node).unwrap())
}

/// Changes fields of the spec. Returns the host and the changes.
fn changed(fields: Value) -> (InfraNode, Node, Vec<FieldChange>) {
    let (mut infra, mut node) = host();
    let mut spec = serde_json::to_value(&infra.spec).unwrap();
    for (name, value) in fields.as_object().unwrap() {
        spec[name] = value.clone();
    }
    let desired: InfraNodeSpec = serde_json::from_value(spec).unwrap();
    let changes = apply_spec(&mut infra, &mut node, &desired);
    assert_eq!(infra.spec, desired);
    (infra, node, changes)
}

#[test]
fn reserved_cpus_change_after_a_drain() {
    let cpu = json!({"reserved": {"coresPerZone": 2}, "kubelet": "Advise"});
    let (infra, node, changes) = changed(json!({"cpu": cpu}));
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!((changes[0].field, changes[0].effect), ("cpu", ChangeEffect::AfterDrain));
    assert!(changes[0].effect.needs_empty_host());
    assert!(changes[0].before.is_empty() && changes[0].after.contains("coresPerZone"));
    assert!(changes[0].note.contains("0-1,4-5"), "{changes:?}");
    let zone = &infra.status.unwrap().zones[0];
    assert_eq!(zone.pinnable_cpus, Some("2-3,6-7".parse().unwrap()));
    let cpus = node.status.unwrap().allocatable.unwrap()["cpu"].0.clone();
    assert_eq!(cpus, "4000m");
}

#[test]
fn a_kubelet_that_keeps_its_reservation_needs_no_drain() {
    for (cpu, effect, words) in [
        (json!({"reserved": {"coresPerZone": 1}}), ChangeEffect::Immediate, "already reserves"),
        (
            json!({"reserved": {"coresPerZone": 2}, "kubelet": "Ignore"}),
            ChangeEffect::Immediate,
            "Ignore",
        ),
        (json!({"reserved": {"coresPerZone": 9}}), ChangeEffect::Unknown, "no core would be left"),
        (json!({"housekeeping": true}), ChangeEffect::Immediate, "stay"),
    ] {
        let (infra, node, changes) = changed(json!({"cpu": cpu}));
        assert_eq!(changes[0].effect, effect, "{changes:?}");
        assert!(changes[0].note.contains(words), "{changes:?}");
        let (before, node_before) = host();
        assert_eq!(infra.status.unwrap().zones, before.status.unwrap().zones);
        assert_eq!(node, node_before);
    }
}

#[test]
fn other_fields_have_their_effects() {
    let network = |uplink: &str, more: Value| {
        let mut network =
            json!({"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": uplink}});
        network["allowDisruption"] = more;
        json!({"networks": [network]})
    };
    for (fields, field, effect) in [
        (json!({"ksm": {"mode": "Auto"}}), "ksm", ChangeEffect::Immediate),
        (json!({"transparentHugepages": "Never"}), "transparentHugepages", ChangeEffect::Immediate),
        (json!({"devices": {"vfio": [{"id": "144d:a80a"}]}}), "devices", ChangeEffect::Unknown),
        (json!({"networks": []}), "networks", ChangeEffect::AfterLastVm),
        (network("eth1", json!(true)), "networks", ChangeEffect::Immediate),
        (network("eth2", json!(false)), "networks", ChangeEffect::AfterLastVm),
        (network("eth2", json!(true)), "networks", ChangeEffect::InterruptsNetwork),
    ] {
        let (infra, _, changes) = changed(fields.clone());
        assert_eq!((changes[0].field, changes[0].effect), (field, effect), "{fields}");
        let ksm = infra.status.unwrap().capabilities.memory.ksm.unwrap();
        assert_eq!(ksm.running, Some(field == "ksm"), "{fields}");
    }
    assert_eq!(changed(json!({})).2, []);
}
