//! Tests of MachineDeployments on a real API server with KubeVirt's own definitions: machines are created,
//! replaced, kept at the requested number and deleted, also after faults.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, run programs, and fail by panicking"
)]

#[path = "machines/disks.rs"]
mod disks;
#[path = "machines/namespace_rules.rs"]
mod namespace_rules;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_api::TenantCluster;
use berth_controller::run::machine_instances::MachineInstances;
use berth_controller::run::machines;
use berth_controller::run::object_handlers::ObjectHandlers;
use berth_controller::run::removal_lock::RemovalLock;
use berth_controller::run::tenants::TenantInformers;
use berth_controller::run::{Connections, RemovalTable};
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, condition};
use berth_tests::controller::Reconcilers;
use berth_tests::simulated::{KubeVirt, create_client, create_runtime};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Resync interval for objects without changes.
const RESYNC: Duration = Duration::from_secs(600);
const SHORT_TIMEOUT: Duration = Duration::from_secs(40);
const NAMESPACE: &str = "cluster-abc";

fn deployment(name: &str, replicas: u32, memory: &str) -> Value {
    json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {"berth.dev/user-data-secret": "base"}},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"name": name}},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": {"name": name}},
                "spec": {"providerSpec": {"value": {
                    "sshPublicKeys": ["ssh-ed25519 AAAA user"],
                    "cloudProvider": "kubevirt", "operatingSystem": "ubuntu", "operatingSystemSpec": {},
                    "cloudProviderSpec": {"virtualMachine": {"template": {
                        "cpus": "2", "memory": memory,
                        "primaryDisk": {"osImage": "http://images.example/ubuntu.img", "size": "10Gi"},
                    }}},
                }}},
            },
        },
    })
}

/// Starts only the reconciler of machines.
fn start_controller(plane: &ControlPlane) -> Reconcilers {
    let run = |client: Client, events| async move {
        let mut tasks = JoinSet::new();
        let TenantInformers { tenants, configs, addresses, nodes, .. } =
            TenantInformers::start_watches(&client, &mut tasks);
        let (instances, watch) = MachineInstances::start(&client);
        tasks.spawn(watch);
        let connections = Connections::new(Arc::default());
        let shared_informers = machines::MachineInformers {
            tenants,
            configs,
            addresses,
            nodes,
            instances,
            deployment_handlers: ObjectHandlers::default(),
            removal_lock: RemovalLock::default(),
            removals: Arc::new(RemovalTable::new(Arc::default())),
            connections,
            images: Arc::default(),
            watch_health: Arc::default(),
        };
        machines::run(client, events, Arc::default(), shared_informers, RESYNC).await;
    };
    Reconcilers::start(plane, run).unwrap()
}

fn machines(plane: &ControlPlane, deployment: &str) -> Vec<Value> {
    let list = plane
        .get_json(&["virtualmachines", "-n", NAMESPACE, "-l", &format!("md={deployment}")])
        .unwrap_or_default();
    list["items"].as_array().cloned().unwrap_or_default()
}

fn machine_names(plane: &ControlPlane, deployment: &str) -> BTreeSet<String> {
    machines(plane, deployment)
        .iter()
        .map(|vm| vm["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn deployment_status(plane: &ControlPlane, deployment: &str) -> Value {
    plane.get_json(&["machinedeployment", deployment, "-n", NAMESPACE]).unwrap_or_default()
}

/// Waits until exactly this number of machines run, all with the current template.
fn wait_until_complete(plane: &ControlPlane, deployment: &str, count: u64) {
    let mut last = Value::Null;
    let done =
        plane.wait_until(&format!("{count} machines of {deployment}"), SHORT_TIMEOUT, |plane| {
            last = deployment_status(plane, deployment);
            let number = |field: &str| last["status"][field].as_u64().unwrap_or(0);
            let is_observed =
                last["status"]["observedGeneration"] == last["metadata"]["generation"];
            let counts_match = ["replicas", "updatedReplicas", "readyReplicas"]
                .iter()
                .all(|field| number(field) == count);
            (is_observed && counts_match && machine_names(plane, deployment).len() as u64 == count)
                .then_some(())
        });
    done.unwrap_or_else(|error| {
        panic!("{error}: {:#}\n{:#?}", last["status"], machine_names(plane, deployment))
    });
}

fn wait_until_condition(plane: &ControlPlane, deployment: &str, type_: &str, words: &str) {
    let mut last = Value::Null;
    let done = plane.wait_until(words, SHORT_TIMEOUT, |plane| {
        last = deployment_status(plane, deployment);
        let condition = condition(&last, type_);
        let text =
            format!("{} {} {}", condition["status"], condition["reason"], condition["message"]);
        text.contains(words).then_some(())
    });
    done.unwrap_or_else(|error| panic!("{error}: {:#}", last["status"]));
}

fn apply(plane: &ControlPlane, object: &Value) {
    plane.apply(&object.to_string()).unwrap();
}

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn machines_are_created_and_reconciled() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    let kinds = ["virtualmachines.kubevirt.io", "virtualmachineinstances.kubevirt.io"];
    plane.install_kubevirt_crds(&kinds).unwrap();
    plane.define_machine_deployments().unwrap();
    plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
    plane.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    apply(
        &plane,
        &json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "abc"}, "spec": {}
        }),
    );
    patch_tenant_status(&plane, "abc", &json!({"namespace": NAMESPACE}));
    rendered_objects_are_accepted_by_the_server(&plane);
    for namespace in ["office", "closed"] {
        plane.kubectl(&["create", "namespace", namespace]).unwrap();
    }
    let kubevirt = KubeVirt::start(&plane.kubeconfig()).unwrap();
    let controller = start_controller(&plane);
    machines_wait_for_network_policies(&plane);
    missing_permission_is_reported(&plane);
    machines_wait_for_user_data(&plane);
    machines_run_with_their_user_data(&plane);
    changed_template_replaces_machines_one_by_one(&plane);
    machine_count_equals_replicas(&plane);
    paused_deployment_replaces_no_machines(&plane);
    ended_machine_is_replaced(&plane);
    existing_machine_is_adopted(&plane, &kubevirt);
    invalid_deployment_is_reported_and_others_are_reconciled(&plane);
    namespace_rules::secrets_of_other_namespaces_are_not_read(&plane);
    namespace_rules::omitted_fields_are_reported_in_a_condition(&plane);
    namespace_rules::only_listed_namespaces_may_name_a_tenant(&plane);
    namespace_rules::edited_tenant_annotation_orphans_no_machines(&plane);
    namespace_rules::machines_stay_in_their_own_namespace(&plane);
    namespace_rules::machines_wait_for_their_network_definition(&plane);
    namespace_rules::secret_content_is_not_exposed(&plane);
    disks::disks_are_added_and_removed(&plane);
    drop(controller);
    killed_controller_reaches_the_requested_count(&plane);
    let _controller = start_controller(&plane);
    machines_are_deleted_with_their_deployment(&plane);
    namespace_rules::malformed_deployment_is_deleted_with_its_machines(&plane);
    deleted_tenant_gets_no_machines(&plane);
    no_machines_are_created_beside_machine_controller(&plane);
}

/// Tests that rendered objects are valid by KubeVirt's schemas.
fn rendered_objects_are_accepted_by_the_server(plane: &ControlPlane) {
    let mut more = deployment("more", 1, "2Gi");
    let cloud = &mut more["spec"]["template"]["spec"]["providerSpec"]["value"]["cloudProviderSpec"];
    cloud["affinity"] = json!({"podAntiAffinityPreset": "hard",
        "nodeAffinityPreset": {"type": "hard", "key": "k", "values": ["v"]}});
    cloud["virtualMachine"]["dnsConfig"] = json!({"nameservers": ["192.0.2.53"]});
    cloud["virtualMachine"]["template"]["secondaryDisks"] =
        json!([{"size": "1Gi", "source": "blank"}]);
    let mut flavor = deployment("flavor", 1, "2Gi");
    flavor["spec"]["template"]["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["virtualMachine"]
        ["flavor"] = json!({"name": "performance-4"});
    let tenant = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "abc"},
        "spec": {"network": {"name": "trunk"}, "schedulerName": "berth-scheduler"}});
    for object in [deployment("plain", 1, "2Gi"), more, flavor] {
        let file = plane.folder().join("deployment.yaml");
        std::fs::write(&file, format!("{object}\n---\n{tenant}\n")).unwrap();
        let render = Command::new(berth_tests::program("berth-controller"))
            .args(["render", "-o", "json", "--machine", "rendered", "-f"])
            .arg(&file)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&render.stderr);
        assert!(render.status.success(), "{stderr}");
        let machine = String::from_utf8(render.stdout).unwrap();
        let create = ["create", "--dry-run=server", "--validate=false", "-o", "json", "-f", "-"];
        let accepted = plane.kubectl_with(&plane.kubeconfig(), &create, &machine).unwrap();
        let (sent, accepted): (Value, Value) =
            (serde_json::from_str(&machine).unwrap(), serde_json::from_str(&accepted).unwrap());
        // The API server drops a field that is not in the schema, without an error.
        assert_eq!(sent["spec"], accepted["spec"], "{object}");
    }
}

/// Writes the condition that the reconciler of tenants would write; this reconciler does not run here.
fn set_policies_ready(plane: &ControlPlane, status: &str, reason: &str) {
    patch_tenant_status(plane, "abc", &json!({"conditions": [policies_ready(status, reason)]}));
}

fn policies_ready(status: &str, reason: &str) -> Value {
    json!({
        "type": "PoliciesReady", "status": status, "reason": reason, "message": "set by a test",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

fn machines_wait_for_network_policies(plane: &ControlPlane) {
    grant_secret_access(plane, NAMESPACE);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "early", "namespace": NAMESPACE},
        "stringData": {"userdata": "#cloud-config\nhostname: x\n"}});
    apply(plane, &secret);
    let mut early = deployment("early", 1, "2Gi");
    early["metadata"]["annotations"]["berth.dev/user-data-secret"] = "early".into();
    apply(plane, &early);
    wait_until_condition(
        plane,
        "early",
        "Valid",
        "TenantCluster abc has no condition PoliciesReady yet",
    );
    set_policies_ready(plane, "False", "ClusterFactsUnknown");
    wait_until_condition(
        plane,
        "early",
        "Valid",
        "PoliciesReady of TenantCluster abc is false: set by a test",
    );
    assert!(machines(plane, "early").is_empty());
    set_policies_ready(plane, "True", "Ready");
    wait_until_complete(plane, "early", 1);
    // While the NetworkPolicies are not applied, running machines stay, and can still be deleted.
    set_policies_ready(plane, "False", "ApplyFailed");
    plane
        .kubectl(&["scale", "machinedeployment", "early", "-n", NAMESPACE, "--replicas=0"])
        .unwrap();
    wait_until_complete(plane, "early", 0);
    plane.kubectl(&["delete", "machinedeployment", "early", "-n", NAMESPACE]).unwrap();
    set_policies_ready(plane, "True", "Ready");
}

/// Writes the status that the reconciler of tenants would write; this reconciler does not run here.
fn patch_tenant_status(plane: &ControlPlane, tenant: &str, status: &Value) {
    create_runtime().unwrap().block_on(async {
        let api: Api<TenantCluster> = Api::all(create_client(&plane.kubeconfig()).await.unwrap());
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(tenant, &PatchParams::default(), &patch).await.unwrap();
    });
}

/// Tests the message for a missing permission. The controller may read Secrets only in the namespaces of tenants;
/// the reconciler of tenants, which does not run here, creates the RoleBinding.
fn missing_permission_is_reported(plane: &ControlPlane) {
    plane.kubectl(&["delete", "rolebinding", "berth-controller-tenant", "-n", NAMESPACE]).unwrap();
    apply(plane, &deployment("web", 2, "2Gi"));
    wait_until_condition(
        plane,
        "web",
        "Valid",
        "Secret cluster-abc/base: cannot be read, because an RBAC permission is missing",
    );
    wait_until_condition(
        plane,
        "web",
        "Valid",
        "system:serviceaccount:berth-system:berth-controller",
    );
    assert!(machines(plane, "web").is_empty());
    grant_secret_access(plane, NAMESPACE);
}

/// Creates the RoleBinding for Secrets, as the reconciler of tenants does in a tenant's namespace and an
/// administrator elsewhere.
fn grant_secret_access(plane: &ControlPlane, namespace: &str) {
    let bind = ["create", "rolebinding", "berth-controller-tenant", "-n", namespace];
    let role_and_account =
        ["--clusterrole=berth-controller-tenant", "--serviceaccount=berth-system:berth-controller"];
    plane.kubectl(&[&bind[..], &role_and_account].concat()).unwrap();
}

fn machines_wait_for_user_data(plane: &ControlPlane) {
    plane
        .kubectl(&["annotate", "machinedeployment", "web", "-n", NAMESPACE, "permission=granted"])
        .unwrap();
    wait_until_condition(plane, "web", "Valid", "Secret cluster-abc/base does not exist");
    assert!(machines(plane, "web").is_empty());
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "base", "namespace": NAMESPACE},
        "stringData": {"userdata": "#cloud-config\nhostname: x\n"}});
    apply(plane, &secret);
    // Secrets are not watched; a change of the MachineDeployment triggers an immediate reconcile.
    plane
        .kubectl(&["annotate", "machinedeployment", "web", "-n", NAMESPACE, "secret=created"])
        .unwrap();
}

fn machines_run_with_their_user_data(plane: &ControlPlane) {
    wait_until_complete(plane, "web", 2);
    wait_until_condition(plane, "web", "Valid", "True");
    wait_until_condition(plane, "web", "Progressing", "Complete");
    for vm in machines(plane, "web") {
        let name = vm["metadata"]["name"].as_str().unwrap();
        let secret =
            plane.get_json(&["secret", &format!("userdata-{name}"), "-n", NAMESPACE]).unwrap();
        assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], vm["metadata"]["uid"]);
        let data = secret["data"]["userdata"].as_str().unwrap();
        let data = String::from_utf8(STANDARD.decode(data).unwrap()).unwrap();
        assert!(data.contains("- \"ssh-ed25519 AAAA user\""), "{data}");
        assert_eq!(vm["metadata"]["ownerReferences"][0]["kind"], "MachineDeployment");
        assert_eq!(vm["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"], "abc");
    }
    let mut last = Value::Null;
    let counted =
        plane.wait_until("the tenant's status counts the machines", SHORT_TIMEOUT, |plane| {
            last = plane.get_json(&["tenantcluster", "abc"]).unwrap_or_default();
            (last["status"]["machines"] == json!({"desired": 2, "current": 2, "ready": 2}))
                .then_some(())
        });
    counted.unwrap_or_else(|error| panic!("{error}: {:#}", last["status"]));
}

fn changed_template_replaces_machines_one_by_one(plane: &ControlPlane) {
    let before = machine_names(plane, "web");
    apply(plane, &deployment("web", 2, "3Gi"));
    let mut max_machines = 0;
    let replaced = plane.wait_until("all machines are replaced", SHORT_TIMEOUT, |plane| {
        let all = machines(plane, "web");
        max_machines = max_machines.max(all.len());
        let status = deployment_status(plane, "web");
        let is_new = status["status"]["observedGeneration"] == status["metadata"]["generation"];
        (is_new && machine_names(plane, "web").is_disjoint(&before) && all.len() == 2).then_some(())
    });
    replaced
        .unwrap_or_else(|error| panic!("{error}: {:#}", deployment_status(plane, "web")["status"]));
    // A machine that is being deleted may still be listed when its replacement exists.
    assert!(max_machines <= 4, "too many machines exist at once: {max_machines}");
    wait_until_complete(plane, "web", 2);
}

fn machine_count_equals_replicas(plane: &ControlPlane) {
    plane.kubectl(&["scale", "machinedeployment/web", "-n", NAMESPACE, "--replicas=3"]).unwrap();
    wait_until_complete(plane, "web", 3);
    plane.kubectl(&["scale", "machinedeployment/web", "-n", NAMESPACE, "--replicas=1"]).unwrap();
    wait_until_complete(plane, "web", 1);
}

fn paused_deployment_replaces_no_machines(plane: &ControlPlane) {
    let before = machine_names(plane, "web");
    let mut paused = deployment("web", 1, "4Gi");
    paused["spec"]["paused"] = true.into();
    apply(plane, &paused);
    wait_until_condition(plane, "web", "Progressing", "Paused");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(machine_names(plane, "web"), before);
    apply(plane, &deployment("web", 1, "4Gi"));
    plane
        .kubectl(&[
            "patch",
            "machinedeployment",
            "web",
            "-n",
            NAMESPACE,
            "--type=merge",
            "-p",
            r#"{"spec":{"paused":false}}"#,
        ])
        .unwrap();
    let replaced = plane.wait_until("the machine is replaced", SHORT_TIMEOUT, |plane| {
        let current = machine_names(plane, "web");
        (current.len() == 1 && current.is_disjoint(&before)).then_some(())
    });
    replaced.unwrap();
    wait_until_complete(plane, "web", 1);
}

fn ended_machine_is_replaced(plane: &ControlPlane) {
    let before = machine_names(plane, "web");
    let name = before.first().unwrap();
    let failed = r#"{"status":{"phase":"Failed"}}"#;
    plane
        .kubectl(&[
            "patch",
            "virtualmachineinstance",
            name,
            "-n",
            NAMESPACE,
            "--type=merge",
            "-p",
            failed,
        ])
        .unwrap();
    let replaced = plane.wait_until("the machine is replaced", SHORT_TIMEOUT, |plane| {
        let current = machine_names(plane, "web");
        (current.len() == 1 && current.is_disjoint(&before)).then_some(())
    });
    replaced.unwrap();
    wait_until_complete(plane, "web", 1);
}

/// Tests the adoption of a VirtualMachine that machine-controller has created: it has the label of a MachineDeployment,
/// but no owner reference.
fn existing_machine_is_adopted(plane: &ControlPlane, kubevirt: &KubeVirt) {
    kubevirt.starts_vms.store(true, Ordering::SeqCst);
    let vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "old-one", "namespace": NAMESPACE, "labels": {"md": "old"}},
        "spec": {"runStrategy": "Once", "template": {"spec": {"domain": {"devices": {}}}}},
    });
    apply(plane, &vm);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "userdata-old-one", "namespace": NAMESPACE}});
    apply(plane, &secret);
    apply(plane, &deployment("old", 1, "2Gi"));
    wait_until_complete(plane, "old", 1);
    let adopted = plane.get_json(&["virtualmachine", "old-one", "-n", NAMESPACE]).unwrap();
    assert_eq!(adopted["metadata"]["ownerReferences"][0]["name"], "old");
}

fn invalid_deployment_is_reported_and_others_are_reconciled(plane: &ControlPlane) {
    let mut wrong = deployment("wrong", 1, "lots");
    wrong["spec"]["template"]["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["affinty"] =
        json!({});
    apply(plane, &wrong);
    wait_until_condition(plane, "wrong", "Valid", "template.memory: `lots`");
    wait_until_condition(plane, "wrong", "Valid", "did you mean `affinity`?");
    assert!(machines(plane, "wrong").is_empty());
    apply(plane, &deployment("right", 1, "2Gi"));
    wait_until_complete(plane, "right", 1);
}

/// Kills the controller at random moments while the number and the template change; the next controller completes the
/// work.
fn killed_controller_reaches_the_requested_count(plane: &ControlPlane) {
    let rounds = if std::env::var_os("BERTH_FAULTS").is_some() { 50 } else { 5 };
    let mut random = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
    for round in 0..rounds {
        let controller = start_controller(plane);
        apply(plane, &deployment("many", 3 + round % 3, &format!("{}Gi", 2 + round % 4)));
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(u64::try_from((random >> 64) % 1200).unwrap()));
        drop(controller);
    }
    let _controller = start_controller(plane);
    wait_until_complete(plane, "many", u64::from(3 + (rounds - 1) % 3));
    std::thread::sleep(Duration::from_secs(1));
    wait_until_complete(plane, "many", u64::from(3 + (rounds - 1) % 3));
}

fn machines_are_deleted_with_their_deployment(plane: &ControlPlane) {
    plane
        .kubectl(&["delete", "machinedeployment", "many", "-n", NAMESPACE, "--timeout=40s"])
        .unwrap();
    assert!(machines(plane, "many").is_empty());
    wait_until_complete(plane, "web", 1);
}

/// Tests that a tenant that is being deleted gets no machines. This includes machines of a MachineDeployment in another
/// namespace, which is not deleted with the tenant.
fn deleted_tenant_gets_no_machines(plane: &ControlPlane) {
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
        "metadata": {"name": "leaving", "finalizers": ["berth.dev/test"]}, "spec": {"machineNamespaces": ["default"]},
    });
    apply(plane, &tenant);
    plane.kubectl(&["create", "namespace", "cluster-leaving"]).unwrap();
    plane.kubectl(&["delete", "tenantcluster", "leaving", "--wait=false"]).unwrap();
    let mut in_other_namespace = deployment("elsewhere", 1, "2Gi");
    in_other_namespace["metadata"]["namespace"] = "default".into();
    in_other_namespace["metadata"]["annotations"]["berth.dev/tenant"] = "leaving".into();
    apply(plane, &in_other_namespace);
    plane
        .wait_until("the condition gives the reason", SHORT_TIMEOUT, |plane| {
            let object =
                plane.get_json(&["machinedeployment", "elsewhere", "-n", "default"]).ok()?;
            let message = condition(&object, "Valid")["message"].as_str()?;
            message.contains("tenant leaving is being deleted").then_some(())
        })
        .unwrap();
    let machines = plane.get_json(&["virtualmachines", "-n", "cluster-leaving"]).unwrap();
    assert_eq!(machines["items"], json!([]));
}

fn no_machines_are_created_beside_machine_controller(plane: &ControlPlane) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "machines.cluster.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, legacy API"}},
        "spec": {
            "group": "cluster.k8s.io", "scope": "Namespaced",
            "names": {"kind": "Machine", "plural": "machines", "singular": "machine"},
            "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    apply(plane, &crd);
    plane
        .kubectl(&[
            "wait",
            "--for=condition=Established",
            "crd/machines.cluster.k8s.io",
            "--timeout=30s",
        ])
        .unwrap();
    let machine = json!({"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "theirs", "namespace": NAMESPACE}, "spec": {}});
    apply(plane, &machine);
    let _controller = start_controller(plane);
    // Berth still deletes objects that it created before.
    plane
        .kubectl(&["delete", "machinedeployment", "web", "-n", NAMESPACE, "--timeout=40s"])
        .unwrap();
    assert!(machines(plane, "web").is_empty());
    apply(plane, &deployment("theirs", 1, "2Gi"));
    std::thread::sleep(Duration::from_secs(4));
    assert!(machines(plane, "theirs").is_empty());
    assert_eq!(
        deployment_status(plane, "theirs").get("status"),
        None,
        "Berth must not write the status of another controller's object"
    );
    plane
        .wait_until("an Event ManagedByMachineController exists", SHORT_TIMEOUT, |plane| {
            let events = plane.get_json(&["events", "-n", NAMESPACE]).unwrap();
            let mut events = events["items"].as_array().unwrap().iter();
            events
                .any(|event| {
                    event["reason"] == "ManagedByMachineController"
                        && event["involvedObject"]["name"] == "theirs"
                })
                .then_some(())
        })
        .unwrap();
}
