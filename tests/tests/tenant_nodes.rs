//! Test of labels on a tenant's Nodes with two real API servers: the infra cluster and a tenant. KubeVirt is simulated: the
//! test writes the VirtualMachineInstances, also their migration.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests run programs, and fail by panicking"
)]

use std::cell::Cell;
use std::net::TcpListener;
use std::ops::Deref;
use std::time::Duration;

use berth_tests::cluster::{ControlPlaneOptions, condition};
use berth_tests::controller::Controller;
use berth_tests::two_clusters::{TENANT_ADDRESS, TENANT_USER, TwoClusters, enter_namespace};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "cluster-bank";
const ZONE: &str = "topology.kubernetes.io/zone";

struct Clusters(TwoClusters);

impl Deref for Clusters {
    type Target = TwoClusters;

    fn deref(&self) -> &TwoClusters {
        &self.0
    }
}

/// All tests share the control planes, because their start takes longest.
#[test]
fn labels_follow_the_machines() {
    if !enter_namespace("labels_follow_the_machines").unwrap() {
        return;
    }
    let tenant = ControlPlaneOptions { has_audit_log: true, ..ControlPlaneOptions::default() };
    let clusters = Clusters(TwoClusters::start(ControlPlaneOptions::default(), tenant).unwrap());
    clusters.create_hosts();
    let _controller = Controller::start(&clusters.infra, "tenant-nodes", &[]).unwrap();
    clusters.create_tenant("bank");
    // A tenant that never answers must not delay the other one.
    let silent = TcpListener::bind((TENANT_ADDRESS, 0)).unwrap();
    clusters.create_tenant("silent");
    let kubeconfig = clusters.kubeconfig("any").unwrap();
    let own = format!(":{}", clusters.tenant.port());
    let other = format!(":{}", silent.local_addr().unwrap().port());
    clusters.write_kubeconfig("cluster-silent", &kubeconfig.replace(&own, &other));

    nodes_get_the_labels_of_their_hosts(&clusters);
    clusters.wait_until_condition("silent", "TenantAccessReady", "False TenantUnreachable");
    // The API server permits reads of Secrets some time after the RoleBindings are created.
    let start = clusters.infra.log("tenant-nodes").unwrap().len();
    labels_follow_a_migration(&clusters);
    list_of_keys_is_live(&clusters);
    labels_of_others_stay(&clusters);
    idle_controller_only_watches(&clusters);
    new_kubeconfig_is_used(&clusters);
    refused_kubeconfigs_are_not_used(&clusters);
    clusters.wait_until_condition("silent", "TenantAccessReady", "False TenantUnreachable");
    let log = clusters.infra.log("tenant-nodes").unwrap();
    // Tokens begin with the encoded text `{"`.
    assert!(!log.contains("eyJ"), "a token is in the log");
    let refused: Vec<&str> = log
        .get(start..)
        .unwrap_or_default()
        .lines()
        .filter(|line| line.contains("forbidden"))
        .collect();
    assert!(refused.is_empty(), "a permission is missing: {refused:#?}");
}

impl Clusters {
    fn create_hosts(&self) {
        for (host, zone, rack) in [("rack1-a", "a", "1"), ("rack1-b", "b", "2")] {
            self.infra.create_node(host).unwrap();
            let labels = [format!("{ZONE}={zone}"), format!("example.com/rack={rack}")];
            self.infra.kubectl(&["label", "node", host, &labels[0], &labels[1]]).unwrap();
        }
    }

    fn create_tenant(&self, name: &str) {
        let spec = json!({"kubeconfigSecretRef": {"name": "kubeconfig"}});
        self.apply_tenant(name, &spec).unwrap();
        let namespace = format!("cluster-{name}");
        self.wait_until("the namespace exists", |clusters| {
            clusters.infra.get_json(&["namespace", &namespace]).is_ok()
        });
    }

    fn write_kubeconfig(&self, namespace: &str, kubeconfig: &str) {
        let data = json!({"kubeconfig": kubeconfig});
        self.write_secret(namespace, "kubeconfig", &data).unwrap();
    }

    /// Writes a VirtualMachineInstance; this kind has no status subresource.
    fn write_instance(&self, name: &str, host: &str) {
        let instance = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"md": "web"}},
            "spec": {"domain": {"devices": {}}}, "status": {"phase": "Running", "nodeName": host},
        });
        self.infra.apply(&instance.to_string()).unwrap();
    }

    fn set_keys(&self, keys: &Value) {
        let config = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
            "spec": {"replicatedNodeLabels": keys},
        });
        self.infra.apply(&config.to_string()).unwrap();
    }

    fn label(&self, node: &str, key: &str) -> Value {
        let node = self.tenant.get_json(&["node", node]).unwrap();
        node["metadata"]["labels"][key].clone()
    }

    fn wait_until(&self, what: &str, is_reached: impl Fn(&Self) -> bool) {
        self.infra
            .wait_until(what, TIMEOUT, |_| is_reached(self).then_some(()))
            .unwrap_or_else(|error| panic!("{error}: {}", self.infra.log_tail("tenant-nodes")));
    }

    fn wait_until_label(&self, node: &str, key: &str, value: &Value) {
        let what = format!("{node} has {key}={value}");
        self.wait_until(&what, |clusters| clusters.label(node, key) == *value);
    }

    /// Waits until a condition of a tenant begins with this status and reason, and returns its message.
    fn wait_until_condition(&self, tenant: &str, type_: &str, expected: &str) -> String {
        let mut last = Value::Null;
        let reached = self.infra.wait_until(expected, TIMEOUT, |infra| {
            last = infra.get_json(&["tenantcluster", tenant]).unwrap_or_default();
            let one = condition(&last, type_);
            let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
            let found = format!("{} {}", text("status"), text("reason"));
            (found == expected).then(|| text("message"))
        });
        reached.unwrap_or_else(|error| {
            panic!("{error}: {:#}\n{}", last["status"], self.infra.log_tail("tenant-nodes"))
        })
    }
}

fn nodes_get_the_labels_of_their_hosts(clusters: &Clusters) {
    let message =
        clusters.wait_until_condition("bank", "TenantAccessReady", "False InvalidKubeconfig");
    assert!(message.contains("does not exist"), "{message}");
    clusters.tenant.create_node("web-1").unwrap();
    // The Node of the second machine has another name.
    clusters.tenant.create_node("renamed").unwrap();
    let id = json!({"spec": {"providerID": "kubevirt://web-2"}}).to_string();
    clusters.tenant.kubectl(&["patch", "node", "renamed", "-p", &id]).unwrap();
    clusters.write_instance("web-1", "rack1-a");
    clusters.write_instance("web-2", "rack1-b");
    clusters.write_kubeconfig(NAMESPACE, &clusters.kubeconfig(&clusters.token().unwrap()).unwrap());
    clusters.wait_until_condition("bank", "TenantAccessReady", "True Connected");
    clusters.wait_until_label("web-1", ZONE, &json!("a"));
    clusters.wait_until_label("renamed", ZONE, &json!("b"));
    let message = clusters.wait_until_condition("bank", "NodeLabelsReady", "True LabelsReplicated");
    assert!(message.starts_with("2 Nodes"), "{message}");
    assert_eq!(clusters.label("web-1", "example.com/rack"), Value::Null, "not in the list");
    assert_eq!(clusters.label("web-1", "kubernetes.io/os"), json!("linux"));
}

fn labels_follow_a_migration(clusters: &Clusters) {
    clusters.write_instance("web-1", "rack1-b");
    clusters.wait_until_label("web-1", ZONE, &json!("b"));
    clusters.write_instance("web-1", "rack1-a");
    clusters.wait_until_label("web-1", ZONE, &json!("a"));
}

fn list_of_keys_is_live(clusters: &Clusters) {
    clusters.set_keys(&json!(["example.com/*"]));
    clusters.wait_until_label("web-1", "example.com/rack", &json!("1"));
    clusters.wait_until_label("web-1", ZONE, &Value::Null);
    clusters.infra.kubectl(&["label", "node", "rack1-a", "example.com/rack-"]).unwrap();
    clusters.wait_until_label("web-1", "example.com/rack", &Value::Null);
    clusters.infra.kubectl(&["label", "node", "rack1-a", "example.com/rack=3"]).unwrap();
    clusters.wait_until_label("web-1", "example.com/rack", &json!("3"));
    clusters.set_keys(&json!([]));
    clusters.wait_until_label("web-1", "example.com/rack", &Value::Null);
    clusters.wait_until_label("renamed", "example.com/rack", &Value::Null);
}

fn labels_of_others_stay(clusters: &Clusters) {
    let key = "example.com/rack";
    clusters.tenant.kubectl(&["label", "node", "web-1", "example.com/rack=mine"]).unwrap();
    clusters.set_keys(&json!([key, ZONE]));
    let expected = "False FieldsOwnedByOthers";
    let message = clusters.wait_until_condition("bank", "NodeLabelsReady", expected);
    assert!(message.contains("example.com/rack by kubectl"), "{message}");
    // The other labels are copied nevertheless.
    clusters.wait_until_label("web-1", ZONE, &json!("a"));
    clusters.wait_until_label("renamed", key, &json!("2"));
    assert_eq!(clusters.label("web-1", key), json!("mine"));
    clusters.tenant.kubectl(&["label", "node", "web-1", "example.com/rack-"]).unwrap();
    clusters.wait_until_label("web-1", key, &json!("3"));
    clusters.wait_until_condition("bank", "NodeLabelsReady", "True LabelsReplicated");
}

/// Returns the number of requests of the controller to the tenant's API server.
fn request_count(clusters: &Clusters) -> usize {
    let log = std::fs::read_to_string(clusters.tenant.folder().join("audit.log")).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["user"]["username"] == TENANT_USER).count()
}

fn idle_controller_only_watches(clusters: &Clusters) {
    let last = Cell::new(request_count(clusters));
    // The last writes may still cause an event and a reconcile.
    clusters.wait_until("no request for five seconds", |clusters| {
        std::thread::sleep(Duration::from_secs(5));
        let current = request_count(clusters);
        last.replace(current) == current
    });
    assert!(last.get() > 3, "{} requests", last.get());
    std::thread::sleep(Duration::from_secs(10));
    assert_eq!(request_count(clusters), last.get(), "requests of an idle controller");
}

fn new_kubeconfig_is_used(clusters: &Clusters) {
    clusters.write_kubeconfig(NAMESPACE, &clusters.kubeconfig("expired").unwrap());
    clusters.wait_until_condition("bank", "TenantAccessReady", "False AccessDenied");
    clusters.write_instance("web-1", "rack1-b");
    clusters.write_kubeconfig(NAMESPACE, &clusters.kubeconfig(&clusters.token().unwrap()).unwrap());
    clusters.wait_until_condition("bank", "TenantAccessReady", "True Connected");
    clusters.wait_until_label("web-1", ZONE, &json!("b"));
}

fn refused_kubeconfigs_are_not_used(clusters: &Clusters) {
    let kubeconfig = clusters.kubeconfig(&clusters.token().unwrap()).unwrap();
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
        // The Service of the infra API server.
        (kubeconfig.replace(&own, "https://10.96.0.1"), "the address of the infra API server"),
        (kubeconfig.replace("users: [", &format!("users: [{exec}")), "names a program"),
        (
            kubeconfig
                .replace("cluster: {server", "cluster: {insecure-skip-tls-verify: true, server"),
            "insecure-skip-tls-verify is set",
        ),
    ] {
        clusters.write_kubeconfig(NAMESPACE, &text);
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
    clusters.write_kubeconfig(NAMESPACE, &kubeconfig);
    clusters.wait_until_condition("bank", "TenantAccessReady", "True Connected");
}
