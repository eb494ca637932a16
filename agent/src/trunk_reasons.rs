//! Priority of the reasons for which a trunk is neither verified nor faulty. This module is separate from the
//! daemon, which sets the reasons, because the report and the check of trunks also need the order.

use std::collections::BTreeMap;

use berth_api::infra_node::{TrunkState, TrunkStatus, TrunkUnknownReason};

/// Returns the network in the state Unknown whose reason a user should correct first. Reasons that may be permanent
/// have the lowest priority.
pub(crate) fn most_urgent_unknown(
    networks: &BTreeMap<String, TrunkStatus>,
) -> Option<(&String, &TrunkStatus)> {
    let urgency = |(_, trunk): &(&String, &TrunkStatus)| match trunk.reason {
        Some(TrunkUnknownReason::ProbeFailed) => 0,
        Some(TrunkUnknownReason::NoKey) => 1,
        Some(TrunkUnknownReason::VlansWithoutPeers) => 2,
        Some(TrunkUnknownReason::NoPeers) | None => 3,
    };
    networks.iter().filter(|(_, trunk)| trunk.state == TrunkState::Unknown).min_by_key(urgency)
}
