//! A VM with a planned host.

use serde::Serialize;

use super::build::{PendingVm, Simulation};
use super::request::VmRequest;
use super::spread::{ControlPlaneDomain, placed_in_domain};
use berth_placement::rules::HostId;

/// A VM with its planned host, zones and CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedVm {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Resources that the VM requests.
    #[serde(rename = "wants")]
    pub request: VmRequest,
    /// Name of the planned host.
    pub host: String,
    /// NUMA zones of the VM's exclusive CPUs; empty if the VM has no exclusive CPUs.
    pub zones: Vec<u32>,
    /// Exclusive CPUs that the kubelet would allocate to the VM now, as a CPU list.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpus: String,
    /// For a control-plane VM: the topology domain of the host, with the domain's number of control-plane VMs and
    /// points before the placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<ControlPlaneDomain>,
}

impl Simulation {
    /// Describes a VM after its placement. `minimum` is the lowest number of control-plane VMs in a domain before the
    /// placement.
    pub(super) fn placed_vm(&self, vm: &PendingVm, host: HostId, minimum: u32) -> PlacedVm {
        let facts = self.engine.reported_host(host);
        let state = self.engine.kubelet_state(host);
        let admission = state.and_then(|state| state.admission(vm.request.uid()));
        let cpus = facts.zip(admission).map(|(facts, admission)| admission.cpus(&facts.admission));
        let cpus = cpus.unwrap_or_default();
        let zones = facts.into_iter().flat_map(|facts| &facts.zones);
        PlacedVm {
            vm: vm.name.clone(),
            request: VmRequest::from_request(&vm.request),
            host: facts.map(|facts| facts.name.clone()).unwrap_or_default(),
            zones: zones.filter(|zone| zone.cpus.intersects(&cpus)).map(|zone| zone.id).collect(),
            cpus: cpus.to_string(),
            spread: placed_in_domain(
                self.engine.control_plane_spread(),
                minimum,
                &vm.request,
                host,
            ),
        }
    }
}
