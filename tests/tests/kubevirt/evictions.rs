//! Evictions of launcher pods, to which a webhook of virt-api responds.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use berth_tests::cluster::{ADMIN_TOKEN, condition};
use serde_json::{Value, json};

use crate::machines::{SHOP_NAMESPACE, launcher_pod, machines, wait_until_machines_run};
use crate::testbed::{Testbed, text};

/// User of the controller.
const CONTROLLER: &str = "system:serviceaccount:berth-system:berth-controller";

/// Tests a VM with the eviction strategy `External`: virt-api refuses the eviction and writes the Node to the status of
/// the instance, and the controller migrates the machine live if another host fits, and otherwise replaces it.
pub(crate) fn evicted_machine_leaves_its_host(bed: &Testbed) {
    let machine = machines(bed, SHOP_NAMESPACE, "web").remove(0);
    assert_eq!(machine["spec"]["template"]["spec"]["evictionStrategy"], "External");
    let name = text(&machine["metadata"]["name"]);
    let pod = launcher_pod(bed, SHOP_NAMESPACE, &machine);
    let host = text(&pod["spec"]["nodeName"]);
    bed.simulation.completes_migrations.store(false, Ordering::SeqCst);
    let (code, response) = evict(bed, &pod);
    assert_eq!(code, 429, "{response:#}");
    let message = text(&response["message"]);
    assert!(message.contains("Eviction triggered evacuation of VMI"), "{message}");
    bed.wait_until("the host reports its evacuation", &["infranode", host], || {
        let condition = condition(&bed.plane.infra_node(host), "Draining").clone();
        (condition["reason"] == "PodsEvicted" && text(&condition["message"]).contains(name))
            .then_some(())
    });
    bed.simulation.completes_migrations.store(true, Ordering::SeqCst);
    bed.wait_until("the machine has left its host", &["vmi", name, "-n", SHOP_NAMESPACE], || {
        let instance = bed.get("vmi", SHOP_NAMESPACE, name);
        (instance.is_null() || instance["status"]["nodeName"] != host).then_some(())
    });
    for migration in bed.list("virtualmachineinstancemigrations", &["-n", SHOP_NAMESPACE]) {
        assert!(text(&migration["metadata"]["name"]).starts_with("berth-drain-"), "{migration:#}");
    }
    let replicas =
        bed.get("machinedeployment", SHOP_NAMESPACE, "web")["spec"]["replicas"].as_u64().unwrap();
    wait_until_machines_run(bed, SHOP_NAMESPACE, "web", replicas);
    bed.wait_until("the evacuation has ended", &["infranode", host], || {
        condition(&bed.plane.infra_node(host), "Draining").is_null().then_some(())
    });
    bed.assert_kubelets_admit();
}

/// Tests that an uncordoned host keeps its machine: the controller ends the evacuation through a subresource of
/// virt-api, with its own permissions. All hosts are cordoned before, so the machine can neither be migrated nor
/// replaced.
pub(crate) fn cancelled_evacuation_keeps_the_machine(bed: &Testbed) {
    let machine = machines(bed, SHOP_NAMESPACE, "web").remove(0);
    let name = text(&machine["metadata"]["name"]);
    let instance = bed.get("vmi", SHOP_NAMESPACE, name);
    let pod = launcher_pod(bed, SHOP_NAMESPACE, &machine);
    let host = text(&pod["spec"]["nodeName"]);
    for node in bed.list("nodes", &[]) {
        bed.plane.kubectl(&["cordon", text(&node["metadata"]["name"])]).unwrap();
    }
    let (code, response) = evict(bed, &pod);
    assert_eq!(code, 429, "{response:#}");
    bed.wait_until("the host reports its evacuation", &["infranode", host], || {
        let condition = condition(&bed.plane.infra_node(host), "Draining").clone();
        (condition["reason"] == "HostCordoned" && text(&condition["message"]).contains(name))
            .then_some(())
    });
    assert_eq!(bed.get("vmi", SHOP_NAMESPACE, name)["status"]["evacuationNodeName"], host);
    bed.plane.kubectl(&["uncordon", host]).unwrap();
    bed.wait_until(
        "virt-api has ended the evacuation",
        &["vmi", name, "-n", SHOP_NAMESPACE],
        || {
            let instance = bed.get("vmi", SHOP_NAMESPACE, name);
            text(&instance["status"]["evacuationNodeName"]).is_empty().then_some(())
        },
    );
    bed.wait_until("the host is not drained", &["infranode", host], || {
        condition(&bed.plane.infra_node(host), "Draining").is_null().then_some(())
    });
    let path =
        format!("/namespaces/{SHOP_NAMESPACE}/virtualmachineinstances/{name}/evacuate/cancel");
    bed.wait_until("the request is in the audit log", &["vmi", name, "-n", SHOP_NAMESPACE], || {
        let log = std::fs::read_to_string(bed.plane.folder().join("audit.log")).ok()?;
        let events = log.lines().filter(|line| line.contains(&path));
        let mut events = events.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_accepted = |event: &Value| {
            event["verb"] == "update"
                && event["user"]["username"] == CONTROLLER
                && event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
        };
        events.any(|event| is_accepted(&event)).then_some(())
    });
    for node in bed.list("nodes", &[]) {
        bed.plane.kubectl(&["uncordon", text(&node["metadata"]["name"])]).unwrap();
    }
    let kept = bed.get("vmi", SHOP_NAMESPACE, name);
    assert_eq!(kept["metadata"]["uid"], instance["metadata"]["uid"], "{kept:#}");
    assert_eq!(kept["status"]["nodeName"], host);
    let replicas =
        bed.get("machinedeployment", SHOP_NAMESPACE, "web")["spec"]["replicas"].as_u64().unwrap();
    wait_until_machines_run(bed, SHOP_NAMESPACE, "web", replicas);
}

/// Requests the eviction of a pod, and returns the status code and the response. kubectl does not print the code.
fn evict(bed: &Testbed, pod: &Value) -> (u16, Value) {
    let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace}});
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-w", "\n%{http_code}", "-X", "POST", "--cacert"]);
    curl.arg(bed.plane.authority());
    curl.args(["-H", &format!("Authorization: Bearer {ADMIN_TOKEN}")]);
    curl.args(["-H", "Content-Type: application/json", "--data-binary", "@-"]);
    curl.arg(format!("https://127.0.0.1:{}{path}", bed.plane.port()));
    curl.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = curl.spawn().unwrap();
    child.stdin.take().unwrap().write_all(eviction.to_string().as_bytes()).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let (body, code) = output.rsplit_once('\n').unwrap();
    (code.parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}
