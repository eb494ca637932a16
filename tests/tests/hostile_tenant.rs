//! Test of tenants that are misconfigured or hostile, with two real API servers: a kubeconfig with a wrong CA or an
//! expired client certificate, a Node with thousands of labels that change all the time, a webhook that refuses every
//! write, Nodes that name other machines, and a removal mark from a clock that is ahead. KubeVirt is simulated.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, and fail by panicking"
)]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_api::names::{
    DELETE_MACHINE_ANNOTATION, NODE_DRAIN_TIMEOUT_ANNOTATION, REMOVAL_ANNOTATION,
    REMOVAL_SINCE_ANNOTATION,
};
use berth_tests::cluster::{
    ADMIN_TOKEN, ApiClient, ControlPlane, ControlPlaneOptions, condition, registered_node,
    web_deployment,
};
use berth_tests::controller::Controller;
use berth_tests::simulated::KubeVirt;
use berth_tests::tenant_clusters::{Clusters, TENANT_ADDRESS, is_in_namespace};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const NAMESPACE: &str = "cluster-shop";
/// Name of the controller's log.
const LOG: &str = "hostile-tenant";
const MACHINES: usize = 5;
const HOST: &str = "rack1-a";
const ZONE: &str = "topology.kubernetes.io/zone";
/// Node of the tenant that changes its labels all the time.
const FLOOD_NODE: &str = "flood";
/// Maximum resident memory of the controller. It needs less with 500 tenants (docs/performance.md).
const MAX_RESIDENT_KILOBYTES: u64 = 300 * 1024;
const TIMEOUT: Duration = Duration::from_secs(60);

/// All tests share the control planes, because starting them is the slowest step.
#[test]
fn hostile_tenant_affects_only_itself() {
    if !is_in_namespace("hostile_tenant_affects_only_itself") {
        return;
    }
    let clusters = Clusters::start_for_drains(LOG);
    let _kubevirt = KubeVirt::start(&clusters.infra.kubeconfig()).unwrap();
    let controller = Controller::start(&clusters.infra, LOG, &[]).unwrap();
    clusters.create_tenant_with_machines("shop");
    clusters.wait_until_condition("shop", "TenantAccessReady", "True Connected");
    wrong_ca_is_reported(&clusters);
    expired_certificate_is_reported(&clusters);
    let mut machines = create_machines(&clusters);
    let mut next = || machines.pop().unwrap();
    let other = next();
    create_node(&clusters, &other, &other);
    flood_of_labels_delays_no_other_tenant(&clusters, &controller, &other);
    webhook_delays_a_removal_until_its_deadline(&clusters, &next());
    node_of_another_machine_is_not_drained(&clusters, &next(), &other);
    ambiguous_nodes_are_not_drained(&clusters, &next());
    mark_with_a_future_time_begins_now(&clusters, &next());
    assert!(!is_cordoned(&clusters, &other), "the Node of another machine is cordoned");
}

fn wrong_ca_is_reported(clusters: &Clusters) {
    let authority = |plane: &ControlPlane| STANDARD.encode(fs::read(plane.authority()).unwrap());
    let kubeconfig = clusters.kubeconfig(&clusters.token());
    let (own, wrong) = (authority(&clusters.tenant), authority(&clusters.infra));
    assert!(kubeconfig.contains(&own));
    clusters.create_tenant("wrong");
    clusters.write_secret("cluster-wrong", &kubeconfig.replace(&own, &wrong));
    let expected = "False ServerCertificateInvalid";
    let message = clusters.condition_message("wrong", "TenantAccessReady", expected);
    let words = "is not signed by the authority in certificate-authority-data";
    assert!(message.contains(words) && message.contains("cluster-wrong/kubeconfig"), "{message}");
    let shop = clusters.infra.get_json(&["tenantcluster", "shop"]).unwrap();
    assert_eq!(condition(&shop, "TenantAccessReady")["reason"], "Connected");
}

/// Tests that an expired client certificate is reported, causes few requests, and can be replaced.
fn expired_certificate_is_reported(clusters: &Clusters) {
    let tenant = &clusters.tenant;
    let files = tenant.create_expired_certificate("expired", "berth", "system:masters").unwrap();
    // The certificate is valid until the end of this second.
    std::thread::sleep(Duration::from_secs(2));
    clusters.create_tenant("expired");
    clusters.write_secret("cluster-expired", &clusters.certificate_kubeconfig(&files));
    let expected = "False AccessDenied";
    let message = clusters.condition_message("expired", "TenantAccessReady", expected);
    let words = "the client certificate in the kubeconfig has expired";
    assert!(message.contains(words) && message.contains("cluster-expired/kubeconfig"), "{message}");
    let refused_requests = || {
        let log = tenant.log("kube-apiserver").unwrap();
        log.lines().filter(|line| line.contains("certificate has expired")).count()
    };
    let before = refused_requests();
    std::thread::sleep(Duration::from_secs(10));
    let during = refused_requests() - before;
    // The first retries follow after 1, 2, 4 and 8 s.
    assert!(
        before > 0 && during < 10,
        "there should be few requests: {before} at first, and {during} within 10 s"
    );
    let files = tenant.create_certificate("renewed", "berth", "system:masters").unwrap();
    clusters.write_secret("cluster-expired", &clusters.certificate_kubeconfig(&files));
    clusters.wait_until_condition("expired", "TenantAccessReady", "True Connected");
}

/// Returns the names of the machines, when all of them run.
fn create_machines(clusters: &Clusters) -> Vec<String> {
    let count = u32::try_from(MACHINES).unwrap();
    let mut deployment = web_deployment(NAMESPACE, count);
    deployment["metadata"]["annotations"] = json!({NODE_DRAIN_TIMEOUT_ANNOTATION: "30s"});
    clusters.infra.apply(&deployment.to_string()).unwrap();
    let machines = clusters.infra.wait_until("the machines run", TIMEOUT, |infra| {
        let list = infra.get_json(&["virtualmachineinstances", "-n", NAMESPACE]).ok()?;
        let names = list["items"].as_array()?.iter();
        let names = names.filter_map(|one| one["metadata"]["name"].as_str().map(str::to_owned));
        let names: Vec<String> = names.collect();
        (names.len() == MACHINES).then_some(names)
    });
    machines.unwrap_or_else(|error| panic!("{error}: {}", clusters.infra.log_tail(LOG)))
}

/// Creates a Node with the providerID of a machine.
fn create_node(clusters: &Clusters, name: &str, machine: &str) {
    let mut node = registered_node(name);
    node["spec"]["providerID"] = format!("kubevirt://{machine}").into();
    clusters.tenant.apply(&node.to_string()).unwrap();
}

/// Client that changes a label of a large Node again and again, stopped on drop.
struct LabelFlood {
    is_stopped: Arc<AtomicBool>,
    changes: Arc<AtomicUsize>,
}

impl LabelFlood {
    fn start(client: ApiClient) -> Self {
        let flood = Self { is_stopped: Arc::default(), changes: Arc::default() };
        let (is_stopped, changes) = (Arc::clone(&flood.is_stopped), Arc::clone(&flood.changes));
        std::thread::spawn(move || {
            while !is_stopped.load(Ordering::SeqCst) {
                let number = changes.load(Ordering::SeqCst);
                let patch = large_node(number).to_string();
                let path = format!("/api/v1/nodes/{FLOOD_NODE}");
                let type_ = "application/merge-patch+json";
                if matches!(client.send_body("PATCH", &path, type_, &patch), Some(Ok(_))) {
                    changes.fetch_add(1, Ordering::SeqCst);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        flood
    }
}

impl Drop for LabelFlood {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }
}

/// Returns a Node with more labels and annotations than the controller reads.
fn large_node(number: usize) -> Value {
    let mut node = registered_node(FLOOD_NODE);
    for field in 0..2_000 {
        node["metadata"]["labels"][format!("example.com/l{field}")] = "x".into();
        node["metadata"]["annotations"][format!("example.com/a{field}")] = "x".into();
    }
    node["metadata"]["labels"]["example.com/l0"] = number.to_string().into();
    node
}

/// Tests a tenant with an API server of its own, whose large Node changes all the time: the Nodes of other tenants get
/// the labels of their hosts, and the memory of the controller is limited.
fn flood_of_labels_delays_no_other_tenant(
    clusters: &Clusters,
    controller: &Controller,
    machine: &str,
) {
    let options = ControlPlaneOptions {
        server_address: Some(TENANT_ADDRESS),
        ..ControlPlaneOptions::default()
    };
    let flooding = ControlPlane::start(options).unwrap();
    flooding.apply(&large_node(0).to_string()).unwrap();
    let kubeconfig = flooding.write_kubeconfig("flood", ADMIN_TOKEN, false).unwrap();
    clusters.create_tenant("flood");
    clusters.write_secret("cluster-flood", &fs::read_to_string(kubeconfig).unwrap());
    let message = clusters.condition_message("flood", "NodeLabelsReady", "False TooManyNodes");
    assert!(message.contains("1 Nodes get no labels"), "{message}");
    clusters.infra.create_node(HOST).unwrap();
    set_host(clusters, machine, &json!(HOST));
    let flood = LabelFlood::start(flooding.api_client());
    for zone in ["a", "b", "c"] {
        let begin = flood.changes.load(Ordering::SeqCst);
        let label = format!("{ZONE}={zone}");
        clusters.infra.kubectl(&["label", "node", HOST, &label, "--overwrite"]).unwrap();
        clusters.wait_until(
            &format!("the Node has the zone {zone} during the flood"),
            |clusters| {
                let node = clusters.tenant.get_json(&["node", machine]).unwrap();
                let is_flooded = flood.changes.load(Ordering::SeqCst) > begin + 20;
                node["metadata"]["labels"][ZONE] == zone && is_flooded
            },
        );
    }
    let resident = resident_kilobytes(controller);
    assert!(
        resident < MAX_RESIDENT_KILOBYTES,
        "the controller needs too much memory during the flood: {resident} KiB"
    );
    clusters.wait_until_condition("flood", "NodeLabelsReady", "False TooManyNodes");
    drop(flood);
    flooding.kubectl(&["delete", "node", FLOOD_NODE]).unwrap();
    clusters.wait_until_condition("flood", "NodeLabelsReady", "True LabelsReplicated");
    // The other tests have no hosts.
    set_host(clusters, machine, &Value::Null);
    clusters.infra.kubectl(&["delete", "node", HOST]).unwrap();
}

/// Sets the host of a machine, as virt-handler does.
fn set_host(clusters: &Clusters, machine: &str, host: &Value) {
    let patch = json!({"status": {"nodeName": host}}).to_string();
    let instance = ["patch", "vmi", machine, "-n", NAMESPACE, "--type=merge", "-p", &patch];
    clusters.infra.kubectl(&instance).unwrap();
}

/// Returns the resident memory of a controller.
fn resident_kilobytes(controller: &Controller) -> u64 {
    let id = controller.running.process.id();
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn is_cordoned(clusters: &Clusters, node: &str) -> bool {
    let node = clusters.tenant.get_json(&["node", node]).unwrap();
    node["spec"]["unschedulable"] == json!(true)
}

fn has_machine(clusters: &Clusters, machine: &str) -> bool {
    clusters.infra.get_json(&["virtualmachine", machine, "-n", NAMESPACE]).is_ok()
}

/// Scales down by one, and selects this machine for the deletion.
fn scale_down_by_machine(clusters: &Clusters, machine: &str) {
    let mark = format!("{DELETE_MACHINE_ANNOTATION}=true");
    let annotate = ["annotate", "virtualmachine", machine, "-n", NAMESPACE, &mark];
    clusters.infra.kubectl(&annotate).unwrap();
    let deployment = clusters.infra.get_json(&["machinedeployment", "web", "-n", NAMESPACE]);
    let replicas = deployment.unwrap()["spec"]["replicas"].as_u64().unwrap() - 1;
    let replicas = format!("--replicas={replicas}");
    let scale = ["scale", "machinedeployment", "web", "-n", NAMESPACE, &replicas];
    clusters.infra.kubectl(&scale).unwrap();
}

fn wait_until_reported(clusters: &Clusters, machine: &str, reason: &str) {
    wait_until_removal_has_reason(clusters, machine, (reason, machine));
}

/// Waits until the removal of a machine has a reason, and its message contains a word.
fn wait_until_removal_has_reason(clusters: &Clusters, machine: &str, (reason, word): (&str, &str)) {
    clusters.wait_until(&format!("the removal of {machine} has {reason}"), |clusters| {
        let deployment = ["machinedeployment", "web", "-n", NAMESPACE];
        let deployment: Value = clusters.infra.get_json(&deployment).unwrap_or_default();
        let one = condition(&deployment, "MachinesRemoved");
        one["reason"] == reason
            && one["message"]
                .as_str()
                .is_some_and(|text| text.contains(machine) && text.contains(word))
    });
    assert!(has_machine(clusters, machine), "the machine was deleted before the deadline");
}

fn webhook_delays_a_removal_until_its_deadline(clusters: &Clusters, machine: &str) {
    create_node(clusters, machine, machine);
    let rule = json!({
        "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], "scope": "*",
    });
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "refuse"},
        "webhooks": [{
            // No server listens at this address, so the API server refuses every write.
            "name": "refuse.example.com", "clientConfig": {"url": "https://127.0.0.1:9/"},
            "rules": [rule], "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 1,
            "admissionReviewVersions": ["v1"],
        }],
    });
    clusters.tenant.apply(&webhook.to_string()).unwrap();
    clusters.wait_until("the webhook is called", |clusters| {
        let create = ["create", "namespace", "probe", "--dry-run=server"];
        clusters.tenant.kubectl(&create).is_err()
    });
    scale_down_by_machine(clusters, machine);
    wait_until_removal_has_reason(clusters, machine, ("TenantUnreachable", "refuse.example.com"));
    clusters.wait_until("the machine is deleted", |clusters| !has_machine(clusters, machine));
    assert!(
        !is_cordoned(clusters, machine),
        "the Node should not be cordoned, because the webhook refuses it"
    );
    let delete = ["delete", "validatingwebhookconfiguration", "refuse"];
    clusters.tenant.kubectl(&delete).unwrap();
}

/// Tests a Node that has the name of this machine and the providerID of another machine.
fn node_of_another_machine_is_not_drained(clusters: &Clusters, machine: &str, other: &str) {
    create_node(clusters, machine, other);
    scale_down_by_machine(clusters, machine);
    clusters.wait_until("the machine is deleted", |clusters| !has_machine(clusters, machine));
    for node in [machine, other] {
        assert!(!is_cordoned(clusters, node), "{node} is cordoned");
    }
    assert!(has_machine(clusters, other));
}

/// Tests two Nodes with the providerID of the same machine: neither Node is drained.
fn ambiguous_nodes_are_not_drained(clusters: &Clusters, machine: &str) {
    let nodes = [machine, "impostor"];
    for node in nodes {
        create_node(clusters, node, machine);
    }
    // The controller receives changes of Nodes through a watch, with a short delay.
    std::thread::sleep(Duration::from_secs(3));
    scale_down_by_machine(clusters, machine);
    wait_until_reported(clusters, machine, "AmbiguousNodes");
    clusters.wait_until("the machine is deleted", |clusters| !has_machine(clusters, machine));
    for node in nodes {
        assert!(!is_cordoned(clusters, node), "{node} is cordoned");
    }
}

/// Tests a removal mark from a machine whose clock is a day ahead: the time limit of the drain begins now.
fn mark_with_a_future_time_begins_now(clusters: &Clusters, machine: &str) {
    create_node(clusters, machine, machine);
    // The volume is never detached, so the drain ends at its time limit.
    let volume = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": machine},
        "spec": {"attacher": "csi.example", "nodeName": machine, "source": {"persistentVolumeName": machine}},
    });
    clusters.tenant.apply(&volume.to_string()).unwrap();
    let future = Timestamp::now().checked_add(SignedDuration::from_hours(24)).unwrap();
    let mark =
        [format!("{REMOVAL_ANNOTATION}=HostDrain"), format!("{REMOVAL_SINCE_ANNOTATION}={future}")];
    let annotate = ["annotate", "virtualmachine", machine, "-n", NAMESPACE, &mark[0], &mark[1]];
    clusters.infra.kubectl(&annotate).unwrap();
    clusters.wait_until("the time of the mark is corrected", |clusters| {
        let machine = ["virtualmachine", machine, "-n", NAMESPACE];
        let machine = clusters.infra.get_json(&machine).unwrap_or_default();
        let since = machine["metadata"]["annotations"][REMOVAL_SINCE_ANNOTATION].as_str();
        let since = since.and_then(|since| since.parse::<Timestamp>().ok());
        // The mark is removed with the machine, which takes at least 30 s.
        since.is_some_and(|since| since <= Timestamp::now())
    });
    clusters.wait_until("the machine is deleted", |clusters| !has_machine(clusters, machine));
}
