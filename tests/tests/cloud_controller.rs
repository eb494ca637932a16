//! The real cloud controller manager of kubevirt/cloud-provider-kubevirt between the API servers of an infra cluster
//! and a tenant cluster, with the arguments, the configuration and the permissions of Berth's Deployment. MetalLB,
//! agents and KubeVirt are simulated.
//!
//! `CLOUD_CONTROLLER_MANAGER` names the program.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests read files, run programs, print what they found, and fail by panicking"
)]

#[path = "cloud_controller/zones.rs"]
mod zones;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use berth_tests::cluster::{
    ADMIN_TOKEN, ControlPlane, ControlPlaneOptions, METALLB_NAMESPACE, condition, registered_node,
    web_deployment,
};
use berth_tests::controller::Controller;
use berth_tests::running::Running;
use berth_tests::simulated::{Fleet, FleetBehaviour, KubeVirt};
use berth_tests::tenant_clusters::{Clusters, is_in_namespace};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "cluster-shop";
const NAME: &str = "kubevirt-cloud-controller-manager";
/// Address that the simulated MetalLB assigns, from the tenant's pool.
const ADDRESS: &str = "198.51.100.3";

/// All scenarios share both control planes, because starting them is the slowest step.
#[test]
#[ignore = "needs CLOUD_CONTROLLER_MANAGER: make test-current"]
fn services_of_a_tenant_get_addresses() {
    let program = std::env::var_os("CLOUD_CONTROLLER_MANAGER").unwrap();
    let infra = ControlPlane::start_with_load_balancers().unwrap();
    let tenant = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    let _fleet = Fleet::start(&infra.kubeconfig(), &["rack1-a"], FleetBehaviour::Agents).unwrap();
    let _kubevirt = KubeVirt::start(&infra.kubeconfig()).unwrap();
    let _controller = Controller::start(&infra, "berth", &[]).unwrap();
    create_tenant(&infra, &tenant);
    let machine = create_machines(&infra, 1).remove(0);
    // The API server permits reads of Secrets some time after the RoleBinding is created.
    let start = infra.log("berth").unwrap().len();
    let _manager = start_cloud_controller_manager(Path::new(&program), &infra, &tenant, false);

    node_is_initialized_from_its_machine(&infra, &tenant, &machine);
    load_balancer_selects_machines(&infra, &tenant, &machine);
    address_is_copied_to_the_service_of_the_tenant(&infra, &tenant);
    changed_ports_are_opened(&infra, &tenant);
    deleted_service_leaves_no_objects(&infra, &tenant);
    for (program, start) in [(NAME, 0), ("berth", start)] {
        let log = infra.log(program).unwrap();
        let refused: Vec<&str> = log
            .get(start..)
            .unwrap_or_default()
            .lines()
            .filter(|line| line.contains("forbidden"))
            .collect();
        assert!(refused.is_empty(), "a permission of {program} is missing: {refused:?}");
    }
}

/// Berth connects to this tenant, so the tenant's API server must not have a loopback address.
#[test]
#[ignore = "needs CLOUD_CONTROLLER_MANAGER: make test-current"]
fn zone_labels_are_updated_after_a_migration() {
    if !is_in_namespace("zone_labels_are_updated_after_a_migration") {
        return;
    }
    let program = std::env::var_os("CLOUD_CONTROLLER_MANAGER").unwrap();
    let infra = ControlPlaneOptions { has_controllers: true, ..ControlPlaneOptions::default() };
    let clusters = Clusters::start_with("berth", infra, ControlPlaneOptions::default());
    clusters.infra.prepare_load_balancers().unwrap();
    zones::labels_are_updated_after_a_migration(&clusters, Path::new(&program));
}

fn create_tenant(infra: &ControlPlane, tenant: &ControlPlane) {
    let cluster = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "shop"},
        "spec": {
            "userDataSecretRef": {"name": "user-data"}, "kubeconfigSecretRef": {"name": "admin"},
            "network": {"name": "tenant-trunk"},
            "exposure": {
                "loadBalancers": {"addresses": ["198.51.100.0/28"]},
                "cloudControllerManager": {"image": "ccm.example/ccm:1"},
            },
        },
    });
    infra.apply(&cluster.to_string()).unwrap();
    wait_until(infra, "the namespace exists", || {
        infra.get_json(&["namespace", NAMESPACE]).ok().map(drop)
    });
    let kubeconfig = fs::read_to_string(tenant.kubeconfig()).unwrap();
    for (name, data) in [
        ("admin", json!({"kubeconfig": kubeconfig})),
        ("user-data", json!({"userdata": "#cloud-config\nhostname: x\n"})),
    ] {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE},
            "stringData": data,
        });
        infra.apply(&secret.to_string()).unwrap();
    }
}

/// Creates machines and returns their names when all of them run.
fn create_machines(infra: &ControlPlane, count: u32) -> Vec<String> {
    infra.apply(&web_deployment(NAMESPACE, count).to_string()).unwrap();
    wait_until(infra, "the machines run", || {
        let list = infra.get_json(&["virtualmachineinstances", "-n", NAMESPACE]).ok()?;
        let names = list["items"].as_array()?.iter();
        let names = names.filter_map(|one| one["metadata"]["name"].as_str().map(str::to_owned));
        let names: Vec<String> = names.collect();
        (names.len() == usize::try_from(count).ok()?).then_some(names)
    })
}

/// Starts the program as the container of Berth's Deployment does. The paths of mounted files differ, and the program
/// receives the token of its ServiceAccount in a kubeconfig, because it runs outside the infra cluster.
/// `has_zones` is the setting `zoneAndRegionEnabled`, which Berth disables.
fn start_cloud_controller_manager(
    program: &Path,
    infra: &ControlPlane,
    tenant: &ControlPlane,
    has_zones: bool,
) -> Running {
    let deployment = wait_until(infra, "the Deployment exists", || {
        infra.get_json(&["deployment", NAME, "-n", NAMESPACE]).ok()
    });
    let pod = &deployment["spec"]["template"];
    let text = pod["metadata"]["annotations"]["berth.dev/cloud-config"].as_str().unwrap();
    let mut config: Value = serde_json::from_str(text).unwrap();
    assert_eq!(config["instancesV2"]["zoneAndRegionEnabled"], json!(false));
    config["instancesV2"]["zoneAndRegionEnabled"] = json!(has_zones);
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
    let token = infra.create_token_in(NAMESPACE, account).unwrap();
    config["kubeconfig"] = json!(infra.write_kubeconfig(NAME, &token, false).unwrap());
    let file = infra.folder().join("cloud-config");
    fs::write(&file, config.to_string()).unwrap();

    let arguments = pod["spec"]["containers"][0]["args"].as_array().unwrap();
    let paths: [(&str, PathBuf); 2] = [
        ("--cloud-config=", file),
        ("--kubeconfig=", tenant.write_kubeconfig("ccm", ADMIN_TOKEN, false).unwrap()),
    ];
    let log = infra.folder().join(format!("{NAME}.log"));
    let log = File::options().create(true).append(true).open(log).unwrap();
    let mut command = Running::command(program, None);
    for argument in arguments.iter().map(|one| one.as_str().unwrap()) {
        let replaced = paths.iter().find(|(flag, _)| argument.starts_with(flag));
        match replaced {
            Some((flag, path)) => command.arg(format!("{flag}{}", path.display())),
            None => command.arg(argument),
        };
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    command.args(["--bind-address=127.0.0.1", &format!("--secure-port={port}")]);
    // The default is five minutes.
    command.arg("--node-status-update-frequency=5s");
    command.arg(format!("--cert-dir={}", infra.folder().join("ccm-certificates").display()));
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Running::spawn(command).unwrap()
}

fn node_is_initialized_from_its_machine(
    infra: &ControlPlane,
    tenant: &ControlPlane,
    machine: &str,
) {
    let taint = "node.cloudprovider.kubernetes.io/uninitialized";
    let mut node = registered_node(machine);
    node["spec"]["taints"] = json!([{"key": taint, "value": "true", "effect": "NoSchedule"}]);
    node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "10.20.0.10"}]);
    tenant.apply(&node.to_string()).unwrap();
    let node = wait_until(infra, "the Node has its provider ID", || {
        let node = tenant.get_json(&["node", machine]).ok()?;
        node["spec"]["providerID"].is_string().then_some(node)
    });
    assert_eq!(node["spec"]["providerID"], json!(format!("kubevirt://{machine}")));
    wait_until(infra, "the Node is initialized", || {
        let node = tenant.get_json(&["node", machine]).ok()?;
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.iter().all(|one| one["key"] != taint).then_some(())
    });
}

fn load_balancer_selects_machines(infra: &ControlPlane, tenant: &ControlPlane, machine: &str) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "type": "LoadBalancer", "selector": {"app": "web"},
            "ports": [{"name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP"}],
        },
    });
    tenant.apply(&service.to_string()).unwrap();
    let spec = wait_until(infra, "the infra cluster has the Service", || {
        load_balancer(infra).map(|one| one["spec"].clone())
    });
    let instance = infra.get_json(&["virtualmachine", machine, "-n", NAMESPACE]).unwrap();
    let labels = &instance["spec"]["template"]["metadata"]["labels"];
    let selector = spec["selector"].as_object().unwrap();
    assert!(!selector.is_empty(), "{spec:#}");
    for (key, value) in selector {
        assert_eq!(&labels[key], value, "{key} of {labels:#}");
    }
    wait_until_ports_are_open(infra, &node_ports(tenant));
}

/// MetalLB writes the address to the Service of the infra cluster.
fn address_is_copied_to_the_service_of_the_tenant(infra: &ControlPlane, tenant: &ControlPlane) {
    let pool =
        infra.get_json(&["ipaddresspools.metallb.io", "tenant-shop", "-n", METALLB_NAMESPACE]);
    assert_eq!(
        pool.unwrap()["spec"]["serviceAllocation"],
        json!({"namespaces": [NAMESPACE]}),
        "MetalLB may serve the namespace of the Service"
    );
    let mut service = load_balancer(infra).unwrap();
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": ADDRESS}]}});
    let name = service["metadata"]["name"].as_str().unwrap().to_owned();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/services/{name}/status");
    let replace = ["replace", "--raw", &path, "-f", "-"];
    infra.kubectl_with(&infra.kubeconfig(), &replace, &service.to_string()).unwrap();
    wait_until(infra, "the tenant's Service has the address", || {
        let service = tenant.get_json(&["service", "web"]).ok()?;
        (service["status"]["loadBalancer"]["ingress"][0]["ip"] == ADDRESS).then_some(())
    });
}

fn changed_ports_are_opened(infra: &ControlPlane, tenant: &ControlPlane) {
    let before = node_ports(tenant);
    let patch = json!({"spec": {"ports": [
        {"name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP"},
        {"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"},
    ]}});
    tenant.kubectl(&["patch", "service", "web", "--type=merge", "-p", &patch.to_string()]).unwrap();
    let ports = node_ports(tenant);
    assert_eq!((before.len(), ports.len()), (1, 2));
    wait_until_ports_are_open(infra, &ports);
}

fn deleted_service_leaves_no_objects(infra: &ControlPlane, tenant: &ControlPlane) {
    tenant.kubectl(&["delete", "service", "web", "--wait=false"]).unwrap();
    wait_until(infra, "the Service and its NetworkPolicy are deleted", || {
        let is_closed = open_ports(infra).is_none();
        (is_closed && load_balancer(infra).is_none()).then_some(())
    });
    let cluster = infra.get_json(&["tenantcluster", "shop"]).unwrap();
    let ready = condition(&cluster, "ExposureReady");
    // No kubelet runs the pod of the Deployment.
    assert_eq!(ready["reason"], "CloudControllerManagerUnavailable", "{ready:#}");
}

/// Returns the Service that the cloud controller manager created.
fn load_balancer(infra: &ControlPlane) -> Option<Value> {
    let label = "cluster.x-k8s.io/tenant-service-name=web";
    let list = infra.get_json(&["services", "-n", NAMESPACE, "-l", label]).ok()?;
    list["items"].as_array()?.first().cloned()
}

/// Returns the node ports of the tenant's Service, which are the target ports in the infra cluster.
fn node_ports(tenant: &ControlPlane) -> Vec<u64> {
    let service = tenant.get_json(&["service", "web"]).unwrap();
    let ports = service["spec"]["ports"].as_array().unwrap();
    let mut ports: Vec<u64> = ports.iter().map(|port| port["nodePort"].as_u64().unwrap()).collect();
    ports.sort_unstable();
    ports
}

/// Returns the ports that the NetworkPolicy of the load balancer opens, or `None` if there is no policy.
fn open_ports(infra: &ControlPlane) -> Option<Vec<u64>> {
    let list = infra.get_json(&["networkpolicies", "-n", NAMESPACE]).ok()?;
    let policies = list["items"].as_array()?;
    let is_ours = |one: &&Value| {
        let name = one["metadata"]["name"].as_str();
        name.is_some_and(|name| name.starts_with("berth-allow-lb-"))
    };
    let policy = policies.iter().find(is_ours)?;
    let ports = policy["spec"]["ingress"][0]["ports"].as_array()?;
    let mut ports: Vec<u64> = ports.iter().filter_map(|port| port["port"].as_u64()).collect();
    ports.sort_unstable();
    Some(ports)
}

fn wait_until_ports_are_open(infra: &ControlPlane, ports: &[u64]) {
    wait_until(infra, "exactly the target ports are open", || {
        (open_ports(infra).as_deref() == Some(ports)).then_some(())
    });
}

fn wait_until<T>(infra: &ControlPlane, what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    infra.wait_until(what, TIMEOUT, |_| check()).unwrap_or_else(|error| {
        panic!("{error}: {}\n{}", infra.log_tail(NAME), infra.log_tail("berth"))
    })
}
