//! Tests `kubectl berth` with a real API server: what it shows of hosts, tenants and machines is what kubectl shows of the
//! same objects, a user with few permissions gets the objects that he may read, and a watch follows changes. The consoles
//! are tested with a simulated KubeVirt (`kubectl_berth/streams.rs`).

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run the program, and fail by panicking"
)]

#[path = "kubectl_berth/streams.rs"]
mod streams;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use serde_json::{Value, json};

/// Time limit for the API server to serve new permissions.
const TIMEOUT: Duration = Duration::from_secs(60);

fn run(kubeconfig: &Path, arguments: &[&str]) -> Output {
    Command::new(berth_tests::program("kubectl-berth"))
        .args(arguments)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .unwrap()
}

/// Returns the JSON output of a command that succeeds.
fn show(kubeconfig: &Path, arguments: &[&str]) -> Value {
    let output = run(kubeconfig, &[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn write_status(plane: &ControlPlane, path: &str, kind: &[&str], status: &Value) {
    let mut object = plane.get_json(kind).unwrap();
    object["status"] = status.clone();
    let replace = ["replace", "--raw", path, "-f", "-"];
    plane.kubectl_with(&plane.kubeconfig(), &replace, &object.to_string()).unwrap();
}

fn create_host(plane: &ControlPlane, name: &str, pinned: Option<&str>, ready: &str) {
    plane.create_node(name).unwrap();
    let infra = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": name},
        "spec": {"networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}}]},
    });
    plane.apply(&infra.to_string()).unwrap();
    let mut status = json!({
        "capabilities": {"memory": {"total": "64Gi", "ksm": {"running": false}}, "kvm": {"state": "Ready"}},
        "zones": [{
            "id": 0, "cpus": "0-7", "pinnableCPUs": "1-7",
            "hugepages": [{"size": "1Gi", "total": 16, "free": 4}],
        }],
        "networks": [{"name": "trunk", "ready": 1, "pending": 0, "failed": 0, "trunk": {"state": "Verified"}}],
        "conditions": [{
            "type": "Ready", "status": ready, "reason": "Applied", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    if let Some(pinned) = pinned {
        status["zones"][0]["pinnedCPUs"] = pinned.into();
    }
    let path = format!("/apis/berth.dev/v1alpha1/infranodes/{name}/status");
    write_status(plane, &path, &["infranode", name], &status);
}

fn create_vm(plane: &ControlPlane, namespace: &str, name: &str, host: &str) {
    let spec = json!({"domain": {"cpu": {"cores": 2}, "memory": {"guest": "1Gi"}, "devices": {}}});
    let vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"namespace": namespace, "name": name},
        "spec": {"runStrategy": "Always", "template": {"spec": spec}},
    });
    plane.apply(&vm.to_string()).unwrap();
    let instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"namespace": namespace, "name": name}, "spec": spec,
    });
    plane.apply(&instance.to_string()).unwrap();
    let status = json!({
        "phase": "Running", "nodeName": host,
        "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    // The definition of VirtualMachineInstances in tests may have no subresource for the status.
    let patch = json!({"status": status}).to_string();
    let patch = ["patch", "vmi", "-n", namespace, name, "--type=merge", "-p", &patch];
    plane.kubectl(&patch).unwrap();
}

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn the_views_are_those_of_kubectl() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    plane.deploy(&[]).unwrap();
    plane.install_machine_kinds().unwrap();
    create_host(&plane, "rack1-a", Some("1-3"), "True");
    create_host(&plane, "rack1-b", None, "False");
    plane.kubectl(&["cordon", "rack1-b"]).unwrap();
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "bank"},
        "spec": {"network": {"name": "trunk"}},
    });
    plane.apply(&tenant.to_string()).unwrap();
    for (namespace, name, host) in
        [("cluster-bank", "web-1", "rack1-a"), ("cluster-shop", "db-1", "rack1-a")]
    {
        if plane.get_json(&["namespace", namespace]).is_err() {
            plane.kubectl(&["create", "namespace", namespace]).unwrap();
        }
        create_vm(&plane, namespace, name, host);
    }
    hosts_are_those_of_kubectl(&plane);
    machines_and_tenants_are_those_of_kubectl(&plane);
    events_of_a_machine_are_explained(&plane);
    a_user_of_one_namespace_gets_its_machines(&plane);
    a_watch_shows_changes(&plane);
}

/// Compares with the table of `kubectl get inode`, and with the reports.
fn hosts_are_those_of_kubectl(plane: &ControlPlane) {
    let kubeconfig = plane.kubeconfig();
    let hosts = show(&kubeconfig, &["hosts"]);
    let hosts = hosts["hosts"].as_array().unwrap();
    let columns =
        "custom-columns=N:.metadata.name,R:.status.conditions[?(@.type==\"Ready\")].status";
    let table = plane.kubectl(&["get", "inode", "--no-headers", "-o", columns]).unwrap();
    let by_kubectl: BTreeMap<&str, &str> = table
        .lines()
        .map(|line| line.trim().split_once(char::is_whitespace).unwrap())
        .map(|(name, ready)| (name, ready.trim()))
        .collect();
    let is_ready = |host: &Value| {
        let states = host["states"].as_array().unwrap();
        if states.contains(&json!("NotReady")) { "False" } else { "True" }
    };
    let shown: BTreeMap<&str, &str> =
        hosts.iter().map(|host| (host["name"].as_str().unwrap(), is_ready(host))).collect();
    assert_eq!(shown, by_kubectl);
    let first = &hosts[0];
    assert_eq!(first["pinnableCPUs"], json!({"used": 3, "total": 7}));
    assert_eq!(first["hugepages"], json!({"used": 12_u64 << 30, "total": 16_u64 << 30}));
    assert_eq!(first["memory"], 64_u64 << 30);
    assert_eq!(first["vms"], 2);
    assert_eq!(hosts[1]["states"], json!(["NotReady", "Cordoned"]));
    let detail = show(&kubeconfig, &["host", "rack1-a"]);
    assert_eq!(detail["host"]["machines"].as_array().unwrap().len(), 2, "{detail:#}");
    let networks = show(&kubeconfig, &["networks"]);
    assert_eq!(networks["networks"][0]["hosts"], 2, "{networks:#}");
    assert_eq!(networks["networks"][0]["tenants"], 1, "{networks:#}");
    let table = String::from_utf8(run(&kubeconfig, &["hosts"]).stdout).unwrap();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let drain = run(&kubeconfig, &["drain-check", "rack1-b"]);
    assert!(String::from_utf8_lossy(&drain.stdout).contains("rack1-b can be drained"), "{drain:?}");
}

fn machines_and_tenants_are_those_of_kubectl(plane: &ControlPlane) {
    let kubeconfig = plane.kubeconfig();
    let machines = show(&kubeconfig, &["machines"]);
    let columns = "custom-columns=NS:.metadata.namespace,N:.metadata.name,H:.status.nodeName";
    let table = plane.kubectl(&["get", "vmi", "-A", "--no-headers", "-o", columns]).unwrap();
    let by_kubectl: Vec<String> =
        table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let shown: Vec<String> = machines["machines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            format!("{} {} {}", text(&one["namespace"]), text(&one["name"]), text(&one["host"]))
        })
        .collect();
    assert_eq!(shown, by_kubectl);
    assert!(machines["machines"].as_array().unwrap().iter().all(|one| one["state"] == "Running"));
    let tenants = show(&kubeconfig, &["tenants"]);
    let names = plane.kubectl(&["get", "tcluster", "-o", "jsonpath={.items[*].metadata.name}"]);
    assert_eq!(tenants["tenants"][0]["name"], names.unwrap().as_str());
    let why = run(&kubeconfig, &["why", "cluster-bank/web-1"]);
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains("cluster-bank/web-1 is on rack1-a"), "{why}");
}

fn events_of_a_machine_are_explained(plane: &ControlPlane) {
    // The control plane of this test has no controller that creates the account, which a pod needs.
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "cluster-bank", "name": "default"},
    });
    plane.apply(&account.to_string()).unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "cluster-bank", "name": "virt-launcher-web-1-a",
            "labels": {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "web-1"},
        },
        "spec": {"containers": [{"name": "compute", "image": "virt-launcher"}]},
    });
    plane.apply(&pod.to_string()).unwrap();
    let event = |kind: &str, object: &str, reason: &str, minute: u8, count: u8| {
        let time = format!("2026-11-28T12:{minute:02}:00Z");
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"namespace": "cluster-bank", "name": format!("{object}.{minute}")},
            "involvedObject": {"kind": kind, "namespace": "cluster-bank", "name": object},
            "type": "Warning", "reason": reason, "message": "m", "lastTimestamp": time, "count": count,
            "source": {"component": "kubelet"},
        });
        plane.apply(&event.to_string()).unwrap();
    };
    event("VirtualMachineInstance", "web-1", "Started", 1, 1);
    event("Pod", "virt-launcher-web-1-a", "FailedMount", 3, 4);
    event("Machine", "web-1", "OfAnotherKind", 4, 1);
    event("VirtualMachine", "web-2", "OfAnotherMachine", 5, 1);
    let kubeconfig = plane.kubeconfig();
    let output = run(&kubeconfig, &["why", "cluster-bank/web-1", "-o", "json"]);
    let why: Value = serde_json::from_slice(&output.stdout).unwrap();
    let events = why["events"].as_array().unwrap().iter();
    let events: Vec<_> =
        events.map(|one| (one["reason"].as_str(), one["count"].as_u64())).collect();
    assert_eq!(events, [(Some("FailedMount"), Some(4)), (Some("Started"), Some(1))], "{why:#}");
    let output = run(&kubeconfig, &["why", "cluster-bank/web-1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("Latest Events\n  ! 2026-11-28T12:03:00Z FailedMount (4 times)"),
        "{text}"
    );
    plane
        .kubectl(&["delete", "pod", "-n", "cluster-bank", "virt-launcher-web-1-a", "--now"])
        .unwrap();
}

fn a_user_of_one_namespace_gets_its_machines(plane: &ControlPlane) {
    let namespace = "cluster-bank";
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "user", "namespace": namespace}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "user", "namespace": namespace},
            "rules": [{"apiGroups": ["kubevirt.io"], "resources": ["virtualmachines", "virtualmachineinstances"],
                       "verbs": ["get", "list", "watch"]}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "user", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "user"},
            "subjects": [{"kind": "ServiceAccount", "name": "user", "namespace": namespace}],
        }),
    ] {
        plane.apply(&object.to_string()).unwrap();
    }
    let token = plane.create_token_in(namespace, "user").unwrap();
    let kubeconfig = plane.write_kubeconfig("user", &token, false).unwrap();
    let listed = |arguments: &[&str]| {
        let output = run(&kubeconfig, &[arguments, &["-o", "json"]].concat());
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let names = value["machines"].as_array().into_iter().flatten();
        let names: Vec<String> =
            names.map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect();
        (output, value, names)
    };
    // The authorizer of the API server sees a new role after a moment.
    let (_, value, names) = plane
        .wait_until("the user may list machines", TIMEOUT, |_| {
            Some(listed(&["machines", "-n", namespace])).filter(|(_, _, names)| !names.is_empty())
        })
        .unwrap();
    assert_eq!(names, ["web-1"]);
    let unread: Vec<&str> = value["unread"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["objects"].as_str().unwrap())
        .collect();
    assert_eq!(unread, ["pods", "addressclaims"], "{value:#}");
    // A name with a namespace, and a tenant, are read only in that namespace.
    let (_, value, names) = listed(&["machines", "--tenant", "bank"]);
    assert_eq!(names, ["web-1"], "{value:#}");
    let output = run(&kubeconfig, &["why", "cluster-bank/web-1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("host: rack1-a"), "{output:?}");
    let output = run(&kubeconfig, &["hosts", "-n", namespace]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // An administrator sees the same with `--as`, and without a user its group is refused.
    let account = format!("system:serviceaccount:{namespace}:user");
    let own = run(&kubeconfig, &["machines", "-n", namespace]);
    let impersonated = run(&plane.kubeconfig(), &["machines", "-n", namespace, "--as", &account]);
    assert_eq!(own, impersonated);
    let output = run(&plane.kubeconfig(), &["machines", "--as-group", "system:masters"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("need --as"), "{output:?}");
    // The permission to impersonate is needed.
    let output = run(&kubeconfig, &["machines", "-n", namespace, "--as", "system:admin"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && error.contains("impersonate"), "{output:?}");
    // The namespace of the context is used if all namespaces are refused.
    let context = ["config", "set-context", "--current", "--namespace", namespace];
    plane.kubectl_with(&kubeconfig, &context, "").unwrap();
    let (_, value, names) = listed(&["machines"]);
    assert_eq!(names, ["web-1"], "{value:#}");
    assert!(
        value["unread"].as_array().unwrap().iter().any(|one| one["onlyNamespace"] == namespace)
    );
    // A line on standard error names each list that is refused.
    let output = run(&kubeconfig, &["machines"]);
    let error = String::from_utf8_lossy(&output.stderr);
    let words = "kubectl-berth: not shown: virtualmachines outside namespace cluster-bank:";
    assert!(output.status.success() && error.contains(words), "{output:?}");
    // Nothing at all may be read.
    let output = run(&kubeconfig, &["hosts"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("not shown: infranodes: "), "{error}");
    // Without the hosts, `why` shows the status of the machine.
    let output = run(&kubeconfig, &["why", "web-1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("host: rack1-a"), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("the hosts are not compared"), "{error}");
}

fn a_watch_shows_changes(plane: &ControlPlane) {
    let mut child = Command::new(berth_tests::program("kubectl-berth"))
        .args(["hosts", "--watch", "-o", "json", "--kubeconfig"])
        .arg(plane.kubeconfig())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let mut documents = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>();
    let is_cordoned = |document: &Value| {
        let states = document["hosts"][0]["states"].as_array().unwrap();
        states.contains(&json!("Cordoned"))
    };
    let first = documents.next().unwrap().unwrap();
    assert!(!is_cordoned(&first), "{first:#}");
    plane.kubectl(&["cordon", "rack1-a"]).unwrap();
    // A document for another change may come first.
    let changed = documents.map(Result::unwrap).find(is_cordoned);
    assert!(changed.is_some(), "the watch ended");
    child.kill().unwrap();
    child.wait().unwrap();
}
