//! Tests of the objects that a MachineDeployment may access, on a real API server with the controller's own
//! permissions.

use std::time::Duration;

use berth_tests::cluster::{ControlPlane, condition};
use serde_json::{Value, json};

use super::{
    SOON, SPACE, apply, deployment, machines, may_read, names, policies_ready, reconciled,
    until_complete, until_said,
};

/// Text that occurs only in Secrets.
const CANARY: &str = "c4n4ry-7f3a";

pub(crate) fn secrets_of_other_namespaces_are_not_read(plane: &ControlPlane) {
    for namespace in ["closed", SPACE] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sizes", "namespace": namespace},
            "stringData": {"key": CANARY, "cpus": "2"}});
        apply(plane, &secret);
    }
    let refer = |namespace: &str, key: &str| {
        let mut deployment = deployment("refers", 1, "2Gi");
        deployment["spec"]["template"]["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["virtualMachine"]
            ["template"]["cpus"] =
            json!({"secretKeyRef": {"namespace": namespace, "name": "sizes", "key": key}});
        apply(plane, &deployment);
    };
    refer("closed", "key");
    until_said(plane, "refers", "Valid", "`closed/sizes`: is not in namespace cluster-abc,");
    // The Secret is listed in the InfraConfig, but the permission is missing, and the message names the permission.
    let config = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
        "spec": {"secretReferences": [{"namespace": "closed", "name": "sizes"}]}});
    apply(plane, &config);
    refer("closed", "cpus");
    until_said(
        plane,
        "refers",
        "Valid",
        "Secret closed/sizes: cannot be read, because an RBAC permission is missing",
    );
    may_read(plane, "closed");
    plane.kubectl(&["annotate", "machinedeployment", "refers", "-n", SPACE, "may=read"]).unwrap();
    until_complete(plane, "refers", 1);
    refer(SPACE, "key");
    until_said(plane, "refers", "Valid", "template.cpus: `(from a Secret)`: is not a quantity");
}

pub(crate) fn what_is_left_out_is_in_a_condition(plane: &ControlPlane) {
    let mut hooked = deployment("hooked", 1, "2Gi");
    hooked["spec"]["template"]["metadata"]["annotations"] =
        json!({"hooks.kubevirt.io/hookSidecars": "[{\"image\": \"x\"}]"});
    hooked["spec"]["template"]["spec"]["taints"] = json!([{"key": "a", "effect": "NoSchedule"}]);
    apply(plane, &hooked);
    until_complete(plane, "hooked", 1);
    until_said(plane, "hooked", "TemplateHonored", "`hooks.kubevirt.io/hookSidecars`");
    until_said(plane, "hooked", "TemplateHonored", "spec.template.spec.taints");
    assert!(!json!(machines(plane, "hooked")).to_string().contains("hookSidecars"));
    until_said(plane, "web", "TemplateHonored", "True");
}

fn elsewhere(name: &str) -> Value {
    let mut elsewhere = deployment(name, 1, "2Gi");
    elsewhere["metadata"]["namespace"] = "office".into();
    elsewhere["metadata"]["annotations"]["berth.dev/tenant"] = "abc".into();
    elsewhere
}

fn until_said_in_office(plane: &ControlPlane, of: &str, words: &str) {
    let mut last = Value::Null;
    let done = plane.until(words, SOON, |plane| {
        last = plane.get(&["machinedeployment", of, "-n", "office"]).unwrap_or_default();
        last["status"].to_string().contains(words).then_some(())
    });
    done.unwrap_or_else(|error| panic!("{error}: {:#}", last["status"]));
}

pub(crate) fn only_listed_namespaces_name_a_tenant(plane: &ControlPlane) {
    apply(plane, &elsewhere("away"));
    until_said_in_office(plane, "away", "TenantCluster abc does not list namespace office");
    assert!(machines(plane, "away").is_empty());
    let listed = r#"{"spec":{"machineNamespaces":["office"]}}"#;
    plane.kubectl(&["patch", "tenantcluster", "abc", "--type=merge", "-p", listed]).unwrap();
    until_said_in_office(plane, "away", "\"readyReplicas\":1");
    assert_eq!(machines(plane, "away").len(), 1);
}

pub(crate) fn an_edit_strands_no_machines(plane: &ControlPlane) {
    let before = names(plane, "away");
    let annotate = |value: &str| {
        plane
            .kubectl(&[
                "annotate",
                "machinedeployment",
                "away",
                "-n",
                "office",
                "--overwrite",
                value,
            ])
            .unwrap();
    };
    annotate("berth.dev/tenant-");
    until_said_in_office(plane, "away", "its machines are in this namespace");
    until_said_in_office(plane, "away", "\"machineNamespace\":\"cluster-abc\"");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(names(plane, "away"), before);
    assert_eq!(plane.get(&["virtualmachines", "-n", "office"]).unwrap()["items"], json!([]));
    annotate("berth.dev/tenant=abc");
    until_said_in_office(plane, "away", "machines can be made of it");
    assert_eq!(names(plane, "away"), before);
    // The MachineDeployment is deleted without its tenant annotation: the controller recognizes the machines by the
    // uid.
    annotate("berth.dev/tenant-");
    plane
        .kubectl(&["delete", "machinedeployment", "away", "-n", "office", "--timeout=40s"])
        .unwrap();
    assert!(machines(plane, "away").is_empty());
}

/// Tests a tenant on virtual functions that is applied together with its machines.
pub(crate) fn machines_wait_for_the_definition_of_their_network(plane: &ControlPlane) {
    plane.kubectl(&["create", "namespace", "cluster-vf"]).unwrap();
    may_read(plane, "cluster-vf");
    let tenant = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vf"},
        "spec": {"network": {"name": "vf-trunk", "sriovResource": "openshift.io/tenantvfs"}}});
    apply(plane, &tenant);
    let isolated = policies_ready("True", "Ready");
    reconciled(plane, "vf", &json!({"namespace": "cluster-vf", "conditions": [isolated]}));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "base", "namespace": "cluster-vf"},
        "stringData": {"userdata": "#cloud-config\n"}});
    apply(plane, &secret);
    let mut on_vf = deployment("on-vf", 1, "2Gi");
    on_vf["metadata"]["namespace"] = "cluster-vf".into();
    apply(plane, &on_vf);
    let there = || plane.get(&["virtualmachines", "-n", "cluster-vf"]).unwrap()["items"].clone();
    plane
        .until("it says what it waits for", SOON, |plane| {
            let on_vf = plane.get(&["machinedeployment", "on-vf", "-n", "cluster-vf"]).ok()?;
            (condition(&on_vf, "Progressing")["reason"] == "WaitingForTenant").then_some(())
        })
        .unwrap();
    assert_eq!(there(), json!([]));
    let definition = "cluster-vf/tenant-vf-sriov";
    reconciled(plane, "vf", &json!({"networkAttachmentDefinition": definition}));
    let made = plane.until("a machine", SOON, |_| there().get(0).cloned()).unwrap();
    let interfaces = &made["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
    assert_eq!(interfaces[1], json!({"name": "tenant", "sriov": {}}), "{made:#}");
}

/// Asserts that no condition, event or log contains the content of a Secret.
pub(crate) fn nothing_shows_what_a_secret_has(plane: &ControlPlane) {
    for what in ["machinedeployments", "events", "tenantclusters"] {
        let all = plane.get(&[what, "-A"]).unwrap().to_string();
        assert!(!all.contains(CANARY), "{what}: {all}");
    }
    let all = plane.get(&["machinedeployments", "-A"]).unwrap().to_string();
    assert!(all.contains("(from a Secret)"), "{all}");
}

/// Tests the deletion of a MachineDeployment that became invalid: another provider, a malformed spec, or a
/// namespace that is no longer allowed.
pub(crate) fn one_that_cannot_be_read_goes_too(plane: &ControlPlane) {
    apply(plane, &deployment("goes", 1, "2Gi"));
    until_complete(plane, "goes", 1);
    for patch in [
        json!({"spec": {"template": {"spec": {"providerSpec": {"value": {"cloudProvider": "aws"}}}}}}),
        json!({"spec": {"minReadySeconds": "soon", "template": {"spec": {"taints": "none"}}}}),
    ] {
        let patch = patch.to_string();
        plane
            .kubectl(&[
                "patch",
                "machinedeployment",
                "goes",
                "-n",
                SPACE,
                "--type=merge",
                "-p",
                &patch,
            ])
            .unwrap();
    }
    assert_eq!(machines(plane, "goes").len(), 1);
    plane.kubectl(&["delete", "machinedeployment", "goes", "-n", SPACE, "--timeout=40s"]).unwrap();
    assert!(machines(plane, "goes").is_empty());
}
