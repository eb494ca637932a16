//! Agent, its simulated host, and the proxy between the agent and the control plane.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use berth_tests::cluster::proxy::{Behaviour, Proxy, Request, RequestFilter};
use berth_tests::cluster::{ControlPlane, condition};
use serde_json::{Value, json};

use crate::agent::{self, Agent, read_file};
use crate::tree::Tree;

/// Time limit for actions of the agent in its next one or two cycles.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_secs(20);
const SLEEP_FILE: &str = "sys/kernel/mm/ksm/sleep_millisecs";
const DISTANCES_FILE: &str = "sys/devices/system/node/node0/distance";

pub(crate) struct Testbed<'a> {
    pub(crate) plane: &'a ControlPlane,
    pub(crate) name: &'static str,
    pub(crate) proxy: Proxy,
    pub(crate) agent: Agent,
    tree: Tree,
    port: u16,
    log: PathBuf,
}

impl<'a> Testbed<'a> {
    /// Starts an agent, and waits until it has applied its first spec and updated the status.
    pub(crate) fn start(plane: &'a ControlPlane, name: &'static str) -> Self {
        plane.create_node(name).unwrap();
        let proxy = Proxy::start(plane).unwrap();
        let kubeconfig = proxy
            .write_kubeconfig(plane, name, &plane.create_token("berth-agent").unwrap())
            .unwrap();
        let (tree, port) = (crate::host::rack1_a(), agent::free_port());
        let log = plane.folder().join(format!("{name}.log"));
        let agent = Agent::start(&tree, name, &kubeconfig, port, log.clone());
        let bed = Self { plane, name, proxy, agent, tree, port, log };
        bed.wait_until("an InfraNode exists", SHORT_TIMEOUT, || plane.infra_node(name).is_object());
        bed.set_sleep(50);
        bed.wait_until_applied(50, SHORT_TIMEOUT);
        bed.wait_until_observed("True", SHORT_TIMEOUT);
        bed
    }

    pub(crate) fn wait_until(
        &self,
        description: &str,
        timeout: Duration,
        condition: impl Fn() -> bool,
    ) {
        let result = self.plane.wait_until(description, timeout, |_| condition().then_some(()));
        assert!(result.is_ok(), "{}: {}", self.name, result.unwrap_err());
    }

    /// Changes the spec of the InfraNode as an operator does, without the proxy.
    pub(crate) fn set_sleep(&self, sleep: u32) {
        let spec = json!({"ksm": {"mode": "On", "sleepMillis": sleep}});
        self.plane.set_infra_node_spec(self.name, &spec).unwrap();
    }

    /// Waits until the host has the requested value.
    pub(crate) fn wait_until_applied(&self, sleep: u32, timeout: Duration) {
        let wanted = sleep.to_string();
        self.wait_until(&format!("the host has the value {sleep}"), timeout, || {
            read_file(&self.tree, SLEEP_FILE) == wanted
        });
    }

    /// Waits until the status is for the latest spec.
    pub(crate) fn wait_until_observed(&self, ready: &str, timeout: Duration) -> Value {
        self.wait_until(&format!("Ready {ready} for the latest generation"), timeout, || {
            let node = self.plane.infra_node(self.name);
            let latest = node["status"]["observedGeneration"] == node["metadata"]["generation"];
            latest && condition(&node, "Ready")["status"] == ready
        });
        self.plane.infra_node(self.name)
    }

    /// Asserts that the agent still corrects drift of the host, also while the API server is degraded.
    pub(crate) fn assert_drift_is_corrected(&self, sleep: u32) {
        self.tree.write_file(SLEEP_FILE, "1\n");
        self.wait_until_applied(sleep, SHORT_TIMEOUT);
        let address = format!("http://127.0.0.1:{}/healthz", self.port);
        let curl = Command::new("curl").args(["-sS", "-w", " %{http_code}", &address]).output();
        assert_eq!(String::from_utf8_lossy(&curl.unwrap().stdout), "ok\n 200");
    }

    /// Changes a fact of the host that the agent reports in the status.
    pub(crate) fn set_distance(&self, distance: u32) {
        self.tree.write_file(DISTANCES_FILE, format!("10 {distance}\n"));
    }

    pub(crate) fn reports_distance(&self, distance: u32) -> bool {
        let node = self.plane.infra_node(self.name);
        node["status"]["zones"][0]["distances"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["distance"] == distance))
    }

    /// Returns the log so far, for comparison with a later log.
    pub(crate) fn read_log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log contains `text` after its earlier content `before`.
    pub(crate) fn wait_until_logged(&self, before: &str, text: &str, timeout: Duration) {
        self.wait_until(&format!("the log contains `{text}`"), timeout, || {
            self.read_log().strip_prefix(before).is_some_and(|new| new.contains(text))
        });
    }

    /// Ends all faults: the proxy then forwards everything unchanged.
    pub(crate) fn stop_faults(&self) {
        self.proxy.set_behaviour(RequestFilter::All, Behaviour::Forward);
    }

    /// Returns the number of status updates that the server has accepted.
    pub(crate) fn status_writes(&self, mark: usize) -> usize {
        let path = format!("/apis/berth.dev/v1alpha1/infranodes/{}/status", self.name);
        let requests = self.proxy.requests_since(mark);
        requests.iter().filter(|one| one.path == path && one.code == Some(200)).count()
    }
}

/// Groups requests by verb and path, in order of arrival. Events are omitted, because they are not retried.
pub(crate) fn group_by_path(requests: &[Request]) -> BTreeMap<(String, String), Vec<Request>> {
    let mut kinds: BTreeMap<_, Vec<Request>> = BTreeMap::new();
    for request in requests.iter().filter(|request| !request.path.ends_with("/events")) {
        let kind = (request.verb.clone(), request.path.clone());
        kinds.entry(kind).or_default().push(request.clone());
    }
    kinds
}
