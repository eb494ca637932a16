//! Builds the status of the InfraNode from the results of a cycle. The functions are pure.

use std::collections::BTreeMap;

use berth_api::Condition;
use berth_api::infra_node::{AddressConflictStatus, ChangeStatus};
use berth_api::names::LINK_ALIAS_PREFIX;
use berth_api::{InfraNodeStatus, LinkName};

use super::desired::HostDesiredState;
use super::last_report;
use crate::manifest::SpecPart;
use crate::plan::NetworkState;
use crate::trunk::TrunkReport;
use berth_host_facts::HostFacts;
use berth_host_facts::links::{LinkKind, Links};

/// Results of a cycle that the status contains.
#[derive(Debug)]
pub(super) struct Input<'a> {
    /// Facts of the host, including the list of facts that are unknown now.
    pub(super) facts: &'a HostFacts,
    pub(super) desired: &'a HostDesiredState,
    pub(super) networks: &'a [NetworkState],
    pub(super) conditions: Vec<Condition>,
    pub(super) changes: Vec<ChangeStatus>,
    /// The previous status, for facts that are unknown now.
    pub(super) previous_status: Option<&'a InfraNodeStatus>,
    /// Results of the verification of trunks, and the neighbours of links.
    pub(super) trunks: &'a TrunkReport,
    /// Addresses of VMs that other machines use.
    pub(super) address_conflicts: &'a [AddressConflictStatus],
}

/// Adds the results of a cycle to a report of the host, and returns the complete status of the InfraNode.
pub(super) fn build_status(report: InfraNodeStatus, input: Input) -> InfraNodeStatus {
    let Input {
        facts,
        desired,
        networks,
        mut conditions,
        changes,
        previous_status: previous,
        trunks,
        address_conflicts,
    } = input;
    let observed_generation = desired.generation.as_ref().map(|generation| generation.number);
    for condition in &mut conditions {
        condition.observed_generation = observed_generation;
    }
    let mut status = InfraNodeStatus {
        observed_generation,
        changes,
        conditions,
        networks: networks.iter().map(NetworkState::status).collect(),
        address_conflicts: address_conflicts.to_vec(),
        ..report
    };
    if let Some(previous) = previous {
        let unparsed = desired.unparsed.parts.contains(&SpecPart::Networks);
        last_report::merge_unknown_facts(&mut status, previous, facts, unparsed);
    }
    trunks.add_to_status(&mut status);
    status.truncate_to_schema();
    status
}

/// Returns the bridges that Berth created and that are up, by network; `None` if the links are unknown.
pub(super) fn bridges_by_network(links: &Links) -> Option<BTreeMap<String, Vec<LinkName>>> {
    if links.is_incomplete {
        return None;
    }
    let mut bridges: BTreeMap<String, Vec<LinkName>> = BTreeMap::new();
    for link in
        links.all.iter().filter(|link| link.kind == LinkKind::Bridge && link.is_up == Some(true))
    {
        let alias = link.alias.as_deref().and_then(|alias| alias.strip_prefix(LINK_ALIAS_PREFIX));
        let Some(alias) = alias else { continue };
        let network = alias.split_once('/').map_or(alias, |(network, _)| network);
        bridges.entry(network.to_owned()).or_default().push(link.name.clone());
    }
    Some(bridges)
}
