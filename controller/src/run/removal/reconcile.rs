//! Reconciles one machine with a removal mark: takes all steps that are possible now.

use std::time::{Duration, Instant};

use berth_api::names::INFRA_CONFIG;
use berth_api::{ConditionReason, EventReason, TenantClusterSpec};
use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::Action;
use berth_runtime::untrusted::{CollectionEvent, RequestFailure, UntrustedError};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, Patch, Preconditions};
use kube::runtime::events::EventType;
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::context::RemovalContext;
use super::drain::{Drain, PAUSE, SHORT_PAUSE};
use super::draining_tenant::DrainingTenant;
use super::error::RemovalError;
use super::facts::{MachineNode, TenantSide};
use super::list_slots::ListSlots;
use super::requests;
use super::volume_lists::VolumeLists;
use crate::api_resource::machine_resource;
use crate::removal::eviction::EvictionOutcome;
use crate::removal::host_return;
use crate::removal::mark::{Mark, Removal, RemovalReason};
use crate::removal::plan::{
    EvictionOutcomes, RemovalOutcome, RemovalState, Step, TenantState, next_step,
};
use crate::removal::pod::DrainPod;
use crate::removal::progress;
use crate::removal::report::RemovalReport;
use crate::removal::timeout::{deadline, drain_timeout};
use crate::run::api_requests::{none_if_not_found, patch_params};
use crate::tenant_nodes::node::NodeObject;

/// Largest number of steps in one reconcile; a drain of 2,000 pods has fewer.
const MAX_STEPS: usize = 100;
/// Time after a cordon after which the pods are listed. A scheduler that has not received the cordon yet may bind a pod to
/// the Node, which the list would not contain.
const CORDON_DELAY: Duration = Duration::from_secs(2);
/// Period in which a machine that is being deleted is observed, for the metrics.
const DELETION_PERIOD: Duration = Duration::from_secs(60);

/// Reconciler of removals.
pub(super) struct Remover {
    pub(super) context: RemovalContext,
    pub(super) list_slots: ListSlots,
    pub(super) volume_lists: VolumeLists,
}

impl Remover {
    /// Takes the steps of the removal of a machine that are possible now.
    pub(super) async fn reconcile(&self, machine: &DynamicObject) -> Result<Action, RemovalError> {
        let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
        if machine.metadata.deletion_timestamp.is_some() {
            let is_reported = self.context.table.refresh(&namespace, &name);
            let again = is_reported.then(|| Action::requeue(add_jitter(DELETION_PERIOD)));
            return Ok(again.unwrap_or_else(Action::await_change));
        }
        let removal = match Mark::read(machine, Timestamp::now()) {
            Mark::Absent => match progress::begun_deletion(machine) {
                None => return Ok(self.call_off(machine, &namespace, &name).await),
                Some(reason) => {
                    tracing::info!(%namespace, machine = %name, "the Node of a machine is deleted; marking the machine again");
                    self.write_mark(machine, Removal::new(reason, Timestamp::now())).await?;
                    return Ok(Action::await_change());
                }
            },
            Mark::Malformed(removal) => {
                tracing::warn!(%namespace, machine = %name, "a removal mark is malformed; writing it again");
                self.write_mark(machine, removal).await?;
                return Ok(Action::await_change());
            }
            Mark::Valid(removal) => removal,
        };
        let tenant = self.find_tenant(&namespace).await?;
        let deployment = self.context.deployment_of(machine);
        let spec = match &tenant {
            DrainingTenant::Known(tenant) => tenant.spec.clone(),
            DrainingTenant::None | DrainingTenant::Malformed => TenantClusterSpec::default(),
        };
        let config = self.context.configs.get(INFRA_CONFIG);
        let longest = config.and_then(|config| config.spec.max_node_drain_timeout);
        let resolved = drain_timeout(machine, deployment.as_deref(), &spec, longest);
        let mut drain = Drain {
            machine: machine.clone(),
            namespace,
            name,
            removal,
            deadline: deadline(removal.since, resolved.timeout),
            problems: resolved.problems,
            list_permit: None,
            pods: None,
            outcomes: EvictionOutcomes::new(),
            volume_count: None,
            observed_at: Instant::now(),
            failure: None,
            is_absence_confirmed: false,
            is_node_deleted: false,
            retry_after: Duration::ZERO,
        };
        for _ in 0..MAX_STEPS {
            if let Some(pause) = self.take_step(&tenant, &mut drain).await? {
                return Ok(Action::requeue(pause));
            }
        }
        Ok(Action::requeue(add_jitter(SHORT_PAUSE)))
    }

    /// Takes the next step. Returns the pause before the next reconcile if the removal has to wait.
    async fn take_step(
        &self,
        tenant: &DrainingTenant,
        drain: &mut Drain,
    ) -> Result<Option<Duration>, RemovalError> {
        let side = match tenant {
            DrainingTenant::None => None,
            DrainingTenant::Malformed => Some(Err(ConditionReason::Malformed)),
            DrainingTenant::Known(tenant) => Some(self.context.tenant_side(tenant, &drain.name)),
        };
        let tenant_state = match &side {
            None => TenantState::NotUsed,
            Some(Err(reason)) => TenantState::Unknown(*reason),
            Some(Ok(TenantSide { node: None, .. })) => TenantState::NoNode {
                is_confirmed: drain.is_absence_confirmed || drain.is_node_deleted,
            },
            Some(Ok(TenantSide { node: Some(node), .. })) => {
                TenantState::Node { is_cordoned: node.is_cordoned, is_ready: node.is_ready }
            }
        };
        let vm = self.context.vm_state(&drain.machine, &drain.removal);
        let host = (vm.is_host_lost, vm.is_host_ready);
        let patch = host_return::record(&drain.machine, &drain.removal, host, Timestamp::now());
        if let Some(patch) = patch {
            tracing::info!(namespace = %drain.namespace, machine = %drain.name, is_host_lost = vm.is_host_lost, "the host of a removed machine has changed");
            self.patch_machine(&drain.machine, patch).await?;
            return Ok(Some(SHORT_PAUSE));
        }
        let step = next_step(&RemovalState {
            removal: drain.removal,
            now: Timestamp::now(),
            deadline: drain.deadline,
            tenant: tenant_state,
            has_ended: vm.has_ended,
            is_host_lost: vm.is_host_lost,
            is_host_ready: vm.is_host_ready,
            pods: drain.pods.as_deref(),
            outcomes: &drain.outcomes,
            volume_count: drain.volume_count,
            failure: drain.failure.as_ref().map(|fault| fault.reason),
        });
        let is_waiting = matches!(
            step,
            Step::WaitForHost
                | Step::WaitForTenant(_)
                | Step::WaitForPods { .. }
                | Step::WaitForVolumes(_)
        );
        if is_waiting || matches!(step, Step::DeleteMachine(_)) {
            self.report(drain, &step).await;
        }
        if is_waiting {
            let pause = drain.pause();
            let has_sent_requests = drain.pods.is_some() || drain.volume_count.is_some();
            if has_sent_requests || drain.failure.is_some() {
                self.context.table.begin_pause(&drain.namespace, &drain.name, pause);
            }
            return Ok(Some(pause));
        }
        let is_list = matches!(step, Step::ListPods | Step::ListVolumes);
        let rest = self.context.table.rest_of_pause(&drain.namespace, &drain.name);
        if let Some(rest) = rest.filter(|_| is_list) {
            return Ok(Some(rest));
        }
        if let Step::DeleteMachine(outcome) = step {
            self.delete_machine(drain, outcome).await?;
            return Ok(Some(DELETION_PERIOD));
        }
        // The steps below have a connection.
        let Some(Ok(side)) = side else { return Ok(Some(drain.pause())) };
        if step == Step::ListPods && drain.list_permit.is_none() {
            drain.list_permit = self.list_slots.try_acquire(&side.tenant);
            if drain.list_permit.is_none() {
                return Ok(Some(add_jitter(SHORT_PAUSE)));
            }
        }
        let due: Vec<DrainPod> = match &step {
            Step::Evict(pods) => pods.iter().map(|&pod| pod.clone()).collect(),
            _ => Vec::new(),
        };
        let is_cordon = step == Step::Cordon;
        let request = drain.describe_request(&step, side.node.as_ref());
        let client = &side.access.client;
        let result = match (step, &side.node) {
            (Step::Cordon, Some(node)) => self.cordon(&side, node, true).await,
            (Step::ListPods, Some(node)) => {
                if !self.record_progress(drain, &node.name, None).await? {
                    return Ok(Some(SHORT_PAUSE));
                }
                let listed = requests::list_pods(client, &node.name, Timestamp::now()).await;
                listed.map_err(RequestFailure::from).map(|mut pods| {
                    drain.observed_at = Instant::now();
                    let table = &self.context.table;
                    table.update_grace_periods(&drain.namespace, &drain.name, &mut pods);
                    drain.pods = Some(pods);
                })
            }
            (Step::ListVolumes, node) => {
                let node = node.as_ref().map(|node| node.name.clone());
                let node = node.unwrap_or_else(|| progress::node_name(&drain.machine));
                let tenant = (side.tenant.as_str(), client);
                let counted = self.volume_lists.count(tenant, &node, drain.observed_at).await;
                counted.map_err(RequestFailure::from).map(|count| drain.set_volume_count(count))
            }
            (Step::ConfirmNoNode, _) => {
                let listed = requests::list_nodes_of(client, &drain.name).await;
                let listed = listed.map_err(RequestFailure::from);
                listed.map(|nodes| self.handle_nodes(&side, nodes, drain))
            }
            (Step::DeleteNode, Some(node)) => {
                let reason = Some(drain.removal.reason);
                if !self.record_progress(drain, &node.name, reason).await? {
                    return Ok(Some(SHORT_PAUSE));
                }
                self.delete_node(&side, node, drain).await
            }
            _ => evict_pods(&side, &due, drain).await.map_err(RequestFailure::from),
        };
        match result {
            Err(failure) => drain.record_failure(&request, &failure),
            Ok(()) if is_cordon => {
                self.context.table.begin_pause(&drain.namespace, &drain.name, CORDON_DELAY);
                return Ok(Some(CORDON_DELAY));
            }
            Ok(()) => {}
        }
        Ok(None)
    }

    async fn cordon(
        &self,
        side: &TenantSide,
        node: &MachineNode,
        is_cordoned: bool,
    ) -> Result<(), RequestFailure> {
        let client = &side.access.client;
        let written = requests::set_cordoned(client, &node.name, &node.uid, is_cordoned).await?;
        tracing::info!(node = %node.name, is_cordoned, "changed the cordon of a tenant's Node");
        self.update_node(side, CollectionEvent::Applied(written));
        Ok(())
    }

    async fn delete_node(
        &self,
        side: &TenantSide,
        node: &MachineNode,
        drain: &mut Drain,
    ) -> Result<(), RequestFailure> {
        requests::delete_node(&side.access.client, &node.name, &node.uid).await?;
        let (namespace, machine) = (&drain.namespace, &drain.name);
        tracing::info!(%namespace, %machine, node = %node.name, "deleted the Node of a machine");
        let name = json!({"metadata": {"name": node.name}});
        if let Ok(object) = serde_json::from_value(name) {
            self.update_node(side, CollectionEvent::Deleted(object));
        }
        drain.pods = None;
        drain.is_node_deleted = true;
        Ok(())
    }

    /// Handles the Nodes that the tenant's API server has for a machine without a stored Node. If there are any, the next
    /// step drains them.
    fn handle_nodes(&self, side: &TenantSide, nodes: Vec<NodeObject>, drain: &mut Drain) {
        drain.is_absence_confirmed = nodes.is_empty();
        if !nodes.is_empty() {
            // The VolumeAttachments were those of a Node with the recorded name.
            drain.volume_count = None;
        }
        for node in nodes {
            self.update_node(side, CollectionEvent::Applied(node));
        }
    }

    /// Updates the stored Nodes of the tenant after a request.
    fn update_node(&self, side: &TenantSide, event: CollectionEvent<NodeObject>) {
        self.context.connections.handle_node_answer(&side.tenant, &side.state, event);
    }

    /// Uncordons the Node of a machine without a mark, if Berth has cordoned it.
    async fn call_off(&self, machine: &DynamicObject, namespace: &str, name: &str) -> Action {
        self.context.table.remove(namespace, name);
        let Some(tenant) = self.context.draining_tenant(namespace) else {
            return Action::await_change();
        };
        // A new connection triggers a reconcile.
        let Ok(side) = self.context.tenant_side(&tenant, &machine.name_any()) else {
            return Action::await_change();
        };
        let Some(node) = side.node.as_ref().filter(|node| node.is_cordoned_by_berth) else {
            return Action::await_change();
        };
        match self.cordon(&side, node, false).await {
            Ok(()) => Action::await_change(),
            Err(failure) => {
                tracing::debug!(node = %node.name, error = %failure, "failed to uncordon a tenant's Node");
                Action::requeue(add_jitter(PAUSE.1).max(failure.error.retry_after()))
            }
        }
    }

    async fn report(&self, drain: &Drain, step: &Step<'_>) {
        let failed = drain.failure.as_ref().map(|fault| fault.message.clone());
        let problems: Vec<String> = drain.problems.iter().cloned().chain(failed).collect();
        let report = RemovalReport::new(drain.removal, drain.deadline, step, &problems);
        let reason = report.reason;
        let note = report.describe_machine(&drain.name);
        let is_new = self.context.table.set(&drain.namespace, &drain.name, report);
        if is_new && reason == ConditionReason::DrainBlocked {
            self.emit(drain, EventType::Warning, EventReason::DrainBlocked, &note).await;
        }
    }

    async fn emit(&self, drain: &Drain, type_: EventType, reason: EventReason, note: &str) {
        let reference = drain.machine.object_ref(&machine_resource());
        self.context.events.emit_for(type_, reference, reason.as_str(), note).await;
    }

    fn machines(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), namespace, &machine_resource())
    }

    async fn find_tenant(&self, namespace: &str) -> Result<DrainingTenant, RemovalError> {
        let RemovalContext { client, tenants, .. } = &self.context;
        let found = DrainingTenant::find(client, namespace, |name| tenants.get(name)).await;
        let request = || format!("get TenantCluster of namespace {namespace}");
        found.map_err(|error| RemovalError { request: request(), error })
    }

    /// Writes a mark, unless the machine has changed meanwhile: its mark may have been withdrawn.
    async fn write_mark(
        &self,
        machine: &DynamicObject,
        removal: Removal,
    ) -> Result<(), RemovalError> {
        self.patch_machine(machine, removal.patch_of(machine)).await
    }

    async fn patch_machine(
        &self,
        machine: &DynamicObject,
        patch: Value,
    ) -> Result<(), RemovalError> {
        let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
        let patch = Patch::Merge(patch);
        let patched = self.machines(&namespace).patch(&name, &patch_params(), &patch).await;
        let patched = none_if_not_found(patched);
        let request = || format!("patch VirtualMachine {namespace}/{name}");
        patched.map(drop).map_err(|error| RemovalError { request: request(), error })
    }

    /// Records the name of the Node, and with a reason that its deletion begins, which cannot be undone. Fails with a
    /// conflict if the machine has changed: its mark may have been withdrawn a moment ago. Returns false if the machine does
    /// not exist any more.
    async fn record_progress(
        &self,
        drain: &mut Drain,
        node: &str,
        deletion: Option<RemovalReason>,
    ) -> Result<bool, RemovalError> {
        let Some(patch) = progress::record(&drain.machine, node, deletion) else {
            return Ok(true);
        };
        let (machines, patch) = (self.machines(&drain.namespace), Patch::Merge(patch));
        let patched = machines.patch_metadata(&drain.name, &patch_params(), &patch).await;
        let patched = none_if_not_found(patched).map_err(|error| RemovalError {
            request: format!("patch VirtualMachine {}/{}", drain.namespace, drain.name),
            error,
        })?;
        let Some(patched) = patched else { return Ok(false) };
        drain.machine.metadata = patched.metadata;
        Ok(true)
    }

    async fn delete_machine(
        &self,
        drain: &Drain,
        outcome: RemovalOutcome,
    ) -> Result<(), RemovalError> {
        let Drain { machine, namespace, name, .. } = drain;
        // With the resource version, a mark that was withdrawn a moment ago is respected. After the deletion of its
        // Node, a machine must not stay: its kubelet does not create the Node again.
        let is_final = progress::begun_deletion(machine).is_some();
        let resource_version = machine.resource_version().filter(|_| !is_final);
        let preconditions = Some(Preconditions { uid: machine.uid(), resource_version });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        let deleted = none_if_not_found(self.machines(namespace).delete(name, &params).await);
        deleted.map_err(|error| RemovalError {
            request: format!("delete VirtualMachine {namespace}/{name}"),
            error,
        })?;
        let (result, event) = match outcome {
            RemovalOutcome::Drained => {
                ("drained", Some((EventType::Normal, EventReason::MachineDrained)))
            }
            RemovalOutcome::DeadlineExceeded => (
                "deadline_exceeded",
                Some((EventType::Warning, EventReason::DrainDeadlineExceeded)),
            ),
            RemovalOutcome::NotDrained => ("not_drained", None),
        };
        tracing::info!(%namespace, machine = %name, reason = %drain.removal.reason, result, "deleted VirtualMachine");
        self.context.metrics.count_machine_removal(result);
        if let Some((type_, reason)) = event {
            let report = self.context.table.get(namespace, name);
            let note = report.map(|report| report.describe_machine(name)).unwrap_or_default();
            self.emit(drain, type_, reason, &note).await;
        }
        Ok(())
    }
}

/// Evicts pods, and then lists the pods again. Stops at the first request that is not answered, or that the server
/// refuses because it is busy.
async fn evict_pods(
    side: &TenantSide,
    due: &[DrainPod],
    drain: &mut Drain,
) -> Result<(), UntrustedError> {
    (drain.pods, drain.volume_count) = (None, None);
    for pod in due {
        let (outcome, retry_after) = requests::evict(&side.access.client, pod).await?;
        let is_busy = outcome == EvictionOutcome::Busy;
        drain.retry_after = drain.retry_after.max(retry_after);
        drain.outcomes.insert(pod.uid.clone(), outcome);
        if is_busy {
            return Err(UntrustedError::Busy(429, retry_after));
        }
    }
    Ok(())
}
