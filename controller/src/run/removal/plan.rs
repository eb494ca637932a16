//! Plans the next step of a removal from the facts, and converts the step to the request that performs it.

use k8s_openapi::jiff::Timestamp;

use super::drain::{Drain, MarkedMachine};
use super::facts::{MachineNode, TenantConnection};
use super::read::StepFacts;
use crate::removal::plan::{RemovalOutcome, RemovalState, Step, TenantState, next_step};
use crate::removal::pod::DrainPod;

/// Request of a step, without references to the [`Drain`], because the answer to the request changes the [`Drain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepRequest {
    Cordon,
    ListPods,
    Evict(Vec<DrainPod>),
    ListVolumes,
    ConfirmNoNode,
    DeleteNode,
    DeleteMachine(RemovalOutcome),
}

impl StepRequest {
    /// Returns the request of a step; `None` if the step waits.
    pub(super) fn of_step(step: &Step<'_>) -> Option<Self> {
        match step {
            Step::WaitForHost
            | Step::WaitForTenant(_)
            | Step::WaitForPods { .. }
            | Step::WaitForVolumes(_) => None,
            Step::Cordon => Some(Self::Cordon),
            Step::ListPods => Some(Self::ListPods),
            Step::Evict(pods) => Some(Self::Evict(pods.iter().map(|&pod| pod.clone()).collect())),
            Step::ListVolumes => Some(Self::ListVolumes),
            Step::ConfirmNoNode => Some(Self::ConfirmNoNode),
            Step::DeleteNode => Some(Self::DeleteNode),
            Step::DeleteMachine(outcome) => Some(Self::DeleteMachine(*outcome)),
        }
    }

    /// Returns the verb and the objects of the request to the tenant's API server, for messages. Before the Node of a
    /// machine is found, the description uses the name of the machine.
    pub(super) fn describe(&self, machine: &MarkedMachine, node: Option<&MachineNode>) -> String {
        let node = node.map_or(machine.name.as_str(), |node| node.name.as_str());
        match self {
            Self::Cordon => format!("cordon Node {node} (patch)"),
            Self::ListPods => format!("list Pods of Node {node}"),
            Self::ListVolumes => "list VolumeAttachments".to_owned(),
            Self::ConfirmNoNode => "list Nodes".to_owned(),
            Self::DeleteNode => format!("delete Node {node}"),
            Self::Evict(_) | Self::DeleteMachine(_) => {
                format!("create Evictions of Pods of Node {node}")
            }
        }
    }
}

/// Returns the next step of a removal.
pub(super) fn plan_step<'d>(
    machine: &MarkedMachine,
    drain: &'d Drain,
    facts: &StepFacts,
) -> Step<'d> {
    next_step(&RemovalState {
        removal: machine.removal,
        now: Timestamp::now(),
        deadline: machine.deadline,
        tenant: tenant_state(drain, facts),
        has_ended: facts.vm.has_ended,
        is_host_lost: facts.vm.is_host_lost,
        is_host_ready: facts.vm.is_host_ready,
        pods: drain.pods.as_deref(),
        outcomes: &drain.outcomes,
        volume_count: drain.volume_count,
        failure: drain.failure.as_ref().map(|fault| fault.reason),
    })
}

fn tenant_state(drain: &Drain, facts: &StepFacts) -> TenantState {
    match &facts.connection {
        None => TenantState::NotUsed,
        Some(Err(reason)) => TenantState::Unknown(*reason),
        Some(Ok(TenantConnection { node: None, .. })) => TenantState::NoNode {
            is_confirmed: drain.is_absence_confirmed || drain.is_node_deleted,
        },
        Some(Ok(TenantConnection { node: Some(node), .. })) => {
            TenantState::Node { is_cordoned: node.is_cordoned, is_ready: node.is_ready }
        }
    }
}
