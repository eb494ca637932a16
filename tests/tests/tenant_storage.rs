//! Test of StorageClasses in a tenant's cluster with two real API servers: the infra cluster and a tenant. No CSI
//! driver runs.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::time::Duration;

use berth_tests::cluster::condition;
use berth_tests::controller::Controller;
use berth_tests::tenant_clusters::{Clusters, is_in_namespace};
use serde_json::{Value, json};

const READY: &str = "StorageClassesReady";
const DEFAULT_ANNOTATION: &str = "storageclass.kubernetes.io/is-default-class";
const INITIALIZE_ANNOTATION: &str = "kubevirt-initialization.k8c.io/initialize-sc";

/// All tests share the control planes, because starting them is the slowest step.
#[test]
fn storage_classes_match_the_list() {
    if !is_in_namespace("storage_classes_match_the_list") {
        return;
    }
    let clusters = Clusters::start("tenant-storage");
    for (name, mode) in [("fast", "WaitForFirstConsumer"), ("slow", "Immediate")] {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": "rbd.csi.ceph.com", "parameters": {"pool": "secret-pool"},
            "volumeBindingMode": mode, "allowVolumeExpansion": true,
        });
        clusters.infra.apply(&class.to_string()).unwrap();
    }
    clusters.grant_permissions(&[]);
    let controller = Controller::start(&clusters.infra, "tenant-storage", &[]).unwrap();
    clusters.create_tenant("bank");
    clusters.write_secret("cluster-bank", &clusters.kubeconfig(&clusters.token()));
    clusters.wait_until_condition("bank", "TenantAccessReady", "True Connected");

    tenants_without_classes_are_not_watched(&clusters);
    missing_permissions_are_reported(&clusters);
    classes_are_created(&clusters);
    annotated_classes_are_created(&clusters);
    changes_are_applied(&clusters);
    choices_of_the_tenant_are_kept(&clusters);
    immutable_fields_are_reported(&clusters);
    foreign_classes_are_kept(&clusters);
    clusters.check_idle();
    drop(controller);
    removed_classes_stay_after_a_restart(&clusters);

    let requests = clusters.tenant_requests();
    let deletes = requests.iter().filter(|request| request["verb"] == "delete");
    assert_eq!(deletes.count(), 0, "the controller deleted an object of the tenant");
}

fn write_list(clusters: &Clusters, list: &Value) {
    // With an empty list and no other field, a server-side apply on Kubernetes 1.36 removes the spec, which is required.
    clusters.write_config(&json!({"infraStorageClasses": list, "maxSecondaryDisks": 4}));
}

fn class(clusters: &Clusters, name: &str) -> Value {
    clusters.tenant.get_json(&["storageclass", name]).unwrap_or_default()
}

fn is_default(clusters: &Clusters, name: &str) -> Value {
    class(clusters, name)["metadata"]["annotations"][DEFAULT_ANNOTATION].clone()
}

/// Sets the annotation with which a class of the infra cluster is selected.
fn set_initialize_annotation(clusters: &Clusters, name: &str, is_set: bool) {
    let change = match is_set {
        true => format!("{INITIALIZE_ANNOTATION}=true"),
        false => format!("{INITIALIZE_ANNOTATION}-"),
    };
    clusters.infra.kubectl(&["annotate", "storageclass", name, &change]).unwrap();
}

fn delete(clusters: &Clusters, name: &str) {
    clusters.tenant.kubectl(&["delete", "storageclass", name]).unwrap();
}

fn tenants_without_classes_are_not_watched(clusters: &Clusters) {
    std::thread::sleep(Duration::from_secs(5));
    let requests = clusters.tenant_requests();
    let of_classes = requests.iter().filter(|one| one["objectRef"]["resource"] == "storageclasses");
    assert_eq!(of_classes.count(), 0, "StorageClasses were read");
}

fn missing_permissions_are_reported(clusters: &Clusters) {
    write_list(clusters, &json!([{"name": "fast", "isDefaultClass": true}]));
    let message = clusters.condition_message("bank", READY, "False AccessDenied");
    assert!(message.contains("render --tenant-rbac --storage-classes"), "{message}");
    let tenant = clusters.infra.get_json(&["tenantcluster", "bank"]).unwrap();
    assert_eq!(condition(&tenant, "TenantAccessReady")["status"], "True");
    clusters.grant_permissions(&["--storage-classes"]);
}

fn classes_are_created(clusters: &Clusters) {
    let message = clusters.condition_message("bank", READY, "True StorageClassesApplied");
    assert!(message.starts_with("1 StorageClasses"), "{message}");
    let found = class(clusters, "kubevirt-fast");
    assert_eq!(found["provisioner"], "csi.kubevirt.io");
    assert_eq!(found["parameters"], json!({"infraStorageClassName": "fast", "bus": "scsi"}));
    assert_eq!(found["volumeBindingMode"], "WaitForFirstConsumer");
    assert_eq!(found["reclaimPolicy"], "Delete");
    assert_eq!(found["allowVolumeExpansion"], true);
    assert_eq!(is_default(clusters, "kubevirt-fast"), "true");
    assert!(class(clusters, "kubevirt-slow").is_null(), "not in the list");
}

fn annotated_classes_are_created(clusters: &Clusters) {
    set_initialize_annotation(clusters, "slow", true);
    clusters.wait_until("the annotated class exists", |clusters| {
        class(clusters, "kubevirt-slow")["volumeBindingMode"] == "Immediate"
    });
    assert_eq!(is_default(clusters, "kubevirt-slow"), "false");
}

fn changes_are_applied(clusters: &Clusters) {
    let zones = json!([{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["a", "b"]}]}]);
    let list = json!([
        {"name": "fast", "isDefaultClass": true, "allowVolumeExpansion": false, "zones": ["b", "a"]}, {"name": "gone"},
    ]);
    write_list(clusters, &list);
    clusters.wait_until("the zones are applied", |clusters| {
        class(clusters, "kubevirt-fast")["allowedTopologies"] == zones
    });
    assert_eq!(class(clusters, "kubevirt-fast")["allowVolumeExpansion"], false);
    let message = clusters.condition_message("bank", READY, "False StorageClassesMissing");
    assert!(message.contains("gone"), "{message}");
    write_list(clusters, &json!([{"name": "fast", "isDefaultClass": true}]));
    clusters.wait_until("the zones are removed", |clusters| {
        let class = class(clusters, "kubevirt-fast");
        class["allowedTopologies"].is_null() && class["allowVolumeExpansion"] == true
    });
    delete(clusters, "kubevirt-fast");
    clusters.wait_until("the class is created again", |clusters| {
        !class(clusters, "kubevirt-fast").is_null()
    });
    clusters.wait_until_condition("bank", READY, "True StorageClassesApplied");
}

fn choices_of_the_tenant_are_kept(clusters: &Clusters) {
    let change = format!("{DEFAULT_ANNOTATION}=false");
    let annotate = ["annotate", "--overwrite", "storageclass", "kubevirt-fast"];
    clusters.tenant.kubectl(&[&annotate[..], &[&change]].concat()).unwrap();
    let message = clusters.condition_message("bank", READY, "True FieldsOwnedByOthers");
    assert!(message.contains("kubevirt-fast by kubectl"), "{message}");
    assert_eq!(is_default(clusters, "kubevirt-fast"), "false");
    let removal = format!("{DEFAULT_ANNOTATION}-");
    clusters.tenant.kubectl(&[&annotate[..], &[&removal]].concat()).unwrap();
    clusters.wait_until("the class is the default again", |clusters| {
        is_default(clusters, "kubevirt-fast") == "true"
    });
    clusters.wait_until_condition("bank", READY, "True StorageClassesApplied");
}

fn immutable_fields_are_reported(clusters: &Clusters) {
    let list = json!([{"name": "fast", "isDefaultClass": true, "volumeBindingMode": "Immediate"}]);
    write_list(clusters, &list);
    let message = clusters.condition_message("bank", READY, "False ImmutableFieldsDiffer");
    assert!(message.contains("kubevirt-fast (volumeBindingMode)"), "{message}");
    let mode = |clusters: &Clusters| class(clusters, "kubevirt-fast")["volumeBindingMode"].clone();
    assert_eq!(mode(clusters), "WaitForFirstConsumer");
    delete(clusters, "kubevirt-fast");
    clusters.wait_until("the class is created again", |clusters| mode(clusters) == "Immediate");
    clusters.wait_until_condition("bank", READY, "True StorageClassesApplied");
}

fn foreign_classes_are_kept(clusters: &Clusters) {
    set_initialize_annotation(clusters, "slow", false);
    clusters.wait_until_condition("bank", READY, "False StorageClassesRetained");
    delete(clusters, "kubevirt-slow");
    clusters.wait_until_condition("bank", READY, "True StorageClassesApplied");
    let theirs = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "kubevirt-slow"},
        "provisioner": "example.com/own", "volumeBindingMode": "Immediate",
    });
    clusters.tenant.apply(&theirs.to_string()).unwrap();
    set_initialize_annotation(clusters, "slow", true);
    let message = clusters.condition_message("bank", READY, "False NotOwned");
    assert!(message.contains("kubevirt-slow"), "{message}");
    assert_eq!(class(clusters, "kubevirt-slow")["provisioner"], "example.com/own");
    delete(clusters, "kubevirt-slow");
    clusters.wait_until_condition("bank", READY, "True StorageClassesApplied");
}

/// Tests a list that becomes empty while no controller runs.
fn removed_classes_stay_after_a_restart(clusters: &Clusters) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"},
        "spec": {
            "storageClassName": "kubevirt-slow", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    clusters.tenant.apply(&claim.to_string()).unwrap();
    write_list(clusters, &json!([]));
    set_initialize_annotation(clusters, "slow", false);
    let _controller = Controller::start(&clusters.infra, "tenant-storage", &[]).unwrap();
    let message = clusters.condition_message("bank", READY, "False StorageClassesRetained");
    assert!(message.contains("kubevirt-fast, kubevirt-slow"), "{message}");
    clusters.wait_until("the class is not the default", |clusters| {
        is_default(clusters, "kubevirt-fast") == "false"
    });
    assert!(!class(clusters, "kubevirt-slow").is_null());
    delete(clusters, "kubevirt-fast");
    delete(clusters, "kubevirt-slow");
    clusters.wait_until("the condition is removed", |clusters| {
        let tenant = clusters.infra.get_json(&["tenantcluster", "bank"]).unwrap_or_default();
        tenant.is_object() && condition(&tenant, READY).is_null()
    });
}
