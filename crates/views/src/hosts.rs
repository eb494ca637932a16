//! Hosts of the infra cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use berth_api::infra_node::{TrunkState, Zone};
use berth_api::names::condition;
use berth_api::{Bytes, ConditionReason, InfraNode, PageSize};
use serde::Serialize;

use crate::issue::{ConditionState, Issue, Severity, condition_rows, issues};
use crate::kind::Kind;
use crate::objects::{NodeFields, ObjectName};
use crate::snapshot::Snapshot;

/// Kinds that the rows of hosts need. InfraNodes are required; the other kinds add details.
pub const KINDS: [Kind; 3] = [Kind::InfraNode, Kind::Node, Kind::VirtualMachineInstance];

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostRow {
    pub name: String,
    /// States of the host, the most severe first; only [`HostState::Ready`] if the host is healthy and takes new VMs. Empty
    /// if no state is known, because the InfraNode or the Node was not read.
    pub states: Vec<HostState>,
    /// Highest severity of the states and the issues.
    pub severity: Severity,
    /// Class of VMs that the host runs, from the label of the Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// HostProfile of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Number of VMs on the host; `None` if the user may not list VirtualMachineInstances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vms: Option<usize>,
    /// CPUs that the kubelet may allocate exclusively; `None` if they are unknown, or if it allocates none.
    #[serde(rename = "pinnableCPUs", skip_serializing_if = "Option::is_none")]
    pub pinnable_cpus: Option<Amount>,
    /// Huge pages of all zones in bytes; `None` if they are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<Amount>,
    /// Memory that the kernel manages, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// True if the kernel merges equal pages (KSM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ksm: Option<bool>,
    /// State of the trunks, the worst of all host networks; `None` without a network that carries VLANs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trunk: Option<TrunkState>,
    /// State of the drain; `None` if no VM must leave the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    pub zones: Vec<ZoneRow>,
    /// Conditions that are not healthy, with remedies.
    pub issues: Vec<Issue>,
}

/// Used and total amount of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    pub used: u64,
    pub total: u64,
}

impl Amount {
    /// Returns the amount that is not used.
    #[must_use]
    pub const fn free(self) -> u64 {
        self.total.saturating_sub(self.used)
    }

    const fn plus(self, other: Self) -> Self {
        Self {
            used: self.used.saturating_add(other.used),
            total: self.total.saturating_add(other.total),
        }
    }
}

/// A NUMA zone of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ZoneRow {
    pub id: u32,
    /// CPUs that may be allocated exclusively; `None` if they or the allocated ones are unknown, or if there are none.
    #[serde(rename = "pinnableCPUs", skip_serializing_if = "Option::is_none")]
    pub pinnable_cpus: Option<Amount>,
    /// CPUs that are allocated exclusively, as a CPU list; `None` if they are unknown.
    #[serde(rename = "pinnedCPUs", skip_serializing_if = "Option::is_none")]
    pub pinned_cpus: Option<String>,
    /// CPUs that may be allocated exclusively and are not allocated, as a CPU list; `None` if they are unknown, or if no CPU
    /// may be allocated exclusively.
    #[serde(rename = "freeCPUs", skip_serializing_if = "Option::is_none")]
    pub free_cpus: Option<String>,
    /// CPUs that the kubelet reserves for the system, as a CPU list.
    #[serde(rename = "reservedCPUs", skip_serializing_if = "String::is_empty")]
    pub reserved_cpus: String,
    /// Memory of the zone in bytes, including huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Huge pages by size; sizes without pages are left out.
    pub hugepages: Vec<PagesRow>,
}

/// Huge pages of one size. The amounts are numbers of pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PagesRow {
    /// Size of a page, such as `2Mi`.
    pub size: PageSize,
    /// Number of used pages; `None` if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    pub total: u64,
}

/// State of a drain, from the condition `Draining`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Reason of the condition: `HostCordoned` or `PodsEvicted`.
    pub reason: String,
    /// Message of the condition, which names the VMs and the reasons for which they wait.
    pub message: String,
}

/// A state of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum HostState {
    /// The host is lost: its machines are replaced, or wait.
    Lost,
    /// The condition Ready of the Node is not `True`.
    NodeNotReady,
    /// The agent of the host does not renew its Lease.
    AgentUnresponsive,
    /// The InfraNode cannot be parsed.
    Malformed,
    /// The Node has no InfraNode, or the InfraNode has no status: no agent reports.
    NoReport,
    /// The condition VirtualizationReady of the InfraNode is not `True`.
    NoVirtualization,
    /// The condition Ready of the InfraNode is not `True`.
    NotReady,
    /// VMs must leave the host.
    Draining,
    /// The Node is not schedulable.
    Cordoned,
    /// The host is healthy and takes new VMs.
    Ready,
}

impl HostState {
    /// Returns the severity of the state.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::Ready => Severity::Ok,
            Self::Draining | Self::Cordoned | Self::NoReport => Severity::Warning,
            Self::Lost
            | Self::NodeNotReady
            | Self::AgentUnresponsive
            | Self::Malformed
            | Self::NoVirtualization
            | Self::NotReady => Severity::Failure,
        }
    }
}

impl fmt::Display for HostState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Returns a row for each host: for each InfraNode, and for each Node that has no InfraNode, sorted by name. Nodes of a
/// control plane without an InfraNode are hosts too, because a snapshot does not show on which Nodes agents should run.
#[must_use]
pub fn rows(snapshot: &Snapshot) -> Vec<HostRow> {
    let counts = vm_counts(snapshot);
    let names: BTreeSet<&str> = snapshot
        .infra_nodes
        .keys()
        .chain(snapshot.nodes.keys())
        .map(String::as_str)
        .chain(malformed_names(snapshot))
        .collect();
    names.into_iter().map(|name| row(snapshot, name, counts.as_ref())).collect()
}

/// Returns the row of one host; `None` if neither an InfraNode nor a Node has this name.
#[must_use]
pub fn find(snapshot: &Snapshot, name: &str) -> Option<HostRow> {
    is_known(snapshot, name).then(|| row(snapshot, name, vm_counts(snapshot).as_ref()))
}

/// Returns the row of one host like [`find`], but without the number of VMs, for which all VMs would be counted.
#[must_use]
pub fn find_without_vms(snapshot: &Snapshot, name: &str) -> Option<HostRow> {
    is_known(snapshot, name).then(|| row(snapshot, name, None))
}

fn is_known(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.infra_nodes.contains_key(name)
        || snapshot.nodes.contains_key(name)
        || malformed_names(snapshot).any(|malformed| malformed == name)
}

fn malformed_names(snapshot: &Snapshot) -> impl Iterator<Item = &str> {
    snapshot.malformed_names(Kind::InfraNode).map(|name| name.name.as_str())
}

/// Returns the numbers of VMs by host; `None` if the VirtualMachineInstances were not read completely.
fn vm_counts(snapshot: &Snapshot) -> Option<BTreeMap<&str, usize>> {
    if snapshot.is_unread(Kind::VirtualMachineInstance) {
        return None;
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let running = snapshot.instances.values().filter(|one| !one.is_terminal());
    for host in running.filter_map(|one| one.host.as_deref()) {
        *counts.entry(host).or_default() += 1;
    }
    Some(counts)
}

fn row(snapshot: &Snapshot, name: &str, counts: Option<&BTreeMap<&str, usize>>) -> HostRow {
    let infra: Option<&InfraNode> = snapshot.infra_nodes.get(name).map(AsRef::as_ref);
    let node: Option<&NodeFields> = snapshot.nodes.get(name).map(AsRef::as_ref);
    let is_malformed = snapshot.is_malformed(Kind::InfraNode, &ObjectName::new("", name));
    let is_unread = |kind: Kind| snapshot.is_unread(kind);
    let is_report_known = infra.is_some() || is_malformed || !is_unread(Kind::InfraNode);
    let mut states = states(infra, node, is_malformed);
    states.retain(|state| *state != HostState::NoReport || is_report_known);
    if states.is_empty() && is_report_known && (node.is_some() || !is_unread(Kind::Node)) {
        states.push(HostState::Ready);
    }
    let status = infra.and_then(|infra| infra.status.as_ref());
    let zones: Vec<ZoneRow> =
        status.into_iter().flat_map(|status| &status.zones).map(zone_row).collect();
    let memory = status.map(|status| &status.capabilities.memory);
    let mut issues =
        status.map(|status| issues(&condition_rows(&status.conditions))).unwrap_or_default();
    issues.extend(node_issue(node));
    HostRow {
        name: name.to_owned(),
        severity: states
            .iter()
            .map(|state| state.severity())
            // A host without a known state may have a fault.
            .chain(states.is_empty().then_some(Severity::Warning))
            .chain(issues.iter().map(|issue| issue.severity))
            .max()
            .unwrap_or_default(),
        states,
        class: node.and_then(|node| node.class.clone()),
        profile: infra
            .and_then(|infra| infra.spec.profile.clone())
            .or_else(|| node.and_then(|node| node.profile.clone())),
        vms: counts.map(|counts| counts.get(name).copied().unwrap_or_default()),
        pinnable_cpus: status.and_then(|status| pinnable_cpus(&status.zones)),
        hugepages: hugepages(&zones),
        memory: memory.and_then(|memory| memory.total).map(|Bytes(total)| total),
        ksm: memory.and_then(|memory| memory.ksm.as_ref()?.running),
        trunk: infra.and_then(worst_trunk),
        drain: infra.and_then(drain),
        zones,
        issues,
    }
}

/// Returns the states of a host that is not healthy or takes no new VMs, the most severe first.
fn states(
    infra: Option<&InfraNode>,
    node: Option<&NodeFields>,
    is_malformed: bool,
) -> Vec<HostState> {
    let status = infra.and_then(|infra| infra.status.as_ref());
    let conditions = || status.into_iter().flat_map(|status| &status.conditions);
    let state_of = |type_: &str| {
        let found = conditions().find(|one| one.type_ == type_);
        found.map(|one| ConditionState::parse(&one.status))
    };
    let is_not_true =
        |type_: &str| state_of(type_).is_some_and(|state| state != ConditionState::True);
    let is_unresponsive = conditions()
        .any(|one| one.reason.parse::<ConditionReason>() == Ok(ConditionReason::AgentUnresponsive));
    let is_not_ready =
        node.is_some_and(|node| node.ready.is_some_and(|ready| ready != ConditionState::True));
    let candidates = [
        (HostState::Lost, state_of(condition::HOST_LOST) == Some(ConditionState::True)),
        (HostState::NodeNotReady, is_not_ready),
        (HostState::AgentUnresponsive, is_unresponsive),
        (HostState::Malformed, is_malformed),
        (HostState::NoReport, status.is_none() && !is_malformed),
        // The conditions of an unresponsive agent are `Unknown`; its states would all follow from this one.
        (
            HostState::NoVirtualization,
            is_not_true(condition::VIRTUALIZATION_READY) && !is_unresponsive,
        ),
        (HostState::NotReady, is_not_true(condition::READY) && !is_unresponsive),
        (HostState::Draining, state_of(condition::DRAINING) == Some(ConditionState::True)),
        (HostState::Cordoned, node.is_some_and(|node| node.is_cordoned)),
    ];
    candidates.into_iter().filter(|(_, applies)| *applies).map(|(state, _)| state).collect()
}

fn node_issue(node: Option<&NodeFields>) -> Option<Issue> {
    let node = node.filter(|node| node.ready.is_some_and(|ready| ready != ConditionState::True))?;
    Some(Issue {
        severity: Severity::Failure,
        source: "Node".to_owned(),
        reason: "NotReady".to_owned(),
        message: node.ready_message.clone(),
        remedy: Some("check that the host is up, and its kubelet".to_owned()),
    })
}

fn drain(infra: &InfraNode) -> Option<Drain> {
    let mut conditions = infra.status.iter().flat_map(|status| &status.conditions);
    let draining = conditions.find(|one| {
        one.type_ == condition::DRAINING
            && ConditionState::parse(&one.status) == ConditionState::True
    })?;
    Some(Drain { reason: draining.reason.clone(), message: draining.message.clone() })
}

/// Returns the worst state of the trunks of a host: `Missing`, then `Unknown`, then `Verified`.
fn worst_trunk(infra: &InfraNode) -> Option<TrunkState> {
    let networks = infra.status.iter().flat_map(|status| &status.networks);
    let rank = |state: TrunkState| match state {
        TrunkState::Missing => 2,
        TrunkState::Unknown => 1,
        TrunkState::Verified => 0,
    };
    networks
        .filter_map(|network| Some(network.trunk.as_ref()?.state))
        .max_by_key(|state| rank(*state))
}

impl PagesRow {
    /// Returns the numbers of pages; `None` if the number of used pages is unknown.
    #[must_use]
    pub fn pages(&self) -> Option<Amount> {
        Some(Amount { used: self.used?, total: self.total })
    }

    fn bytes(&self) -> Option<Amount> {
        let size = self.size.bytes();
        let pages = self.pages()?;
        Some(Amount {
            used: pages.used.saturating_mul(size),
            total: pages.total.saturating_mul(size),
        })
    }
}

/// Returns the huge pages of all zones in bytes; `None` without zones, or if an amount is unknown.
fn hugepages(zones: &[ZoneRow]) -> Option<Amount> {
    if zones.is_empty() {
        return None;
    }
    let mut sum = Amount::default();
    for row in zones.iter().flat_map(|zone| &zone.hugepages) {
        sum = sum.plus(row.bytes()?);
    }
    Some(sum)
}

/// Returns the CPUs of all zones that may be allocated exclusively; `None` if those of a zone are unknown, or if there are
/// none.
fn pinnable_cpus(zones: &[Zone]) -> Option<Amount> {
    let mut sum = Amount::default();
    for zone in zones {
        sum = sum.plus(cpu_amount(zone)?);
    }
    Some(sum).filter(|sum| sum.total > 0)
}

/// Returns the CPUs of a zone that may be allocated exclusively; `None` if they, or the allocated ones, are unknown.
fn cpu_amount(zone: &Zone) -> Option<Amount> {
    let (pinnable, pinned) = (zone.pinnable_cpus.as_ref()?, zone.pinned_cpus.as_ref()?);
    let count = |cpus: usize| u64::try_from(cpus).unwrap_or(u64::MAX);
    Some(Amount { used: count(pinnable.intersection(pinned).len()), total: count(pinnable.len()) })
}

/// Returns the CPUs of a zone that may be allocated exclusively and are not allocated; `None` if they are unknown, or if no
/// CPU may be allocated exclusively.
fn free_cpus(zone: &Zone) -> Option<String> {
    let (pinnable, pinned) = (zone.pinnable_cpus.as_ref()?, zone.pinned_cpus.as_ref()?);
    (!pinnable.is_empty()).then(|| pinnable.difference(pinned).to_string())
}

fn zone_row(zone: &Zone) -> ZoneRow {
    let pools = zone.hugepages.iter().filter(|pool| pool.total > 0);
    ZoneRow {
        id: zone.id,
        pinnable_cpus: cpu_amount(zone).filter(|cpus| cpus.total > 0),
        free_cpus: free_cpus(zone),
        pinned_cpus: zone.pinned_cpus.as_ref().map(ToString::to_string),
        reserved_cpus: zone.reserved_cpus.as_ref().map(ToString::to_string).unwrap_or_default(),
        memory: zone.memory.map(|Bytes(bytes)| bytes),
        hugepages: pools
            .map(|pool| PagesRow {
                size: pool.size,
                used: pool.free.map(|free| pool.total.saturating_sub(free)),
                total: pool.total,
            })
            .collect(),
    }
}
