//! Order of the reasons for which a trunk is neither verified nor faulty. The report and the check of trunks use it without
//! the daemon, which writes these reasons.

use std::collections::BTreeMap;

use berth_api::infra_node::{TrunkState, TrunkStatus, TrunkUnknownReason};

/// Returns the network in the state Unknown whose reason a user should correct first. A reason that may be permanent
/// comes last.
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
