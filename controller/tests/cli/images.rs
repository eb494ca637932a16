//! Golden images in `berth-controller render`.

use serde_json::{Value, json};

use super::program::{run_controller, stderr, stdout};

/// Returns manifests of a MachineDeployment of tenant `abc` with an image of the catalog, and of its storage class.
fn manifests() -> String {
    let config = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
        "spec": {"images": {
            "namespace": "images",
            "catalog": [
                {"image": "http://images/noble.img", "size": "4Gi"},
                {"image": "docker://registry/rhel:9", "size": "6Gi", "schedule": "30 1 * * 1", "preload": true},
            ],
        }},
    });
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "abc"}, "spec": {},
    });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
        "provisioner": "rbd.csi.ceph.com", "allowVolumeExpansion": true,
    });
    let profile = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "StorageProfile", "metadata": {"name": "fast"},
        "status": {
            "cloneStrategy": "csi-clone",
            "claimPropertySets": [{"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}],
        },
    });
    let provider = json!({
        "cloudProvider": "kubevirt", "operatingSystem": "ubuntu", "operatingSystemSpec": {},
        "cloudProviderSpec": {"virtualMachine": {"template": {
            "cpus": "2", "memory": "4Gi",
            "primaryDisk": {"osImage": "http://images/noble.img", "size": "20Gi", "storageClassName": "fast"},
        }}},
    });
    let deployment = json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": "web", "namespace": "cluster-abc"},
        "spec": {"template": {"spec": {"providerSpec": {"value": provider}}}},
    });
    let all = [config, tenant, class, profile, deployment].map(|object| object.to_string());
    all.join("\n---\n")
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

#[test]
fn golden_images_are_printed_with_their_permissions() {
    let output = run_controller(&["render", "--golden-images", "-f", "-"], &manifests());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let objects = documents(&stdout(&output));
    let mut kinds: Vec<&str> = objects.iter().filter_map(|one| one["kind"].as_str()).collect();
    kinds.sort_unstable();
    let expected = ["ClusterRole", "DataImportCron", "DataSource", "DataVolume", "RoleBinding"];
    assert_eq!(kinds, expected, "{objects:#?}");
    let is_in_namespace = |one: &&Value| one["kind"] != "ClusterRole";
    for object in objects.iter().filter(is_in_namespace) {
        assert_eq!(object["metadata"]["namespace"], "images", "{object}");
    }
}

#[test]
fn the_strategy_of_clones_is_printed_with_the_machine() {
    let output = run_controller(&["render", "--machine", "web-1", "-f", "-"], &manifests());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let machine = &documents(&stdout(&output))[0];
    let source = &machine["spec"]["dataVolumeTemplates"][0]["spec"]["sourceRef"];
    assert_eq!((&source["kind"], &source["namespace"]), (&json!("DataSource"), &json!("images")));
    let shown = stderr(&output);
    let name = source["name"].as_str().unwrap();
    let line = format!(
        "berth-controller: disk web-1 from DataSource images/{name}: CSI clone: the StorageProfile selects it"
    );
    assert!(shown.contains(&line), "{shown}");
}

#[test]
fn a_plan_shows_the_strategy_of_clones() {
    let output = run_controller(&["plan", "-f", "-"], &manifests());
    let shown: String = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains(": CSI clone: the StorageProfile selects it"), "{shown}");
    let output = run_controller(&["plan", "-o", "json", "-f", "-"], &manifests());
    let plan: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let clones = &plan["machineDeployments"][0]["clones"];
    assert_eq!(clones[0]["strategy"], "CsiClone", "{plan:#}");
    assert!(clones[0]["image"].as_str().unwrap().starts_with("images/image-"));
}
