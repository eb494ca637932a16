//! Tests `berth-controller plan` with a live cluster: the output is the same as for the same objects in files, and
//! the command only sends list requests.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run the program, read its server's files, and fail by panicking"
)]

use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use berth_tests::plan::run_plan;
use berth_tests::repository;
use serde_json::{Value, json};

/// Returns the objects of a file of the example fleet, as `kubectl create --dry-run=client` prints them.
fn read_objects(plane: &ControlPlane, file: &str) -> Vec<Value> {
    let path = repository().join("examples/fleet").join(file);
    let read = ["create", "--dry-run=client", "--validate=false", "-o", "json", "-f"];
    let arguments: Vec<&str> = read.iter().copied().chain([path.to_str().unwrap()]).collect();
    let text = plane.kubectl(&arguments).unwrap();
    let stream = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let open = |value: Value| match value["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![value],
    };
    stream.flat_map(|value| open(value.unwrap())).collect()
}

#[test]
fn live_cluster_and_its_files_have_equal_plans() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_audit_log: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    plane.deploy(&[]).unwrap();
    for host in ["rack1-a", "rack1-b", "rack2-a", "lab-a"] {
        let mut infra = read_objects(&plane, &format!("{host}.yaml")).remove(0);
        // Kubernetes 1.20 converts empty strings in an apply to null.
        let cpu = infra["status"]["capabilities"]["cpu"].as_object_mut().unwrap();
        cpu.retain(|_, value| *value != "");
        infra["status"]["zones"].as_array_mut().unwrap().iter_mut().for_each(|zone| {
            zone.as_object_mut().unwrap().retain(|_, value| *value != "");
        });
        plane.apply(&infra.to_string()).unwrap();
        let mut current = plane.get_json(&["infranode", host]).unwrap();
        current["status"] = infra["status"].clone();
        let path = format!("/apis/berth.dev/v1alpha1/infranodes/{host}/status");
        let replace = ["replace", "--raw", &path, "-f", "-"];
        plane.kubectl_with(&plane.kubeconfig(), &replace, &current.to_string()).unwrap();
        create_node(&plane, host);
    }
    plane.kubectl(&["create", "namespace", "cluster-abc"]).unwrap();
    plane
        .wait_until(
            "the ServiceAccount of the namespace exists",
            Duration::from_secs(30),
            |plane| {
                // Without controllers the ServiceAccount is not created, and the server refuses pods without a
                // ServiceAccount.
                let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": "cluster-abc"}});
                plane.apply(&account.to_string()).ok()
            },
        )
        .unwrap();
    for mut pod in read_objects(&plane, "running.yaml") {
        pod["spec"]["containers"][0]["image"] = "none".into();
        pod["metadata"]["uid"].take();
        plane.apply(&pod.to_string()).unwrap();
    }
    // The server generates other uids than those in the files, so the reports must list the uids of the server.
    for host in ["rack1-a"] {
        let mut infra = plane.get_json(&["infranode", host]).unwrap();
        for (vm, at) in [("db-1", 0), ("cache-1", 1)] {
            let label = format!("vm.kubevirt.io/name={vm}");
            let pods = plane.get_json(&["pods", "-n", "cluster-abc", "-l", &label]).unwrap();
            infra["status"]["allocations"][at]["podUID"] =
                pods["items"][0]["metadata"]["uid"].clone();
        }
        let path = format!("/apis/berth.dev/v1alpha1/infranodes/{host}/status");
        let replace = ["replace", "--raw", &path, "-f", "-"];
        plane.kubectl_with(&plane.kubeconfig(), &replace, &infra.to_string()).unwrap();
    }
    let before = read_audit_log(&plane).len();
    let kubeconfig = plane.kubeconfig();
    let machines = ["-f", "examples/fleet/machines.yaml", "-f", "examples/fleet/profiles.yaml"];
    let live: Vec<&str> =
        ["--kubeconfig", kubeconfig.to_str().unwrap()].into_iter().chain(machines).collect();
    let live = run_plan(&live).unwrap();
    let filed = run_plan(&["-f", "examples/fleet/"]).unwrap();
    for part in ["problems", "unplaced", "running", "placed", "hosts"] {
        assert_eq!(live[part], filed[part], "{part}");
    }
    let requests: Vec<Value> = read_audit_log(&plane).split_off(before);
    let plan_requests =
        |event: &&Value| !event["userAgent"].as_str().unwrap_or_default().contains("kubectl");
    let ours: Vec<&Value> =
        requests.iter().filter(plan_requests).filter(|event| event["verb"] == "list").collect();
    assert!(ours.len() >= 6, "too few list requests were sent: {}", ours.len());
    let writes = ["create", "update", "patch", "delete", "deletecollection"];
    let is_write = |event: &&Value| writes.iter().any(|verb| event["verb"] == *verb);
    let by_plan = |event: &&Value| event["user"]["username"] == ours[0]["user"]["username"];
    let written: Vec<&Value> = requests.iter().filter(by_plan).filter(is_write).collect();
    assert!(written.is_empty(), "{written:?}");
}

/// Creates the Node of a host of the example fleet: as the kubelet registers it, and with the fields that the agent and
/// KubeVirt add.
fn create_node(plane: &ControlPlane, host: &str) {
    plane.create_node(host).unwrap();
    let filed = run_plan(&["-f", &format!("examples/fleet/{host}.yaml")]).unwrap();
    let usage = &filed["hosts"][0];
    let bytes = |part: &str| usage[part]["total"].as_u64().unwrap();
    let infra = read_objects(plane, &format!("{host}.yaml")).remove(0);
    let mut pages = json!({});
    for zone in infra["status"]["zones"].as_array().unwrap() {
        for pool in zone["hugepages"].as_array().unwrap() {
            let size = pool["size"].as_str().unwrap();
            let bytes = if size == "1Gi" { 1_u64 << 30 } else { 2 << 20 };
            let name = format!("hugepages-{size}");
            let sum = pages[&name].as_u64().unwrap_or(0) + pool["total"].as_u64().unwrap() * bytes;
            pages[&name] = sum.into();
        }
    }
    let mut node = plane.get_json(&["node", host]).unwrap();
    let mut amounts = json!({
        "cpu": format!("{}m", bytes("cpuMillis")), "memory": bytes("memory").to_string(), "pods": "110",
        "devices.kubevirt.io/kvm": "1000", "devices.kubevirt.io/tun": "1000",
        "devices.kubevirt.io/vhost-net": "1000", "devices.kubevirt.io/vhost-vsock": "1000",
    });
    for (name, sum) in pages.as_object().unwrap() {
        amounts[name] = sum.to_string().into();
    }
    node["status"]["allocatable"] = amounts.clone();
    node["status"]["capacity"] = amounts;
    let path = format!("/api/v1/nodes/{host}/status");
    let replace = ["replace", "--raw", &path, "-f", "-"];
    plane.kubectl_with(&plane.kubeconfig(), &replace, &node.to_string()).unwrap();
    let status: berth_api::InfraNodeStatus =
        serde_json::from_value(infra["status"].clone()).unwrap();
    let agents = berth_api::feature_labels(&status);
    let agents = agents.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
    let others = [
        "kubevirt.io/schedulable=true",
        "kubevirt.io/cpumanager=true",
        "kubernetes.io/arch=amd64",
        "machine-type.node.kubevirt.io/q35=true",
    ];
    let others = others.map(str::to_owned).into_iter();
    let hostname = format!("kubernetes.io/hostname={host}");
    let labels: Vec<String> = agents.chain(others).chain([hostname]).collect();
    let command = ["label", "--overwrite", "node", host];
    let arguments: Vec<&str> =
        command.iter().copied().chain(labels.iter().map(String::as_str)).collect();
    plane.kubectl(&arguments).unwrap();
    // Admission adds this taint to every new Node, and no controller runs here to remove it.
    plane.kubectl(&["taint", "node", host, "node.kubernetes.io/not-ready-"]).unwrap();
}

fn read_audit_log(plane: &ControlPlane) -> Vec<Value> {
    let log = std::fs::read_to_string(plane.folder().join("audit.log")).unwrap_or_default();
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
