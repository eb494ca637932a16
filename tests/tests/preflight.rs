//! Tests `berth-controller check` with a real API server: the findings change with the objects of the cluster, and the
//! command only reads.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read their server's files, and fail by panicking"
)]

use std::path::Path;
use std::time::Duration;

use berth_tests::check::CheckOutput;
use berth_tests::cluster::{ADMIN_TOKEN, ControlPlane, ControlPlaneOptions, Version};
use berth_tests::controller::Controller;
use serde_json::{Value, json};

/// Time limit for a controller to become the leader, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);
/// First release of Kubernetes with admission policies.
const ADMISSION_POLICIES: Version = Version(1, 30);

/// Newest release of Kubernetes that `kubernetes.version` accepts.
const NEWEST_KUBERNETES: Version = Version(1, 36);
/// Checks that need only permissions that agents also have: they read /version, the Leases in berth-system, and
/// InfraNodes.
const CHECKS_PERMITTED_FOR_AGENTS: [&str; 3] =
    ["kubernetes.version", "controller.leader", "hosts.responsive"];

fn check(plane: &ControlPlane, arguments: &[&str]) -> CheckOutput {
    CheckOutput::run(&plane.kubeconfig(), arguments).unwrap()
}

/// Returns the status of a check, such as `PASS`.
fn status(plane: &ControlPlane, id: &str) -> String {
    status_for(&plane.kubeconfig(), id)
}

fn status_for(kubeconfig: &Path, id: &str) -> String {
    let output = CheckOutput::run(kubeconfig, &[id]).unwrap();
    let finding = output.finding(id).unwrap();
    finding["status"].as_str().unwrap().to_owned()
}

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn checks_describe_a_real_cluster() {
    let mut plane = ControlPlane::start(ControlPlaneOptions {
        has_audit_log: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    empty_cluster_fails(&plane);
    installed_objects_pass(&plane);
    missing_permission_is_named(&plane);
    feature_gates_are_read_from_the_kubevirt_object(&plane);
    storage_and_hosts_are_examined(&plane);
    kubeconfig_of_a_tenant_is_used_and_not_printed(&plane);
    forbidden_reads_are_skipped(&plane);
    leader_is_found_until_it_ends(&plane);
    command_sends_no_writes(&plane);
    plane.stop_server();
    let output = check(&plane, &[]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.stderr.contains("API server 127.0.0.1:"), "{output:?}");
}

fn empty_cluster_fails(plane: &ControlPlane) {
    let output = check(plane, &[]);
    assert_eq!(output.code, Some(1), "{output:?}");
    let expected = [
        ("kubernetes.version", if plane.version() > NEWEST_KUBERNETES { "WARN" } else { "PASS" }),
        ("kubevirt.version", "FAIL"),
        ("cdi.version", "FAIL"),
        ("crd.installed", "FAIL"),
        ("controller.leader", "FAIL"),
        ("controller.permissions", "FAIL"),
        ("storage.default-class", "FAIL"),
        ("network.policies", "SKIP"),
        ("admission.agents", "WARN"),
        ("hosts.count", "FAIL"),
    ];
    output.require(&expected).unwrap();
    assert!(
        output.finding("tenant.object").is_err(),
        "without --tenant, there should be no check tenant.object"
    );
    // Without a failed check the exit code is 0, also with warnings.
    assert_eq!(check(plane, &["kubernetes", "admission"]).code, Some(0));
}

fn installed_objects_pass(plane: &ControlPlane) {
    plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
    plane.define_machine_deployments().unwrap();
    let output = check(plane, &["crd", "controller.permissions"]);
    for id in ["crd.installed", "crd.schema", "crd.machine-deployments", "controller.permissions"] {
        let finding = output.finding(id).unwrap();
        assert_eq!(finding["status"], "PASS", "{finding:#}");
    }
    assert_eq!(output.code, Some(0), "{output:?}");
    if plane.supports("the check of admission policies", ADMISSION_POLICIES) {
        let policy = berth_tests::repository().join("deploy/base/admission-policy.yaml");
        plane.apply_file(&policy).unwrap();
        let finding = check(plane, &["admission"]).finding("admission.agents").unwrap();
        assert_eq!(finding["status"], "PASS", "{finding:#}");
    }
}

fn missing_permission_is_named(plane: &ControlPlane) {
    // Removes the first rule of the role.
    let patch = json!([{"op": "remove", "path": "/rules/0"}]).to_string();
    let edit = ["patch", "clusterrole", "berth-controller", "--type=json", "-p", &patch];
    plane.kubectl(&edit).unwrap();
    let finding = check(plane, &["controller"]).finding("controller.permissions").unwrap();
    assert_eq!(finding["status"], "FAIL", "{finding:#}");
    let missing = finding["evidence"][0]["value"].as_str().unwrap();
    assert!(missing.contains("watch infranodes.berth.dev"), "{missing}");
    let file = berth_tests::repository().join("deploy/base/rbac-controller.yaml");
    plane.apply_file(&file).unwrap();
    assert_eq!(status(plane, "controller.permissions"), "PASS");
}

fn feature_gates_are_read_from_the_kubevirt_object(plane: &ControlPlane) {
    plane.install_kubevirt_crds(&["kubevirts.kubevirt.io"]).unwrap();
    plane.kubectl(&["create", "namespace", "kubevirt"]).unwrap();
    let kubevirt = |developer: Value| {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
            "spec": {"configuration": {"developerConfiguration": developer}},
        })
    };
    plane.apply(&kubevirt(json!({})).to_string()).unwrap();
    let path = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts/kubevirt/status";
    let mut object = plane.get_json(&["kubevirt", "kubevirt", "-n", "kubevirt"]).unwrap();
    let status_with = |available: &str| {
        let conditions = json!([{"type": "Available", "status": available}]);
        json!({"phase": "Deployed", "observedKubeVirtVersion": "v1.9.0", "conditions": conditions})
    };
    let replace = ["replace", "--raw", path, "-f", "-"];
    for (available, expected) in [("False", "WARN"), ("True", "PASS")] {
        object["status"] = status_with(available);
        // Each write changes the resource version, so the current metadata is needed.
        let current = plane.get_json(&["kubevirt", "kubevirt", "-n", "kubevirt"]).unwrap();
        object["metadata"] = current["metadata"].clone();
        plane.kubectl_with(&plane.kubeconfig(), &replace, &object.to_string()).unwrap();
        assert_eq!(status(plane, "kubevirt.phase"), expected);
    }
    assert_eq!(status(plane, "kubevirt.version"), "PASS");
    assert_eq!(status(plane, "kubevirt.cpu-manager"), "WARN");
    assert_eq!(status(plane, "kubevirt.network-resources"), "WARN");
    // The webhook is never called, because no pod is created.
    let webhook = |policy: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "network-resources-injector-config"},
            "webhooks": [{
                "name": "network-resources-injector-config.k8s.io", "sideEffects": "None",
                "admissionReviewVersions": ["v1"], "failurePolicy": policy,
                "clientConfig": {"service": {"name": "network-resources-injector-service", "namespace": "kube-system"}},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            }],
        })
    };
    for (policy, expected) in [("Ignore", "WARN"), ("Fail", "PASS")] {
        plane.apply(&webhook(policy).to_string()).unwrap();
        assert_eq!(status(plane, "kubevirt.network-resources"), expected);
    }
    let name = "network-resources-injector-config";
    plane.kubectl(&["delete", "mutatingwebhookconfiguration", name]).unwrap();
    assert_eq!(status(plane, "kubevirt.network-resources"), "WARN");
    plane.apply(&kubevirt(json!({"featureGates": ["CPUManager"]})).to_string()).unwrap();
    assert_eq!(status(plane, "kubevirt.cpu-manager"), "PASS");
}

fn storage_and_hosts_are_examined(plane: &ControlPlane) {
    plane.create_example_storage_class().unwrap();
    assert_eq!(status(plane, "storage.default-class"), "WARN");
    let annotation = "storageclass.kubernetes.io/is-default-class=true";
    plane.kubectl(&["annotate", "storageclass", "longhorn", annotation]).unwrap();
    assert_eq!(status(plane, "storage.default-class"), "PASS");
    assert_eq!(status(plane, "storage.snapshot-classes"), "WARN");
    let host = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": "rack1-a"},
        "spec": {},
    });
    plane.apply(&host.to_string()).unwrap();
    assert_eq!(status(plane, "hosts.count"), "WARN");
    assert_eq!(status(plane, "hosts.responsive"), "FAIL");
}

/// Tests the kubeconfig of a tenant. It names the API server of this test, to which the controller does not connect.
fn kubeconfig_of_a_tenant_is_used_and_not_printed(plane: &ControlPlane) {
    plane.kubectl(&["create", "namespace", "cluster-bank"]).unwrap();
    plane.kubectl(&["label", "namespace", "cluster-bank", "berth.dev/tenant=bank"]).unwrap();
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "bank"},
        "spec": {"kubeconfigSecretRef": {"name": "kubeconfig"}, "machineNamespaces": ["kube-system"]},
    });
    plane.apply(&tenant.to_string()).unwrap();
    let run = || check(plane, &["--tenant", "bank", "tenant"]);
    let finding = run().finding("tenant.kubeconfig").unwrap();
    assert_eq!(finding["status"], "FAIL", "the Secret does not exist: {finding:#}");
    let flatten = ["config", "view", "--raw", "--flatten"];
    let kubeconfig = plane.kubectl(&flatten).unwrap();
    assert!(kubeconfig.contains(ADMIN_TOKEN), "{kubeconfig}");
    let write_secret = |kubeconfig: &str| {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "kubeconfig", "namespace": "cluster-bank"},
            "stringData": {"kubeconfig": kubeconfig},
        });
        plane.apply(&secret.to_string()).unwrap();
    };
    write_secret(&kubeconfig);
    let value = json!({
        "cloudProviderSpec": {"virtualMachine": {"template": {"primaryDisk": {"storageClassName": "absent"}}}},
    });
    // MachineDeployments of kube-system may refer to the tenant.
    let deployment = json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": "pool", "namespace": "kube-system", "annotations": {"berth.dev/tenant": "bank"}},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"providerSpec": {"value": value}}},
        },
    });
    plane.apply(&deployment.to_string()).unwrap();
    let output = run();
    let expected = [
        ("tenant.object", "WARN"),
        ("tenant.namespace", "PASS"),
        ("tenant.network", "SKIP"),
        ("tenant.storage-classes", "FAIL"),
        ("tenant.kubeconfig", "PASS"),
        ("tenant.api-server", "FAIL"),
        ("tenant.mtu", "SKIP"),
        ("tenant.additional-networks", "SKIP"),
    ];
    output.require(&expected).unwrap();
    let finding = output.finding("tenant.api-server").unwrap();
    assert!(finding.to_string().contains("loopback address, which is refused"), "{finding:#}");
    assert!(!output.stdout.contains(ADMIN_TOKEN) && !output.stderr.contains(ADMIN_TOKEN));
    let server = format!("127.0.0.1:{}", plane.port());
    assert!(!output.stdout.contains(&server), "{}", output.stdout);
    // The command does not run a program that a tenant's kubeconfig names.
    let marker = plane.folder().join("marker");
    let exec = format!(
        "{{apiVersion: client.authentication.k8s.io/v1, command: touch, args: ['{}']}}",
        marker.display()
    );
    write_secret(&kubeconfig.replace(&format!("token: {ADMIN_TOKEN}"), &format!("exec: {exec}")));
    let output = run();
    assert_eq!(output.finding("tenant.kubeconfig").unwrap()["status"], "FAIL", "{output:?}");
    assert_eq!(output.finding("tenant.api-server").unwrap()["status"], "SKIP", "{output:?}");
    assert!(!marker.exists(), "a program of the tenant ran");
}

/// Tests a user with few permissions: an agent.
fn forbidden_reads_are_skipped(plane: &ControlPlane) {
    let token = plane.create_token("berth-agent").unwrap();
    let kubeconfig = plane.write_kubeconfig("preflight-agent", &token, false).unwrap();
    let output = CheckOutput::run(&kubeconfig, &[]).unwrap();
    for id in ["crd.installed", "controller.permissions", "storage.default-class"] {
        let finding = output.finding(id).unwrap();
        assert_eq!(finding["status"], "SKIP", "{finding:#}");
        assert!(finding.to_string().contains("no permission"), "{finding:#}");
    }
    let findings: Value = serde_json::from_str(&output.stdout).unwrap();
    assert!(findings["summary"]["unread"].as_u64().is_some_and(|count| count > 15), "{findings:#}");
    for finding in findings["checks"].as_array().unwrap() {
        let is_allowed = CHECKS_PERMITTED_FOR_AGENTS.iter().any(|id| finding["id"] == *id);
        let is_known = ["PASS", "FAIL"].iter().any(|status| finding["status"] == *status);
        assert!(is_allowed || !is_known, "a guess: {finding:#}");
    }
}

fn leader_is_found_until_it_ends(plane: &ControlPlane) {
    let mut controller = Controller::start(plane, "preflight-controller", &[]).unwrap();
    plane
        .wait_until("the controller is the leader", TIMEOUT, |plane| {
            (status(plane, "controller.leader") == "PASS").then_some(())
        })
        .unwrap();
    controller.terminate().unwrap();
    let finding = check(plane, &["controller"]).finding("controller.leader").unwrap();
    assert_eq!(finding["status"], "FAIL", "{finding:#}");
}

fn command_sends_no_writes(plane: &ControlPlane) {
    let log = std::fs::read_to_string(plane.folder().join("audit.log")).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let admin = |event: &Value| {
        let agent = event["userAgent"].as_str().unwrap_or_default();
        !agent.contains("kubectl") && event["user"]["username"] == "admin"
    };
    let own: Vec<Value> = events.filter(admin).collect();
    assert!(own.len() > 100, "too few requests were recorded: {}", own.len());
    let reads = ["get", "list"];
    let writes: Vec<&Value> =
        own.iter().filter(|event| !reads.iter().any(|verb| event["verb"] == *verb)).collect();
    assert!(writes.is_empty(), "{writes:#?}");
}
