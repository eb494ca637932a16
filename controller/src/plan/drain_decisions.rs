//! Forecast of the reasons that the controller reports for the machines of a drained host, computed by
//! [`crate::evacuation::decide`] for all these machines at once, as at the start of the drain.

use std::collections::BTreeMap;

use berth_api::names::TENANT_PREFIX;
use berth_extender::MigrationTarget;
use berth_kubevirt_render::machines::reconcile_steps::NodeReadiness;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::evacuation::decide::{Deployments, Targets, decide};
use crate::evacuation::deployment::DeploymentState;
use crate::evacuation::machine::{EvacuatingMachine, Machine, is_ready};
use crate::evacuation::reason::EvacuationReason;
use crate::fleet::{Fleet, FleetMachine};

/// First reason that the controller would report for a machine that it replaces or cannot move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainDecision {
    /// Namespace and name of the VM.
    pub vm: String,
    /// The reason that the controller reports.
    pub reason: &'static str,
    /// The message that the controller reports.
    pub message: String,
    /// True if the machine stays on the host until an operator or a user acts.
    #[serde(rename = "blocked")]
    pub is_blocked: bool,
}

/// Decides about the machines of a host. `targets` has the host on which each machine fits, by namespace and name of
/// the machine.
pub(super) fn forecast(
    fleet: &Fleet,
    host: &str,
    targets: BTreeMap<String, MigrationTarget>,
    now: Timestamp,
) -> Vec<DrainDecision> {
    let on_host = fleet.machines.iter();
    let on_host = on_host.filter(|one| one.is_external && one.host.as_deref() == Some(host));
    let mut machines: Vec<EvacuatingMachine> =
        on_host.map(|one| evacuating_machine(fleet, one)).collect();
    machines.sort_by_cached_key(|one| one.instance_uid.clone());
    let mut deployments = read_deployments(fleet, &machines, now);
    let decisions = decide(host, &machines, &mut deployments, &Targets::Known(targets), now);
    let each = machines.into_iter().zip(decisions);
    each.filter(|(_, decision)| is_forecast(&decision.reason))
        .map(|(one, decision)| DrainDecision {
            vm: one.instance_uid,
            reason: decision.reason.as_str(),
            message: decision.reason.to_string(),
            is_blocked: decision.reason.needs_operator(),
        })
        .collect()
}

/// Returns true if the plan must show the decision: it is not in another list of `DrainResult`, and does not depend on
/// objects that the input does not contain.
const fn is_forecast(reason: &EvacuationReason) -> bool {
    match reason {
        EvacuationReason::WaitingForReplacement(_)
        | EvacuationReason::BudgetExhausted(_)
        | EvacuationReason::BeingRemoved(..)
        | EvacuationReason::InvalidDeployment(_) => true,
        EvacuationReason::Migrating(_)
        | EvacuationReason::MigrationLimit
        | EvacuationReason::MigrationBackoff
        | EvacuationReason::MigrationRefused(_)
        | EvacuationReason::EngineNotReady
        | EvacuationReason::NotManaged => false,
    }
}

fn evacuating_machine(fleet: &Fleet, one: &FleetMachine) -> EvacuatingMachine {
    EvacuatingMachine {
        machine: counted_machine(fleet, one),
        // The input may lack UIDs. Namespace and name also identify the instance.
        instance_uid: one.qualified_name(),
        namespace: one.machine.namespace.clone(),
        migration_obstacle: one.migration_obstacle.clone(),
        deployment: one.drain.deployment.clone(),
        migrations: Vec::new(),
    }
}

/// Returns the machine with its readiness as its MachineDeployment would count it. The input does not contain the Nodes
/// of tenants' clusters, so a ready machine counts as available if the status of the MachineDeployment permits it.
fn counted_machine(fleet: &Fleet, one: &FleetMachine) -> Machine {
    let mut machine = one.drain.machine.clone();
    let tenant = one.machine.namespace.strip_prefix(TENANT_PREFIX);
    let tenant = tenant.and_then(|name| fleet.render_context.tenants.get(name));
    let node = match tenant.is_some_and(|tenant| tenant.spec.uses_node_readiness()) {
        true => NodeReadiness::Unknown,
        false => NodeReadiness::NotUsed,
    };
    machine.is_ready = is_ready(machine.is_ready, node);
    machine.ready_since = machine.is_ready.then_some(i64::MIN);
    machine
}

fn read_deployments(fleet: &Fleet, machines: &[EvacuatingMachine], now: Timestamp) -> Deployments {
    let mut deployments = Deployments::new();
    for one in machines {
        let Some(name) = &one.deployment else { continue };
        let key = (one.namespace.clone(), name.clone());
        if deployments.contains_key(&key) {
            continue;
        }
        let in_namespace = || {
            let all = fleet.machines.iter();
            all.filter(|other| other.machine.namespace == one.namespace)
        };
        let owner = fleet.deployment_fields.iter().find(|fields| {
            let found = fields.pointer("/metadata/name").and_then(Value::as_str);
            found == Some(name.as_str())
                && in_namespace().any(|other| other.drain.is_owned_by(&one.namespace, fields))
        });
        let Some(owner) = owner else { continue };
        let own: Vec<Machine> = in_namespace()
            .filter(|other| other.drain.is_owned_by(&one.namespace, owner))
            .map(|other| counted_machine(fleet, other))
            .collect();
        deployments.insert(key, DeploymentState::read(owner.clone(), &own, now));
    }
    deployments
}
