//! Tests that a controller that is killed while it creates machines leaves no claim without a machine, no machine
//! without its claims, and no guest without its network data.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime};

use berth_api::AddressClaim;
use berth_tests::cluster::ControlPlane;
use berth_tests::controller::Controller;
use berth_tests::simulated::{create_client, create_runtime};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::{SHORT_TIMEOUT, apply, create_tenant, deployment, is_ipv4, list_items};

const NAMESPACE: &str = "cluster-many";
/// Number of machines at the end.
const MACHINES: u64 = 30;
/// Number of kills at random moments.
const KILLS: u64 = 20;
/// Steps of the creation of a machine: group and plural of the kind that is created.
const STEPS: [(&str, &str); 3] =
    [("berth.dev", "addressclaims"), ("kubevirt.io", "virtualmachines"), ("", "secrets")];
/// Time within which a controller starts, and within which an API server begins to call a new webhook.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Kills controllers while they create machines. Returns the last controller, which is running. All controllers have
/// the same identity, so each controller acquires the lease of its predecessor at once.
pub(super) fn killed_controller_leaves_no_orphans(
    plane: &ControlPlane,
    mut controller: Controller,
) -> Controller {
    let network = json!({
        "name": "tenant-trunk", "ipv4": {"cidr": "10.1.0.0/24"}, "ipv6": {"cidr": "fd00:121::/64"},
    });
    create_tenant(plane, "many", &network);
    let mut many = deployment("many", 1, "2Gi", None);
    many["metadata"]["namespace"] = NAMESPACE.into();
    apply(plane, &many);
    let mut replicas = 1;
    for (group, resource) in STEPS {
        let webhook = block_creations(plane, group, resource, "Fail", &json!({}));
        let held = loop {
            replicas += 1;
            scale(plane, replicas);
            if let Some(held) = accept(&webhook) {
                break held;
            }
            assert!(replicas < 10, "no {resource} are created\n{}", plane.log_tail("first"));
        };
        controller.running.stop();
        drop(held);
        plane.kubectl(&["delete", "validatingwebhookconfiguration", "hold"]).unwrap();
        controller = Controller::start(plane, "first", &[]).unwrap();
        assert_consistent(plane, replicas);
    }
    let first = replicas;
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    let mut random = u64::from(seed) | 1;
    let counter = ClaimCounter::new(plane);
    for kill in 1..=KILLS {
        let before = counter.count();
        replicas = first + (MACHINES - first) * kill / KILLS;
        scale(plane, replicas);
        let deadline = Instant::now() + START_TIMEOUT;
        while counter.count() == before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis((random >> 33) % 60));
        controller.running.stop();
        controller = Controller::start(plane, "first", &[]).unwrap();
    }
    eprintln!("{KILLS} kills, seed {seed}");
    assert_consistent(plane, MACHINES);
    controller
}

fn scale(plane: &ControlPlane, replicas: u64) {
    let replicas = format!("--replicas={replicas}");
    plane.kubectl(&["scale", "machinedeployment", "many", "-n", NAMESPACE, &replicas]).unwrap();
}

/// Creates a webhook that never answers, so that each creation of an object of this kind with these labels blocks in the
/// API server. The failure policy determines whether the API server creates the object after the webhook is closed.
pub(super) fn block_creations(
    plane: &ControlPlane,
    group: &str,
    resource: &str,
    failure_policy: &str,
    object_selector: &Value,
) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hold"},
        "webhooks": [{
            "name": "hold.berth.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": failure_policy, "timeoutSeconds": 30, "objectSelector": object_selector,
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/")},
            "rules": [{
                "apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource],
            }],
        }],
    });
    apply(plane, &webhook);
    listener
}

/// Returns the connection of the API server to the webhook; `None` if there is no connection, because the machine was
/// created before the API server knew the webhook.
pub(super) fn accept(webhook: &TcpListener) -> Option<TcpStream> {
    let deadline = Instant::now() + START_TIMEOUT;
    while Instant::now() < deadline {
        match webhook.accept() {
            Ok((held, _)) => return Some(held),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    None
}

/// Counts claims by an API client, because each start of kubectl takes too long.
struct ClaimCounter {
    runtime: tokio::runtime::Runtime,
    api: Api<AddressClaim>,
}

impl ClaimCounter {
    fn new(plane: &ControlPlane) -> Self {
        let runtime = create_runtime().unwrap();
        let client = runtime.block_on(create_client(&plane.kubeconfig())).unwrap();
        Self { runtime, api: Api::all(client) }
    }

    fn count(&self) -> usize {
        let listed = self.runtime.block_on(self.api.list_metadata(&ListParams::default()));
        listed.unwrap().items.len()
    }
}

/// Waits until this number of machines run, each with exactly one claim of each family and its network data.
fn assert_consistent(plane: &ControlPlane, count: u64) {
    let mut last = Vec::new();
    let done = plane.wait_until("no orphan exists", SHORT_TIMEOUT, |plane| {
        last = find_inconsistencies(plane, count);
        last.is_empty().then_some(())
    });
    done.unwrap_or_else(|error| panic!("{error}: {last:#?}\n{}", plane.log_tail("first")));
}

fn find_inconsistencies(plane: &ControlPlane, count: u64) -> Vec<String> {
    let mut found = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let claims = list_items(plane, &["addressclaims", "-l", "berth.dev/tenant=many"]);
    let vms = list_items(plane, &["virtualmachines", "-n", NAMESPACE]);
    let secrets = list_items(plane, &["secrets", "-n", NAMESPACE]);
    let status = plane.get_json(&["machinedeployment", "many", "-n", NAMESPACE]);
    let ready = status.unwrap_or_default()["status"]["readyReplicas"].as_u64();
    if vms.len() as u64 != count || ready != Some(count) {
        found.push(format!("{} machines exist, {ready:?} are ready, not {count}", vms.len()));
    }
    let names: BTreeSet<String> = vms.iter().map(|vm| text(&vm["metadata"]["name"])).collect();
    for claim in &claims {
        let machine = text(&claim["spec"]["machine"]["name"]);
        if !names.contains(&machine) || !claim["status"]["releasedAt"].is_null() {
            found.push(format!("{} is an orphan of {machine}", claim["metadata"]["name"]));
        }
    }
    let distinct = |field: &str| {
        claims.iter().map(|claim| text(&claim["spec"][field])).collect::<BTreeSet<_>>().len()
    };
    if distinct("address") != claims.len() || distinct("mac") != vms.len() {
        let (addresses, macs) = (distinct("address"), distinct("mac"));
        found.push(format!("{} claims, {addresses} addresses, {macs} MACs", claims.len()));
    }
    for vm in &vms {
        let name = &vm["metadata"]["name"];
        let own: Vec<&Value> =
            claims.iter().filter(|claim| claim["spec"]["machine"]["name"] == *name).collect();
        let ipv4 = own.iter().filter(|claim| is_ipv4(&text(&claim["spec"]["address"]))).count();
        let interfaces = &vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
        let mut interfaces = interfaces.as_array().into_iter().flatten();
        let interface = interfaces.find(|one| one["name"] == "tenant").cloned().unwrap_or_default();
        let has_one_mac = own.iter().all(|claim| claim["spec"]["mac"] == interface["macAddress"]);
        if own.len() != 2 || ipv4 != 1 || !has_one_mac {
            found.push(format!(
                "{name} with MAC address {} should have one claim of each family, and has {own:?}",
                interface["macAddress"]
            ));
        }
        let secret = secrets.iter().find(|secret| {
            secret["metadata"]["name"] == format!("userdata-{}", text(name)).as_str()
        });
        if secret.is_none_or(|secret| secret["data"]["networkdata"].is_null()) {
            found.push(format!("{name} has no network data"));
        }
    }
    found
}
