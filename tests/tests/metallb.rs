//! The real controller of MetalLB on a real API server: Services of tenants get addresses of their tenant's pool, and
//! of no other pool. Agents and KubeVirt are simulated, and no speaker announces the addresses.
//!
//! `METALLB_CONTROLLER` names the program.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests run programs, and fail by panicking")]

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, METALLB_NAMESPACE, condition};
use berth_tests::controller::Controller;
use berth_tests::running::Running;
use berth_tests::simulated::{Fleet, FleetBehaviour};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Time for which a test waits to verify that a controller makes no change.
const QUIET_TIME: Duration = Duration::from_secs(5);
/// Name of the pod of MetalLB's controller, and of its log.
const METALLB: &str = "metallb-controller";
/// Address pool of the tenant `shop`.
const SHOP_POOL: &str = "198.51.100.0/28";
/// Address pool of the tenant `bank`, with two addresses.
const BANK_POOL: &str = "198.51.100.16-198.51.100.17";

/// All scenarios share one control plane, because starting it is the slowest step.
#[test]
#[ignore = "needs METALLB_CONTROLLER: make test-current"]
fn services_get_addresses_of_their_tenant() {
    let program = std::env::var_os("METALLB_CONTROLLER").unwrap();
    let plane = ControlPlane::start_with_load_balancers().unwrap();
    let _fleet = Fleet::start(&plane.kubeconfig(), &["rack1-a"], FleetBehaviour::Agents).unwrap();
    let _controller = Controller::start(&plane, "berth", &[]).unwrap();
    create_tenant(&plane, "shop", SHOP_POOL);
    create_tenant(&plane, "bank", BANK_POOL);
    let _metallb = start_metallb(Path::new(&program), &plane);

    each_tenant_gets_its_own_addresses(&plane);
    foreign_addresses_are_refused(&plane);
    full_pool_uses_no_address_of_another_pool(&plane);
    an_extended_pool_serves_the_waiting_service(&plane);
    objects_are_not_rewritten(&plane);
}

fn create_tenant(plane: &ControlPlane, name: &str, addresses: &str) {
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
        "spec": {
            "network": {"name": "tenant-trunk"}, "exposure": {"loadBalancers": {"addresses": [addresses]}},
        },
    });
    plane.apply(&tenant.to_string()).unwrap();
    wait_until(plane, "the objects for MetalLB are applied", || {
        let cluster = plane.get_json(&["tenantcluster", name]).ok()?;
        (condition(&cluster, "ExposureReady")["status"] == "True").then_some(())
    });
}

/// Starts the program without its webhooks, which the API server would call through a Service.
fn start_metallb(program: &Path, plane: &ControlPlane) -> Running {
    // The program reads its own pod, which becomes the owner of an object that the program creates.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": METALLB, "namespace": METALLB_NAMESPACE},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "controller", "image": "metallb.example/controller:1"}],
        },
    });
    wait_until(plane, "the ServiceAccount of the pod exists", || {
        plane.apply(&pod.to_string()).ok().map(drop)
    });
    let log = File::create(plane.folder().join(format!("{METALLB}.log"))).unwrap();
    let mut command = Running::command(program, None);
    command.arg(format!("--namespace={METALLB_NAMESPACE}")).arg(format!("--pod-name={METALLB}"));
    command.arg(format!("--kubeconfig={}", plane.kubeconfig().display()));
    // The metrics are on any free port.
    command.args(["--webhook-mode=disabled", "--log-level=debug", "--port=0"]);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Running::spawn(command).unwrap()
}

/// Creates a Service as the cloud controller manager does, with these annotations.
fn create_service(plane: &ControlPlane, namespace: &str, name: &str, annotations: &Value) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {
            "type": "LoadBalancer", "selector": {"cluster.x-k8s.io/role": "worker"},
            "ports": [{"port": 443, "targetPort": 30_443, "protocol": "TCP"}],
        },
    });
    plane.apply(&service.to_string()).unwrap();
}

/// Returns the last byte of the Service's address.
fn last_address_byte(plane: &ControlPlane, namespace: &str, name: &str) -> Option<u8> {
    let service = plane.get_json(&["service", name, "-n", namespace]).ok()?;
    let address = service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str()?.to_owned();
    let [a, b, c, last] = address.parse::<Ipv4Addr>().unwrap().octets();
    assert_eq!([a, b, c], [198, 51, 100], "{address}");
    Some(last)
}

fn wait_for_address(plane: &ControlPlane, namespace: &str, name: &str) -> u8 {
    wait_until(plane, "the Service has an address", || last_address_byte(plane, namespace, name))
}

/// Waits until MetalLB reports that it has no address for a Service.
fn wait_for_refusal(plane: &ControlPlane, namespace: &str, name: &str) {
    wait_until(plane, "MetalLB refuses an address", || {
        let events = plane.get_json(&["events", "-n", namespace]).ok()?;
        let is_refusal = |event: &Value| {
            event["reason"] == "AllocationFailed" && event["involvedObject"]["name"] == name
        };
        events["items"].as_array()?.iter().any(is_refusal).then_some(())
    });
    assert_eq!(last_address_byte(plane, namespace, name), None);
}

fn each_tenant_gets_its_own_addresses(plane: &ControlPlane) {
    for namespace in ["cluster-shop", "cluster-bank"] {
        create_service(plane, namespace, "web", &json!({}));
    }
    let shop = wait_for_address(plane, "cluster-shop", "web");
    assert!((0..16).contains(&shop), "{shop}");
    let bank = wait_for_address(plane, "cluster-bank", "web");
    assert!((16..18).contains(&bank), "{bank}");
    // A Service in a namespace without a pool gets no address of a tenant.
    create_service(plane, "default", "other", &json!({}));
    wait_for_refusal(plane, "default", "other");
}

/// Tests that a Service cannot request an address, or the pool, of another tenant.
fn foreign_addresses_are_refused(plane: &ControlPlane) {
    let requests = [
        ("address", json!({"metallb.io/loadBalancerIPs": "198.51.100.9"})),
        ("pool", json!({"metallb.io/address-pool": "tenant-shop"})),
    ];
    for (name, annotations) in requests {
        create_service(plane, "cluster-bank", name, &annotations);
        wait_for_refusal(plane, "cluster-bank", name);
        plane.kubectl(&["delete", "service", name, "-n", "cluster-bank"]).unwrap();
    }
    let own = json!({"metallb.io/loadBalancerIPs": "198.51.100.9"});
    create_service(plane, "cluster-shop", "address", &own);
    assert_eq!(wait_for_address(plane, "cluster-shop", "address"), 9);
}

fn full_pool_uses_no_address_of_another_pool(plane: &ControlPlane) {
    create_service(plane, "cluster-bank", "second", &json!({}));
    let second = wait_for_address(plane, "cluster-bank", "second");
    assert!((16..18).contains(&second), "{second}");
    create_service(plane, "cluster-bank", "third", &json!({}));
    wait_for_refusal(plane, "cluster-bank", "third");
}

fn an_extended_pool_serves_the_waiting_service(plane: &ControlPlane) {
    let before = ["web", "second"].map(|name| last_address_byte(plane, "cluster-bank", name));
    let addresses = json!(["198.51.100.16-198.51.100.18"]);
    let patch = json!({"spec": {"exposure": {"loadBalancers": {"addresses": addresses}}}});
    let patch = patch.to_string();
    plane.kubectl(&["patch", "tenantcluster", "bank", "--type=merge", "-p", &patch]).unwrap();
    assert_eq!(wait_for_address(plane, "cluster-bank", "third"), 18);
    let after = ["web", "second"].map(|name| last_address_byte(plane, "cluster-bank", name));
    assert_eq!(after, before, "the other Services keep their addresses");
}

/// Tests that Berth does not rewrite objects because of the defaults of MetalLB's definitions, or of the status that
/// MetalLB writes.
fn objects_are_not_rewritten(plane: &ControlPlane) {
    let versions = || {
        ["ipaddresspools.metallb.io", "l2advertisements.metallb.io"].map(|kind| {
            let object = plane.get_json(&[kind, "tenant-shop", "-n", METALLB_NAMESPACE]).unwrap();
            object["metadata"]["resourceVersion"].clone()
        })
    };
    let before = versions();
    std::thread::sleep(QUIET_TIME);
    assert_eq!(versions(), before);
}

fn wait_until<T>(plane: &ControlPlane, what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    plane.wait_until(what, TIMEOUT, |_| check()).unwrap_or_else(|error| {
        panic!("{error}: {}\n{}", plane.log_tail(METALLB), plane.log_tail("berth"))
    })
}
