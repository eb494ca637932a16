//! Disks of VMs: storage that CSI drivers report, node affinity of volumes, and topologies of StorageClasses.

use serde_json::{Value, json};

use super::program::{repository, run_controller, run_plan, stdout};

const NO_SPACE: &str = "node(s) did not have enough free storage";

/// Returns the manifests of the hosts rack-a and rack-b, of a StorageClass of local volumes, and of the storage of these
/// hosts: 100 GiB and 30 GiB.
fn hosts_with_storage() -> Vec<String> {
    let host = std::fs::read_to_string(repository().join("examples/fleet/rack1-b.yaml")).unwrap();
    let hosts = ["rack-a", "rack-b"].map(|name| host.replace("rack1-b", name));
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local-nvme"},
        "provisioner": "local.example.com", "volumeBindingMode": "WaitForFirstConsumer"});
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "local.example.com"},
        "spec": {"storageCapacity": true}});
    let capacity = |version: &str, host: &str, size: &str| {
        json!({"apiVersion": format!("storage.k8s.io/{version}"), "kind": "CSIStorageCapacity",
            "metadata": {"namespace": "storage", "name": format!("csisc-{host}")}, "storageClassName": "local-nvme",
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": host}}, "capacity": size})
    };
    let storage =
        [class, driver, capacity("v1", "rack-a", "100Gi"), capacity("v1beta1", "rack-b", "30Gi")];
    hosts.into_iter().chain(storage.map(|object| object.to_string())).collect()
}

/// Returns a VM with a disk of the same name. The VM has a template for the disk if `size` is given.
fn vm(name: &str, size: Option<&str>) -> String {
    let claim = |size| json!({"storageClassName": "local-nvme", "resources": {"requests": {"storage": size}}});
    let templates =
        size.map(|size| json!({"metadata": {"name": name}, "spec": {"storage": claim(size)}}));
    let templates: Vec<Value> = templates.into_iter().collect();
    let domain = json!({"cpu": {"cores": 1}, "memory": {"guest": "1Gi"},
        "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}});
    let volumes = json!([{"name": "root", "dataVolume": {"name": name}}]);
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"namespace": "vms", "name": name}, "spec": {"runStrategy": "Always",
            "dataVolumeTemplates": templates, "template": {"spec": {"domain": domain, "volumes": volumes}}}});
    vm.to_string()
}

fn join(hosts: &[String], others: &[String]) -> String {
    [hosts, others].concat().join("\n---\n")
}

fn host_of(plan: &Value, vm: &str) -> Option<String> {
    let placed = plan["placed"].as_array().unwrap().iter();
    let mut placed = placed.filter(|placed| placed["vm"] == vm);
    Some(placed.next()?["host"].as_str().unwrap().to_owned())
}

#[test]
fn vms_without_storage_are_not_placed() {
    let hosts = hosts_with_storage();
    let vms = ["web-1", "web-2", "web-3"].map(|name| vm(name, Some("40Gi")));
    let input = join(&hosts, &vms);
    let (code, plan) = run_plan(&["-f", "-"], &input);
    assert_eq!((code, &plan["problems"]), (1, &json!([])), "{plan}");
    assert_eq!(host_of(&plan, "vms/web-1").as_deref(), Some("rack-a"));
    assert_eq!(host_of(&plan, "vms/web-2").as_deref(), Some("rack-a"));
    let unplaced = &plan["unplaced"][0];
    assert_eq!(
        (&unplaced["vm"], &unplaced["refused"][0]["hosts"]),
        (&json!("vms/web-3"), &2.into())
    );
    assert_eq!(unplaced["refused"][0]["reason"], NO_SPACE);
    let detail = unplaced["refused"][0]["detail"].as_str().unwrap();
    let details = [
        "no capacity of class local-nvme on host rack-a: 40 GiB requested, 20 GiB free",
        "no capacity of class local-nvme on host rack-b: 40 GiB requested, 30 GiB free",
    ];
    assert!(details.contains(&detail), "{detail}");
    let remedy = unplaced["remedy"].as_str().unwrap();
    assert!(remedy.starts_with("free storage of class local-nvme on rack-"), "{remedy}");
    let table = stdout(&run_controller(&["plan", "-f", "-"], &input));
    assert!(table.contains("no capacity of"), "{table}");

    // Each copy of a host has its own storage.
    let more = ["web-4", "web-5"].map(|name| vm(name, Some("40Gi")));
    let five = join(&hosts, &[&vms[..], &more[..]].concat());
    let (_, answer) = run_plan(&["-f", "-", "--add", "rack-a"], &five);
    assert_eq!(answer["added"]["enough"], 2, "{answer}");

    // Without a driver that reports its storage, or for a VM without a disk of this class, there is no limit.
    let without_driver: Vec<String> =
        hosts.iter().filter(|object| !object.contains("CSIDriver")).cloned().collect();
    let (code, plan) = run_plan(&["-f", "-"], &join(&without_driver, &vms));
    assert_eq!((code, plan["placed"].as_array().unwrap().len()), (0, 3), "{plan}");
    let (code, _) = run_plan(&["-f", "-"], &join(&hosts, &[vm("other", None)]));
    assert_eq!(code, 0);
}

#[test]
fn existing_claims_and_volumes_determine_the_hosts() {
    let hosts = hosts_with_storage();
    let claim = |name: &str, annotations: Value, spec: Value| {
        let metadata = json!({"namespace": "vms", "name": name, "annotations": annotations});
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}).to_string()
    };
    let volume = |name: &str, host: &str| {
        let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]);
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}})
        .to_string()
    };
    let size = |size: &str| json!({"storageClassName": "local-nvme", "resources": {"requests": {"storage": size}}});
    let objects = [
        vm("bound", Some("40Gi")),
        claim("bound", json!({}), json!({"volumeName": "pv-1"})),
        volume("pv-1", "rack-b"),
        vm("lost", Some("40Gi")),
        claim("lost", json!({}), json!({"volumeName": "pv-2"})),
        volume("pv-2", "rack-z"),
        // The volume is being provisioned on rack-b, which therefore reports less free storage.
        vm("selected", Some("40Gi")),
        claim("selected", json!({"volume.kubernetes.io/selected-node": "rack-b"}), size("40Gi")),
        // The claim is smaller than the template.
        vm("small", Some("40Gi")),
        claim("small", json!({}), size("1Gi")),
    ];
    let (code, plan) = run_plan(&["-f", "-"], &join(&hosts, &objects));
    assert_eq!((code, &plan["problems"]), (1, &json!([])), "{plan}");
    for name in ["bound", "selected"] {
        assert_eq!(host_of(&plan, &format!("vms/{name}")).as_deref(), Some("rack-b"), "{name}");
    }
    assert!(host_of(&plan, "vms/small").is_some());
    let unplaced = plan["unplaced"].as_array().unwrap();
    assert_eq!((unplaced.len(), &unplaced[0]["vm"]), (1, &json!("vms/lost")));
    let refused = &unplaced[0]["refused"][0];
    assert_eq!(refused["reason"], "node(s) didn't match PersistentVolume's node affinity");
    assert_eq!(
        refused["detail"],
        "the volume of PersistentVolumeClaim vms/lost requires kubernetes.io/hostname=rack-z"
    );
}

#[test]
fn topologies_of_a_class_determine_the_hosts() {
    let mut hosts = hosts_with_storage();
    let at = hosts.iter().position(|object| object.contains("\"StorageClass\"")).unwrap();
    let mut class: Value = serde_json::from_str(&hosts[at]).unwrap();
    class["allowedTopologies"] = json!([{"matchLabelExpressions": [
        {"key": "kubernetes.io/hostname", "values": ["rack-b"]}]}]);
    hosts[at] = class.to_string();
    let vms = [vm("web-1", Some("20Gi")), vm("web-2", Some("20Gi"))];
    let (code, plan) = run_plan(&["-f", "-"], &join(&hosts, &vms));
    assert_eq!(code, 1);
    assert_eq!(host_of(&plan, "vms/web-1").as_deref(), Some("rack-b"));
    let refused = plan["unplaced"][0]["refused"].as_array().unwrap();
    let reasons: Vec<&str> = refused.iter().map(|one| one["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, [NO_SPACE, "node(s) didn't find available persistent volumes to bind"]);
}
