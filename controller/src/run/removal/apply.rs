//! Sends the requests of a step to the tenant's API server, and records the answers.

use std::time::{Duration, Instant};

use berth_runtime::untrusted::{CollectionEvent, RequestFailure, UntrustedError};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::context::Remover;
use super::delays::SHORT_DELAY;
use super::drain::{Drain, MarkedMachine};
use super::facts::{MachineNode, TenantConnection};
use super::plan::StepRequest;
use super::requests;
use crate::removal::eviction::EvictionOutcome;
use crate::removal::pod::DrainPod;
use crate::removal::progress;
use crate::run::api_requests::RequestError;
use crate::tenant_nodes::node::NodeObject;

/// Delay between the cordon of a Node and the list of its pods. A scheduler that has not yet received the cordon may
/// still bind a pod to the Node; after this delay, the list contains that pod.
const CORDON_DELAY: Duration = Duration::from_secs(2);

impl Remover {
    /// Sends the request of a step. Returns the delay before the next reconcile if the removal has to wait.
    pub(super) async fn apply(
        &self,
        request: StepRequest,
        connection: &TenantConnection,
        machine: &mut MarkedMachine,
        drain: &mut Drain,
    ) -> Result<Option<Duration>, RequestError> {
        let is_cordon = request == StepRequest::Cordon;
        let description = request.describe(machine, connection.node.as_ref());
        let client = &connection.access.client;
        let result = match (request, &connection.node) {
            (StepRequest::Cordon, Some(node)) => self.cordon(connection, node, true).await,
            (StepRequest::ListPods, Some(node)) => {
                if !self.record_progress(machine, &node.name, None).await? {
                    return Ok(Some(SHORT_DELAY));
                }
                let listed = requests::list_pods(client, &node.name, Timestamp::now()).await;
                listed.map_err(RequestFailure::from).map(|mut pods| {
                    drain.observed_at = Instant::now();
                    let table = &self.context.table;
                    table.update_grace_periods(&machine.namespace, &machine.name, &mut pods);
                    drain.pods = Some(pods);
                })
            }
            (StepRequest::ListVolumes, node) => {
                let node = node.as_ref().map(|node| node.name.clone());
                let node = node.unwrap_or_else(|| progress::node_name(&machine.object));
                let tenant = (connection.tenant.as_str(), client);
                let counted = self.volume_lists.count(tenant, &node, drain.observed_at).await;
                counted.map_err(RequestFailure::from).map(|count| drain.set_volume_count(count))
            }
            (StepRequest::ConfirmNoNode, _) => {
                let listed = requests::list_nodes_of(client, &machine.name).await;
                let listed = listed.map_err(RequestFailure::from);
                listed.map(|nodes| self.handle_nodes(connection, nodes, drain))
            }
            (StepRequest::DeleteNode, Some(node)) => {
                let reason = Some(machine.removal.reason);
                if !self.record_progress(machine, &node.name, reason).await? {
                    return Ok(Some(SHORT_DELAY));
                }
                self.delete_node(connection, node, machine, drain).await
            }
            (StepRequest::Evict(due), _) => {
                evict_pods(connection, &due, drain).await.map_err(RequestFailure::from)
            }
            // Unreachable: the plan contains the other requests only for a machine with a Node.
            _ => evict_pods(connection, &[], drain).await.map_err(RequestFailure::from),
        };
        match result {
            Err(failure) => drain.record_failure(machine, &description, &failure),
            Ok(()) if is_cordon => {
                self.context.table.begin_wait(&machine.namespace, &machine.name, CORDON_DELAY);
                return Ok(Some(CORDON_DELAY));
            }
            Ok(()) => {}
        }
        Ok(None)
    }

    pub(super) async fn cordon(
        &self,
        connection: &TenantConnection,
        node: &MachineNode,
        is_cordoned: bool,
    ) -> Result<(), RequestFailure> {
        let client = &connection.access.client;
        let written = requests::set_cordoned(client, &node.name, &node.uid, is_cordoned).await?;
        tracing::info!(node = %node.name, is_cordoned, "set spec.unschedulable of a tenant's Node");
        self.update_node(connection, CollectionEvent::Applied(written));
        Ok(())
    }

    async fn delete_node(
        &self,
        connection: &TenantConnection,
        node: &MachineNode,
        machine: &MarkedMachine,
        drain: &mut Drain,
    ) -> Result<(), RequestFailure> {
        requests::delete_node(&connection.access.client, &node.name, &node.uid).await?;
        let (namespace, machine) = (&machine.namespace, &machine.name);
        tracing::info!(%namespace, %machine, node = %node.name, "deleted the Node of a machine");
        let name = json!({"metadata": {"name": node.name}});
        if let Ok(object) = serde_json::from_value(name) {
            self.update_node(connection, CollectionEvent::Deleted(object));
        }
        drain.pods = None;
        drain.is_node_deleted = true;
        Ok(())
    }

    /// Handles the Nodes that the tenant's API server has returned for a machine without a stored Node. The next step
    /// drains them.
    fn handle_nodes(
        &self,
        connection: &TenantConnection,
        nodes: Vec<NodeObject>,
        drain: &mut Drain,
    ) {
        drain.is_absence_confirmed = nodes.is_empty();
        if !nodes.is_empty() {
            // The number of volumes was counted for the recorded Node name, and these Nodes may have other names.
            drain.volume_count = None;
        }
        for node in nodes {
            self.update_node(connection, CollectionEvent::Applied(node));
        }
    }

    /// Updates the stored Nodes of the tenant after a request has changed one.
    fn update_node(&self, connection: &TenantConnection, event: CollectionEvent<NodeObject>) {
        self.context.connections.handle_node_answer(&connection.tenant, &connection.state, event);
    }
}

/// Evicts pods, and then lists the pods again. Stops at the first eviction that the server does not answer, or refuses
/// because it is busy.
async fn evict_pods(
    connection: &TenantConnection,
    due: &[DrainPod],
    drain: &mut Drain,
) -> Result<(), UntrustedError> {
    (drain.pods, drain.volume_count) = (None, None);
    for pod in due {
        let (outcome, retry_after) = requests::evict(&connection.access.client, pod).await?;
        let is_busy = outcome == EvictionOutcome::Busy;
        drain.retry_after = drain.retry_after.max(retry_after);
        drain.outcomes.insert(pod.uid.clone(), outcome);
        if is_busy {
            return Err(UntrustedError::Busy(429, retry_after));
        }
    }
    Ok(())
}
