//! Wakes pods that wait for room: the scheduler looks at them again when a Node changes in a way that it looks at.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use berth_api::names::CAPACITY_GENERATION;
use berth_runtime::client::within;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::Patch;
use serde_json::json;

use super::Sidecar;
use crate::run::calls::patched_by;

/// A burst of changes is one look.
const SETTLE: Duration = Duration::from_millis(20);
/// Between one waking and the next.
const PAUSE: Duration = Duration::from_millis(250);
/// Between looks while another decides.
const IDLE: Duration = Duration::from_secs(2);
/// Nodes that are touched at once. Old schedulers look at all pods then, newer ones at those that the Node may be for.
const NODES: usize = 8;
/// Servers before look at labels of Nodes, and not at annotations.
const ANNOTATIONS: (u32, u32) = (1, 21);

/// What wakes.
pub(super) struct Wake {
    sidecar: Arc<Sidecar>,
}

impl Wake {
    pub(super) fn of(sidecar: &Arc<Sidecar>) -> Self {
        Self { sidecar: Arc::clone(sidecar) }
    }

    /// For ever.
    pub(super) async fn run(self) {
        let has_annotations = self.version().await >= ANNOTATIONS;
        let sidecar = &self.sidecar;
        // Nodes that are to be touched still: too many at once, or the API server did not take it.
        let mut left: VecDeque<String> = VecDeque::new();
        loop {
            sidecar.stirred.notified().await;
            tokio::time::sleep(SETTLE).await;
            if !sidecar.extender().has_waiting() {
                left.clear();
                continue;
            }
            let now = std::time::Instant::now();
            if sidecar.gate.pass(now).await.is_err() {
                tokio::time::sleep(IDLE).await;
                continue;
            }
            let new = sidecar.extender().wake();
            left.extend(new.into_iter().filter(|host| !left.contains(host)).collect::<Vec<_>>());
            let now: Vec<String> = left.drain(..left.len().min(NODES)).collect();
            let mut failed = 0;
            for host in &now {
                if !self.touch(host, has_annotations).await {
                    failed += 1;
                    left.push_back(host.clone());
                }
            }
            if !now.is_empty() {
                tokio::time::sleep(if failed < now.len() { PAUSE } else { IDLE }).await;
            }
            if !left.is_empty() {
                sidecar.stirred.notify_one();
            }
        }
    }

    async fn version(&self) -> (u32, u32) {
        loop {
            match within(self.sidecar.client.apiserver_version()).await {
                Ok(version) => {
                    // Some add a plus sign.
                    let number = |text: &str| {
                        let digits = text.chars().take_while(char::is_ascii_digit);
                        digits.collect::<String>().parse().unwrap_or_default()
                    };
                    return (number(&version.major), number(&version.minor));
                }
                Err(error) => {
                    tracing::warn!("the API server's version is not known: {error}; asking again");
                    tokio::time::sleep(IDLE).await;
                }
            }
        }
    }

    /// Says whether that is done: the Node is touched, or there is none.
    async fn touch(&self, host: &str, has_annotations: bool) -> bool {
        let nodes: Api<Node> = Api::all(self.sidecar.client.clone());
        let field = if has_annotations { "annotations" } else { "labels" };
        let now = Timestamp::now().as_millisecond().to_string();
        let patch = Patch::Merge(json!({"metadata": {field: {CAPACITY_GENERATION: now}}}));
        let params = patched_by();
        match within(nodes.patch_metadata(host, &params, &patch)).await {
            Ok(_) => {
                self.sidecar.metrics.assignment.woken();
                tracing::debug!("{host} has room for a pod that waits");
                true
            }
            Err(error) if error.code() == Some(404) => true,
            Err(error) => {
                tracing::warn!("Node {host}: {CAPACITY_GENERATION}: {error}; trying again");
                false
            }
        }
    }
}
