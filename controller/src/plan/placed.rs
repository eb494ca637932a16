//! A placed VM with its zones and CPUs.

use serde::Serialize;

use super::build::{PendingVm, Simulation};
use super::request::VmRequest;
use berth_placement::rules::HostId;

/// A VM and its planned host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placed {
    /// Namespace and name of the VM.
    pub vm: String,
    /// Requests of the VM.
    pub wants: VmRequest,
    /// Name of the host.
    pub host: String,
    /// Zones of the VM's CPUs; empty if the VM shares CPUs.
    pub zones: Vec<u32>,
    /// CPUs that the kubelet would allocate to the VM now.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cpus: String,
}

impl Simulation {
    pub(super) fn placed(&self, vm: &PendingVm, host: HostId) -> Placed {
        let facts = self.engine.facts(host);
        let state = self.engine.state(host);
        let admission = state.and_then(|state| state.admission(vm.request.uid()));
        let cpus = facts.zip(admission).map(|(facts, admission)| admission.cpus(&facts.admission));
        let cpus = cpus.unwrap_or_default();
        let zones = facts.into_iter().flat_map(|facts| &facts.zones);
        Placed {
            vm: vm.name.clone(),
            wants: VmRequest::from_request(&vm.request),
            host: facts.map(|facts| facts.name.clone()).unwrap_or_default(),
            zones: zones.filter(|zone| zone.cpus.intersects(&cpus)).map(|zone| zone.id).collect(),
            cpus: cpus.to_string(),
        }
    }
}
