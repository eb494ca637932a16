//! Tests of the instance types of `deploy/instancetypes/`: KubeVirt's own schemas accept the instance types, and each
//! instance type results in a valid launcher pod.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read files and fail by panicking"
)]

use berth_kubevirt_render::launcher::{ClusterObjects, Configuration, Launcher, Machine, predict};
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use berth_tests::repository;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;
const FILES: [&str; 3] = ["performance.yaml", "density.yaml", "preferences.yaml"];

fn read_text(file: &str) -> String {
    std::fs::read_to_string(repository().join("deploy/instancetypes").join(file)).unwrap()
}

fn read_objects(file: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read_text(file)).unwrap()
}

fn object_name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Returns the launcher of a VM that has only an instance type and a preference.
fn launcher(instancetype: &Value, preference: &Value) -> Launcher {
    let mut cluster_objects = ClusterObjects::default();
    assert!(cluster_objects.add(instancetype).unwrap());
    assert!(cluster_objects.add(preference).unwrap());
    let vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"namespace": "cluster-abc", "name": "web-1"},
        "spec": {
            "instancetype": {"name": object_name(instancetype)}, "preference": {"name": object_name(preference)},
            "template": {"spec": {"domain": {"devices": {}}}},
        },
    });
    predict(&Machine::read(&vm).unwrap().unwrap(), &Configuration::default(), &cluster_objects)
        .unwrap()
}

#[test]
fn each_instancetype_gives_a_launcher_pod_of_its_class() {
    let preferences = read_objects("preferences.yaml");
    let preferred =
        |wanted: &str| preferences.iter().find(|one| object_name(one) == wanted).cloned().unwrap();
    let types: Vec<Value> =
        [read_objects("performance.yaml"), read_objects("density.yaml")].concat();
    assert!(types.len() >= 12);
    for one in &types {
        let (name, spec) = (object_name(one), &one["spec"]);
        assert!(spec["nodeSelector"].is_null(), "{name} selects Nodes by labels");
        let (class, size) = name.rsplit_once('-').unwrap();
        let cpus: u64 = size.parse().unwrap();
        assert_eq!(spec["cpu"]["guest"], cpus, "{name}");
        let preference = class.strip_suffix("-1gi").unwrap_or(class);
        let launcher = launcher(one, &preferred(preference));
        let compute = &launcher.pod.containers[0];
        assert_eq!(u64::from(launcher.vcpus), cpus, "{name}");
        assert_eq!(launcher.scheduler_name, "berth-scheduler", "{name}");
        if class == "density" {
            assert_eq!(launcher.guest_memory, cpus * 2 * GIB, "{name}");
            assert!(!launcher.is_dedicated, "{name}");
            let requested = compute.requests.memory;
            assert!(requested < launcher.guest_memory, "{name} requests {requested}");
            assert!(compute.requests.cpu_millis <= cpus * 200, "{name}");
        } else {
            assert_eq!(launcher.guest_memory, cpus * 4 * GIB, "{name}");
            assert!(launcher.is_dedicated, "{name}");
            // The emulator thread has an additional exclusive CPU.
            assert!(compute.requests.cpu_millis >= (cpus + 1) * 1000, "{name}");
            assert_eq!(compute.requests.cpu_millis, compute.limits.cpu_millis, "{name}");
            let in_pages = !class.ends_with("database");
            assert_eq!(launcher.numa_passthrough, in_pages, "{name}");
            assert_eq!(compute.requests.hugepages.is_empty(), !in_pages, "{name}");
        }
    }
}

#[test]
fn instancetypes_match_the_schemas_of_kubevirt() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    plane
        .install_kubevirt_crds(&[
            "virtualmachineclusterinstancetypes.instancetype.kubevirt.io",
            "virtualmachineclusterpreferences.instancetype.kubevirt.io",
        ])
        .unwrap();
    for file in FILES {
        plane.apply(&read_text(file)).unwrap();
        // The API server drops fields that are not in the schema, without an error.
        for object in read_objects(file) {
            let kind = object["kind"].as_str().unwrap().to_lowercase();
            let stored = plane.get_json(&[&kind, &object_name(&object)]).unwrap();
            assert_eq!(stored["spec"], object["spec"], "{}", object_name(&object));
        }
    }
}
