//! The plan as data.

use std::collections::BTreeMap;

use berth_api::CpuSet;
use berth_api::infra_node::TenantNetworkState;
use serde::Serialize;

use super::change::Change;
use super::id::ChangeId;
use super::kubelet::advice::KubeletAdvice;
use super::network::removal::StaleRecords;
use super::network::state::NetworkState;
use crate::manifest::Fault;
use berth_host_facts::ledger::NetworkRecord;
use berth_host_facts::setting::Setting;

/// Changes of a host, in order, and facts about them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Name of the Node.
    pub node: String,
    /// Changes in the order in which they are made.
    pub changes: Vec<Change>,
    /// Faults of the spec on this host.
    pub faults: Vec<Fault>,
    /// Notes for the administrator.
    pub notes: Vec<String>,
    /// Advice on the kubelet's configuration, if it differs from the desired one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletAdvice>,
    /// CPUs reserved for the host; `None` if the spec reserves none, or they cannot be reserved.
    #[serde(rename = "reservedCPUs", skip_serializing_if = "Option::is_none")]
    pub reserved_cpus: Option<CpuSet>,
    /// State of the tenant networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkState>,
    /// Entries of the rollback ledger that are no longer needed: the spec has no value for the setting, and the
    /// setting has its original value or its device was removed.
    #[serde(skip)]
    pub stale_settings: Vec<Setting>,
    /// Networks and uplinks in the rollback ledger that are no longer needed.
    #[serde(skip)]
    pub stale_records: StaleRecords,
    /// Networks that are in place but not recorded in the rollback ledger.
    #[serde(skip)]
    pub records_to_adopt: BTreeMap<String, NetworkRecord>,
    /// Reason why guests' control frames cannot be filtered; `None` if they can.
    #[serde(skip)]
    pub unfiltered_reason: Option<String>,
    /// True if the spec binds host tasks to the reserved CPUs.
    #[serde(skip)]
    pub housekeeping: bool,
    /// True if a kubelet runs, which counted huge pages when it started; `None` if that is unknown.
    #[serde(skip)]
    pub is_kubelet_running: Option<bool>,
}

impl Plan {
    /// Turns the plan into a dry run: neither the host nor the rollback ledger is changed.
    pub fn block_all_changes(&mut self) {
        for change in &mut self.changes {
            change.blocked.get_or_insert_with(|| "this agent only observes (--observe)".to_owned());
        }
        self.stale_settings.clear();
        self.stale_records = StaleRecords::default();
        self.records_to_adopt.clear();
    }

    /// Returns true if the plan has no changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Marks the tenants of changes that were tried and are still pending as failed, with the reason.
    pub fn mark_tenants_failed(&mut self, failed_changes: &BTreeMap<ChangeId, String>) {
        self.unfiltered_reason = None;
        for change in &self.changes {
            let (Some(action), Some(reason)) =
                (change.link_action(), failed_changes.get(&change.id))
            else {
                continue;
            };
            if change.is_filter_change() {
                self.unfiltered_reason = Some(reason.clone());
            }
            let network = self.networks.iter_mut().find(|network| network.name == action.network);
            let Some(network) = network else { continue };
            for id in action.added_tenants.keys() {
                if let Some(tenant) = network.not_ready.get_mut(id) {
                    tenant.state = TenantNetworkState::Failed;
                    tenant.message.clone_from(reason);
                }
            }
        }
    }

    /// Returns the number of blocked changes.
    #[must_use]
    pub fn blocked_changes(&self) -> usize {
        self.changes.iter().filter(|change| change.blocked.is_some()).count()
    }
}
