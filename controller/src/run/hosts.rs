//! Reconciler of hosts: writes spec and conditions of InfraNodes, and labels of Nodes.
//!
//! Normally this reconciler is the only writer of `InfraNode.spec`, which [`crate::profiles`] computes. If another
//! manager owns a field, the reconciler leaves the field to that manager.

use std::sync::Arc;
use std::time::Duration;

use berth_api::Condition;
use berth_api::names::CONTROLLER_STATUS_FIELD_MANAGER;
use berth_api::names::condition::{
    DRAINING, HOST_LOST, PROFILE_CONFLICT, PROFILE_INCOMPLETE, PROFILE_OVERRIDDEN,
};
use berth_api::{ConditionReason, HostProfile, InfraNode};
use berth_runtime::field_conflicts::{conflicting_managers, remove_field};
use berth_runtime::reconcile::ReconcilerOptions;
use futures::channel::mpsc::unbounded;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::apply::{ApplyTarget, FieldConflictPolicy};
use super::clock::now_in_seconds;
use super::context::Context;
use super::fleet_watch::{ChangeReceivers, ReconcileQueues, watch_fleet};
use super::reconcile::{ReconcileFailure, reconcile};
use super::unresponsive::UnresponsiveReason;
use crate::profiles::{
    ConditionUpdate, DesiredInfraNode, Selection, desired_infra_node, host_conditions,
    new_condition, profile_labels, profile_status,
};

const HOST_OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "hosts", concurrency: 16, debounce: Duration::from_millis(100) };
const PROFILE_OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "profiles", concurrency: 4, debounce: Duration::from_millis(200) };
/// Conditions of an InfraNode that this reconciler writes.
const OWNED_CONDITIONS: [&str; 3] = [PROFILE_OVERRIDDEN, PROFILE_CONFLICT, PROFILE_INCOMPLETE];

/// Returns true if the agent writes the condition.
fn is_written_by_agent(condition: &Condition) -> bool {
    let type_ = condition.type_.as_str();
    !OWNED_CONDITIONS.contains(&type_) && ![DRAINING, HOST_LOST].contains(&type_)
}

/// Reconciles hosts and profiles until the future is dropped.
pub(super) async fn run(context: Arc<Context>) {
    let changes = ChangeReceivers::subscribe(&context);
    tokio::join!(
        context.nodes.wait_until_ready(),
        context.infra_nodes.wait_until_ready(),
        context.profiles.wait_until_ready(),
        context.tenants.wait_until_ready()
    );
    let (hosts, host_queue) = unbounded();
    let (profiles, profile_queue) = unbounded();
    let queues = ReconcileQueues { hosts, profiles };
    let (unresponsive_sender, mut unresponsive) = tokio::sync::mpsc::unbounded_channel::<String>();
    let leases: Api<Lease> = Api::namespaced(context.client.clone(), &context.lease_namespace);
    let hosts_with_agent = || {
        let all = context.infra_nodes.all();
        let has_agent = |host: &&Arc<InfraNode>| {
            host.status.as_ref().is_some_and(|status| status.agent.is_some())
        };
        all.iter().filter(has_agent).map(|host| host.name_any()).collect()
    };
    let trigger_unresponsive = async {
        while let Some(node) = unresponsive.recv().await {
            queues.enqueue_host(&node);
        }
    };
    tokio::join!(
        watch_fleet(Arc::clone(&context), queues.clone(), changes),
        context.agent_leases.watch(leases, hosts_with_agent, unresponsive_sender),
        trigger_unresponsive,
        reconcile(
            HOST_OPTIONS,
            Arc::clone(&context),
            context.infra_nodes.store().clone(),
            host_queue,
            reconcile_host
        ),
        reconcile(
            PROFILE_OPTIONS,
            Arc::clone(&context),
            context.profiles.store().clone(),
            profile_queue,
            reconcile_profile
        ),
    );
}

async fn reconcile_host(
    infra_node: Arc<InfraNode>,
    context: Arc<Context>,
) -> Result<(), ReconcileFailure> {
    let name = infra_node.name_any();
    // An InfraNode without a Node is not reconciled: Kubernetes garbage-collects it, because its owner was the deleted
    // Node.
    let Some(node) = context.nodes.get(&name) else { return Ok(()) };
    if infra_node.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let fleet = context.resolved_profiles.get();
    let none = std::collections::BTreeMap::new();
    let node_labels = node.metadata.labels.as_ref().unwrap_or(&none);
    // The unknown tenants are read first: one that is corrected meanwhile is then in the store.
    let unknown = context.unknown_tenants();
    let tenants = context.tenants.all();
    let mut desired = desired_infra_node(&fleet, node_labels, &infra_node, &tenants, &unknown);
    let written = match &mut desired {
        Some(desired) if desired.is_different => write_spec(&context, &infra_node, desired).await,
        _ => Ok(()),
    };
    // The conditions are written even if the spec could not be applied.
    let selection = fleet.selection(&name);
    let updated = update_conditions(&context, &infra_node, selection, desired.as_ref()).await;
    let labelled = match selection {
        Selection::One(profile) => apply_labels(&context, &node, profile).await,
        Selection::None | Selection::Tie(_) => Ok(()),
    };
    written.and(updated).and(labelled)
}

/// Applies the spec. After a conflict, applies it once more without the fields that other managers own.
async fn write_spec(
    context: &Context,
    infra_node: &InfraNode,
    desired: &mut DesiredInfraNode,
) -> Result<(), ReconcileFailure> {
    let target = ApplyTarget::from_object(infra_node);
    let request = format!("apply spec of InfraNode {}", infra_node.name_any());
    let mut body = json!({"spec": desired.spec});
    let mut may_retry = true;
    loop {
        let error =
            match context.writer.apply(&target, body.clone(), FieldConflictPolicy::Fail).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
        let conflicting_fields = error.status().map(conflicting_managers).unwrap_or_default();
        if conflicting_fields.is_empty() || !may_retry {
            if error.status_code() == Some(422) {
                desired.incomplete.push(format!("the API server refuses the spec: {error}"));
            }
            return Err(ReconcileFailure::RequestFailed(request, error));
        }
        may_retry = false;
        for (path, manager) in conflicting_fields {
            remove_field(&mut body, &path);
            let path = path.trim_start_matches(".spec.").to_owned();
            desired.overridden.insert(path, manager);
        }
    }
}

/// Updates the conditions of an InfraNode that this reconciler owns. While the agent is unresponsive, also updates
/// the agent's conditions.
async fn update_conditions(
    context: &Context,
    infra_node: &InfraNode,
    selection: &Selection,
    desired: Option<&DesiredInfraNode>,
) -> Result<(), ReconcileFailure> {
    let before = infra_node.status.as_ref().map(|status| status.conditions.as_slice());
    let before = before.unwrap_or_default();
    let now = now_in_seconds();
    let updates = host_conditions(selection, desired);
    let mut conditions: Vec<Condition> = updates
        .iter()
        .map(|update| new_condition(update, before, infra_node.metadata.generation, &now))
        .collect();
    let written: Vec<&Condition> =
        before.iter().filter(|one| OWNED_CONDITIONS.contains(&one.type_.as_str())).collect();
    let is_same = |one: &&Condition| {
        let has_same_content =
            |other: &Condition| other.status == one.status && other.message == one.message;
        conditions.iter().any(|other| other.type_ == one.type_ && has_same_content(other))
    };
    let unresponsive = context
        .agent_leases
        .unreported_reason(&infra_node.name_any())
        .filter(|_| before.iter().any(|one| is_written_by_agent(one) && !is_unresponsive(one)));
    if unresponsive.is_none() && written.len() == conditions.len() && written.iter().all(is_same) {
        return Ok(());
    }
    let new: Vec<ConditionUpdate> = updates
        .into_iter()
        .filter(|update| {
            !written.iter().any(|one| one.type_ == update.type_ && one.message == update.message)
        })
        .collect();
    let agents = before.iter().filter(|one| is_written_by_agent(one));
    conditions.extend(agents.filter_map(|one| {
        let mark_unknown = |reason: &UnresponsiveReason| {
            let lease = format!("{}/{}", context.lease_namespace, infra_node.name_any());
            let message = match reason {
                UnresponsiveReason::LeaseExpired(since) => format!(
                    "the agent is unresponsive: its Lease {lease} was last renewed at {since}"
                ),
                UnresponsiveReason::NoLease => {
                    format!("the agent is unresponsive: there is no Lease {lease}")
                }
            };
            let type_ = one.type_.clone();
            Condition {
                type_,
                status: "Unknown".into(),
                reason: ConditionReason::AgentUnresponsive.to_string(),
                message,
                last_transition_time: now,
                observed_generation: None,
            }
        };
        // Conditions that report an unresponsive agent stay until the agent writes its own conditions again.
        let unchanged = is_unresponsive(one).then(|| one.clone());
        unchanged.or_else(|| unresponsive.as_ref().map(mark_unknown))
    }));
    let request = format!("apply conditions of InfraNode {}", infra_node.name_any());
    context
        .writer
        .apply_host_conditions(
            CONTROLLER_STATUS_FIELD_MANAGER,
            infra_node,
            &OWNED_CONDITIONS,
            conditions,
        )
        .await
        .map_err(ReconcileFailure::with_request(request))?;
    if unresponsive.is_some() {
        context.agent_leases.mark_reported(&infra_node.name_any());
    }
    for update in new {
        context.events.warn(infra_node, update.reason.as_str(), &update.message).await;
    }
    Ok(())
}

/// Returns true if the controller set the condition because the agent is unresponsive.
fn is_unresponsive(condition: &Condition) -> bool {
    condition.reason.parse() == Ok(ConditionReason::AgentUnresponsive)
}

/// Sets the profile's labels on the Node. The apply is forced, because a kubelet can label its own Node, and must not
/// be able to attract VMs by these labels.
async fn apply_labels(
    context: &Context,
    node: &Node,
    profile: &HostProfile,
) -> Result<(), ReconcileFailure> {
    let desired = profile_labels(profile);
    let is_present = |(key, value): (&String, &String)| node.labels().get(key) == Some(value);
    if desired.iter().all(is_present) {
        return Ok(());
    }
    let request = format!("apply labels of Node {}", node.name_any());
    let body = json!({"metadata": {"labels": desired}});
    let written = context
        .writer
        .apply(&ApplyTarget::from_object(node), body, FieldConflictPolicy::Force)
        .await;
    written.map(drop).map_err(ReconcileFailure::with_request(request))
}

async fn reconcile_profile(
    profile: Arc<HostProfile>,
    context: Arc<Context>,
) -> Result<(), ReconcileFailure> {
    let status = profile_status(&profile, &context.resolved_profiles.get(), &now_in_seconds());
    if profile.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let request = format!("apply status of HostProfile {}", profile.name_any());
    let target = ApplyTarget::from_object(profile.as_ref());
    let body: Value = serde_json::to_value(&status).unwrap_or_default();
    context
        .writer
        .apply_status(&target, body)
        .await
        .map_err(ReconcileFailure::with_request(request))?;
    let message = |status: &berth_api::HostProfileStatus| {
        let wrong = status.conditions.first().filter(|one| one.status == "False");
        wrong.map(|one| (one.reason.clone(), one.message.clone()))
    };
    let before = profile.status.as_ref().and_then(message);
    if let Some((reason, note)) =
        message(&status).filter(|current| Some(current) != before.as_ref())
    {
        context.events.warn(profile.as_ref(), &reason, &note).await;
    }
    Ok(())
}
