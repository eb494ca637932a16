//! Tests of the objects that a MachineDeployment may access, on a real API server with the controller's own
//! permissions.

use std::time::Duration;

use berth_tests::cluster::{ControlPlane, condition};
use serde_json::{Value, json};

use super::{
    NAMESPACE, SHORT_TIMEOUT, apply, deployment, grant_secret_access, machine_names, machines,
    patch_tenant_status, policies_ready, wait_until_complete, wait_until_condition,
};

/// String that occurs only in Secrets.
const SECRET_CONTENT: &str = "c4n4ry-7f3a";

pub(crate) fn secrets_of_other_namespaces_are_not_read(plane: &ControlPlane) {
    for namespace in ["closed", NAMESPACE] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sizes", "namespace": namespace},
            "stringData": {"key": SECRET_CONTENT, "cpus": "2"}});
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
    wait_until_condition(
        plane,
        "refers",
        "Valid",
        "`closed/sizes`: is not in namespace cluster-abc,",
    );
    // The Secret is listed in the InfraConfig, but the permission is missing, and the message names the permission.
    let config = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
        "spec": {"secretReferences": [{"namespace": "closed", "name": "sizes"}]}});
    apply(plane, &config);
    refer("closed", "cpus");
    wait_until_condition(
        plane,
        "refers",
        "Valid",
        "Secret closed/sizes: cannot be read, because an RBAC permission is missing",
    );
    grant_secret_access(plane, "closed");
    plane
        .kubectl(&[
            "annotate",
            "machinedeployment",
            "refers",
            "-n",
            NAMESPACE,
            "permission=granted",
        ])
        .unwrap();
    wait_until_complete(plane, "refers", 1);
    refer(NAMESPACE, "key");
    wait_until_condition(
        plane,
        "refers",
        "Valid",
        "template.cpus: `(from a Secret)`: is not a quantity",
    );
}

pub(crate) fn omitted_fields_are_reported_in_a_condition(plane: &ControlPlane) {
    let mut hooked = deployment("hooked", 1, "2Gi");
    hooked["spec"]["template"]["metadata"]["annotations"] =
        json!({"hooks.kubevirt.io/hookSidecars": "[{\"image\": \"x\"}]"});
    hooked["spec"]["template"]["spec"]["taints"] = json!([{"key": "a", "effect": "NoSchedule"}]);
    apply(plane, &hooked);
    wait_until_complete(plane, "hooked", 1);
    wait_until_condition(plane, "hooked", "TemplateHonored", "`hooks.kubevirt.io/hookSidecars`");
    wait_until_condition(plane, "hooked", "TemplateHonored", "spec.template.spec.taints");
    assert!(!json!(machines(plane, "hooked")).to_string().contains("hookSidecars"));
    wait_until_condition(plane, "web", "TemplateHonored", "True");
}

fn deployment_in_office(name: &str) -> Value {
    let mut object = deployment(name, 1, "2Gi");
    object["metadata"]["namespace"] = "office".into();
    object["metadata"]["annotations"]["berth.dev/tenant"] = "abc".into();
    object
}

fn wait_until_status_in_office(plane: &ControlPlane, deployment: &str, words: &str) {
    let mut last = Value::Null;
    let done = plane.wait_until(words, SHORT_TIMEOUT, |plane| {
        last =
            plane.get_json(&["machinedeployment", deployment, "-n", "office"]).unwrap_or_default();
        last["status"].to_string().contains(words).then_some(())
    });
    done.unwrap_or_else(|error| panic!("{error}: {:#}", last["status"]));
}

pub(crate) fn only_listed_namespaces_may_name_a_tenant(plane: &ControlPlane) {
    apply(plane, &deployment_in_office("away"));
    wait_until_status_in_office(plane, "away", "TenantCluster abc does not list namespace office");
    assert!(machines(plane, "away").is_empty());
    let listed = r#"{"spec":{"machineNamespaces":["office"]}}"#;
    plane.kubectl(&["patch", "tenantcluster", "abc", "--type=merge", "-p", listed]).unwrap();
    wait_until_status_in_office(plane, "away", "\"readyReplicas\":1");
    assert_eq!(machines(plane, "away").len(), 1);
}

pub(crate) fn edited_tenant_annotation_orphans_no_machines(plane: &ControlPlane) {
    let before = machine_names(plane, "away");
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
    wait_until_status_in_office(plane, "away", "its machines are in this namespace");
    wait_until_status_in_office(plane, "away", "\"machineNamespace\":\"cluster-abc\"");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(machine_names(plane, "away"), before);
    assert_eq!(plane.get_json(&["virtualmachines", "-n", "office"]).unwrap()["items"], json!([]));
    annotate("berth.dev/tenant=abc");
    wait_until_status_in_office(plane, "away", "the template is valid");
    assert_eq!(machine_names(plane, "away"), before);
    // The MachineDeployment is deleted without its tenant annotation: the controller recognizes the machines by the
    // uid.
    annotate("berth.dev/tenant-");
    plane
        .kubectl(&["delete", "machinedeployment", "away", "-n", "office", "--timeout=40s"])
        .unwrap();
    assert!(machines(plane, "away").is_empty());
}

/// Tests a MachineDeployment whose machines are in its own namespace, which the status does not record: an edit that selects
/// another namespace is refused too.
pub(crate) fn machines_stay_in_their_own_namespace(plane: &ControlPlane) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "base", "namespace": "office"},
        "stringData": {"userdata": "#cloud-config\n"}});
    apply(plane, &secret);
    grant_secret_access(plane, "office");
    let mut object = deployment("home", 1, "2Gi");
    object["metadata"]["namespace"] = "office".into();
    apply(plane, &object);
    wait_until_status_in_office(plane, "home", "\"readyReplicas\":1");
    let get = ["machinedeployment", "home", "-n", "office"];
    let status = plane.get_json(&get).unwrap()["status"].clone();
    assert!(status["machineNamespace"].is_null(), "{status:#}");
    let annotate = |value: &str| {
        let annotate = ["annotate", "machinedeployment", "home", "-n", "office", value];
        plane.kubectl(&annotate).unwrap();
    };
    annotate("berth.dev/tenant=abc");
    wait_until_status_in_office(plane, "home", "its machines are in this namespace");
    assert!(machines(plane, "home").is_empty(), "a machine was created in {NAMESPACE}");
    annotate("berth.dev/tenant-");
    wait_until_status_in_office(plane, "home", "the template is valid");
    plane
        .kubectl(&["delete", "machinedeployment", "home", "-n", "office", "--timeout=40s"])
        .unwrap();
}

/// Tests a tenant with an SR-IOV network whose machines are applied together with the tenant: the machines wait for the
/// NetworkAttachmentDefinition.
pub(crate) fn machines_wait_for_their_network_definition(plane: &ControlPlane) {
    plane.kubectl(&["create", "namespace", "cluster-vf"]).unwrap();
    grant_secret_access(plane, "cluster-vf");
    let tenant = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vf"},
        "spec": {"network": {"name": "vf-trunk", "sriovResource": "openshift.io/tenantvfs"}}});
    apply(plane, &tenant);
    let isolated = policies_ready("True", "Ready");
    patch_tenant_status(plane, "vf", &json!({"namespace": "cluster-vf", "conditions": [isolated]}));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "base", "namespace": "cluster-vf"},
        "stringData": {"userdata": "#cloud-config\n"}});
    apply(plane, &secret);
    let mut on_vf = deployment("on-vf", 1, "2Gi");
    on_vf["metadata"]["namespace"] = "cluster-vf".into();
    apply(plane, &on_vf);
    let machines_in_vf =
        || plane.get_json(&["virtualmachines", "-n", "cluster-vf"]).unwrap()["items"].clone();
    plane
        .wait_until("the condition gives the reason", SHORT_TIMEOUT, |plane| {
            let on_vf = plane.get_json(&["machinedeployment", "on-vf", "-n", "cluster-vf"]).ok()?;
            (condition(&on_vf, "Progressing")["reason"] == "WaitingForTenant").then_some(())
        })
        .unwrap();
    assert_eq!(machines_in_vf(), json!([]));
    let definition = "cluster-vf/tenant-vf-sriov";
    patch_tenant_status(plane, "vf", &json!({"networkAttachmentDefinition": definition}));
    let machine = plane
        .wait_until("a machine exists", SHORT_TIMEOUT, |_| machines_in_vf().get(0).cloned())
        .unwrap();
    let interfaces = &machine["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
    assert_eq!(interfaces[1], json!({"name": "tenant", "sriov": {}}), "{machine:#}");
}

/// Asserts that no condition, event or log contains the content of a Secret.
pub(crate) fn secret_content_is_not_exposed(plane: &ControlPlane) {
    for kind in ["machinedeployments", "events", "tenantclusters"] {
        let all = plane.get_json(&[kind, "-A"]).unwrap().to_string();
        assert!(!all.contains(SECRET_CONTENT), "{kind}: {all}");
    }
    let all = plane.get_json(&["machinedeployments", "-A"]).unwrap().to_string();
    assert!(all.contains("(from a Secret)"), "{all}");
}

/// Tests the deletion of a MachineDeployment that became invalid: another provider, a malformed spec, or a
/// namespace that is no longer allowed.
pub(crate) fn malformed_deployment_is_deleted_with_its_machines(plane: &ControlPlane) {
    apply(plane, &deployment("goes", 1, "2Gi"));
    wait_until_complete(plane, "goes", 1);
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
                NAMESPACE,
                "--type=merge",
                "-p",
                &patch,
            ])
            .unwrap();
    }
    assert_eq!(machines(plane, "goes").len(), 1);
    plane
        .kubectl(&["delete", "machinedeployment", "goes", "-n", NAMESPACE, "--timeout=40s"])
        .unwrap();
    assert!(machines(plane, "goes").is_empty());
}
