//! Makes kube-scheduler retry pods that wait for resources: kube-scheduler retries pods when a watched field of a
//! Node changes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use berth_api::names::CAPACITY_GENERATION_ANNOTATION;
use berth_runtime::call::with_timeout;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::Patch;
use serde_json::json;

use super::service::ExtenderService;
use crate::run::api_requests::patch_params;

/// Time for which changes are collected before Nodes are patched, so that many changes lead to one round of patches.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Minimum interval between two rounds. In a round, up to [`MAX_NODES_PER_ROUND`] Nodes are patched.
const ROUND_INTERVAL: Duration = Duration::from_millis(250);
/// Retry delay after a failed request, or while the extender of another replica makes the decisions.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of Nodes that are patched in a round. After each patch, old schedulers retry all pods, and newer
/// schedulers retry the pods that may fit on the Node.
const MAX_NODES_PER_ROUND: usize = 8;
/// First version of Kubernetes whose scheduler retries pods after a change of a Node's annotations; older schedulers
/// only consider labels.
const MIN_ANNOTATIONS_VERSION: (u32, u32) = (1, 21);

/// Task that makes kube-scheduler retry waiting pods.
pub(super) struct PodWaker {
    service: Arc<ExtenderService>,
}

impl PodWaker {
    pub(super) fn new(service: &Arc<ExtenderService>) -> Self {
        Self { service: Arc::clone(service) }
    }

    /// Changes an annotation or a label of each Node on which a waiting pod fits; never ends.
    pub(super) async fn run(self) {
        let has_annotations = self.api_server_version().await >= MIN_ANNOTATIONS_VERSION;
        let service = &self.service;
        // Nodes that are still to be changed, because a round had too many Nodes or a request failed.
        let mut pending_hosts: VecDeque<String> = VecDeque::new();
        loop {
            service.state_changed.notified().await;
            tokio::time::sleep(DEBOUNCE).await;
            if !service.extender().has_refused_pods() {
                pending_hosts.clear();
                continue;
            }
            let now = std::time::Instant::now();
            if service.readiness_gate.wait_until_allowed(now).await.is_err() {
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
            let new = service.extender().take_hosts_to_patch();
            pending_hosts.extend(
                new.into_iter().filter(|host| !pending_hosts.contains(host)).collect::<Vec<_>>(),
            );
            let round: Vec<String> =
                pending_hosts.drain(..pending_hosts.len().min(MAX_NODES_PER_ROUND)).collect();
            let mut failed = 0;
            for host in &round {
                if !self.patch_node(host, has_annotations).await {
                    failed += 1;
                    pending_hosts.push_back(host.clone());
                }
            }
            if !round.is_empty() {
                tokio::time::sleep(if failed < round.len() { ROUND_INTERVAL } else { RETRY_DELAY })
                    .await;
            }
            if !pending_hosts.is_empty() {
                service.state_changed.notify_one();
            }
        }
    }

    /// Returns the major and minor version of the API server.
    async fn api_server_version(&self) -> (u32, u32) {
        loop {
            match with_timeout(self.service.client.apiserver_version()).await {
                Ok(version) => {
                    // Some distributions append a plus sign to the minor version.
                    let number = |text: &str| {
                        let digits = text.chars().take_while(char::is_ascii_digit);
                        digits.collect::<String>().parse().unwrap_or_default()
                    };
                    return (number(&version.major), number(&version.minor));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to read the API server's version; trying again");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Sets an annotation or a label of a Node to the current time. Returns false if the request failed and must be
    /// repeated.
    async fn patch_node(&self, node: &str, has_annotations: bool) -> bool {
        let nodes: Api<Node> = Api::all(self.service.client.clone());
        let field = if has_annotations { "annotations" } else { "labels" };
        let now = Timestamp::now().as_millisecond().to_string();
        let patch =
            Patch::Merge(json!({"metadata": {field: {CAPACITY_GENERATION_ANNOTATION: now}}}));
        let params = patch_params();
        match with_timeout(nodes.patch_metadata(node, &params, &patch)).await {
            Ok(_) => {
                self.service.metrics.assignment.count_wake();
                tracing::debug!(node, "patched a Node on which a waiting pod fits");
                true
            }
            Err(error) if error.status_code() == Some(404) => true,
            Err(error) => {
                tracing::warn!(
                    node,
                    field,
                    key = CAPACITY_GENERATION_ANNOTATION,
                    %error,
                    "failed to patch a Node; trying again"
                );
                false
            }
        }
    }
}
