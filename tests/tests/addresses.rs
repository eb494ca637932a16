//! Tests of the addresses of machines on a real API server: they are claimed, exhausted, released, and chosen from a
//! list, with the permissions of `deploy/`. Agents and KubeVirt are simulated.

#![expect(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests read files, run programs, print their seed, and fail by panicking"
)]

#[path = "addresses/attached.rs"]
mod attached;
#[path = "addresses/conflicts.rs"]
mod conflicts;
#[path = "addresses/deleted_claims.rs"]
mod deleted_claims;
#[path = "addresses/interruptions.rs"]
mod interruptions;
#[path = "addresses/lost_races.rs"]
mod lost_races;
#[path = "addresses/race.rs"]
mod race;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, condition};
use berth_tests::controller::Controller;
use berth_tests::repository;
use berth_tests::simulated::{Fleet, FleetBehaviour, KubeVirt};
use serde_json::{Value, json};

const SHORT_TIMEOUT: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "cluster-shop";

/// All tests share one control plane, because starting it is the slowest step.
#[test]
fn machines_get_addresses() {
    let plane = ControlPlane::start(ControlPlaneOptions {
        has_controllers: true,
        ..ControlPlaneOptions::default()
    })
    .unwrap();
    plane.install_machine_kinds().unwrap();
    plane.deploy(&["base/rbac-controller.yaml"]).unwrap();
    plane.create_example_storage_class().unwrap();
    let _fleet = Fleet::start(&plane.kubeconfig(), &["rack1-a"], FleetBehaviour::Agents).unwrap();
    let _kubevirt = KubeVirt::start(&plane.kubeconfig()).unwrap();
    let controller = Controller::start(&plane, "first", &[]).unwrap();
    plane.apply_file(&repository().join("examples/tenants/config.yaml")).unwrap();
    let quarantine = r#"{"spec":{"addressQuarantineSeconds":20}}"#;
    plane.kubectl(&["patch", "infraconfig", "default", "--type=merge", "-p", quarantine]).unwrap();
    let network = json!({
        "name": "tenant-trunk",
        "ipv4": {"cidr": "10.0.0.0/29", "gateway": "10.0.0.1", "exclude": ["10.0.0.6"]},
        "ipv6": {"cidr": "fd00:120::/64"},
    });
    create_tenant(&plane, "shop", &network);

    each_machine_has_its_claims(&plane);
    conflicts::conflicts_of_hosts_are_reported(&plane);
    deleted_claims::deleted_claims_are_created_again(&plane);
    exhaustion_is_reported(&plane);
    addresses_of_deleted_machines_are_in_quarantine(&plane);
    listed_addresses_are_reused_by_their_deployment(&plane);
    machines_keep_addresses_when_pools_change(&plane);
    networks_get_prefixes_from_a_pool(&plane);
    claims_are_deleted_with_their_tenant(&plane);
    let controller = interruptions::killed_controller_leaves_no_orphans(&plane, controller);
    lost_races::lost_races_lead_to_the_next_address(&plane, &controller);
    attached::machines_are_attached_to_the_network_of_another_tenant(&plane);
    let log = plane.log_tail("first");
    assert!(!log.contains("forbidden"), "a permission is missing: {log}");
}

/// Creates a tenant with the user data of its machines.
fn create_tenant(plane: &ControlPlane, name: &str, network: &Value) {
    let tenant = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
        "spec": {"userDataSecretRef": {"name": "user-data"}, "network": network},
    });
    apply(plane, &tenant);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "user-data", "namespace": format!("cluster-{name}")},
        "stringData": {"userdata": "#cloud-config\nhostname: x\n"},
    });
    plane
        .wait_until("the namespace exists", SHORT_TIMEOUT, |plane| {
            plane.apply(&secret.to_string()).ok()
        })
        .unwrap();
}

fn apply(plane: &ControlPlane, object: &Value) {
    plane.apply(&object.to_string()).unwrap();
}

/// Returns a MachineDeployment that deletes a machine before it creates its replacement.
fn deployment(name: &str, replicas: u32, memory: &str, addresses: Option<&str>) -> Value {
    let annotations = addresses.map(|list| json!({"berth.dev/addresses": list}));
    json!({
        "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"name": name}},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": {"name": name}, "annotations": annotations.unwrap_or_else(|| json!({}))},
                "spec": {"providerSpec": {"value": {
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

fn list_items(plane: &ControlPlane, resource: &[&str]) -> Vec<Value> {
    let list = plane.get_json(resource).unwrap_or_default();
    list["items"].as_array().cloned().unwrap_or_default()
}

fn machine_names(plane: &ControlPlane, deployment: &str) -> BTreeSet<String> {
    let label = format!("md={deployment}");
    let vms = list_items(plane, &["virtualmachines", "-n", NAMESPACE, "-l", &label]);
    vms.iter().map(|vm| vm["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the machine of each claim of one address family, by address. Claims in quarantine are omitted.
fn machines_by_address(
    plane: &ControlPlane,
    is_family: fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let claims = list_items(plane, &["addressclaims", "-l", "berth.dev/tenant=shop"]);
    let active = claims.iter().filter(|claim| claim["status"]["releasedAt"].is_null());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    active
        .map(|claim| (text(&claim["spec"]["address"]), text(&claim["spec"]["machine"]["name"])))
        .filter(|(address, _)| is_family(address))
        .collect()
}

fn is_ipv4(address: &str) -> bool {
    address.contains('.')
}

fn is_ipv6(address: &str) -> bool {
    address.contains(':')
}

fn scale(plane: &ControlPlane, deployment: &str, replicas: u32) {
    let replicas = format!("--replicas={replicas}");
    plane.kubectl(&["scale", "machinedeployment", deployment, "-n", NAMESPACE, &replicas]).unwrap();
}

/// Waits until exactly this number of machines run, all with the current template.
fn wait_until_complete(plane: &ControlPlane, deployment: &str, count: u64) {
    let mut last = Value::Null;
    let done = plane.wait_until("the machines run", SHORT_TIMEOUT, |plane| {
        last = plane.get_json(&["machinedeployment", deployment, "-n", NAMESPACE]).ok()?;
        let status = &last["status"];
        let is_observed = status["observedGeneration"] == last["metadata"]["generation"];
        let counts_match = ["replicas", "updatedReplicas", "readyReplicas"]
            .iter()
            .all(|field| status[field].as_u64().unwrap_or(0) == count);
        let is_complete = machine_names(plane, deployment).len() as u64 == count;
        (is_observed && counts_match && is_complete).then_some(())
    });
    done.unwrap_or_else(|error| {
        panic!("{error}: {:#}\n{}", last["status"], plane.log_tail("first"))
    });
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
    done.unwrap_or_else(|error| panic!("{error}: {:#}", last["status"]));
}

const TENANT_OBJECT: [&str; 2] = ["tenantcluster", "shop"];
const WEB_DEPLOYMENT: [&str; 4] = ["machinedeployment", "web", "-n", NAMESPACE];
const NODES_DEPLOYMENT: [&str; 4] = ["machinedeployment", "nodes", "-n", NAMESPACE];

fn each_machine_has_its_claims(plane: &ControlPlane) {
    apply(plane, &deployment("web", 3, "2Gi", None));
    wait_until_complete(plane, "web", 3);
    let ipv4 = machines_by_address(plane, is_ipv4);
    assert_eq!(
        ipv4.keys().collect::<Vec<_>>(),
        ["10.0.0.2", "10.0.0.3", "10.0.0.4"],
        "the lowest addresses are claimed"
    );
    assert_eq!(
        machines_by_address(plane, is_ipv6).keys().collect::<Vec<_>>(),
        ["fd00:120::1", "fd00:120::2", "fd00:120::3"]
    );
    assert_eq!(ipv4.into_values().collect::<BTreeSet<_>>(), machine_names(plane, "web"));
    // Both claims of a machine, and its interface, have the same Ethernet address.
    let mut macs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for claim in list_items(plane, &["addressclaims"]) {
        let [machine, mac] = [&claim["spec"]["machine"]["name"], &claim["spec"]["mac"]]
            .map(|value| value.as_str().unwrap().to_owned());
        assert!(mac.starts_with("02:"), "{claim:#}");
        macs.entry(machine).or_default().insert(mac);
    }
    for vm in list_items(plane, &["virtualmachines", "-n", NAMESPACE]) {
        let interfaces = vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"].clone();
        let interfaces = interfaces.as_array().unwrap();
        let tenant = interfaces.iter().find(|one| one["name"] == "tenant").unwrap();
        let mac = tenant["macAddress"].as_str().unwrap_or_default().to_owned();
        assert_eq!(macs[vm["metadata"]["name"].as_str().unwrap()], [mac].into(), "{vm:#}");
    }
    assert_eq!(macs.values().flatten().collect::<BTreeSet<_>>().len(), 3, "{macs:?}");
    wait_until_condition(plane, &TENANT_OBJECT, "AddressesReady", "True AddressesReady");
    plane
        .wait_until("the addresses are counted", SHORT_TIMEOUT, |plane| {
            let status = plane.get_json(&TENANT_OBJECT).ok()?["status"]["addresses"].clone();
            let ipv4 = json!({"cidr": "10.0.0.0/29", "allocated": 3, "quarantined": 0, "free": 1});
            (status[0] == ipv4 && status[1]["allocated"] == 3).then_some(())
        })
        .unwrap();
}

fn exhaustion_is_reported(plane: &ControlPlane) {
    scale(plane, "web", 6);
    let words = "all 4 addresses of 10.0.0.0/29 are in use: 4 by machines, 0 in quarantine";
    wait_until_condition(plane, &WEB_DEPLOYMENT, "Progressing", words);
    wait_until_condition(plane, &WEB_DEPLOYMENT, "Progressing", "False AddressesExhausted");
    wait_until_condition(plane, &TENANT_OBJECT, "AddressesReady", "False AddressesExhausted");
    assert_eq!(machine_names(plane, "web").len(), 4);
    assert_eq!(machines_by_address(plane, is_ipv6).len(), 4, "no claim without a machine remains");
}

fn addresses_of_deleted_machines_are_in_quarantine(plane: &ControlPlane) {
    scale(plane, "web", 2);
    let quarantined = |plane: &ControlPlane| {
        let claims = list_items(plane, &["addressclaims"]);
        claims.iter().filter(|claim| !claim["status"]["releasedAt"].is_null()).count()
    };
    plane
        .wait_until("four claims are in quarantine", SHORT_TIMEOUT, |plane| {
            (quarantined(plane) == 4).then_some(())
        })
        .unwrap();
    let remaining = machine_names(plane, "web");
    assert_eq!(
        machines_by_address(plane, is_ipv4).into_values().collect::<BTreeSet<_>>(),
        remaining
    );
    plane
        .wait_until("the claims are deleted", SHORT_TIMEOUT, |plane| {
            (list_items(plane, &["addressclaims"]).len() == 4).then_some(())
        })
        .unwrap();
    wait_until_complete(plane, "web", 2);
    wait_until_condition(plane, &TENANT_OBJECT, "AddressesReady", "True AddressesReady");
}

fn patch_ipv4(plane: &ControlPlane, pool: &Value) {
    let patch = json!({"spec": {"network": {"ipv4": pool}}}).to_string();
    plane.kubectl(&["patch", "tenantcluster", "shop", "--type=merge", "-p", &patch]).unwrap();
}

/// Tests that the replacement of a machine gets the listed address at once, although released addresses otherwise stay
/// in quarantine.
fn listed_addresses_are_reused_by_their_deployment(plane: &ControlPlane) {
    patch_ipv4(plane, &json!({"cidr": "10.0.0.0/28", "ranges": ["10.0.0.2-10.0.0.5"]}));
    apply(plane, &deployment("nodes", 1, "2Gi", Some("10.0.0.1")));
    wait_until_condition(
        plane,
        &NODES_DEPLOYMENT,
        "Valid",
        "lists 10.0.0.1, which machines cannot have",
    );
    apply(plane, &deployment("nodes", 1, "2Gi", Some("10.0.0.10")));
    wait_until_complete(plane, "nodes", 1);
    wait_until_condition(plane, &NODES_DEPLOYMENT, "TemplateHonored", "True");
    let before = machine_names(plane, "nodes");
    assert_eq!(machines_by_address(plane, is_ipv4).get("10.0.0.10"), before.first());
    apply(plane, &deployment("nodes", 1, "3Gi", Some("10.0.0.10")));
    plane
        .wait_until("the machine is replaced", SHORT_TIMEOUT, |plane| {
            let current = machine_names(plane, "nodes");
            (current.len() == 1 && current.is_disjoint(&before)).then_some(())
        })
        .unwrap();
    wait_until_complete(plane, "nodes", 1);
    let after = machine_names(plane, "nodes");
    assert_eq!(machines_by_address(plane, is_ipv4).get("10.0.0.10"), after.first());
    scale(plane, "nodes", 2);
    let words = "all 1 addresses are in use: 10.0.0.10 (machine cluster-shop/nodes-";
    wait_until_condition(plane, &NODES_DEPLOYMENT, "Progressing", words);
    scale(plane, "nodes", 1);
    wait_until_complete(plane, "nodes", 1);
    wait_until_condition(plane, &TENANT_OBJECT, "AddressesReady", "True AddressesReady");
}

fn machines_keep_addresses_when_pools_change(plane: &ControlPlane) {
    let before = machines_by_address(plane, is_ipv4);
    patch_ipv4(plane, &json!({"ranges": ["10.0.0.8-10.0.0.9"]}));
    wait_until_condition(plane, &TENANT_OBJECT, "AddressesReady", "False AddressesOutsidePool");
    patch_ipv4(plane, &json!({"gateway": "10.9.0.1"}));
    wait_until_condition(plane, &TENANT_OBJECT, "AddressesReady", "False InvalidAddressPool");
    scale(plane, "web", 3);
    let words = "spec.network.ipv4.gateway: 10.9.0.1 is not in 10.0.0.0/28";
    wait_until_condition(plane, &WEB_DEPLOYMENT, "Progressing", words);
    assert_eq!(machines_by_address(plane, is_ipv4), before);
    patch_ipv4(plane, &json!({"gateway": "10.0.0.1"}));
    wait_until_complete(plane, "web", 3);
    assert!(machines_by_address(plane, is_ipv4).contains_key("10.0.0.8"));
}

/// Tests prefixes of the routed pool in `examples/tenants/config.yaml`.
fn networks_get_prefixes_from_a_pool(plane: &ControlPlane) {
    let tenant = |name: &str, ipv4: &Value| {
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name},
            "spec": {"network": {"name": "tenant-trunk", "ipv4": ipv4}},
        })
    };
    let names = ["one", "two"];
    let mut prefixes = BTreeSet::new();
    for name in names {
        apply(plane, &tenant(name, &json!({"fromPool": "corp"})));
        wait_until_condition(
            plane,
            &["tenantcluster", name],
            "AddressesReady",
            "True AddressesReady",
        );
        let status = plane.get_json(&["tenantcluster", name]).unwrap()["status"].clone();
        let prefix = status["prefixes"][0]["cidr"].as_str().unwrap().to_owned();
        assert_eq!(status["prefixes"][0]["gateway"], prefix.replace(".0/24", ".1"), "{status:#}");
        let claim = plane.get_json(&["prefixclaim", &prefix.replace('/', "-")]).unwrap();
        assert_eq!(claim["spec"]["tenant"], name, "{claim:#}");
        prefixes.insert(prefix);
    }
    assert_eq!(prefixes.len(), names.len());
    let taken = prefixes.first().unwrap();
    apply(plane, &tenant("three", &json!({"cidr": taken})));
    let three = ["tenantcluster", "three"];
    wait_until_condition(plane, &three, "AddressesReady", "False PrefixInUse");
    apply(plane, &tenant("three", &json!({"cidr": "10.143.255.0/28"})));
    wait_until_condition(plane, &three, "AddressesReady", "True AddressesReady");
    plane.get_json(&["prefixclaim", "10.143.255.0-28"]).unwrap();
    plane.kubectl(&["delete", "tenantcluster", "one", "two", "three", "--wait=false"]).unwrap();
    plane
        .wait_until("the prefixes are in quarantine", SHORT_TIMEOUT, |plane| {
            let claims = list_items(plane, &["prefixclaims"]);
            let is_released = |claim: &Value| !claim["status"]["releasedAt"].is_null();
            (claims.len() == 3 && claims.iter().all(is_released)).then_some(())
        })
        .unwrap();
}

fn claims_are_deleted_with_their_tenant(plane: &ControlPlane) {
    plane.kubectl(&["delete", "tenantcluster", "shop", "--wait=false"]).unwrap();
    let mut last = Vec::new();
    let done = plane.wait_until("no claim remains", 2 * SHORT_TIMEOUT, |plane| {
        last = list_items(plane, &["addressclaims"]);
        (last.is_empty() && plane.get_json(&TENANT_OBJECT).is_err()).then_some(())
    });
    done.unwrap_or_else(|error| panic!("{error}: {last:#?}\n{}", plane.log_tail("first")));
}
