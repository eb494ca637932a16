//! An agent, its made-up host, and the proxy between it and the control plane.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use berth_tests::cluster::proxy::{Mood, Proxy, Request, Which};
use berth_tests::cluster::{ControlPlane, condition};
use serde_json::{Value, json};

use crate::agent::{self, Agent, file};
use crate::tree::Tree;

/// For what the agent does in its next cycle or two.
pub(crate) const SOON: Duration = Duration::from_secs(20);
const SLEEP: &str = "sys/kernel/mm/ksm/sleep_millisecs";
const DISTANCES: &str = "sys/devices/system/node/node0/distance";

pub(crate) struct Bed<'a> {
    pub(crate) plane: &'a ControlPlane,
    pub(crate) name: &'static str,
    pub(crate) proxy: Proxy,
    pub(crate) agent: Agent,
    tree: Tree,
    port: u16,
    log: PathBuf,
}

impl<'a> Bed<'a> {
    /// An agent that has carried out and answered its first spec.
    pub(crate) fn start(plane: &'a ControlPlane, name: &'static str) -> Self {
        plane.make_node(name).unwrap();
        let proxy = Proxy::start(plane).unwrap();
        let kubeconfig =
            proxy.kubeconfig(plane, name, &plane.token_of("berth-agent").unwrap()).unwrap();
        let (tree, port) = (crate::host::rack1_a(), agent::free_port());
        let log = plane.folder().join(format!("{name}.log"));
        let agent = Agent::start(&tree, name, &kubeconfig, port, log.clone());
        let bed = Self { plane, name, proxy, agent, tree, port, log };
        bed.until("an InfraNode", SOON, || plane.infra_node(name).is_object());
        bed.ask(50);
        bed.is_at(50, SOON);
        bed.has_answered("True", SOON);
        bed
    }

    pub(crate) fn until(&self, what: &str, timeout: Duration, is_so: impl Fn() -> bool) {
        let answer = self.plane.until(what, timeout, |_| is_so().then_some(()));
        assert!(answer.is_ok(), "{}: {}", self.name, answer.unwrap_err());
    }

    /// A person asks, who has another way to the server.
    pub(crate) fn ask(&self, sleep: u32) {
        let spec = json!({"ksm": {"mode": "On", "sleepMillis": sleep}});
        self.plane.ask(self.name, &spec).unwrap();
    }

    /// The host becomes what was asked for.
    pub(crate) fn is_at(&self, sleep: u32, timeout: Duration) {
        let wanted = sleep.to_string();
        self.until(&format!("the host is at {sleep}"), timeout, || {
            file(&self.tree, SLEEP) == wanted
        });
    }

    /// The status is of the latest spec.
    pub(crate) fn has_answered(&self, ready: &str, timeout: Duration) -> Value {
        self.until(&format!("Ready {ready} for the latest generation"), timeout, || {
            let node = self.plane.infra_node(self.name);
            let latest = node["status"]["observedGeneration"] == node["metadata"]["generation"];
            latest && condition(&node, "Ready")["status"] == ready
        });
        self.plane.infra_node(self.name)
    }

    /// The agent is alive, and keeps the host in shape whatever its server does.
    pub(crate) fn lives(&self, sleep: u32) {
        self.tree.file(SLEEP, "1\n");
        self.is_at(sleep, SOON);
        let address = format!("http://127.0.0.1:{}/healthz", self.port);
        let curl = Command::new("curl").args(["-sS", "-w", " %{http_code}", &address]).output();
        assert_eq!(String::from_utf8_lossy(&curl.unwrap().stdout), "ok\n 200");
    }

    /// A fact of the host changes, which the status tells.
    pub(crate) fn distance(&self, distance: u32) {
        self.tree.file(DISTANCES, format!("10 {distance}\n"));
    }

    pub(crate) fn tells_distance(&self, distance: u32) -> bool {
        let node = self.plane.infra_node(self.name);
        node["status"]["zones"][0]["distances"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["distance"] == distance))
    }

    /// The log, to find later what was added.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until the log has a text that it had not yet.
    pub(crate) fn says(&self, before: &str, text: &str, timeout: Duration) {
        self.until(&format!("the log says `{text}`"), timeout, || {
            self.said().strip_prefix(before).is_some_and(|new| new.contains(text))
        });
    }

    /// Back to a proxy that passes everything on.
    pub(crate) fn get_well(&self) {
        self.proxy.mood(Which::All, Mood::Well);
    }

    /// Writes of the status that the server took.
    pub(crate) fn status_writes(&self, mark: usize) -> usize {
        let path = format!("/apis/berth.dev/v1alpha1/infranodes/{}/status", self.name);
        let requests = self.proxy.since(mark);
        requests.iter().filter(|one| one.path == path && one.code == Some(200)).count()
    }
}

/// Requests by what they are, each in the order in which they came. An Event is tried once, and so left out.
pub(crate) fn by_kind(requests: &[Request]) -> BTreeMap<(String, String), Vec<Request>> {
    let mut kinds: BTreeMap<_, Vec<Request>> = BTreeMap::new();
    for request in requests.iter().filter(|request| !request.path.ends_with("/events")) {
        let kind = (request.verb.clone(), request.path.clone());
        kinds.entry(kind).or_default().push(request.clone());
    }
    kinds
}
