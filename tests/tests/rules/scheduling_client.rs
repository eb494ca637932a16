//! API requests that must succeed, and waits for the scheduler's decisions.

use std::time::{Duration, Instant};

use berth_tests::cluster::{ApiClient, ControlPlane};
use serde_json::{Value, json};

pub(crate) struct SchedulingClient(ApiClient);

/// Time limit for the scheduler's decision about one pod, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the scheduler's caches to receive deletions from a watch. The caches cannot be read through the API; their
/// update takes a few milliseconds.
const WATCH_DELAY: Duration = Duration::from_millis(50);

impl SchedulingClient {
    pub(crate) fn new(plane: &ControlPlane) -> Self {
        Self(plane.api_client())
    }

    #[track_caller]
    fn send_checked(&self, method: &str, path: &str, body: &Value) -> Value {
        let content = if body.is_null() { String::new() } else { body.to_string() };
        let response = self.0.send_body(method, path, "application/json", &content);
        assert!(matches!(response, Some(Ok(_))), "{method} {path}: {response:?}\n{body:#}");
        serde_json::from_str(&response.unwrap().unwrap()).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        self.send_checked("GET", path, &Value::Null)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) {
        self.send_checked("POST", path, body);
    }

    pub(crate) fn put(&self, path: &str, body: &Value) {
        self.send_checked("PUT", path, body);
    }

    pub(crate) fn delete(&self, path: &str) {
        self.send_checked("DELETE", path, &json!({"gracePeriodSeconds": 0}));
        std::thread::sleep(WATCH_DELAY);
    }

    /// Waits for the scheduler's decision, and returns the pod.
    pub(crate) fn wait_until_scheduled(&self, path: &str) -> Value {
        let begin = Instant::now();
        loop {
            let pod = self.get(path);
            let condition = condition(&pod);
            // Any other reason is an error, after which the scheduler retries the pod.
            let is_refused =
                condition["status"] == "False" && condition["reason"] == "Unschedulable";
            if pod["spec"]["nodeName"].is_string() || is_refused {
                return pod;
            }
            assert!(
                begin.elapsed() < TIMEOUT,
                "no scheduler has decided about {path}: {:#}",
                pod["status"]
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until a pod has a host; the scheduler may refuse the pod at first.
    pub(crate) fn wait_until_bound(&self, path: &str) {
        let begin = Instant::now();
        loop {
            let pod = self.get(path);
            if pod["spec"]["nodeName"].is_string() {
                return;
            }
            assert!(begin.elapsed() < TIMEOUT, "{path} was not bound: {}", condition(&pod));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the scheduler counts all Nodes: for a pod that fits on no host, the scheduler reports the number
    /// of Nodes.
    pub(crate) fn wait_until_nodes_are_counted(&self, number: u64) {
        let (begin, pods) = (Instant::now(), "/api/v1/namespaces/red/pods");
        loop {
            let pod = json!({"metadata": {"name": "probe"}, "spec": {
                "nodeSelector": {"no": "host"}, "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "none"}]}});
            self.post(pods, &pod);
            let probe = self.wait_until_scheduled(&format!("{pods}/probe"));
            self.delete(&format!("{pods}/probe"));
            let message = condition(&probe)["message"].to_string();
            if message.contains(&format!("0/{number} nodes")) {
                std::thread::sleep(WATCH_DELAY * 10);
                return;
            }
            assert!(
                begin.elapsed() < TIMEOUT,
                "the scheduler does not count {number} Nodes: {message}"
            );
        }
    }
}

/// Returns the condition `PodScheduled`, or null if there is no decision yet.
pub(crate) fn condition(pod: &Value) -> &Value {
    let conditions = pod["status"]["conditions"].as_array();
    conditions
        .and_then(|all| all.iter().find(|one| one["type"] == "PodScheduled"))
        .unwrap_or(&Value::Null)
}
