//! Tests of the desired state of an InfraNode.

use berth_api::{TenantClusterSpec, TenantClusterStatus, TenantNetwork};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::super::resolved::HostObjects;
use super::*;

fn profile(name: &str, spec: Value) -> Arc<HostProfile> {
    let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostProfile", "metadata": {"name": name}, "spec": spec});
    Arc::new(serde_json::from_value(object).unwrap())
}

fn node(name: &str, address: &str) -> Node {
    serde_json::from_value(json!({"metadata": {"name": name},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]}}))
    .unwrap()
}

fn infra_node(name: &str, spec: Value, held: &[(&str, &str, Value)]) -> InfraNode {
    let entry = |(manager, operation, fields): &(&str, &str, Value)| json!({"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": fields}});
    let entries: Vec<Value> = held.iter().map(entry).collect();
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
        "metadata": {"name": name, "managedFields": entries}, "spec": spec,
    }))
    .unwrap()
}

fn tenant(name: &str, network: &str, vlan: u16) -> Arc<TenantCluster> {
    let network = TenantNetwork { name: network.to_owned(), ..TenantNetwork::default() };
    let spec = TenantClusterSpec { network: Some(network), ..TenantClusterSpec::default() };
    let vlan = Some(vlan.to_string().parse().unwrap());
    let status = TenantClusterStatus { vlan, ..TenantClusterStatus::default() };
    Arc::new(TenantCluster { status: Some(status), ..TenantCluster::new(name, spec) })
}

fn desired_spec(
    profiles: &[Arc<HostProfile>],
    infra: &InfraNode,
    tenants: &[Arc<TenantCluster>],
) -> Option<DesiredInfraNode> {
    let node = node("a", "10.0.0.1");
    let resolved =
        ResolvedProfiles::new(profiles, [HostObjects { node: &node, infra_node: Some(infra) }]);
    desired_infra_node(&resolved, &BTreeMap::new(), infra, tenants, &BTreeSet::new())
}

fn trunk_network() -> Value {
    json!({"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "bond0"}})
}

#[test]
fn a_profile_and_its_tenants_become_the_spec() {
    let all = [profile(
        "p",
        json!({"cpu": {"reserved": {"coresPerZone": 1}}, "ksm": {"mode": "Off"},
        "hugepages": [{"size": "2Mi", "count": 9}], "devices": {"vfio": [{"id": "144d:a80a", "count": 1}]},
        "networks": [trunk_network()]}),
    )];
    let desired = desired_spec(
        &all,
        &infra_node("a", json!({}), &[]),
        &[tenant("y", "trunk", 7), tenant("x", "trunk", 8)],
    )
    .unwrap();
    assert!(desired.is_different && desired.overridden.is_empty() && desired.incomplete.is_empty());
    assert_eq!(
        desired.spec,
        json!({"profile": "p", "cpu": {"reserved": {"coresPerZone": 1}}, "ksm": {"mode": "Off"},
            "hugepages": [{"size": "2Mi", "count": 9}], "devices": {"vfio": [{"id": "144d:a80a", "count": 1}]},
            "networks": [trunk_network()], "tenantNetworks": [
            {"name": "cluster-x", "network": "trunk", "vlan": 8}, {"name": "cluster-y", "network": "trunk", "vlan": 7}]})
    );
}

#[test]
fn a_host_that_was_never_selected_is_not_changed() {
    let spec = json!({"networks": [trunk_network()]});
    let user_owned =
        infra_node("a", spec.clone(), &[("kubectl", "Apply", json!({"f:networks": {}}))]);
    assert_eq!(desired_spec(&[], &user_owned, &[tenant("x", "trunk", 8)]), None);
    let tie = [profile("p", json!({})), profile("q", json!({}))];
    assert_eq!(desired_spec(&tie, &user_owned, &[]), None);
}

#[test]
fn without_a_profile_a_host_keeps_its_spec_except_for_tenants() {
    let spec = json!({"profile": "p", "ksm": {"mode": "Off"}, "networks": [trunk_network()],
        "tenantNetworks": [{"name": "cluster-x", "network": "trunk", "vlan": 8}]});
    let held = json!({"f:profile": {}, "f:ksm": {"f:mode": {}},
        "f:networks": {"k:{\"name\":\"trunk\"}": {".": {}, "f:name": {}, "f:scenario": {}, "f:uplink": {"f:name": {}}}},
        "f:tenantNetworks": {"k:{\"name\":\"cluster-x\"}": {".": {}, "f:name": {}, "f:network": {}, "f:vlan": {}}}});
    let infra_node = infra_node("a", spec.clone(), &[("berth-controller", "Apply", held)]);
    for profiles in
        [vec![], vec![profile("p", json!({})), profile("q", json!({"ksm": {"mode": "On"}}))]]
    {
        let same = desired_spec(&profiles, &infra_node, &[tenant("x", "trunk", 8)]).unwrap();
        assert_eq!((same.spec, same.is_different), (spec.clone(), false));
        let none = desired_spec(&profiles, &infra_node, &[]).unwrap();
        let mut expected = spec.clone();
        expected.as_object_mut().unwrap().remove("tenantNetworks");
        assert_eq!((none.spec, none.is_different), (expected, true));
    }
    // The fields that an earlier profile set are removed if the new profile is empty.
    let empty = desired_spec(&[profile("e", json!({}))], &infra_node, &[]).unwrap();
    assert_eq!((empty.spec, empty.is_different), (json!({"profile": "e"}), true));
}

#[test]
fn a_tenant_that_cannot_be_parsed_keeps_its_network() {
    let network = |tenant: &str, network: &str, vlan: u16| {
        let name = format!("cluster-{tenant}");
        json!({"name": name, "network": network, "vlan": vlan})
    };
    let current = [
        network("deleted", "trunk", 7),
        network("known", "trunk", 8),
        network("unknown", "trunk", 9),
        network("unknown-elsewhere", "removed", 10),
    ];
    let infra = infra_node("a", json!({"tenantNetworks": current}), &[]);
    let node = node("a", "10.0.0.1");
    let resolved = ResolvedProfiles::new(
        &[profile("p", json!({"networks": [trunk_network()]}))],
        [HostObjects { node: &node, infra_node: Some(&infra) }],
    );
    let names = ["known", "unknown", "unknown-elsewhere"].map(str::to_owned);
    let known = [tenant("known", "trunk", 80), tenant("new", "trunk", 11)];
    let desired =
        desired_infra_node(&resolved, &BTreeMap::new(), &infra, &known, &BTreeSet::from(names));
    assert_eq!(
        desired.unwrap().spec["tenantNetworks"],
        json!([
            network("known", "trunk", 80),
            network("new", "trunk", 11),
            network("unknown", "trunk", 9)
        ])
    );
}

#[test]
fn fields_of_a_user_take_precedence_until_they_are_removed() {
    let all =
        [profile("p", json!({"ksm": {"mode": "Off"}, "cpu": {"reserved": {"coresPerZone": 1}}}))];
    let held = json!({"f:profile": {}, "f:cpu": {"f:reserved": {"f:coresPerZone": {}}}});
    let user_entry = ("kubectl-edit", "Update", json!({"f:ksm": {"f:mode": {}}}));
    let spec =
        json!({"profile": "p", "ksm": {"mode": "On"}, "cpu": {"reserved": {"coresPerZone": 1}}});
    let ours = ("berth-controller", "Apply", held);
    let desired =
        desired_spec(&all, &infra_node("a", spec, &[ours.clone(), user_entry]), &[]).unwrap();
    assert_eq!(
        desired.overridden,
        BTreeMap::from([("ksm.mode".to_owned(), "kubectl-edit".to_owned())])
    );
    assert_eq!(desired.spec, json!({"profile": "p", "cpu": {"reserved": {"coresPerZone": 1}}}));
    assert!(!desired.is_different, "no field to apply until the override is removed");
    let without_override = json!({"profile": "p", "cpu": {"reserved": {"coresPerZone": 1}}});
    let desired = desired_spec(&all, &infra_node("a", without_override, &[ours]), &[]).unwrap();
    assert!(desired.is_different && desired.overridden.is_empty());
    assert_eq!(desired.spec["ksm"]["mode"], "Off");
}

#[test]
fn peers_are_the_endpoints_of_other_hosts() {
    let all = [profile(
        "p",
        json!({"networks": [
        {"name": "overlay", "scenario": "Vxlan", "vxlan": {"localAddress": "0.0.0.0", "peers": ["10.9.0.1"]}}]}),
    )];
    let nodes = [node("a", "10.0.0.1"), node("b", "10.0.0.2"), node("c", "fd00::3")];
    let agents = ["a", "b", "c"].map(|name| infra_node(name, json!({}), &[]));
    let resolved = ResolvedProfiles::new(
        &all,
        nodes.iter().zip(&agents).map(|(node, one)| HostObjects { node, infra_node: Some(one) }),
    );
    let desired_for = |n: usize| {
        desired_infra_node(&resolved, &BTreeMap::new(), &agents[n], &[], &BTreeSet::new()).unwrap()
    };
    let vxlan = |n: usize| desired_for(n).spec.pointer("/networks/0/vxlan").cloned();
    assert_eq!(
        vxlan(0).unwrap(),
        json!({"port": 4790, "localAddress": "10.0.0.1", "peers": ["10.0.0.2", "10.9.0.1"]})
    );
    assert_eq!(vxlan(1).unwrap()["peers"], json!(["10.0.0.1", "10.9.0.1"]));
    assert_eq!(vxlan(2), None);
    assert!(
        desired_for(2).incomplete[0].contains("networks[overlay]"),
        "{:?}",
        desired_for(2).incomplete
    );
}

#[test]
fn a_long_name_is_not_a_label_value() {
    let class = |class: &str, name: &str| profile_labels(&profile(name, json!({"class": class})));
    let short = class("Density", "dense");
    assert_eq!((short[CLASS_LABEL].as_str(), short[PROFILE_LABEL].as_str()), ("Density", "dense"));
    assert!(!class("Performance", &"x".repeat(64)).contains_key(PROFILE_LABEL));
}
