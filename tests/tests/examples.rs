//! Tests of `examples/tenants` on a real API server: one `kubectl apply` creates machines from nothing. Two
//! controllers run as they are deployed, with the permissions of `deploy/`; the objects are edited, scaled and
//! paused while controllers are killed.
//!
//! Agents and KubeVirt are simulated.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests read files, run programs, and fail by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions};
use berth_tests::controller::Controller;
use berth_tests::repository;
use berth_tests::simulated::{Fleet, FleetBehaviour, KubeVirt};
use serde_json::{Value, json};

const SHORT_TIMEOUT: Duration = Duration::from_secs(120);
const HOSTS: [&str; 2] = ["rack1-a", "rack1-b"];
/// Requested number of machines by the namespace and name of the MachineDeployment.
type RequestedMachines = BTreeMap<(String, String), u64>;

#[test]
fn example_tenants_get_their_machines() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    plane.install_machine_kinds().unwrap();
    let kinds = [
        "virtualmachineclusterinstancetypes.instancetype.kubevirt.io",
        "virtualmachineclusterpreferences.instancetype.kubevirt.io",
    ];
    plane.install_kubevirt_crds(&kinds).unwrap();
    plane
        .deploy(&[
            "base/rbac-controller.yaml",
            "instancetypes/performance.yaml",
            "instancetypes/density.yaml",
            "instancetypes/preferences.yaml",
        ])
        .unwrap();
    plane.create_example_storage_class().unwrap();
    let _fleet = Fleet::start(&plane.kubeconfig(), &HOSTS, FleetBehaviour::Agents).unwrap();
    let _kubevirt = KubeVirt::start(&plane.kubeconfig()).unwrap();
    let mut controllers = ["first", "second"].map(|name| start_controller(&plane, name));

    let examples = repository().join("examples/tenants");
    plane.kubectl(&["apply", "-f", examples.to_str().unwrap()]).unwrap();
    let mut requested = RequestedMachines::from([
        (deployment_key("shop", "web"), 3),
        (deployment_key("bank", "db"), 2),
    ]);
    wait_until_all_run(&plane, &requested);
    machines_use_their_tenants_network(&plane);
    killed_controllers_reach_the_desired_state(&plane, &mut controllers, &mut requested);
    objects_are_deleted_with_their_tenant(&plane);
    assert!(
        !controller_logs(&plane).contains("forbidden"),
        "a permission is missing: {}",
        controller_logs(&plane)
    );
}

fn start_controller(plane: &ControlPlane, name: &str) -> Controller {
    Controller::start(plane, name, &[]).unwrap()
}

fn deployment_key(tenant: &str, deployment: &str) -> (String, String) {
    (format!("cluster-{tenant}"), deployment.to_owned())
}

fn list_items(plane: &ControlPlane, resource: &[&str]) -> Vec<Value> {
    plane.get_json(resource).unwrap()["items"].as_array().unwrap().clone()
}

fn object_name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn controller_logs(plane: &ControlPlane) -> String {
    ["first", "second"].map(|name| format!("--- {name} ---\n{}\n", plane.log_tail(name))).concat()
}

/// Waits until exactly the desired machines exist, all of them run, and all have the current template.
fn wait_until_all_run(plane: &ControlPlane, requested: &RequestedMachines) {
    let mut last = String::new();
    let done = plane.wait_until("all machines run", SHORT_TIMEOUT, |plane| {
        let vms = list_items(plane, &["virtualmachines", "-A"]);
        let total: u64 = requested.values().sum();
        last = format!("{} machines of {total}", vms.len());
        for ((namespace, deployment), count) in requested {
            let one = plane.get_json(&["machinedeployment", deployment, "-n", namespace]).ok()?;
            let status = &one["status"];
            let number = |field: &str| status[field].as_u64().unwrap_or(0);
            if status["observedGeneration"] != one["metadata"]["generation"]
                || ["replicas", "updatedReplicas", "readyReplicas"]
                    .iter()
                    .any(|field| number(field) != *count)
            {
                last = format!("{namespace}/{deployment}, {count} desired: {status:#}");
                return None;
            }
        }
        let tenants = list_items(plane, &["tenantclusters"]);
        let not_ready = tenants.iter().find(|one| {
            let conditions = one["status"]["conditions"].as_array();
            !conditions
                .into_iter()
                .flatten()
                .any(|one| one["type"] == "Ready" && one["status"] == "True")
        });
        if let Some(one) = not_ready {
            last = format!("{}: {:#}", object_name(one), one["status"]);
            return None;
        }
        (vms.len() as u64 == total).then_some(())
    });
    done.unwrap_or_else(|error| panic!("{error}: {last}\n{}", controller_logs(plane)));
}

fn machines_use_their_tenants_network(plane: &ControlPlane) {
    let vlans = assert_vlans_are_unique(plane);
    assert_eq!(vlans["bank"], 120);
    assert!((100..200).contains(&vlans["shop"]), "{vlans:?}");
    for host in HOSTS {
        let node = plane.infra_node(host);
        assert_eq!(node["spec"]["profile"], "trunk");
        let tenant_networks = node["spec"]["tenantNetworks"].as_array().unwrap();
        let carried: BTreeMap<&str, u64> = tenant_networks
            .iter()
            .map(|one| (one["name"].as_str().unwrap(), one["vlan"].as_u64().unwrap()))
            .collect();
        assert_eq!(
            carried,
            BTreeMap::from([("cluster-bank", 120), ("cluster-shop", vlans["shop"])])
        );
    }
    for (tenant, deployment) in [("shop", "web"), ("bank", "db")] {
        let namespace = format!("cluster-{tenant}");
        let attachment = format!("{namespace}/tenant-{tenant}");
        for vm in list_items(
            plane,
            &["virtualmachines", "-n", &namespace, "-l", &format!("md={deployment}")],
        ) {
            let networks = vm["spec"]["template"]["spec"]["networks"].as_array().unwrap();
            assert!(
                networks.iter().any(|one| one["multus"]["networkName"] == attachment.as_str()),
                "{vm:#}"
            );
            assert!(networks.iter().any(|one| !one["pod"].is_null()), "{vm:#}");
        }
    }
}

/// Returns VLANs by tenant from the statuses, and asserts that each VLAN has its claim and only one tenant.
fn assert_vlans_are_unique(plane: &ControlPlane) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for one in list_items(plane, &["tenantclusters"]) {
        let Some(vlan) = one["status"]["vlan"].as_u64() else { continue };
        assert!(
            found.values().all(|other| *other != vlan),
            "VLAN {vlan} is assigned twice: {one:#}, {found:?}"
        );
        let claim = plane.get_json(&["vlanclaim", &format!("tenant-trunk-{vlan}")]).unwrap();
        assert_eq!(claim["spec"]["tenantUID"], one["metadata"]["uid"], "{one:#}");
        found.insert(object_name(&one).to_owned(), vlan);
    }
    found
}

fn create_tenant(plane: &ControlPlane, tenant: &str) {
    let text = std::fs::read_to_string(repository().join("examples/tenants/shop.yaml")).unwrap();
    let text = text.replace("shop", tenant).replace("replicas: 3", "replicas: 1");
    plane.kubectl_with(&plane.kubeconfig(), &["apply", "-f", "-"], &text).unwrap();
}

/// Applies changes of all kinds while controllers are killed at random moments, and then waits until everything
/// matches the desired state.
fn killed_controllers_reach_the_desired_state(
    plane: &ControlPlane,
    controllers: &mut [Controller; 2],
    requested: &mut RequestedMachines,
) {
    let rounds = if std::env::var_os("BERTH_FAULTS").is_some() { 50 } else { 5 };
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    let mut random = u64::from(seed) | 1;
    for round in 0..rounds {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        change_objects(plane, round, requested);
        std::thread::sleep(Duration::from_millis((random >> 33) % 1500));
        // The leader is killed; in every third round, the other controller is killed too.
        let lease = plane.get_json(&["lease", "-n", "berth-system", "berth-controller"]).unwrap();
        let leader = usize::from(lease["spec"]["holderIdentity"] == "second");
        controllers[leader].running.stop();
        if round % 3 == 2 {
            controllers[1 - leader].running.stop();
            controllers[1 - leader] = start_controller(plane, ["first", "second"][1 - leader]);
        }
        controllers[leader] = start_controller(plane, ["first", "second"][leader]);
        assert_vlans_are_unique(plane);
        // While a machine is replaced, there may be one machine more than requested.
        for ((namespace, deployment), count) in requested.iter() {
            let machines = list_items(
                plane,
                &["virtualmachines", "-n", namespace, "-l", &format!("md={deployment}")],
            );
            assert!(
                machines.len() as u64 <= (*count).max(5) + 1,
                "{namespace}/{deployment}: {}",
                machines.len()
            );
        }
    }
    let paused = json!({"spec": {"paused": false}}).to_string();
    for (namespace, deployment) in requested.keys() {
        plane
            .kubectl(&[
                "patch",
                "machinedeployment",
                deployment,
                "-n",
                namespace,
                "--type=merge",
                "-p",
                &paused,
            ])
            .unwrap();
    }
    wait_until_all_run(plane, requested);
    eprintln!("{rounds} kills, seed {seed}");
    assert_no_orphans(plane);
}

fn change_objects(plane: &ControlPlane, round: u64, requested: &mut RequestedMachines) {
    let patch = |value: Value| {
        let value = value.to_string();
        plane
            .kubectl(&[
                "patch",
                "machinedeployment",
                "web",
                "-n",
                "cluster-shop",
                "--type=merge",
                "-p",
                &value,
            ])
            .unwrap();
    };
    match round % 5 {
        0 => {
            let memory = format!("{}Gi", 4 + round % 7);
            let template = json!({"spec": {"template": {"spec": {"providerSpec": {"value": {
                "cloudProviderSpec": {"virtualMachine": {"template": {"memory": memory}}}}}}}}});
            patch(template);
        }
        1 => {
            let count = 2 + round % 4;
            let scale = ["scale", "machinedeployment", "web", "-n", "cluster-shop"];
            plane.kubectl(&[&scale[..], &[&format!("--replicas={count}")]].concat()).unwrap();
            requested.insert(deployment_key("shop", "web"), count);
        }
        2 => {
            let tenant = format!("t{round}");
            create_tenant(plane, &tenant);
            requested.insert(deployment_key(&tenant, "web"), 1);
        }
        3 => {
            patch(json!({"spec": {"paused": round % 2 == 1}}));
        }
        _ => {
            let tenant = format!("t{}", round - 2);
            plane.kubectl(&["delete", "tenantcluster", &tenant, "--wait=false"]).unwrap();
            requested.remove(&deployment_key(&tenant, "web"));
        }
    }
}

/// Asserts that every created object has an owner that exists.
fn assert_no_orphans(plane: &ControlPlane) {
    let names = |resource: &[&str]| -> BTreeSet<String> {
        list_items(plane, resource)
            .iter()
            .map(|one| {
                let namespace = one["metadata"]["namespace"].as_str().unwrap_or_default();
                format!("{namespace}/{}", object_name(one))
            })
            .collect()
    };
    let tenants = || names(&["tenantclusters"]);
    let tenant_labels = |resource: &[&str]| -> BTreeSet<String> {
        let label = |one: &Value| {
            one["metadata"]["labels"]["berth.dev/tenant"]
                .as_str()
                .map(|tenant| format!("/{tenant}"))
        };
        list_items(plane, resource).iter().filter_map(label).collect()
    };
    plane
        .wait_until("only namespaces of existing tenants exist", SHORT_TIMEOUT, |_| {
            (tenant_labels(&["namespaces", "-l", "berth.dev/tenant"]) == tenants()).then_some(())
        })
        .unwrap();
    for kind in ["network-attachment-definitions", "networkpolicies"] {
        assert_eq!(tenant_labels(&[kind, "-A", "-l", "berth.dev/tenant"]), tenants(), "{kind}");
    }
    let machines = names(&["virtualmachines", "-A"]);
    let machines_with_user_data = || -> BTreeSet<String> {
        let secrets = names(&["secrets", "-A"]);
        let machine = |secret: &String| {
            let (namespace, name) = secret.split_once('/')?;
            Some(format!("{namespace}/{}", name.strip_prefix("userdata-")?))
        };
        secrets.iter().filter_map(machine).collect()
    };
    // The garbage collector deletes the objects of machines that were just deleted.
    plane
        .wait_until("only user data of existing machines exists", SHORT_TIMEOUT, |_| {
            (machines_with_user_data() == machines).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {machines:?}, {:?}", machines_with_user_data()));
    let claims = list_items(plane, &["vlanclaims"]);
    let active_claims = claims.iter().filter(|one| one["status"]["releasedAt"].is_null());
    let active_claims: BTreeSet<String> =
        active_claims.map(|one| format!("/{}", one["spec"]["tenant"].as_str().unwrap())).collect();
    assert_eq!(active_claims, tenants());
}

fn objects_are_deleted_with_their_tenant(plane: &ControlPlane) {
    plane.kubectl(&["delete", "tenantclusters", "--all", "--wait=false"]).unwrap();
    let remaining_objects = |plane: &ControlPlane| {
        let counts = [
            "tenantclusters",
            "virtualmachines",
            "machinedeployments",
            "network-attachment-definitions",
        ]
        .map(|kind| (kind, list_items(plane, &[kind, "-A"]).len()));
        let namespaces = list_items(plane, &["namespaces", "-l", "berth.dev/tenant"]).len();
        let carried = HOSTS.iter().map(|host| {
            plane.infra_node(host)["spec"]["tenantNetworks"].as_array().map_or(0, Vec::len)
        });
        (counts, namespaces, carried.sum::<usize>())
    };
    let deleted = plane.wait_until("all objects are deleted", SHORT_TIMEOUT, |plane| {
        let (counts, spaces, carried) = remaining_objects(plane);
        (counts.iter().all(|(_, count)| *count == 0) && spaces == 0 && carried == 0).then_some(())
    });
    deleted.unwrap_or_else(|error| {
        let tenants = list_items(plane, &["tenantclusters"]);
        panic!("{error}: {:?}: {tenants:#?}\n{}", remaining_objects(plane), controller_logs(plane))
    });
}
