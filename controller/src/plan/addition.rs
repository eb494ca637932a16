//! Computes the number of additional hosts with which all VMs fit.

use serde::Serialize;

use super::add::{AddRequest, HostAddition, MAX_ADDED_HOSTS, template_host};
use super::build::Simulation;
use crate::fleet::Fleet;

/// Result of a plan with additional hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AdditionResult {
    /// Name of the host that is copied.
    #[serde(rename = "like", skip_serializing_if = "Option::is_none")]
    pub template_host: Option<String>,
    /// Number of added hosts.
    pub count: u32,
    /// The smallest number of additional hosts with which all VMs fit; `None` if no number is sufficient.
    #[serde(rename = "enough", skip_serializing_if = "Option::is_none")]
    pub required_count: Option<u32>,
}

pub(super) fn simulate_addition(fleet: &Fleet, add: &AddRequest, vms: usize) -> AdditionResult {
    let found = template_host(fleet, &add.name);
    let name = found.and_then(|host| host.metadata.name.clone());
    let count = if found.is_some() { add.count.unwrap_or_default() } else { 0 };
    let required = found.and_then(|_| required_hosts(fleet, &add.name, vms));
    AdditionResult { template_host: name, count, required_count: required }
}

/// Returns the smallest number of copies of the host `name` with which all VMs fit. The search doubles the number, then
/// bisects. This is correct because additional hosts never reduce the number of VMs that fit, except with spread
/// constraints.
fn required_hosts(fleet: &Fleet, name: &str, vms: usize) -> Option<u32> {
    let unplaced_count = |count: u32| {
        let mut simulation =
            Simulation::build(fleet, (count > 0).then_some(HostAddition { count, name }));
        let pending = std::mem::take(&mut simulation.pending);
        pending.iter().filter(|vm| simulation.engine.place_pod(&vm.request, None).is_none()).count()
    };
    if unplaced_count(0) == 0 {
        return Some(0);
    }
    // At most as many hosts as VMs are tried, because each VM uses at most one host.
    let vms = u32::try_from(vms).unwrap_or(MAX_ADDED_HOSTS).clamp(1, MAX_ADDED_HOSTS);
    let (mut low, mut high) = (0, 1);
    while unplaced_count(high) > 0 {
        if high >= vms {
            return None;
        }
        low = high;
        high = (high * 2).min(vms);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if unplaced_count(middle) == 0 { high = middle } else { low = middle }
    }
    Some(high)
}
