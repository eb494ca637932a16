//! Tests of the NodeResourceTopology, which an agent writes with the option `--node-resource-topology`.

use std::time::Duration;

use berth_tests::cluster::ControlPlane;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::tree::Tree;
use crate::{apply_spec, read_file, read_node, reports, repository, set_spec};

const SHORT_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a write after a refusal: the agent retries after up to half a minute.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
/// Path for [`ControlPlane::get_raw`], which returns the unmodified response with the managed fields.
const OBJECT_PATH: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/rack1-a";
/// Unused huge pages of the simulated host, in zone 1.
const FREE_PAGES_FILE: &str =
    "sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages";

pub(crate) fn topology_is_written_if_enabled(plane: &ControlPlane, tree: &Tree, agent: &mut Agent) {
    assert_eq!(count_requests(plane), 0, "without the option, there should be no requests");
    agent_works_without_the_crd(plane, tree, agent);
    let deploy = repository().join("tests/cluster/noderesourcetopologies.yaml");
    plane.kubectl(&["apply", "-f", deploy.to_str().unwrap()]).unwrap();
    zones_are_reported(plane);
    object_is_updated_after_host_changes(plane, tree);
    object_of_another_manager_is_kept(plane, tree);
    plane.kubectl(&["delete", "noderesourcetopology", "rack1-a"]).unwrap();
    agent.restart(&[]);
    missing_object_is_recreated(plane);
}

fn agent_works_without_the_crd(plane: &ControlPlane, tree: &Tree, agent: &mut Agent) {
    let rights = repository().join("deploy/components/node-resource-topology/rbac.yaml");
    plane.kubectl(&["apply", "-f", rights.to_str().unwrap()]).unwrap();
    agent.restart(&["--node-resource-topology"]);
    let expected = "failed to write the object kind=\"NodeResourceTopology\" name=rack1-a";
    wait_until_logged(plane, expected);
    for sleep in [61, 62] {
        set_spec(plane, &json!({"ksm": {"sleepMillis": sleep}}));
        apply_spec::wait_until_ready(plane, "True");
        assert_eq!(read_file(tree, apply_spec::SLEEP_FILE), sleep.to_string());
    }
    // The agent has retried several times by now.
    plane
        .wait_until("the agent retries", SHORT_TIMEOUT, |plane| {
            (count_requests(plane) > 2).then_some(())
        })
        .unwrap();
    assert_eq!(read_log(plane).matches(expected).count(), 1, "{}", read_log(plane));
}

fn zones_are_reported(plane: &ControlPlane) {
    let object = plane.wait_until("the object exists", RETRY_TIMEOUT, read_object).unwrap();
    let owner = &object["metadata"]["ownerReferences"];
    let expected = json!([{"apiVersion": "v1", "kind": "Node", "name": "rack1-a", "uid": read_node(plane)["metadata"]["uid"]}]);
    assert_eq!(*owner, expected);
    assert_eq!(
        object["attributes"],
        json!([{"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "container"}])
    );
    let zone = |id: u32, cpus: &str, pages: &str| {
        let costs = [(0, if id == 0 { 10 } else { 32 }), (1, if id == 1 { 10 } else { 32 })];
        let costs = costs.map(|(to, value)| json!({"name": format!("node-{to}"), "value": value}));
        let gib = |count: &str| json!({"name": "hugepages-1Gi", "capacity": count, "allocatable": count, "available": count});
        json!({"name": format!("node-{id}"), "type": "Node", "costs": costs, "resources": [
            {"name": "cpu", "capacity": "48", "allocatable": "46", "available": cpus},
            {"name": "memory", "capacity": "252Gi", "allocatable": "228Gi", "available": "228Gi"},
            {"name": "hugepages-2Mi", "capacity": "8Gi", "allocatable": "8Gi", "available": pages},
            gib("16Gi"),
        ]})
    };
    assert_eq!(object["zones"], json!([zone(0, "38", "6Gi"), zone(1, "46", "8Gi")]), "{object:#}");
    // Afterwards the agent sends no requests, although its cycles continue.
    let before = count_requests(plane);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(count_requests(plane), before);
}

fn object_is_updated_after_host_changes(plane: &ControlPlane, tree: &Tree) {
    tree.write_file(FREE_PAGES_FILE, "3072\n");
    plane
        .wait_until("the available pages decrease", SHORT_TIMEOUT, |plane| {
            (available_pages(&read_object(plane)?) == "6Gi").then_some(())
        })
        .unwrap();
}

/// Tests that the agent does not write the object after the exporter of another project has become its owner.
fn object_of_another_manager_is_kept(plane: &ControlPlane, tree: &Tree) {
    let theirs = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": "rack1-a"},
        "zones": [{"name": "node-0", "type": "Node"}],
    });
    let apply =
        ["apply", "--server-side", "--force-conflicts", "--field-manager=exporter", "-f", "-"];
    plane.kubectl_with(&plane.kubeconfig(), &apply, &theirs.to_string()).unwrap();
    let before = plane.get_raw(OBJECT_PATH).unwrap();
    tree.write_file(FREE_PAGES_FILE, "2048\n");
    let expected = "other managers own its fields: exporter";
    wait_until_logged(plane, expected);
    plane
        .wait_until("an Event exists", SHORT_TIMEOUT, |plane| {
            let events = plane.get_json(&["events", "-n", "default"]).ok()?.to_string();
            (events.contains("ManagedElsewhere") && events.contains("exporter")).then_some(())
        })
        .unwrap();
    let requests_before = count_requests(plane);
    tree.write_file(FREE_PAGES_FILE, "1024\n");
    // The test waits until the InfraNode has the new value. An agent that owns the NodeResourceTopology would have
    // written the value to this object as well.
    plane
        .wait_until("the InfraNode has the new value", SHORT_TIMEOUT, |plane| {
            let pools = &crate::read_infra_node(plane)["status"]["zones"][1]["hugepages"];
            pools.as_array()?.iter().any(|pool| pool["free"] == 1024).then_some(())
        })
        .unwrap();
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(plane.get_raw(OBJECT_PATH).unwrap(), before);
    assert_eq!(count_requests(plane), requests_before, "the agent retries only much later");
    assert_eq!(read_log(plane).matches(expected).count(), 1);
}

/// Tests that a missing object is created again, and that the current Node owns it.
pub(crate) fn missing_object_is_recreated(plane: &ControlPlane) {
    plane
        .wait_until("a new object exists", RETRY_TIMEOUT, |plane| {
            let object = read_object(plane)?;
            let owner = &object["metadata"]["ownerReferences"][0]["uid"];
            (available_pages(&object) == "2Gi" && *owner == read_node(plane)["metadata"]["uid"])
                .then_some(())
        })
        .unwrap();
}

fn read_object(plane: &ControlPlane) -> Option<Value> {
    serde_json::from_str(&plane.get_raw(OBJECT_PATH).ok()?).ok()
}

/// Returns the available huge pages of zone 1.
fn available_pages(object: &Value) -> String {
    let resources = object["zones"][1]["resources"].as_array();
    let pool = resources.and_then(|all| all.iter().find(|one| one["name"] == "hugepages-2Mi"));
    pool.and_then(|pool| pool["available"].as_str()).unwrap_or_default().to_owned()
}

/// Returns the number of the agent's requests for these objects.
fn count_requests(plane: &ControlPlane) -> usize {
    let is_topology_request =
        |line: &&Value| line["objectRef"]["resource"] == "noderesourcetopologies";
    reports::agent_requests(plane).iter().filter(is_topology_request).count()
}

fn read_log(plane: &ControlPlane) -> String {
    std::fs::read_to_string(plane.folder().join("agent.log")).unwrap_or_default()
}

fn wait_until_logged(plane: &ControlPlane, text: &str) {
    plane
        .wait_until(text, SHORT_TIMEOUT, |plane| read_log(plane).contains(text).then_some(()))
        .unwrap();
}
