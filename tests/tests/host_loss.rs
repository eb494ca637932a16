//! Tests of lost hosts on a real API server with KubeVirt's own definitions: which machines are replaced, and that the
//! other machines keep their addresses and leases. The test writes the conditions of Nodes and the Leases of agents; a
//! simulation of KubeVirt starts every VM, and agents are simulated.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "host_loss/addresses.rs"]
mod addresses;
#[path = "host_loss/tenant.rs"]
mod tenant;

use std::time::Duration;

use addresses::{identity_on, machine_migrates};
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, condition};
use berth_tests::controller::Controller;
use berth_tests::repository;
use berth_tests::simulated::{Fleet, FleetBehaviour, KubeVirt};
use berth_tests::tenant_clusters::is_in_namespace;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(90);
const NAMESPACE: &str = "cluster-bank";
const LOG: &str = "host-loss";
const LOST_HOST: &str = "rack1-a";
const HOSTS: [&str; 4] = [LOST_HOST, "rack1-b", "rack2-a", "rack2-b"];
/// `replaceAfter` of the tenant.
const REPLACE_AFTER: &str = "5s";

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn machines_of_a_lost_host_are_replaced() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    plane.install_machine_kinds().unwrap();
    plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
    // The controller creates machines only after it has applied NetworkPolicies, for which it needs the cluster's DNS.
    plane.create_dns_service().unwrap();
    plane.create_example_storage_class().unwrap();
    let _fleet = Fleet::start(&plane.kubeconfig(), &HOSTS, FleetBehaviour::Agents).unwrap();
    for host in HOSTS {
        set_node_ready(&plane, host, "True");
        write_agent_status(&plane, host);
        renew_lease(&plane, host, 3600);
    }
    let _kubevirt = KubeVirt::start(&plane.kubeconfig()).unwrap();
    plane.apply_file(&repository().join("examples/tenants/config.yaml")).unwrap();
    let mut controller = Controller::start(&plane, LOG, &[]).unwrap();
    create_tenant(&plane);
    apply(&plane, &deployment("web", &json!([])));
    apply(&plane, &deployment("db", &json!([{"size": "1Gi", "source": "blank"}])));
    let web = wait_for_machine(&plane, "web", &[]);
    let db = wait_for_machine(&plane, "db", &[]);
    move_to_host(&plane, &web, LOST_HOST);
    move_to_host(&plane, &db, "rack2-a");
    let web_identity = identity_on(&plane, &web, LOST_HOST);
    let db_identity = machine_migrates(&plane, &db, ["rack2-a", LOST_HOST]);
    one_source_of_evidence_is_not_sufficient(&plane, &web);
    let replacement = machine_is_replaced_under_another_name(&plane, &web);
    machine_with_data_disk_waits(&plane, &db);
    // Both machines keep their leases on the lost host, because the host may still run them.
    assert_eq!(identity_on(&plane, &db, LOST_HOST), db_identity);
    assert_eq!(identity_on(&plane, &web, LOST_HOST), web_identity);
    assert_ne!(identity_on(&plane, &replacement, "rack1-b").lease, web_identity.lease);
    // The next leader does not write the removal mark again.
    let mark = annotation(&plane, &web, "berth.dev/removal-since");
    controller.terminate().unwrap();
    let _controller = Controller::start(&plane, LOG, &[]).unwrap();
    no_machine_is_replaced_while_many_hosts_are_away(&plane, &replacement);
    assert_eq!(annotation(&plane, &web, "berth.dev/removal-since"), mark);
    assert_eq!(
        identity_on(&plane, &db, LOST_HOST),
        db_identity,
        "the identity should be the same after a restart of the controller"
    );
    old_machine_is_deleted_when_its_host_is_back(&plane, &web, &db);
    assert_eq!(identity_on(&plane, &db, LOST_HOST), db_identity);
}

/// Tests a tenant with an API server, where each machine has a Node.
#[test]
fn nodes_of_lost_machines_stay_until_there_is_proof() {
    if is_in_namespace("nodes_of_lost_machines_stay_until_there_is_proof") {
        tenant::nodes_stay_until_there_is_proof();
    }
}

fn apply(plane: &ControlPlane, object: &Value) {
    plane.apply(&object.to_string()).unwrap();
}

fn wait_until(plane: &ControlPlane, what: &str, is_reached: impl Fn(&ControlPlane) -> bool) {
    plane
        .wait_until(what, TIMEOUT, |plane| is_reached(plane).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {}", plane.log_tail(LOG)));
}

/// Creates an InfraNode with a report of an agent, and the agent's Lease.
fn create_infra_node(plane: &ControlPlane, host: &str) {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": host}, "spec": {},
    });
    apply(plane, &object);
    write_agent_status(plane, host);
    renew_lease(plane, host, 3600);
}

/// Writes the status as the agent does. This replaces the conditions that the controller wrote while the agent was
/// unresponsive.
fn write_agent_status(plane: &ControlPlane, host: &str) {
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "Applied", "message": "set by a test",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let path = format!("/apis/berth.dev/v1alpha1/infranodes/{host}");
    write_status(plane, &path, &ready, &json!({"agent": {"version": "test"}}));
}

/// Renews the Lease of an agent. The controller measures the lease duration by its own clock.
fn renew_lease(plane: &ControlPlane, host: &str, seconds: u32) {
    let time = k8s_openapi::jiff::Timestamp::now();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": host, "namespace": "berth-system"},
        "spec": {
            "holderIdentity": host, "leaseDurationSeconds": seconds,
            "renewTime": time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        },
    });
    apply(plane, &lease);
}

/// Writes a condition and other fields of the status of a cluster-scoped object. The other conditions stay. The kubectl
/// of Kubernetes 1.20 has no `--subresource`.
fn write_status(plane: &ControlPlane, path: &str, condition: &Value, fields: &Value) {
    let path = format!("{path}/status");
    plane
        .wait_until("the status is written", TIMEOUT, |plane| {
            let current = plane.get_raw(&path).ok()?;
            let mut object: Value = serde_json::from_str(&current).ok()?;
            for (field, value) in fields.as_object()? {
                object["status"][field] = value.clone();
            }
            let mut conditions = object["status"]["conditions"].as_array().cloned();
            let all = conditions.get_or_insert_default();
            all.retain(|one| one["type"] != condition["type"]);
            all.push(condition.clone());
            object["status"]["conditions"] = json!(conditions);
            let replace = ["replace", "--raw", &path, "-f", "-"];
            plane.kubectl_with(&plane.kubeconfig(), &replace, &object.to_string()).ok()
        })
        .unwrap();
}

fn set_node_ready(plane: &ControlPlane, host: &str, status: &str) {
    let ready = json!({
        "type": "Ready", "status": status, "reason": "Test", "message": "set by a test",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    });
    write_status(plane, &format!("/api/v1/nodes/{host}"), &ready, &json!({}));
}

fn create_tenant(plane: &ControlPlane) {
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "bank"},
        "spec": {"replaceAfter": REPLACE_AFTER, "network": {
            "name": "tenant-trunk",
            "ipv4": {"cidr": "10.0.0.0/24", "gateway": "10.0.0.1"}, "ipv6": {"cidr": "fd00:120::/64"},
        }},
    });
    apply(plane, &tenant);
    wait_until(plane, "the namespace exists", |plane| {
        plane.get_json(&["namespace", NAMESPACE]).is_ok()
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "base", "namespace": NAMESPACE},
        "stringData": {"userdata": "#cloud-config\nhostname: x\n"},
    });
    apply(plane, &secret);
}

/// Returns a MachineDeployment with one machine.
fn deployment(name: &str, secondary_disks: &Value) -> Value {
    json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {"berth.dev/user-data-secret": "base"}},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"name": name}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": {"name": name}},
                "spec": {"providerSpec": {"value": {
                    "cloudProvider": "kubevirt", "operatingSystem": "ubuntu", "operatingSystemSpec": {},
                    "cloudProviderSpec": {"virtualMachine": {"template": {
                        "cpus": "2", "memory": "2Gi", "secondaryDisks": secondary_disks,
                        "primaryDisk": {"osImage": "http://images.example/ubuntu.img", "size": "10Gi"},
                    }}},
                }}},
            },
        },
    })
}

/// Returns the names of the VirtualMachines of a MachineDeployment.
fn machines(plane: &ControlPlane, deployment: &str) -> Vec<String> {
    let selector = format!("md={deployment}");
    let list = plane.get_json(&["virtualmachines", "-n", NAMESPACE, "-l", &selector]);
    let list = list.unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|vm| vm["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

/// Waits until a MachineDeployment has a running machine that is not in `others`, and returns the name of this machine.
fn wait_for_machine(plane: &ControlPlane, deployment: &str, others: &[&str]) -> String {
    let found = plane.wait_until(&format!("a machine of {deployment}"), TIMEOUT, |plane| {
        let mut all = machines(plane, deployment);
        all.retain(|name| !others.contains(&name.as_str()));
        let name = all.pop()?;
        plane.get_json(&["virtualmachineinstance", &name, "-n", NAMESPACE]).ok()?;
        Some(name)
    });
    found.unwrap_or_else(|error| panic!("{error}: {}", plane.log_tail(LOG)))
}

fn move_to_host(plane: &ControlPlane, machine: &str, host: &str) {
    let patch = json!({"status": {"nodeName": host}}).to_string();
    let target = ["patch", "virtualmachineinstance", machine, "-n", NAMESPACE, "--type=merge"];
    plane.kubectl(&[&target[..], &["-p", &patch]].concat()).unwrap();
}

fn annotation(plane: &ControlPlane, machine: &str, key: &str) -> Value {
    let vm = plane.get_json(&["virtualmachine", machine, "-n", NAMESPACE]).unwrap();
    vm["metadata"]["annotations"][key].clone()
}

/// Returns reason and message of the condition HostLost.
fn host_lost(object: &Value) -> String {
    let one = condition(object, "HostLost");
    format!("{} {}", one["reason"], one["message"])
}

fn wait_until_host_lost(plane: &ControlPlane, kind: &str, name: &str, words: &[&str]) {
    wait_until(plane, &format!("HostLost of {kind} {name} has {words:?}"), |plane| {
        let text = host_lost(&plane.get_json(&[kind, name]).unwrap_or_default());
        words.iter().all(|word| text.contains(word))
    });
}

fn one_source_of_evidence_is_not_sufficient(plane: &ControlPlane, web: &str) {
    set_node_ready(plane, LOST_HOST, "Unknown");
    // The wait is longer than `replaceAfter`.
    std::thread::sleep(Duration::from_secs(15));
    assert_eq!(annotation(plane, web, "berth.dev/removal"), Value::Null);
    assert!(condition(&plane.infra_node(LOST_HOST), "HostLost").is_null());
}

fn machine_is_replaced_under_another_name(plane: &ControlPlane, web: &str) -> String {
    renew_lease(plane, LOST_HOST, 5);
    wait_until(plane, "the machine has the removal mark", |plane| {
        annotation(plane, web, "berth.dev/removal") == "HostLost"
    });
    let unresponsive = condition(&plane.infra_node(LOST_HOST), "Ready")["reason"].clone();
    assert_eq!(unresponsive, "AgentUnresponsive");
    let replacement = wait_for_machine(plane, "web", &[web]);
    // The old machine is kept, because the lost host may still run it.
    assert!(machines(plane, "web").contains(&web.to_owned()));
    move_to_host(plane, &replacement, "rack1-b");
    replacement
}

fn machine_with_data_disk_waits(plane: &ControlPlane, db: &str) {
    let disk = format!("{NAMESPACE}/{db}: has data disks ({db}-secondarydisk0)");
    let words = ["MachinesWaitForHost", "1 machines are being replaced", &disk];
    wait_until_host_lost(plane, "infranode", LOST_HOST, &words);
    wait_until_host_lost(plane, "tenantcluster", "bank", &words);
    assert_eq!(annotation(plane, db, "berth.dev/removal"), Value::Null);
    assert_eq!(machines(plane, "db"), [db], "there should be no second machine");
}

/// Tests the loss of a second host: two lost hosts of four exceed the limit of 40 %.
fn no_machine_is_replaced_while_many_hosts_are_away(plane: &ControlPlane, replacement: &str) {
    renew_lease(plane, "rack1-b", 5);
    set_node_ready(plane, "rack1-b", "Unknown");
    wait_until_host_lost(plane, "infranode", "rack1-b", &["TooManyHostsAway", "2 of 4 hosts"]);
    assert_eq!(annotation(plane, replacement, "berth.dev/removal"), Value::Null);
    set_node_ready(plane, "rack1-b", "True");
    renew_lease(plane, "rack1-b", 3600);
    write_agent_status(plane, "rack1-b");
    wait_until(plane, "the second host is not lost", |plane| {
        condition(&plane.infra_node("rack1-b"), "HostLost").is_null()
    });
}

fn old_machine_is_deleted_when_its_host_is_back(plane: &ControlPlane, web: &str, db: &str) {
    assert!(
        machines(plane, "web").contains(&web.to_owned()),
        "the machine was deleted without proof that its VM has ended"
    );
    set_node_ready(plane, LOST_HOST, "True");
    renew_lease(plane, LOST_HOST, 3600);
    write_agent_status(plane, LOST_HOST);
    wait_until(plane, "the old machine is deleted", |plane| {
        !machines(plane, "web").contains(&web.to_owned())
    });
    assert_eq!(machines(plane, "web").len(), 1);
    assert_eq!(machines(plane, "db"), [db]);
    for (kind, name) in [("infranode", LOST_HOST), ("tenantcluster", "bank")] {
        wait_until(plane, &format!("{kind} {name} has no condition HostLost"), |plane| {
            condition(&plane.get_json(&[kind, name]).unwrap_or_default(), "HostLost").is_null()
        });
    }
}
