//! Spread of control-plane VMs over topology domains: how the engine updates the [`SpreadIndex`].

use berth_api::ControlPlaneSpread;

use super::request::Request;
use super::spread_index::SpreadIndex;
use super::state::Engine;
use crate::rules::HostId;

impl Engine {
    /// Sets the topology key and the weight of the spread of control-plane VMs.
    pub fn set_control_plane_spread(&mut self, config: &ControlPlaneSpread) {
        let Self { spread, cluster, .. } = self;
        let label = |host, key: &str| cluster.host_label(HostId::from_index(host), key);
        spread.set_config(config, label);
    }

    /// Returns the control-plane VMs of all tenants by topology domain.
    #[must_use]
    pub const fn control_plane_spread(&self) -> &SpreadIndex {
        &self.spread
    }

    /// Updates the domain of a host after a change of its labels, its taints, or its report. A tainted host, such as a
    /// lost or a dedicated host, gets no VMs, so its domain does not count for the minimum number of VMs. Otherwise the
    /// minimum would stay 0, many domains would reach the maximum of the points, and these domains would be
    /// indistinguishable.
    pub(super) fn update_spread_host(&mut self, host: HostId) {
        let Self { spread, cluster, host_entries, .. } = self;
        let entry = host_entries.get(host.index()).and_then(Option::as_ref);
        let is_schedulable = entry.is_some_and(|entry| !entry.report.is_cordoned)
            && !cluster.has_excluding_taint(host);
        let domain = cluster.host_label(host, spread.topology_key());
        spread.set_host(host.index(), domain, is_schedulable);
    }

    pub(super) fn add_to_spread(&mut self, request: &Request, host: HostId) {
        if request.counts_for_spread() {
            self.spread.add_vm(host.index());
        }
    }

    pub(super) fn remove_from_spread(&mut self, request: &Request, host: HostId) {
        if request.counts_for_spread() {
            self.spread.remove_vm(host.index());
        }
    }
}
