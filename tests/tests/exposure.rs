//! Tests of exposed services on a real API server, with the permissions of `deploy/`: pools of MetalLB, NetworkPolicies
//! for load balancers, the cloud controller manager, and Services of machines. MetalLB's definitions are real; agents
//! and KubeVirt are simulated.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read files, run programs, and fail by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, condition, web_deployment};
use berth_tests::controller::Controller;
use berth_tests::repository;
use berth_tests::simulated::{Fleet, FleetBehaviour, KubeVirt};
use serde_json::{Value, json};

const SHORT_TIMEOUT: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "cluster-shop";
const SHOP_TENANT: [&str; 2] = ["tenantcluster", "shop"];

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn services_and_machines_are_exposed() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    plane.install_machine_kinds().unwrap();
    plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
    plane.create_example_storage_class().unwrap();
    plane.kubectl(&["create", "namespace", "metallb-system"]).unwrap();
    let _fleet = Fleet::start(&plane.kubeconfig(), &["rack1-a"], FleetBehaviour::Agents).unwrap();
    let _kubevirt = KubeVirt::start(&plane.kubeconfig()).unwrap();
    let _controller = Controller::start(&plane, "first", &[]).unwrap();
    plane.apply_file(&repository().join("examples/tenants/config.yaml")).unwrap();

    missing_metallb_is_reported(&plane);
    pools_serve_one_tenant(&plane);
    overlapping_pools_of_younger_tenants_are_refused(&plane);
    foreign_pools_stay(&plane);
    target_ports_of_load_balancers_are_open(&plane);
    each_machine_has_a_service(&plane);
    node_ports_are_allocated_from_a_range(&plane);
    cloud_controller_manager_is_deployed(&plane);
    objects_are_deleted_with_their_tenant(&plane);
    let log = plane.log_tail("first");
    assert!(!log.contains("forbidden"), "a permission is missing: {log}");
}

fn create_tenant(plane: &ControlPlane, name: &str, addresses: &Value) {
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
        "spec": {
            "userDataSecretRef": {"name": "user-data"}, "network": {"name": "tenant-trunk"},
            "exposure": {"loadBalancers": {"addresses": addresses, "interfaces": ["bond0"]}},
        },
    });
    plane.apply(&tenant.to_string()).unwrap();
}

fn patch_exposure(plane: &ControlPlane, name: &str, exposure: &Value) {
    let patch = json!({"spec": {"exposure": exposure}}).to_string();
    plane.kubectl(&["patch", "tenantcluster", name, "--type=merge", "-p", &patch]).unwrap();
}

/// Waits until a condition has these words in its status, reason and message.
fn wait_until_condition(plane: &ControlPlane, object: &[&str], type_: &str, words: &str) {
    let mut last = Value::Null;
    let done = plane.wait_until(words, SHORT_TIMEOUT, |plane| {
        last = plane.get_json(object).unwrap_or_default();
        let one = condition(&last, type_);
        let text = format!("{} {} {}", one["status"], one["reason"], one["message"]);
        text.replace('"', "").contains(words).then_some(())
    });
    done.unwrap_or_else(|error| {
        panic!("{error}: {:#}\n{}", last["status"], plane.log_tail("first"))
    });
}

fn wait_until(plane: &ControlPlane, what: &str, is_reached: impl Fn(&ControlPlane) -> bool) {
    plane
        .wait_until(what, 2 * SHORT_TIMEOUT, |plane| is_reached(plane).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {}", plane.log_tail("first")));
}

fn list_items(plane: &ControlPlane, resource: &[&str]) -> Vec<Value> {
    let list = plane.get_json(resource).unwrap_or_default();
    list["items"].as_array().cloned().unwrap_or_default()
}

fn pool(plane: &ControlPlane, tenant: &str) -> Value {
    let name = format!("tenant-{tenant}");
    let resource = ["ipaddresspools.metallb.io", &name, "-n", "metallb-system"];
    plane.get_json(&resource).unwrap_or_default()
}

fn policy(plane: &ControlPlane, name: &str) -> Value {
    plane.get_json(&["networkpolicy", name, "-n", NAMESPACE]).unwrap_or_default()
}

fn missing_metallb_is_reported(plane: &ControlPlane) {
    create_tenant(plane, "shop", &json!(["198.51.100.0/28"]));
    let words =
        "False CrdMissing CustomResourceDefinition ipaddresspools.metallb.io is not installed";
    wait_until_condition(plane, &SHOP_TENANT, "ExposureReady", words);
    // The controller still applies the other objects of the tenant.
    wait_until_condition(plane, &SHOP_TENANT, "PoliciesReady", "True Ready");
    wait_until_condition(plane, &SHOP_TENANT, "NetworkReady", "True Ready");
}

fn pools_serve_one_tenant(plane: &ControlPlane) {
    plane.install_metallb_crds().unwrap();
    wait_until_condition(
        plane,
        &SHOP_TENANT,
        "ExposureReady",
        "True Ready 2 objects have been applied",
    );
    assert_eq!(
        pool(plane, "shop")["spec"],
        json!({
            "addresses": ["198.51.100.0-198.51.100.15"], "autoAssign": true,
            // MetalLB's CRD sets this default.
            "avoidBuggyIPs": false,
            "serviceAllocation": {"namespaces": [NAMESPACE]},
        })
    );
    let resource = ["l2advertisements.metallb.io", "tenant-shop", "-n", "metallb-system"];
    let advertisement = plane.get_json(&resource).unwrap();
    assert_eq!(
        advertisement["spec"],
        json!({"ipAddressPools": ["tenant-shop"], "interfaces": ["bond0"]})
    );
    // The controller restores objects that another client deletes.
    plane.kubectl(&["delete", resource[0], resource[1], "-n", "metallb-system"]).unwrap();
    wait_until(plane, "the advertisement is restored", |plane| plane.get_json(&resource).is_ok());
    patch_exposure(plane, "shop", &json!({"loadBalancers": {"advertise": "None"}}));
    wait_until(plane, "the advertisement is deleted", |plane| plane.get_json(&resource).is_err());
}

/// Tests that only the younger of two tenants with overlapping pools is refused, and that the pool of the older tenant
/// can still change.
fn overlapping_pools_of_younger_tenants_are_refused(plane: &ControlPlane) {
    let before = pool(plane, "shop");
    create_tenant(plane, "other", &json!(["198.51.100.8-198.51.100.40"]));
    let words = "False LoadBalancerPoolsOverlap spec.exposure.loadBalancers.addresses: \
                 `198.51.100.8-198.51.100.40` overlaps `198.51.100.0-198.51.100.15` of TenantCluster shop, \
                 whose pool already has these addresses; TenantCluster other keeps its previous pool";
    let other = ["tenantcluster", "other"];
    wait_until_condition(plane, &other, "ExposureReady", words);
    assert_eq!(pool(plane, "shop"), before);
    assert_eq!(pool(plane, "other"), Value::Null);
    let extended = json!(["198.51.100.0/28", "198.51.100.48/30"]);
    patch_exposure(plane, "shop", &json!({"loadBalancers": {"addresses": extended}}));
    wait_until(plane, "the pool of the older tenant is extended", |plane| {
        let applied = &pool(plane, "shop")["spec"]["addresses"];
        *applied == json!(["198.51.100.0-198.51.100.15", "198.51.100.48-198.51.100.51"])
    });
    wait_until_condition(plane, &SHOP_TENANT, "ExposureReady", "True Ready");
    assert_eq!(pool(plane, "other"), Value::Null);
    patch_exposure(plane, "other", &json!({"loadBalancers": {"addresses": ["198.51.100.16/28"]}}));
    wait_until_condition(plane, &other, "ExposureReady", "True Ready");
    wait_until_condition(plane, &SHOP_TENANT, "ExposureReady", "True Ready");
    patch_exposure(plane, "other", &json!({"loadBalancers": {"addresses": ["0.0.0.0/0"]}}));
    wait_until_condition(plane, &other, "ExposureReady", "False InvalidExposure");
    assert_eq!(pool(plane, "other")["spec"]["addresses"], json!(["198.51.100.16-198.51.100.31"]));
    patch_exposure(plane, "other", &Value::Null);
    wait_until(plane, "the pool is deleted", |plane| pool(plane, "other").is_null());
}

/// Tests that Berth does not change or delete a pool that an administrator created with the name of a tenant's pool.
fn foreign_pools_stay(plane: &ControlPlane) {
    let foreign = json!({
        "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
        "metadata": {"name": "tenant-foreign", "namespace": "metallb-system"},
        "spec": {"addresses": ["203.0.113.0-203.0.113.9"]},
    });
    plane.apply(&foreign.to_string()).unwrap();
    create_tenant(plane, "foreign", &json!(["198.51.100.64/28"]));
    let tenant = ["tenantcluster", "foreign"];
    let words = "tenant-foreign exists and was not created by Berth";
    wait_until_condition(plane, &tenant, "ExposureReady", "False NotOwned");
    wait_until_condition(plane, &tenant, "ExposureReady", words);
    plane.kubectl(&["delete", "tenantcluster", "foreign", "--wait=false"]).unwrap();
    wait_until(plane, "the tenant is deleted", |plane| plane.get_json(&tenant).is_err());
    assert_eq!(pool(plane, "foreign")["spec"]["addresses"], foreign["spec"]["addresses"]);
}

fn target_ports_of_load_balancers_are_open(plane: &ControlPlane) {
    // Like the Services of the cloud controller manager, this Service has no labels of Berth.
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "a0123", "namespace": NAMESPACE},
        "spec": {
            "type": "LoadBalancer", "selector": {"cluster.x-k8s.io/role": "worker"},
            "ports": [{"port": 443, "targetPort": 30_443, "protocol": "TCP"}],
        },
    });
    plane.apply(&service.to_string()).unwrap();
    wait_until(plane, "the target port is open", |plane| {
        let spec = policy(plane, "berth-allow-lb-a0123")["spec"].clone();
        spec["ingress"] == json!([{"ports": [{"protocol": "TCP", "port": 30_443}]}])
            && spec["podSelector"]["matchLabels"] == json!({"cluster.x-k8s.io/role": "worker"})
    });
    plane.kubectl(&["delete", "service", "a0123", "-n", NAMESPACE]).unwrap();
    wait_until(plane, "the target port is closed", |plane| {
        policy(plane, "berth-allow-lb-a0123").is_null()
    });
}

fn machine_names(plane: &ControlPlane) -> BTreeSet<String> {
    let vms = list_items(plane, &["virtualmachines", "-n", NAMESPACE]);
    vms.iter().map(|vm| vm["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the machines that have a Service with this type and these ports.
fn machines_with_service(plane: &ControlPlane, type_: &str, ports: &Value) -> BTreeSet<String> {
    let services = list_items(plane, &["services", "-n", NAMESPACE, "-l", "berth.dev/machine"]);
    let matching = services.iter().filter(|one| {
        let all = one["spec"]["ports"].as_array().unwrap();
        let targets: Value = all.iter().map(|port| port["targetPort"].clone()).collect();
        one["spec"]["type"] == type_ && targets == *ports
    });
    let machine =
        |one: &Value| one["spec"]["selector"]["kubevirt.io/vm"].as_str().map(str::to_owned);
    matching.filter_map(machine).collect()
}

fn each_machine_has_a_service(plane: &ControlPlane) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "user-data", "namespace": NAMESPACE},
        "stringData": {"userdata": "#cloud-config\nhostname: x\n"},
    });
    plane.apply(&secret.to_string()).unwrap();
    patch_exposure(plane, "shop", &json!({"machineAccess": {"ports": [6443]}}));
    plane.apply(&web_deployment(NAMESPACE, 2).to_string()).unwrap();
    let reached = |count: usize, type_: &str, ports: Value| {
        wait_until(plane, "each machine has its Service", |plane| {
            let machines = machine_names(plane);
            machines.len() == count && machines_with_service(plane, type_, &ports) == machines
        });
    };
    reached(2, "NodePort", json!([22, 6443]));
    assert_eq!(
        policy(plane, "berth-allow-machine-access")["spec"]["ingress"][0]["ports"],
        json!([{"protocol": "TCP", "port": 22}, {"protocol": "TCP", "port": 6443}])
    );
    // The controller restores Services that another client deletes.
    plane.kubectl(&["delete", "services", "-n", NAMESPACE, "-l", "berth.dev/machine"]).unwrap();
    reached(2, "NodePort", json!([22, 6443]));
    patch_exposure(plane, "shop", &json!({"machineAccess": {"type": "LoadBalancer", "ports": []}}));
    reached(2, "LoadBalancer", json!([22]));
    let scale = ["scale", "machinedeployment", "web", "-n", NAMESPACE, "--replicas=1"];
    plane.kubectl(&scale).unwrap();
    reached(1, "LoadBalancer", json!([22]));
    wait_until(plane, "the Service of the deleted machine is deleted", |plane| {
        list_items(plane, &["services", "-n", NAMESPACE, "-l", "berth.dev/machine"]).len() == 1
    });
    patch_exposure(plane, "shop", &json!({"machineAccess": null}));
    wait_until(plane, "the Services are deleted", |plane| {
        list_items(plane, &["services", "-n", NAMESPACE, "-l", "berth.dev/machine"]).is_empty()
            && policy(plane, "berth-allow-machine-access").is_null()
    });
}

/// Returns the node port of SSH of each machine with a Service.
fn node_ports(plane: &ControlPlane) -> BTreeMap<String, u64> {
    let services = list_items(plane, &["services", "-n", NAMESPACE, "-l", "berth.dev/machine"]);
    let pair = |one: &Value| {
        let machine = one["spec"]["selector"]["kubevirt.io/vm"].as_str()?.to_owned();
        Some((machine, one["spec"]["ports"][0]["nodePort"].as_u64()?))
    };
    services.iter().filter_map(pair).collect()
}

/// Tests that machines get the node ports of the range that no other Service has, that a machine without node port is
/// reported, and that machines keep their node ports when the range changes.
fn node_ports_are_allocated_from_a_range(plane: &ControlPlane) {
    let foreign = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "foreign", "namespace": "default"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30_101}]},
    });
    plane.apply(&foreign.to_string()).unwrap();
    let range = |range: &str| json!({"machineAccess": {"nodePortRange": range}});
    patch_exposure(plane, "shop", &range("30100-30102"));
    let web = ["machinedeployment", "web", "-n", NAMESPACE];
    plane.kubectl(&["scale", web[0], web[1], web[2], web[3], "--replicas=3"]).unwrap();
    wait_until_condition(plane, &web, "AccessReady", "False NodePortsExhausted");
    let refused = "has no free node port for cluster-shop/web-";
    wait_until_condition(plane, &web, "AccessReady", refused);
    wait_until_condition(plane, &web, "AccessReady", "; the API server refused 30101");
    let first = node_ports(plane);
    let ports: BTreeSet<u64> = first.values().copied().collect();
    assert_eq!((first.len(), ports), (2, BTreeSet::from([30_100, 30_102])));
    patch_exposure(plane, "shop", &range("30102-30103"));
    wait_until(plane, "the third machine has a node port", |plane| node_ports(plane).len() == 3);
    let all = node_ports(plane);
    assert!(first.iter().all(|(machine, port)| all[machine] == *port), "{first:?} {all:?}");
    assert!(all.values().any(|port| *port == 30_103), "{all:?}");
    wait_until_condition(plane, &web, "AccessReady", "False NodePortsOutsideRange");
    plane.kubectl(&["delete", "service", "foreign", "-n", "default"]).unwrap();
    patch_exposure(plane, "shop", &json!({"machineAccess": null}));
    plane.kubectl(&["scale", web[0], web[1], web[2], web[3], "--replicas=1"]).unwrap();
    wait_until(plane, "the Services are deleted", |plane| node_ports(plane).is_empty());
}

fn cloud_controller_manager_is_deployed(plane: &ControlPlane) {
    let image = json!({"cloudControllerManager": {"image": "ccm.example/ccm:1"}});
    patch_exposure(plane, "shop", &image);
    let words = "False InvalidExposure spec.kubeconfigSecretRef: is missing";
    wait_until_condition(plane, &SHOP_TENANT, "ExposureReady", words);
    let patch = json!({"spec": {"kubeconfigSecretRef": {"name": "admin"}}}).to_string();
    plane.kubectl(&["patch", "tenantcluster", "shop", "--type=merge", "-p", &patch]).unwrap();
    // No kubelet runs the pod of the Deployment.
    let words = "False CloudControllerManagerUnavailable";
    wait_until_condition(plane, &SHOP_TENANT, "ExposureReady", words);
    let name = "kubevirt-cloud-controller-manager";
    for kind in ["serviceaccount", "role", "rolebinding", "deployment"] {
        plane.get_json(&[kind, name, "-n", NAMESPACE]).unwrap();
    }
    let egress = policy(plane, "berth-allow-cloud-controller-manager")["spec"]["egress"].clone();
    assert_eq!(egress.as_array().map(Vec::len), Some(1), "{egress:#}");
    patch_exposure(plane, "shop", &json!({"cloudControllerManager": null}));
    wait_until(plane, "the cloud controller manager is deleted", |plane| {
        let exists = |kind: &str| plane.get_json(&[kind, name, "-n", NAMESPACE]).is_ok();
        !["serviceaccount", "role", "rolebinding", "deployment"].into_iter().any(exists)
    });
    plane.get_json(&["role", "kubevirt-csi", "-n", NAMESPACE]).unwrap();
}

fn objects_are_deleted_with_their_tenant(plane: &ControlPlane) {
    wait_until_condition(plane, &SHOP_TENANT, "ExposureReady", "True Ready");
    plane.kubectl(&["delete", "tenantcluster", "shop", "--wait=false"]).unwrap();
    wait_until(plane, "the pool is deleted with its tenant", |plane| {
        plane.get_json(&SHOP_TENANT).is_err() && pool(plane, "shop").is_null()
    });
}
