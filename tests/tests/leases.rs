//! Tests of HostLeases on a real API server: VMs start, migrate and end, claims are released, and the controller
//! restarts.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, run programs, and fail by panicking"
)]

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use berth_api::{AddressClaim, TenantCluster};
use berth_controller::run::host_leases::informers::{LeaseInformers, start_host_leases};
use berth_controller::run::host_leases::run;
use berth_controller::run::machine_instances::MachineInstances;
use berth_controller::run::tenants::TenantInformers;
use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use berth_tests::controller::Reconcilers;
use berth_tests::simulated::{create_client, create_runtime};
use kube::api::{Patch, PatchParams};
use kube::core::ClusterResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Resync interval for objects without changes.
const RESYNC: Duration = Duration::from_secs(600);
const SHORT_TIMEOUT: Duration = Duration::from_secs(40);
/// Time limit for the garbage collector to delete an object: it discovers new kinds every 30 s.
const GARBAGE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which a test waits to verify that the controller makes no change.
const QUIET_TIME: Duration = Duration::from_secs(3);

/// Starts only the reconciler of HostLeases.
fn start_controller(plane: &ControlPlane) -> Reconcilers {
    let run = |client: Client, events| async move {
        let mut tasks = JoinSet::new();
        let TenantInformers { tenants, infra_nodes, nodes, addresses, .. } =
            TenantInformers::start_watches(&client, &mut tasks);
        let watch_health = Arc::default();
        let informers = LeaseInformers {
            tenants,
            claims: addresses.informer().clone(),
            host_leases: start_host_leases(&client, &mut tasks, &watch_health),
            infra_nodes,
            nodes,
        };
        let (instances, watch) = MachineInstances::start(&client);
        tasks.spawn(watch);
        run(client, events, Arc::default(), informers, instances, RESYNC).await;
    };
    Reconcilers::start(plane, run).unwrap()
}

fn apply(plane: &ControlPlane, object: &Value) {
    plane.apply(&object.to_string()).unwrap();
}

fn merge_patch(plane: &ControlPlane, kind: &str, name: &str, patch: &Value) {
    plane.kubectl(&["patch", kind, name, "--type=merge", "-p", &patch.to_string()]).unwrap();
}

/// Changes the status of an object; kubectl before 1.24 cannot do this.
fn patch_status<K>(plane: &ControlPlane, name: &str, status: &Value)
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug,
{
    create_runtime().unwrap().block_on(async {
        let api: Api<K> = Api::all(create_client(&plane.kubeconfig()).await.unwrap());
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    });
}

/// Creates a tenant whose machines get addresses; all tenants have the same addresses.
fn create_tenant(plane: &ControlPlane, name: &str, vlan: u16) {
    plane.kubectl(&["create", "namespace", &format!("cluster-{name}")]).unwrap();
    let network = json!({
        "name": "trunk", "ipv4": {"cidr": "10.0.0.0/24", "gateway": "10.0.0.1", "mtu": 1500},
        "ipv6": {"cidr": "fd00:120::/64"},
    });
    apply(
        plane,
        &json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
            "spec": {"network": network},
        }),
    );
    patch_status::<TenantCluster>(plane, name, &json!({"vlan": vlan}));
}

fn create_claim(plane: &ControlPlane, tenant: &str, machine: &str, address: &str) -> String {
    let network = format!("cluster-{tenant}");
    let name = AddressClaim::name_for(&network, address.parse().unwrap());
    let uid = plane.get_json(&["tenantcluster", tenant]).unwrap()["metadata"]["uid"].clone();
    apply(
        plane,
        &json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "AddressClaim", "metadata": {"name": name},
            "spec": {
                "network": network, "address": address, "tenant": tenant, "tenantUID": uid,
                "machine": {"namespace": network, "name": machine}, "interface": "tenant", "mac": mac(machine),
            },
        }),
    );
    name
}

/// Returns the MAC address of a machine whose name ends in a digit.
fn mac(machine: &str) -> String {
    format!("02:00:00:00:00:0{}", machine.chars().last().unwrap())
}

/// Creates or replaces the VirtualMachineInstance of a machine.
fn set_instance(plane: &ControlPlane, tenant: &str, machine: &str, status: &Value) {
    apply(
        plane,
        &json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": machine, "namespace": format!("cluster-{tenant}"), "labels": {"md": "web"}},
            "spec": {"domain": {"devices": {}}}, "status": status,
        }),
    );
}

/// Returns the leases of a host as `network machine ipv4 ipv6`; `None` if the object does not exist.
fn leases(plane: &ControlPlane, host: &str) -> Option<Vec<String>> {
    let object = plane.get_json(&["hostleases", host]).ok()?;
    let mut all = Vec::new();
    for network in object["spec"]["networks"].as_array().into_iter().flatten() {
        for lease in network["leases"].as_array().unwrap() {
            let text = |field: &str| lease[field].as_str().unwrap_or("-").to_owned();
            let parts = [text("machine"), text("ipv4"), text("ipv6")].join(" ");
            all.push(format!("{} {parts}", network["name"].as_str().unwrap()));
        }
    }
    Some(all)
}

fn wait_until_leases(plane: &ControlPlane, host: &str, expected: &[&str]) {
    let mut last = None;
    let reached = plane.wait_until(host, SHORT_TIMEOUT, |plane| {
        last = leases(plane, host);
        (last.as_deref().is_some_and(|last| last == expected)).then_some(())
    });
    reached.unwrap_or_else(|error| panic!("{error}: {last:#?} is not {expected:#?}"));
}

const WEB_1: &str = "cluster-shop cluster-shop/web-1 10.0.0.11 fd00:120::11";
const WEB_2: &str = "cluster-shop cluster-shop/web-2 10.0.0.12 -";
const BANK_1: &str = "cluster-bank cluster-bank/web-1 10.0.0.11 -";

/// All steps share one control plane, because starting it is the slowest step.
#[test]
fn host_leases_contain_the_machines_of_each_host() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
    plane.install_kubevirt_crds(&["virtualmachineinstances.kubevirt.io"]).unwrap();
    for host in ["rack1-a", "rack1-b"] {
        plane.create_node(host).unwrap();
        let infra_node = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode", "metadata": {"name": host}, "spec": {},
        });
        apply(&plane, &infra_node);
    }
    create_tenant(&plane, "shop", 120);
    create_tenant(&plane, "bank", 121);
    create_claim(&plane, "shop", "web-1", "10.0.0.11");
    create_claim(&plane, "shop", "web-1", "fd00:120::11");
    create_claim(&plane, "bank", "web-1", "10.0.0.11");
    let web_2 = create_claim(&plane, "shop", "web-2", "10.0.0.12");

    let controller = start_controller(&plane);
    started_machines_get_leases(&plane);
    migrating_machine_has_leases_on_both_hosts(&plane);
    leases_are_updated_after_tenant_changes(&plane);
    foreign_changes_are_reverted(&plane);
    set_migration_back(&plane, false);
    wait_until_leases(&plane, "rack1-a", &[BANK_1, WEB_1, WEB_2]);
    drop(controller);
    let versions = || ["rack1-a", "rack1-b"].map(|host| resource_version(&plane, host));
    let before = versions();
    let _controller = start_controller(&plane);
    std::thread::sleep(QUIET_TIME);
    assert_eq!(
        versions(),
        before,
        "a new leader removes and rewrites no lease, also during a migration"
    );
    set_migration_back(&plane, true);
    wait_until_leases(&plane, "rack1-a", &[BANK_1, WEB_2]);
    released_claim_ends_its_lease(&plane, &web_2);
    ended_machines_lose_their_leases(&plane);
    host_leases_are_deleted_with_their_node(&plane);
}

fn resource_version(plane: &ControlPlane, host: &str) -> Value {
    plane.get_json(&["hostleases", host]).unwrap()["metadata"]["resourceVersion"].clone()
}

fn started_machines_get_leases(plane: &ControlPlane) {
    set_instance(plane, "shop", "web-1", &json!({"phase": "Pending"}));
    set_instance(plane, "bank", "web-1", &json!({"phase": "Running", "nodeName": "rack1-a"}));
    wait_until_leases(plane, "rack1-a", &[BANK_1]);
    assert_eq!(leases(plane, "rack1-b"), None, "a host without leases gets no object");
    // The launcher pod has a Node, and is not ready yet.
    set_instance(
        plane,
        "shop",
        "web-1",
        &json!({"phase": "Scheduling", "activePods": {"11111111-0000-0000-0000-000000000000": "rack1-a"}}),
    );
    wait_until_leases(plane, "rack1-a", &[BANK_1, WEB_1]);
    set_instance(plane, "shop", "web-1", &json!({"phase": "Running", "nodeName": "rack1-a"}));
    set_instance(plane, "shop", "web-2", &json!({"phase": "Running", "nodeName": "rack1-a"}));
    wait_until_leases(plane, "rack1-a", &[BANK_1, WEB_1, WEB_2]);
    let object = plane.get_json(&["hostleases", "rack1-a"]).unwrap();
    let node = plane.get_json(&["node", "rack1-a"]).unwrap();
    let owner = &object["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &node["metadata"]["uid"]));
    let shop = &object["spec"]["networks"][1];
    assert_eq!(
        (&shop["vlan"], &shop["mtu"], &shop["ipv4"]["gateway"], &shop["ipv6"]["prefixLength"]),
        (&json!(120), &json!(1500), &json!("10.0.0.1"), &json!(64))
    );
    assert_eq!(shop["leases"][0]["mac"], "02:00:00:00:00:01");
}

/// Tests that the target host has the lease before the guest arrives, and that the source host has the lease until the
/// guest has left.
fn migrating_machine_has_leases_on_both_hosts(plane: &ControlPlane) {
    let migration = |failed: bool| {
        let state = json!({"targetNode": "rack1-b", "sourceNode": "rack1-a", "failed": failed});
        json!({"phase": "Running", "nodeName": "rack1-a", "migrationState": state})
    };
    set_instance(plane, "shop", "web-1", &migration(false));
    wait_until_leases(plane, "rack1-b", &[WEB_1]);
    assert_eq!(leases(plane, "rack1-a").unwrap(), [BANK_1, WEB_1, WEB_2]);
    set_instance(plane, "shop", "web-1", &migration(true));
    wait_until_leases(plane, "rack1-b", &[]);
    set_instance(plane, "shop", "web-1", &migration(false));
    wait_until_leases(plane, "rack1-b", &[WEB_1]);
    let mut completed = migration(false);
    completed["nodeName"] = "rack1-b".into();
    set_instance(plane, "shop", "web-1", &completed);
    wait_until_leases(plane, "rack1-a", &[BANK_1, WEB_2]);
    assert_eq!(leases(plane, "rack1-b").unwrap(), [WEB_1]);
}

/// Sets the state of a migration from `rack1-b` to `rack1-a`, which is in progress, or has failed if `failed` is true.
fn set_migration_back(plane: &ControlPlane, failed: bool) {
    let state = json!({"targetNode": "rack1-a", "sourceNode": "rack1-b", "failed": failed});
    let status = json!({"phase": "Running", "nodeName": "rack1-b", "migrationState": state});
    set_instance(plane, "shop", "web-1", &status);
}

fn leases_are_updated_after_tenant_changes(plane: &ControlPlane) {
    let dhcp = |value: Value| json!({"spec": {"network": {"dhcp": value}}});
    merge_patch(plane, "tenantcluster", "shop", &dhcp(false.into()));
    wait_until_leases(plane, "rack1-a", &[BANK_1]);
    wait_until_leases(plane, "rack1-b", &[]);
    merge_patch(plane, "tenantcluster", "shop", &dhcp(Value::Null));
    wait_until_leases(plane, "rack1-a", &[BANK_1, WEB_2]);
    wait_until_leases(plane, "rack1-b", &[WEB_1]);
}

fn foreign_changes_are_reverted(plane: &ControlPlane) {
    merge_patch(plane, "hostleases", "rack1-a", &json!({"spec": {"networks": []}}));
    wait_until_leases(plane, "rack1-a", &[BANK_1, WEB_2]);
    plane.kubectl(&["delete", "hostleases", "rack1-b"]).unwrap();
    wait_until_leases(plane, "rack1-b", &[WEB_1]);
}

fn released_claim_ends_its_lease(plane: &ControlPlane, claim: &str) {
    patch_status::<AddressClaim>(plane, claim, &json!({"releasedAt": "2026-01-01T00:00:00Z"}));
    wait_until_leases(plane, "rack1-a", &[BANK_1]);
}

fn ended_machines_lose_their_leases(plane: &ControlPlane) {
    set_instance(plane, "bank", "web-1", &json!({"phase": "Succeeded", "nodeName": "rack1-a"}));
    plane.kubectl(&["delete", "vmi", "web-1", "-n", "cluster-shop"]).unwrap();
    for host in ["rack1-a", "rack1-b"] {
        wait_until_leases(plane, host, &[]);
    }
}

fn host_leases_are_deleted_with_their_node(plane: &ControlPlane) {
    plane.kubectl(&["delete", "node", "rack1-a"]).unwrap();
    let deleted = plane.wait_until("rack1-a", GARBAGE_TIMEOUT, |plane| {
        leases(plane, "rack1-a").is_none().then_some(())
    });
    deleted.unwrap();
}
