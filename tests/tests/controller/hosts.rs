//! Tests of InfraNodes, Nodes and HostProfiles.

use berth_tests::cluster::{ControlPlane, Version, condition, registered_node};
use serde_json::{Value, json};

use crate::{SHORT_TIMEOUT, apply_profile, read_spec, wait_until_condition, wait_until_field};

/// Creates a host: its Node as a kubelet registers it, and its InfraNode as an agent creates it.
pub(crate) fn create_host(plane: &ControlPlane, name: &str, number: usize) {
    plane.create_node(name).unwrap();
    let rack = if name.starts_with("rack1") { "1" } else { "2" };
    plane.kubectl(&["label", "node", name, &format!("rack={rack}")]).unwrap();
    let mut node = plane.get_json(&["node", name]).unwrap();
    node["status"] = registered_node(name)["status"].clone();
    node["status"]["addresses"] =
        json!([{"type": "InternalIP", "address": format!("10.0.0.{}", number + 1)}]);
    replace_status(plane, &format!("/api/v1/nodes/{name}/status"), &node);
    let uid = &node["metadata"]["uid"];
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
        "metadata": {"name": name, "annotations": {"berth.dev/created-by": "berth-agent"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]},
        "spec": {},
    });
    plane
        .kubectl_with(
            &plane.kubeconfig(),
            &["create", "--validate=false", "-f", "-"],
            &object.to_string(),
        )
        .unwrap();
    let mut current = plane.infra_node(name);
    current["status"] = json!({"capabilities": {}, "conditions": [{"type": "Ready", "status": "True", "reason": "Applied",
        "message": "the host matches the spec", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    replace_status(plane, &format!("/apis/berth.dev/v1alpha1/infranodes/{name}/status"), &current);
}

fn replace_status(plane: &ControlPlane, path: &str, object: &Value) {
    let replace = ["replace", "--raw", path, "-f", "-"];
    plane.kubectl_with(&plane.kubeconfig(), &replace, &object.to_string()).unwrap();
}

const RACK1_A: [&str; 2] = ["infranode", "rack1-a"];
const RACK1_B: [&str; 2] = ["infranode", "rack1-b"];

pub(crate) fn profile_is_written_to_the_spec(plane: &ControlPlane) {
    let trunk =
        json!({"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "bond0"}});
    let profile_spec = json!({"nodeSelector": {"rack": "1"}, "class": "Performance", "ksm": {"mode": "Off"},
        "cpu": {"reserved": {"coresPerZone": 1}}, "hugepages": [{"size": "2Mi", "count": 64}], "networks": [trunk]});
    apply_profile(plane, "rack1", &profile_spec);
    let wanted = json!({"profile": "rack1", "ksm": {"mode": "Off"}, "cpu": {"reserved": {"coresPerZone": 1}},
        "hugepages": [{"size": "2Mi", "count": 64}], "networks": [trunk]});
    wait_until_field(plane, &RACK1_A, "/spec", &wanted);
    wait_until_field(plane, &RACK1_B, "/spec", &wanted);
    wait_until_field(
        plane,
        &["node", "rack1-a"],
        "/metadata/labels/berth.dev~1class",
        &json!("Performance"),
    );
    wait_until_field(
        plane,
        &["node", "rack1-a"],
        "/metadata/labels/berth.dev~1profile",
        &json!("rack1"),
    );
    wait_until_field(plane, &["hostprofile", "rack1"], "/status/hosts", &json!(2));
    assert_eq!(
        condition(&plane.get_json(&["hostprofile", "rack1"]).unwrap(), "Ready")["status"],
        "True"
    );
    assert_eq!(
        read_spec(plane, "rack2-a"),
        json!({}),
        "a host that no profile selects stays unchanged"
    );
}

pub(crate) fn highest_priority_wins_and_ties_are_reported(plane: &ControlPlane) {
    let all = |priority: i32| json!({"priority": priority, "ksm": {"mode": "Auto"}});
    apply_profile(plane, "zz-all", &all(5));
    wait_until_field(
        plane,
        &RACK1_A,
        "/spec",
        &json!({"profile": "zz-all", "ksm": {"mode": "Auto"}}),
    );
    wait_until_field(plane, &["infranode", "rack2-a"], "/spec/profile", &json!("zz-all"));
    wait_until_field(
        plane,
        &["node", "rack1-a"],
        "/metadata/labels/berth.dev~1class",
        &json!("Standard"),
    );
    // With a lower priority, the profile no longer applies: the profile of the rack applies to these hosts.
    apply_profile(plane, "zz-all", &all(-5));
    wait_until_field(plane, &RACK1_A, "/spec/profile", &json!("rack1"));
    // With equal priorities, neither profile applies, and the hosts are not changed.
    apply_profile(plane, "zz-all", &json!({"priority": 0, "ksm": {"mode": "On"}}));
    wait_until_condition(
        plane,
        &["hostprofile", "rack1"],
        "Ready",
        Some("HostProfile zz-all also has priority 0"),
    );
    wait_until_condition(plane, &["hostprofile", "zz-all"], "Ready", Some("rack1-a, rack1-b"));
    wait_until_condition(plane, &RACK1_A, "ProfileConflict", Some("rack1, zz-all"));
    assert_eq!(read_spec(plane, "rack1-a")["ksm"]["mode"], "Off");
    wait_until_field(plane, &["infranode", "rack2-a"], "/spec/ksm/mode", &json!("On"));
    wait_until_field(plane, &["hostprofile", "zz-all"], "/status/hosts", &json!(1));
    wait_until_event(plane, "Conflict");
    // After the profile is deleted, no profile selects the host, and the spec of the host does not change.
    plane.kubectl(&["delete", "hostprofile", "zz-all"]).unwrap();
    wait_until_condition(plane, &RACK1_A, "ProfileConflict", None);
    wait_until_field(
        plane,
        &["hostprofile", "rack1"],
        "/status/conditions/0/status",
        &json!("True"),
    );
    assert_eq!(read_spec(plane, "rack2-a")["ksm"]["mode"], "On");
}

/// Waits until there is an Event with this reason.
fn wait_until_event(plane: &ControlPlane, reason: &str) {
    let field = format!("reason={reason}");
    plane
        .wait_until("the Event exists", SHORT_TIMEOUT, |plane| {
            let events = plane.get_json(&["events", "-A", "--field-selector", &field]).ok()?;
            events["items"].as_array().filter(|all| !all.is_empty()).map(drop)
        })
        .unwrap();
}

pub(crate) fn user_override_is_kept_until_removed(plane: &ControlPlane) {
    plane
        .set_infra_node_spec("rack1-a", &json!({"ksm": {"mode": "On", "pagesToScan": 50}}))
        .unwrap();
    wait_until_condition(plane, &RACK1_A, "ProfileOverridden", Some("spec.ksm.mode (kubectl"));
    assert_eq!(read_spec(plane, "rack1-a")["ksm"], json!({"mode": "On", "pagesToScan": 50}));
    wait_until_event(plane, "FieldsOwnedByOthers");
    // The other fields of the profile are still applied.
    plane
        .kubectl(&[
            "patch",
            "hostprofile",
            "rack1",
            "--type=merge",
            "-p",
            r#"{"spec": {"hugepages": [{"size": "2Mi", "count": 32}], "ksm": {"mode": "Auto"}}}"#,
        ])
        .unwrap();
    wait_until_field(plane, &RACK1_A, "/spec/hugepages/0/count", &json!(32));
    wait_until_field(plane, &RACK1_B, "/spec/ksm/mode", &json!("Auto"));
    assert_eq!(read_spec(plane, "rack1-a")["ksm"]["mode"], "On");
    plane.set_infra_node_spec("rack1-a", &json!({"ksm": null})).unwrap();
    wait_until_field(plane, &RACK1_A, "/spec/ksm", &json!({"mode": "Auto"}));
    wait_until_condition(plane, &RACK1_A, "ProfileOverridden", None);
}

/// Tests an override of `cpu.reserved`, whose fields `coresPerZone` and `cpus` exclude each other.
pub(crate) fn mutually_exclusive_fields_are_overridden_together(plane: &ControlPlane) {
    plane
        .set_infra_node_spec(
            "rack1-a",
            &json!({"cpu": {"reserved": {"coresPerZone": null, "cpus": "0-1"}}}),
        )
        .unwrap();
    wait_until_condition(plane, &RACK1_A, "ProfileOverridden", Some("spec.cpu.reserved"));
    assert_eq!(read_spec(plane, "rack1-a")["cpu"]["reserved"], json!({"cpus": "0-1"}));
    plane.set_infra_node_spec("rack1-a", &json!({"cpu": {"reserved": null}})).unwrap();
    wait_until_field(plane, &RACK1_A, "/spec/cpu/reserved", &json!({"coresPerZone": 1}));
    wait_until_condition(plane, &RACK1_A, "ProfileOverridden", None);
}

pub(crate) fn tenants_are_added_and_removed(plane: &ControlPlane) {
    for (name, vlan) in [("abc", 120), ("xyz", 121)] {
        let tenant = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
            "spec": {"network": {"name": "trunk", "vlan": vlan}}});
        plane.apply(&tenant.to_string()).unwrap();
    }
    let tenant_network = |name: &str, vlan: u32| json!({"name": format!("cluster-{name}"), "network": "trunk", "vlan": vlan});
    let both = json!([tenant_network("abc", 120), tenant_network("xyz", 121)]);
    wait_until_field(plane, &RACK1_A, "/spec/tenantNetworks", &both);
    wait_until_field(plane, &RACK1_B, "/spec/tenantNetworks", &both);
    plane
        .kubectl(&[
            "patch",
            "tenantcluster",
            "abc",
            "--type=merge",
            "-p",
            r#"{"spec": {"nodeSelector": {"rack": "9"}}}"#,
        ])
        .unwrap();
    wait_until_field(plane, &RACK1_A, "/spec/tenantNetworks", &json!([tenant_network("xyz", 121)]));
    // A host that no profile selects any more is still updated when a tenant is deleted.
    plane.kubectl(&["label", "--overwrite", "node", "rack1-b", "rack=3"]).unwrap();
    plane.kubectl(&["delete", "tenantcluster", "xyz", "--wait=false"]).unwrap();
    wait_until_field(plane, &RACK1_B, "/spec/tenantNetworks", &Value::Null);
    assert_eq!(read_spec(plane, "rack1-b")["profile"], "rack1");
    plane.kubectl(&["label", "--overwrite", "node", "rack1-b", "rack=1"]).unwrap();
}

pub(crate) fn tunnel_peers_are_filled_in(plane: &ControlPlane) {
    let overlay =
        json!({"name": "overlay", "scenario": "Vxlan", "vxlan": {"localAddress": "0.0.0.0"}});
    apply_profile(plane, "overlay", &json!({"priority": 9, "networks": [overlay]}));
    let vxlan_spec = |own: u8, others: [u8; 2]| {
        let address = |n: u8| format!("10.0.0.{n}");
        json!({"port": 4790, "localAddress": address(own), "peers": others.map(address)})
    };
    wait_until_field(plane, &RACK1_A, "/spec/networks/0/vxlan", &vxlan_spec(1, [2, 3]));
    wait_until_field(
        plane,
        &["infranode", "rack2-a"],
        "/spec/networks/0/vxlan",
        &vxlan_spec(3, [1, 2]),
    );
    plane.kubectl(&["delete", "hostprofile", "overlay"]).unwrap();
    wait_until_field(plane, &RACK1_A, "/spec/profile", &json!("rack1"));
    wait_until_field(plane, &RACK1_B, "/spec/profile", &json!("rack1"));
}

/// Tests an agent whose Lease expires: the controller sets the condition Ready once, and does not overwrite a later
/// status of the agent.
pub(crate) fn unresponsive_agent_is_reported_once(plane: &ControlPlane) {
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "rack1-b", "namespace": "berth-system"},
        "spec": {"holderIdentity": "rack1-b", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    plane.apply(&lease.to_string()).unwrap();
    wait_until_condition(
        plane,
        &RACK1_B,
        "Ready",
        Some("its Lease berth-system/rack1-b was last renewed at 2026-01-01T00:00:00Z"),
    );
    let infra_node = plane.infra_node("rack1-b");
    let ready = condition(&infra_node, "Ready");
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("Unknown"), &json!("AgentUnresponsive"))
    );
    // The controller does not overwrite the agent's new status, although the agent has not renewed its Lease.
    let mut infra_node = plane.infra_node("rack1-b");
    infra_node["status"]["conditions"][0] = json!({"type": "Ready", "status": "True", "reason": "Applied",
        "message": "reported again", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    replace_status(plane, "/apis/berth.dev/v1alpha1/infranodes/rack1-b/status", &infra_node);
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert_eq!(condition(&plane.infra_node("rack1-b"), "Ready")["message"], "reported again");
}

pub(crate) fn configuration_is_validated(plane: &ControlPlane) {
    let config =
        |ranges: &Value| apply_vlan_pools(plane, &json!([{"network": "trunk", "ranges": ranges}]));
    config(&json!(["100-199", "150-160"]));
    wait_until_condition(
        plane,
        &["infraconfig", "default"],
        "Ready",
        Some("`150-160` has VLANs 150-160 that the pool already contains"),
    );
    // The two networks may share a physical network: their pools overlap, and two tenants already have the same VLAN.
    let two = json!([
        {"network": "trunk", "ranges": ["100-199"]}, {"network": "yard", "ranges": ["190-210"]},
    ]);
    apply_vlan_pools(plane, &two);
    let overlap = "vlanPools[trunk] and vlanPools[yard] both have VLANs 190-199";
    wait_until_condition(plane, &["infraconfig", "default"], "Ready", Some(overlap));
    for (network, tenant) in [("trunk", "one"), ("yard", "two")] {
        let claim = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VlanClaim",
            "metadata": {"name": format!("{network}-140")},
            "spec": {"network": network, "vlan": 140, "tenant": tenant, "tenantUID": tenant}});
        plane.apply(&claim.to_string()).unwrap();
    }
    let shared = "VLAN 140 belongs to tenant one on trunk and to tenant two on yard; both tenants keep the number";
    wait_until_condition(plane, &["infraconfig", "default"], "Ready", Some(shared));
    plane.kubectl(&["delete", "vlanclaims", "trunk-140", "yard-140"]).unwrap();
    config(&json!(["100-199"]));
    wait_until_field(
        plane,
        &["infraconfig", "default"],
        "/status/conditions/0/status",
        &json!("True"),
    );
    if plane.version() < Version(1, 25) {
        // Servers before 1.25 do not enforce the CRD's rule that the only permitted name is `default`.
        let other = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "other"}, "spec": {}});
        plane.apply(&other.to_string()).unwrap();
        wait_until_condition(
            plane,
            &["infraconfig", "other"],
            "Ready",
            Some("only the InfraConfig named default is used"),
        );
    }
}

fn apply_vlan_pools(plane: &ControlPlane, pools: &Value) {
    let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
        "spec": {"vlanPools": pools}});
    plane.apply(&object.to_string()).unwrap();
}

/// Tests an object that the current schema would refuse. The test writes the object while the schema accepts any
/// content; in a cluster, the object can come from another version of the CRD.
pub(crate) fn malformed_object_is_reported(plane: &ControlPlane) {
    let crd = "infraconfigs.berth.dev";
    let permissive_schema = json!([{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
        "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}]);
    plane
        .kubectl(&["patch", "crd", crd, "--type=json", "-p", &permissive_schema.to_string()])
        .unwrap();
    let valid_pools = json!([{"network": "trunk", "ranges": ["100-199"]}]);
    // The server needs some time to load the changed schema.
    let invalid_pools = json!({"spec": {"vlanPools": "all"}}).to_string();
    let patch = ["patch", "infraconfig", "default", "--type=merge", "-p", &invalid_pools];
    plane
        .wait_until("the server accepts the object", SHORT_TIMEOUT, |plane| {
            plane.kubectl(&patch).ok()
        })
        .unwrap();
    wait_until_condition(
        plane,
        &["infraconfig", "default"],
        "Ready",
        Some("spec.vlanPools: invalid type"),
    );
    let config = plane.get_json(&["infraconfig", "default"]).unwrap();
    assert_eq!(condition(&config, "Ready")["reason"], "Malformed", "{config:#}");
    plane
        .wait_until("an Event reports the object", SHORT_TIMEOUT, |plane| {
            let selector = "--field-selector=reason=Malformed,involvedObject.kind=InfraConfig";
            let events = plane.get_json(&["events", "-A", selector]).ok()?;
            let note = events["items"][0]["message"].as_str()?.to_owned();
            note.contains("spec.vlanPools").then_some(())
        })
        .unwrap();
    crate::leader_election::idle_controller_writes_nothing(plane);
    apply_vlan_pools(plane, &valid_pools);
    wait_until_field(
        plane,
        &["infraconfig", "default"],
        "/status/conditions/0/status",
        &json!("True"),
    );
    plane.apply_file(&berth_tests::repository().join(format!("deploy/crds/{crd}.yaml"))).unwrap();
}
