//! Test of labels on a tenant's Nodes with two real API servers: the infra cluster and a tenant. KubeVirt is simulated:
//! the test writes the VirtualMachineInstances, also their migration.

#![expect(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests show what users see, and fail by panicking"
)]

use std::net::TcpListener;

use berth_tests::check::CheckOutput;
use berth_tests::cluster::{ControlPlane, condition};
use berth_tests::controller::Controller;
use berth_tests::tenant_clusters::{Clusters, TENANT_ADDRESS, is_in_namespace};
use serde_json::{Value, json};

const NAMESPACE: &str = "cluster-bank";
const ZONE: &str = "topology.kubernetes.io/zone";
const RACK: &str = "example.com/rack";

/// All tests share the control planes, because starting them is the slowest step.
#[test]
fn node_labels_match_the_hosts_of_machines() {
    if !is_in_namespace("node_labels_match_the_hosts_of_machines") {
        return;
    }
    let clusters = Clusters::start("tenant-nodes");
    create_hosts(&clusters);
    clusters.grant_permissions(&[]);
    let _controller = Controller::start(&clusters.infra, "tenant-nodes", &[]).unwrap();
    clusters.create_tenant("bank");
    // A tenant that never answers must not delay the other tenant.
    let stalled = TcpListener::bind((TENANT_ADDRESS, 0)).unwrap();
    clusters.create_tenant("stalled");
    let kubeconfig = clusters.kubeconfig("any");
    let own = format!(":{}", clusters.tenant.port());
    let other = format!(":{}", stalled.local_addr().unwrap().port());
    clusters.write_secret("cluster-stalled", &kubeconfig.replace(&own, &other));

    nodes_get_the_labels_of_their_hosts(&clusters);
    clusters.wait_until_condition("stalled", "TenantAccessReady", "False TenantUnreachable");
    // The API server permits reads of Secrets some time after the RoleBindings are created.
    let start = clusters.infra.log("tenant-nodes").unwrap().len();
    labels_are_updated_after_a_migration(&clusters);
    changed_list_of_keys_takes_effect(&clusters);
    foreign_labels_are_kept(&clusters);
    annotations_and_taints_of_the_host_are_copied(&clusters);
    clusters.check_idle();
    new_kubeconfig_is_used(&clusters);
    refused_kubeconfigs_are_not_used(&clusters);
    clusters.wait_until_condition("stalled", "TenantAccessReady", "False TenantUnreachable");
    let log = clusters.infra.log("tenant-nodes").unwrap();
    // Tokens are JWTs: they begin with `{"` in Base64, which is `eyJ`.
    assert!(!log.contains("eyJ"), "a token is in the log");
    let refused: Vec<&str> = log
        .get(start..)
        .unwrap_or_default()
        .lines()
        .filter(|line| line.contains("forbidden"))
        .collect();
    assert!(refused.is_empty(), "a permission is missing: {refused:#?}");
}

fn create_hosts(clusters: &Clusters) {
    for (host, zone, rack) in [("rack1-a", "a", "1"), ("rack1-b", "b", "2")] {
        clusters.infra.create_node(host).unwrap();
        let labels = [format!("{ZONE}={zone}"), format!("example.com/rack={rack}")];
        clusters.infra.kubectl(&["label", "node", host, &labels[0], &labels[1]]).unwrap();
    }
}

/// Writes a VirtualMachineInstance; this kind has no status subresource.
fn write_instance(clusters: &Clusters, name: &str, host: &str) {
    let instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"md": "web"}},
        "spec": {"domain": {"devices": {}}}, "status": {"phase": "Running", "nodeName": host},
    });
    clusters.infra.apply(&instance.to_string()).unwrap();
}

fn set_replicated_label_keys(clusters: &Clusters, keys: &Value) {
    clusters.write_config(&json!({"replicatedNodeLabels": keys}));
}

fn label(clusters: &Clusters, node: &str, key: &str) -> Value {
    let node = clusters.tenant.get_json(&["node", node]).unwrap();
    node["metadata"]["labels"][key].clone()
}

fn wait_until_label(clusters: &Clusters, node: &str, key: &str, value: &Value) {
    let what = format!("{node} has {key}={value}");
    clusters.wait_until(&what, |clusters| label(clusters, node, key) == *value);
}

fn nodes_get_the_labels_of_their_hosts(clusters: &Clusters) {
    let message =
        clusters.condition_message("bank", "TenantAccessReady", "False InvalidKubeconfig");
    assert!(message.contains("does not exist"), "{message}");
    clusters.tenant.create_node("web-1").unwrap();
    // The Node of the second machine has another name.
    clusters.tenant.create_node("renamed").unwrap();
    let id = json!({"spec": {"providerID": "kubevirt://web-2"}}).to_string();
    clusters.tenant.kubectl(&["patch", "node", "renamed", "-p", &id]).unwrap();
    write_instance(clusters, "web-1", "rack1-a");
    write_instance(clusters, "web-2", "rack1-b");
    clusters.write_secret(NAMESPACE, &clusters.kubeconfig(&clusters.token()));
    clusters.wait_until_condition("bank", "TenantAccessReady", "True Connected");
    wait_until_label(clusters, "web-1", ZONE, &json!("a"));
    wait_until_label(clusters, "renamed", ZONE, &json!("b"));
    let message = clusters.condition_message("bank", "NodeLabelsReady", "True LabelsReplicated");
    assert!(message.starts_with("2 Nodes"), "{message}");
    assert_eq!(label(clusters, "web-1", "example.com/rack"), Value::Null, "not in the list");
    assert_eq!(label(clusters, "web-1", "kubernetes.io/os"), json!("linux"));
}

/// Prints the zones and racks that a user of the tenant's cluster sees.
fn show_labels(clusters: &Clusters, when: &str) {
    let table = clusters.tenant.kubectl(&["get", "nodes", "-L", ZONE, "-L", RACK]).unwrap();
    eprintln!("{when}: kubectl get nodes -L {ZONE} -L {RACK}\n{table}");
}

fn labels_are_updated_after_a_migration(clusters: &Clusters) {
    show_labels(clusters, "before the migration of web-1");
    write_instance(clusters, "web-1", "rack1-b");
    wait_until_label(clusters, "web-1", ZONE, &json!("b"));
    show_labels(clusters, "after the migration of web-1");
    write_instance(clusters, "web-1", "rack1-a");
    wait_until_label(clusters, "web-1", ZONE, &json!("a"));
}

fn changed_list_of_keys_takes_effect(clusters: &Clusters) {
    show_labels(clusters, "before replicatedNodeLabels changes from the default to example.com/*");
    set_replicated_label_keys(clusters, &json!(["example.com/*"]));
    wait_until_label(clusters, "web-1", RACK, &json!("1"));
    wait_until_label(clusters, "web-1", ZONE, &Value::Null);
    show_labels(clusters, "after replicatedNodeLabels has changed to example.com/*");
    clusters.infra.kubectl(&["label", "node", "rack1-a", "example.com/rack-"]).unwrap();
    wait_until_label(clusters, "web-1", RACK, &Value::Null);
    clusters.infra.kubectl(&["label", "node", "rack1-a", "example.com/rack=3"]).unwrap();
    wait_until_label(clusters, "web-1", RACK, &json!("3"));
    set_replicated_label_keys(clusters, &json!([]));
    wait_until_label(clusters, "web-1", RACK, &Value::Null);
    wait_until_label(clusters, "renamed", RACK, &Value::Null);
}

fn foreign_labels_are_kept(clusters: &Clusters) {
    let key = "example.com/rack";
    clusters.tenant.kubectl(&["label", "node", "web-1", "example.com/rack=mine"]).unwrap();
    set_replicated_label_keys(clusters, &json!([key, ZONE]));
    let expected = "False FieldsOwnedByOthers";
    let message = clusters.condition_message("bank", "NodeLabelsReady", expected);
    assert!(message.contains("example.com/rack by kubectl"), "{message}");
    // All other labels are still copied.
    wait_until_label(clusters, "web-1", ZONE, &json!("a"));
    wait_until_label(clusters, "renamed", key, &json!("2"));
    assert_eq!(label(clusters, "web-1", key), json!("mine"));
    clusters.tenant.kubectl(&["label", "node", "web-1", "example.com/rack-"]).unwrap();
    wait_until_label(clusters, "web-1", key, &json!("3"));
    clusters.wait_until_condition("bank", "NodeLabelsReady", "True LabelsReplicated");
}

/// Returns the taints of a Node, as kubectl writes them.
fn taints(clusters: &Clusters, node: &str) -> Vec<String> {
    let node = clusters.tenant.get_json(&["node", node]).unwrap();
    let taint = |taint: &Value| {
        let text = |field: &str| taint[field].as_str().unwrap_or_default();
        format!("{}={}:{}", text("key"), text("value"), text("effect"))
    };
    node["spec"]["taints"].as_array().into_iter().flatten().map(taint).collect()
}

fn annotations_and_taints_of_the_host_are_copied(clusters: &Clusters) {
    let annotation = |key: &str| {
        let node = clusters.tenant.get_json(&["node", "web-1"]).unwrap();
        node["metadata"]["annotations"][key].clone()
    };
    let wait_until_taints = |expected: &[&str]| {
        clusters.wait_until(&format!("{expected:?}"), |clusters| {
            // The API server adds taints to Nodes that are not ready.
            let mut taints = taints(clusters, "web-1");
            taints.retain(|taint| taint.starts_with("example.com/"));
            taints == expected
        });
    };
    let taint = |cluster: &ControlPlane, node: &str, taint: &str| {
        cluster.kubectl(&["taint", "node", node, taint, "--overwrite"]).unwrap();
    };
    clusters.infra.kubectl(&["annotate", "node", "rack1-a", "example.com/power=2"]).unwrap();
    taint(&clusters.infra, "rack1-a", "example.com/gpu=a100:NoSchedule");
    taint(&clusters.tenant, "web-1", "example.com/mine=x:PreferNoSchedule");
    let lists = |annotations: Value, taints: Value| {
        clusters.write_config(&json!({
            "replicatedNodeLabels": [ZONE], "replicatedNodeAnnotations": annotations, "replicatedNodeTaints": taints,
        }));
    };
    lists(json!(["example.com/*"]), json!(["example.com/*"]));
    clusters
        .wait_until("the annotation is copied", |_| annotation("example.com/power") == json!("2"));
    let (mine, gpu) = ("example.com/mine=x:PreferNoSchedule", "example.com/gpu=a100:NoSchedule");
    wait_until_taints(&[mine, gpu]);
    assert_eq!(annotation("berth.dev/replicated-taints"), json!(gpu));
    assert!(taints(clusters, "renamed").iter().all(|taint| !taint.contains("gpu")));
    // A taint of the host changes, and another manager changes the copy of the taint in the tenant's cluster.
    taint(&clusters.infra, "rack1-a", "example.com/gpu=h100:NoSchedule");
    wait_until_taints(&[mine, "example.com/gpu=h100:NoSchedule"]);
    taint(&clusters.tenant, "web-1", "example.com/gpu=own:NoSchedule");
    let expected = "False FieldsOwnedByOthers";
    let message = clusters.condition_message("bank", "NodeLabelsReady", expected);
    assert!(message.contains("taint example.com/gpu:NoSchedule by"), "{message}");
    taint(&clusters.tenant, "web-1", "example.com/gpu-");
    clusters.wait_until_condition("bank", "NodeLabelsReady", "True LabelsReplicated");
    lists(json!([]), json!([]));
    wait_until_taints(&[mine]);
    clusters.wait_until("the annotations are removed", |_| {
        annotation("example.com/power") == Value::Null
            && annotation("berth.dev/replicated-taints") == Value::Null
    });
}

fn new_kubeconfig_is_used(clusters: &Clusters) {
    clusters.write_secret(NAMESPACE, &clusters.kubeconfig("expired"));
    clusters.wait_until_condition("bank", "TenantAccessReady", "False AccessDenied");
    write_instance(clusters, "web-1", "rack1-b");
    clusters.write_secret(NAMESPACE, &clusters.kubeconfig(&clusters.token()));
    clusters.wait_until_condition("bank", "TenantAccessReady", "True Connected");
    wait_until_label(clusters, "web-1", ZONE, &json!("b"));
    // `berth-controller check` also permits the address that the controller uses.
    let arguments = ["--tenant", "bank", "tenant.kubeconfig", "tenant.api-server"];
    let output = CheckOutput::run(&clusters.infra.kubeconfig(), &arguments).unwrap();
    output.require(&[("tenant.kubeconfig", "PASS"), ("tenant.api-server", "PASS")]).unwrap();
}

fn refused_kubeconfigs_are_not_used(clusters: &Clusters) {
    let kubeconfig = clusters.kubeconfig(&clusters.token());
    let own = format!("https://{TENANT_ADDRESS}:{}", clusters.tenant.port());
    let marker = clusters.infra.folder().join("marker");
    let exec = format!(
        "{{user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: touch, args: ['{}']}}}}, name: x}}, ",
        marker.display()
    );
    let infra = format!("https://127.0.0.1:{}", clusters.infra.port());
    for (text, words) in [
        (kubeconfig.replace(&own, &infra), "a loopback address"),
        (kubeconfig.replace(&own, "https://localhost:6443"), "a loopback address"),
        (kubeconfig.replace(&own, "https://169.254.169.254"), "a link-local address"),
        // Address of the Service of the infra API server.
        (kubeconfig.replace(&own, "https://10.96.0.1"), "the address of the infra API server"),
        (kubeconfig.replace("users: [", &format!("users: [{exec}")), "names a program"),
        (
            kubeconfig
                .replace("cluster: {server", "cluster: {insecure-skip-tls-verify: true, server"),
            "insecure-skip-tls-verify is set",
        ),
    ] {
        clusters.write_secret(NAMESPACE, &text);
        clusters.wait_until(words, |clusters| {
            let tenant = clusters.infra.get_json(&["tenantcluster", "bank"]).unwrap_or_default();
            let one = condition(&tenant, "TenantAccessReady");
            let message = one["message"].as_str().unwrap_or_default();
            one["reason"] == "KubeconfigRefused" && message.contains(words)
        });
    }
    assert!(!marker.exists(), "a program of the tenant ran");
    let tenant = clusters.infra.get_json(&["tenantcluster", "bank"]).unwrap();
    assert!(!tenant.to_string().contains(&TENANT_ADDRESS.to_string()), "{tenant:#}");
    clusters.write_secret(NAMESPACE, &kubeconfig);
    clusters.wait_until_condition("bank", "TenantAccessReady", "True Connected");
}
