//! The plan as data.

use std::collections::BTreeMap;

use berth_api::CpuSet;
use berth_api::infra_node::TenantNetworkState;
use serde::Serialize;

use super::change::Change;
use super::id::ChangeId;
use super::kubelet::advice::Advice;
use super::network::removal::Forget;
use super::network::state::NetworkState;
use crate::manifest::Fault;
use berth_host_facts::ledger::MadeNetwork;
use berth_host_facts::setting::Setting;

/// What would be done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The Node's name.
    pub node: String,
    /// In the order in which they are made.
    pub changes: Vec<Change>,
    /// What is wrong with the spec on this host.
    pub faults: Vec<Fault>,
    /// What else an administrator should know.
    pub notes: Vec<String>,
    /// How the kubelet's configuration should be, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<Advice>,
    /// CPUs kept for the host, as chosen.
    #[serde(rename = "reservedCPUs", skip_serializing_if = "Option::is_none")]
    pub reserved_cpus: Option<CpuSet>,
    /// How far the tenant networks are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkState>,
    /// Found values that need no longer be remembered: nobody asks for another, and the setting is as it
    /// was found, or gone with its device.
    #[serde(skip)]
    pub forget: Vec<Setting>,
    /// What is remembered of networks and uplinks, and no longer needed.
    #[serde(skip)]
    pub forget_networks: Forget,
    /// Networks that are in place and not remembered so.
    #[serde(skip)]
    pub adopt: BTreeMap<String, MadeNetwork>,
    /// Why what guests send cannot be filtered.
    #[serde(skip)]
    pub unfiltered: Option<String>,
    /// Whether host tasks are to be kept on the reserved CPUs.
    #[serde(skip)]
    pub housekeeping: bool,
    /// Whether a kubelet runs, which counted huge pages when it started; `None` if that is not known.
    #[serde(skip)]
    pub kubelet_runs: Option<bool>,
}

impl Plan {
    /// Makes it one that changes nothing, neither on the host nor in what is remembered of it.
    pub fn only_observe(&mut self) {
        for change in &mut self.changes {
            change.blocked.get_or_insert_with(|| "this agent only observes (--observe)".to_owned());
        }
        self.forget.clear();
        self.forget_networks = Forget::default();
        self.adopt.clear();
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Says of tenants that changes which were tried and are still to be done have failed, and why.
    pub fn fail(&mut self, tried: &BTreeMap<ChangeId, String>) {
        self.unfiltered = None;
        for change in &self.changes {
            let (Some(work), Some(why)) = (change.links(), tried.get(&change.id)) else {
                continue;
            };
            if change.is_filter() {
                self.unfiltered = Some(why.clone());
            }
            let network = self.networks.iter_mut().find(|network| network.name == work.network);
            let Some(network) = network else { continue };
            for id in work.made.keys() {
                if let Some(tenant) = network.not_ready.get_mut(id) {
                    tenant.state = TenantNetworkState::Failed;
                    tenant.message.clone_from(why);
                }
            }
        }
    }

    /// Changes that something stands in the way of.
    #[must_use]
    pub fn blocked(&self) -> usize {
        self.changes.iter().filter(|change| change.blocked.is_some()).count()
    }
}
