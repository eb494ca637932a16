//! Options and result of a plan, as plain data.

use std::collections::BTreeMap;

use serde::Serialize;

use super::add::Add;
use super::drain::Drain;
use super::enough::Added;
use super::placed::Placed;
use super::unplaced::Unplaced;
use super::usage::HostUsage;
use crate::fleet::{Created, Tenant};
use berth_api::Problem;

/// Options of a plan: additional checks.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Host for the drain check.
    pub drain: Option<String>,
    /// Additional hosts.
    pub add: Option<Add>,
}

/// Result of a plan.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Hosts by name, with their usage after the placement.
    pub hosts: Vec<HostUsage>,
    /// Number of VMs that are already on a host.
    pub running: usize,
    /// Number of VMs that are stopped and use no resources.
    pub off: usize,
    /// Tenants with their planned networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<Tenant>,
    /// MachineDeployments with the numbers of their machines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machine_deployments: Vec<Created>,
    /// VMs that would be created, in the order of placement.
    pub placed: Vec<Placed>,
    /// VMs that would not fit.
    pub unplaced: Vec<Unplaced>,
    /// Result of the drain check, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// Result of additional hosts, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<Added>,
    /// Problems of objects.
    pub problems: Vec<Problem>,
    /// Number of ignored objects, by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ignored: BTreeMap<String, usize>,
}

impl Plan {
    /// Returns true if all VMs fit and no object was left out.
    #[must_use]
    pub fn has_no_problems(&self) -> bool {
        let drains = self.drain.as_ref().is_none_or(Drain::is_possible);
        self.unplaced.is_empty() && drains && !self.problems.iter().any(|problem| problem.is_fatal)
    }
}
