//! The CRDs in `deploy/crds/` are the Rust types, and their rules accept and refuse what they should.
//!
//! After a change of the types run `make crds` and read the difference: it is what users will get.

#![expect(clippy::disallowed_methods, reason = "tests look at the repository's files")]

use std::path::Path;

use berth_api::{InfraNode, all_crds, crd_yaml};
use kube::ResourceExt;
use kube::core::cel::validate_cel;
use serde_json::{Value, json};

#[test]
fn deployed_crds_are_the_types() {
    for crd in all_crds() {
        let name = format!("{}.yaml", crd.name_any());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds").join(&name);
        let deployed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            deployed == crd_yaml(&crd).unwrap(),
            "deploy/crds/{name} is stale: run `make crds`"
        );
    }
}

#[test]
fn crds_in_yaml_are_the_crds() {
    for crd in all_crds() {
        let back: Value = serde_saphyr::from_str(&crd_yaml(&crd).unwrap()).unwrap();
        assert_eq!(back, serde_json::to_value(&crd).unwrap());
    }
}

/// What a structural schema may not have, and what every field of ours should.
#[test]
fn schemas_are_structural_and_described() {
    fn walk(path: &str, schema: &Value) {
        for forbidden in ["$ref", "definitions", "additionalItems", "patternProperties"] {
            assert!(schema.get(forbidden).is_none(), "{path}: {forbidden}");
        }
        let format = schema.get("format").and_then(Value::as_str).unwrap_or("int64");
        assert!(["int32", "int64", "date-time"].contains(&format), "{path}: format {format}");
        let int_or_string = schema.get("x-kubernetes-int-or-string").is_some();
        assert!(schema.get("type").is_some() || int_or_string, "{path} has no type");
        for (name, field) in
            schema.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            let path = format!("{path}.{name}");
            assert!(field.get("description").is_some(), "{path} has no description");
            walk(&path, field);
        }
        schema.get("items").into_iter().for_each(|items| walk(&format!("{path}[]"), items));
    }
    for crd in all_crds() {
        let crd = serde_json::to_value(&crd).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        for part in ["spec", "status"] {
            walk(part, &schema["properties"][part]);
        }
    }
}

fn node(spec: Value) -> Result<InfraNode, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
        "metadata": {"name": "rack1-a"}, "spec": spec
    }))
}

/// The example of the design document, whole.
fn example() -> Value {
    json!({
        "profile": "performance",
        "cpu": {"reserved": {"coresPerZone": 1}, "housekeeping": true, "kubelet": "Advise"},
        "hugepages": [{"size": "2Mi", "zone": 0, "count": 1024}],
        "ksm": {"mode": "Auto"},
        "transparentHugepages": "Madvise",
        "networks": [
            {"name": "tenant-trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "bond0"},
             "bridge": "br-tenant", "mtu": 9000},
            {"name": "overlay", "scenario": "Vxlan",
             "vxlan": {"port": 4790, "localAddress": "10.0.0.1", "peers": ["10.0.0.2", "10.0.0.3"]}}
        ],
        "tenantNetworks": [
            {"name": "cluster-abc", "network": "tenant-trunk", "vlan": 120},
            {"name": "cluster-xyz", "network": "overlay", "vni": 70000}
        ]
    })
}

#[test]
fn the_whole_example_is_accepted_and_comes_back() {
    let node = node(example()).unwrap();
    validate_cel(&node).unwrap();
    assert_eq!(serde_json::to_value(&node.spec).unwrap(), example());
}

#[test]
fn an_empty_spec_manages_nothing() {
    let node = node(json!({})).unwrap();
    validate_cel(&node).unwrap();
    assert_eq!(serde_json::to_value(&node.spec).unwrap(), json!({}));
}

#[test]
fn rules_refuse_contradictions_in_words() {
    let cases = [
        (
            "/cpu/reserved",
            json!({"coresPerZone": 1, "cpus": "0-1"}),
            "exactly one of coresPerZone and cpus",
        ),
        ("/cpu/reserved", json!({}), "exactly one of coresPerZone and cpus"),
        (
            "/networks/0/uplink",
            json!({"name": "eth0", "mac": "ac:1f:6b:8a:5f:c8"}),
            "exactly one of name, mac",
        ),
        ("/networks/0/uplink", json!({}), "exactly one of name, mac"),
        ("/networks/0/uplink", Value::Null, "needs an uplink"),
        ("/networks/1/vxlan", Value::Null, "vxlan must be set for scenario Vxlan"),
        ("/networks/1/scenario", json!("BridgePerTenant"), "only for it"),
        ("/tenantNetworks/0/vni", json!(5), "exactly one of vlan and vni"),
        ("/tenantNetworks/0/vlan", Value::Null, "exactly one of vlan and vni"),
        ("/tenantNetworks/0/network", json!("nowhere"), "must name one of spec.networks"),
    ];
    for (pointer, value, words) in cases {
        let mut spec = example();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = spec.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match &value {
            Value::Null => drop(parent.remove(field)),
            value => drop(parent.insert(field.to_owned(), value.clone())),
        }
        let refused = validate_cel(&node(spec).unwrap()).expect_err(pointer).to_string();
        assert!(refused.contains(words), "{pointer} {value}: {refused}");
    }
}

#[test]
fn types_refuse_bad_values_and_name_them() {
    let cases = [
        ("/hugepages/0/size", json!("3Mi"), "`3Mi` is not a huge page size"),
        ("/hugepages/0/count", json!(-1), "-1"),
        ("/cpu/reserved", json!({"cpus": "3-1"}), "the range `3-1` ends before it starts"),
        ("/cpu/kubelet", json!("Maybe"), "Maybe"),
        (
            "/networks/0/bridge",
            json!("a-name-that-is-too-long"),
            "`a-name-that-is-too-long` is not a link name",
        ),
        ("/tenantNetworks/0/vlan", json!(4095), "`4095` is not a VLAN id"),
        ("/networks/1/vxlan/localAddress", json!("10.0.0"), "invalid IP address"),
    ];
    for (pointer, value, words) in cases {
        let mut spec = example();
        *spec.pointer_mut(pointer).unwrap() = value;
        let refused = node(spec).expect_err(pointer).to_string();
        assert!(refused.contains(words), "{pointer}: {refused}");
    }
}
