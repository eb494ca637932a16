//! Filter of hosts by the volumes of one pod (kube-scheduler `pkg/scheduler/framework/plugins/volumebinding`).
//!
//! Two parts of the plugin are left out. Volumes without a claim, to which kube-scheduler can bind a claim, are not
//! known; therefore a claim of a class without a provisioner restricts no hosts. In-tree volumes are not translated to
//! CSI volumes.

use super::capacity_pools::ClaimSum;
use super::cluster_state::ClusterState;
use super::host_set::HostSet;
use super::hosts::NodeInfo;
use super::node_affinity::NodeRule;
use super::reason::Reason;
use super::symbols::Symbol;
use super::volumes::{Claim, VolumeChecks};

/// The rules about the volumes of a pod, prepared for the evaluation of hosts.
#[derive(Debug, Default)]
pub(super) struct VolumeFilter<'a> {
    /// Claims that are bound to volumes with a node affinity.
    affinities: Vec<(u32, HostRule<'a>)>,
    /// Claims without a volume for which kube-scheduler has selected a node.
    selected_nodes: Vec<(u32, Symbol)>,
    /// StorageClasses, with topologies, of claims without a volume.
    topologies: Vec<(Symbol, HostRule<'a>)>,
    /// Claims whose volumes use storage that a driver reports, by StorageClass.
    storage: Vec<(Symbol, Vec<StorageClaim>)>,
}

/// A rule, and the hosts that match it.
#[derive(Clone, Copy, Debug)]
struct HostRule<'a> {
    rule: &'a NodeRule,
    hosts: &'a HostSet,
}

/// A claim whose volume uses storage that a driver reports.
#[derive(Clone, Copy, Debug)]
struct StorageClaim {
    number: u32,
    bytes: u64,
    selected_node: Option<Symbol>,
}

/// Rule that excludes a host.
enum Conflict<'a> {
    NodeAffinity(u32, &'a NodeRule),
    SelectedNode(u32, Symbol),
    Topology(Symbol, &'a NodeRule),
    Storage(Symbol, Shortage),
}

/// Requested and free bytes of a StorageClass on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shortage {
    requested: u64,
    free: u64,
}

impl<'a> VolumeFilter<'a> {
    /// Prepares the rules about the claims with these numbers.
    pub(super) fn new(cluster: &'a ClusterState, claims: &[u32]) -> Self {
        let volumes = &cluster.volumes;
        let mut filter = Self::default();
        let checks_all = volumes.checks == VolumeChecks::All;
        let look_up = |rule: u32| {
            let (rule, hosts) = cluster.hosts.node_rules.get(rule)?;
            checks_all.then_some(HostRule { rule, hosts })
        };
        for number in claims {
            match volumes.claim(*number) {
                None => {}
                Some(Claim::Bound { node_rule }) => {
                    filter.affinities.extend(look_up(node_rule).map(|rule| (*number, rule)));
                }
                Some(Claim::Unbound { class: name, bytes, selected_node }) => {
                    let Some(class) = volumes.classes.get(&name) else { continue };
                    // The volume controller binds a claim of a class with the binding mode Immediate before its pod is
                    // scheduled.
                    if !class.waits_for_consumer {
                        continue;
                    }
                    if let Some(node) = selected_node.filter(|_| checks_all) {
                        filter.selected_nodes.push((*number, node));
                    }
                    let topologies = class.topologies.and_then(look_up);
                    filter.topologies.extend(topologies.map(|rule| (name, rule)));
                    if let Some(bytes) = bytes.filter(|_| volumes.has_reported_storage(name)) {
                        filter.add_storage_claim(
                            name,
                            StorageClaim { number: *number, bytes, selected_node },
                        );
                    }
                }
            }
        }
        filter
    }

    fn add_storage_claim(&mut self, class: Symbol, claim: StorageClaim) {
        match self.storage.iter_mut().find(|(name, _)| *name == class) {
            Some((_, claims)) => claims.push(claim),
            None => self.storage.push((class, vec![claim])),
        }
    }

    /// Returns true if the volumes of the pod restrict no hosts.
    pub(super) fn is_empty(&self) -> bool {
        self.affinities.is_empty()
            && self.selected_nodes.is_empty()
            && self.topologies.is_empty()
            && self.storage.is_empty()
    }

    /// Returns true if all volumes of the pod can be used on the host, or provisioned for it.
    pub(super) fn allows(&self, cluster: &ClusterState, host: u32) -> bool {
        self.is_empty() || self.conflict(cluster, host).is_none()
    }

    /// Returns the reason why a volume of the pod can be neither used on the host nor provisioned for it.
    pub(super) fn rejection(&self, cluster: &ClusterState, host: u32) -> Option<Reason> {
        let symbols = &cluster.symbols;
        let claim_text = |number| cluster.volumes.claim_text(symbols, number);
        let name = |symbol| symbols.name(symbol).to_owned();
        Some(match self.conflict(cluster, host)? {
            Conflict::NodeAffinity(claim, rule) => Reason::VolumeNodeAffinity {
                claim: claim_text(claim),
                required: rule.terms_text(symbols),
            },
            Conflict::SelectedNode(claim, node) => {
                Reason::VolumeSelectedNode { claim: claim_text(claim), node: name(node) }
            }
            Conflict::Topology(class, rule) => {
                Reason::VolumeTopology { class: name(class), required: rule.terms_text(symbols) }
            }
            Conflict::Storage(class, Shortage { requested, free }) => {
                let host = cluster.hosts.get(host).map(|node| name(node.name));
                let host = host.unwrap_or_default();
                Reason::InsufficientStorage { class: name(class), host, requested, free }
            }
        })
    }

    /// Returns the first rule that excludes the host, in the order of kube-scheduler.
    fn conflict(&self, cluster: &ClusterState, host: u32) -> Option<Conflict<'_>> {
        let node = cluster.hosts.get(host)?;
        let affinity = self.affinities.iter().find(|(_, rule)| !rule.hosts.contains(host));
        if let Some((claim, HostRule { rule, .. })) = affinity {
            return Some(Conflict::NodeAffinity(*claim, rule));
        }
        if let Some((claim, selected)) =
            self.selected_nodes.iter().find(|(_, selected)| *selected != node.name)
        {
            return Some(Conflict::SelectedNode(*claim, *selected));
        }
        let topology = self.topologies.iter().find(|(_, rule)| !rule.hosts.contains(host));
        if let Some((class, HostRule { rule, .. })) = topology {
            return Some(Conflict::Topology(*class, rule));
        }
        self.storage.iter().find_map(|(class, claims)| {
            let shortage = find_shortage(cluster, node, host, *class, claims)?;
            Some(Conflict::Storage(*class, shortage))
        })
    }
}

/// Compares the claims of a pod with the storage of their class that the host can use.
///
/// kube-scheduler compares each claim with the largest volume of one pool (`hasEnoughCapacity`), and not the sum of
/// several claims. Berth also compares the sum of the pod's claims and of the claims of assumed pods with the free storage
/// of all pools. The sum of pools may be more than the driver can provide, but a false refusal would be worse than a
/// failed volume, after which kube-scheduler retries the pod.
fn find_shortage(
    cluster: &ClusterState,
    node: &NodeInfo,
    host: u32,
    class: Symbol,
    claims: &[StorageClaim],
) -> Option<Shortage> {
    let volumes = &cluster.volumes;
    let (mut requested, mut largest) = (ClaimSum::default(), 0);
    for claim in claims {
        // The volume of a claim with this selected node is being provisioned, and may already be missing in the free
        // storage. If it cannot be provisioned, the provisioner removes the selected node.
        if claim.selected_node != Some(node.name) && !volumes.is_counted_on(claim.number, host) {
            requested.add(claim.bytes);
            largest = claim.bytes.max(largest);
        }
    }
    if requested.claims == 0 {
        return None;
    }
    let available = volumes.pools.get(&class);
    let available = available.map(|pools| pools.available(&cluster.symbols, &node.labels));
    let available = available.unwrap_or_default();
    if volumes.checks == VolumeChecks::All {
        let limit = available.volume_limit.filter(|limit| *limit >= largest);
        if limit.is_none() {
            let free = available.volume_limit.unwrap_or_default();
            return Some(Shortage { requested: largest, free });
        }
    }
    let reserved = available.reserved;
    // A single claim was compared above, or by kube-scheduler. If no pool has space for any volume, kube-scheduler has
    // found an existing volume to which it will bind the claim.
    if requested.claims.saturating_add(reserved.claims) <= 1 || available.volume_limit.is_none() {
        return None;
    }
    let free = available.capacity?.saturating_sub(reserved.limited_bytes());
    let requested_bytes = requested.limited_bytes();
    (requested.bytes > u128::from(free)).then_some(Shortage { requested: requested_bytes, free })
}
