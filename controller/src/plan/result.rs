//! Options and result of a plan, as plain data.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::add::AddRequest;
use super::addition::AdditionResult;
use super::drain::DrainResult;
use super::placed_vm::PlacedVm;
use super::spread::ControlPlanes;
use super::unplaced::UnplacedVm;
use super::usage::HostUsage;
use crate::fleet::{MachineCounts, PlannedTenant};
use berth_api::Problem;

/// Options of a plan, which select additional checks.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Name of the host to be drained, for the drain check.
    pub drain: Option<String>,
    /// Current time, for the drain check.
    pub now: Timestamp,
    /// Additional hosts to be assumed.
    pub add: Option<AddRequest>,
}

/// Result of a plan.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Hosts by name, with their usage after the placement.
    pub hosts: Vec<HostUsage>,
    /// Number of VMs that are already on a host.
    #[serde(rename = "running")]
    pub running_count: usize,
    /// Number of VMs that are stopped and therefore use no resources.
    #[serde(rename = "off")]
    pub stopped_count: usize,
    /// Tenants with their planned networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<PlannedTenant>,
    /// MachineDeployments, each with the numbers of its existing and desired machines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machine_deployments: Vec<MachineCounts>,
    /// VMs that would get a host, in the order of placement.
    pub placed: Vec<PlacedVm>,
    /// VMs that would get no host, each with the reasons.
    pub unplaced: Vec<UnplacedVm>,
    /// Control-plane VMs by topology domain, after the placement; `None` if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_planes: Option<ControlPlanes>,
    /// Result of the drain check, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainResult>,
    /// Result of additional hosts, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<AdditionResult>,
    /// Problems of the input objects.
    pub problems: Vec<Problem>,
    /// Number of objects that were ignored, by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ignored: BTreeMap<String, usize>,
}

impl Plan {
    /// Returns true if all VMs fit, the drain check (if requested) succeeds, and no object was left out.
    #[must_use]
    pub fn has_no_problems(&self) -> bool {
        let drains = self.drain.as_ref().is_none_or(DrainResult::is_possible);
        self.unplaced.is_empty() && drains && !self.problems.iter().any(|problem| problem.is_fatal)
    }
}
