//! Results of the tasks, and the part of the results that the status of the InfraNode contains.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_api::infra_node::{Neighbor, TrunkState, TrunkStatus, TrunkUnknownReason};
use berth_api::{InfraNodeStatus, LinkName};

/// Time after the start in which a missing LLDP frame is not reported, because switches send a frame only every 30
/// seconds.
const LLDP_STARTUP_TIME: Duration = Duration::from_secs(100);
/// Maximum number of neighbours of a link. A new neighbour replaces the one whose last frame is the oldest.
const MAX_NEIGHBORS: usize = 4;
/// Minimum time between two cycles of the daemon that are started because a neighbour changed. A faulty neighbour may
/// announce different values in each frame; regular cycles publish the last values anyway.
const NEIGHBOR_WAKE_INTERVAL: Duration = Duration::from_secs(30);

/// Results that the tasks write and the daemon's cycle reads.
pub(super) struct Results {
    inner: Mutex<Inner>,
    /// Starts a cycle, which publishes the results.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Results").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Inner {
    started: Instant,
    networks: BTreeMap<String, NetworkResult>,
    neighbors: BTreeMap<LinkName, Vec<KnownNeighbor>>,
    /// Time of the last cycle that was started because a neighbour changed.
    last_neighbor_wake: Option<Instant>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NetworkResult {
    /// Status of the trunk; `None` until the first verification after the start is complete.
    pub(super) status: Option<TrunkStatus>,
    /// Number of other hosts from which probes were received.
    pub(super) host_count: usize,
}

/// A neighbour, and the time until which its announcement is valid.
#[derive(Debug, Clone)]
struct KnownNeighbor {
    neighbor: Neighbor,
    received: Instant,
    expires: Instant,
}

/// The results to publish: of the verification of trunks, and the neighbours of links.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TrunkReport {
    /// Result of each network that is probed, by name.
    pub(crate) networks: BTreeMap<String, TrunkStatus>,
    /// Number of other hosts from which probes were received, by network.
    pub(crate) host_counts: BTreeMap<String, usize>,
    /// Neighbours that LLDP frames announced, sorted by link.
    pub(crate) neighbors: Vec<Neighbor>,
}

impl Results {
    pub(super) fn new(wake: Box<dyn Fn() + Send + Sync>) -> Self {
        let inner = Inner {
            started: Instant::now(),
            networks: BTreeMap::new(),
            neighbors: BTreeMap::new(),
            last_neighbor_wake: None,
        };
        Self { inner: Mutex::new(inner), wake }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the result of a network.
    pub(super) fn set_network(&self, network: &str, result: NetworkResult) {
        let mut inner = self.lock();
        let known = inner.networks.entry(network.to_owned()).or_default();
        if *known == result {
            return;
        }
        let is_new_status = known.status != result.status;
        *known = result;
        drop(inner);
        if is_new_status {
            (self.wake)();
        }
    }

    /// Removes the result of a network that is no longer probed.
    pub(super) fn remove_network(&self, network: &str) {
        self.lock().networks.remove(network);
    }

    /// Stores the announcement of a neighbour. `time_to_live` is zero if the neighbour announces its shutdown.
    pub(super) fn set_neighbor(&self, neighbor: Neighbor, time_to_live: Duration) {
        let now = Instant::now();
        let mut inner = self.lock();
        let known = inner.neighbors.entry(neighbor.uplink.clone()).or_default();
        let before: Vec<Neighbor> = known.iter().map(|one| one.neighbor.clone()).collect();
        let is_same = |one: &KnownNeighbor| {
            (&one.neighbor.chassis, &one.neighbor.port) == (&neighbor.chassis, &neighbor.port)
        };
        known.retain(|one| !is_same(one) && one.expires > now);
        if !time_to_live.is_zero() {
            if known.len() >= MAX_NEIGHBORS {
                let oldest = known.iter().map(|one| one.received).min();
                known.retain(|one| Some(one.received) != oldest);
            }
            known.push(KnownNeighbor { neighbor, received: now, expires: now + time_to_live });
            known.sort_by(|one, other| one.neighbor.cmp(&other.neighbor));
        }
        let is_new = !known.iter().map(|one| &one.neighbor).eq(&before);
        let is_recent = |at: Instant| now.duration_since(at) < NEIGHBOR_WAKE_INTERVAL;
        if is_new && !inner.last_neighbor_wake.is_some_and(is_recent) {
            inner.last_neighbor_wake = Some(now);
            drop(inner);
            (self.wake)();
        }
    }

    /// Removes the neighbours of a link.
    pub(super) fn remove_link(&self, link: &LinkName) {
        self.lock().neighbors.remove(link);
    }

    /// Returns the report to publish. `previous` is the last published report; its values are used until the tasks
    /// have results after the start.
    pub(super) fn report(&self, previous: &TrunkReport) -> TrunkReport {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.neighbors.values_mut().for_each(|known| known.retain(|one| one.expires > now));
        let mut report = TrunkReport::default();
        for (name, result) in &inner.networks {
            let status = result.status.as_ref().or_else(|| previous.networks.get(name));
            let status = status.cloned().unwrap_or_else(|| {
                unknown_status(
                    TrunkUnknownReason::NoPeers,
                    "no probe of another host has arrived yet",
                )
            });
            report.networks.insert(name.clone(), status);
            report.host_counts.insert(name.clone(), result.host_count);
        }
        let known = inner.neighbors.values().flatten();
        report.neighbors = known.map(|one| one.neighbor.clone()).collect();
        if now.duration_since(inner.started) < LLDP_STARTUP_TIME {
            let has_no_result =
                |one: &&Neighbor| inner.neighbors.get(&one.uplink).is_none_or(Vec::is_empty);
            report.neighbors.extend(previous.neighbors.iter().filter(has_no_result).cloned());
        }
        report.neighbors.sort();
        report
    }
}

impl TrunkReport {
    /// Returns the trunk report that a status contains.
    pub(crate) fn from_status(status: &InfraNodeStatus) -> Self {
        let networks = status.networks.iter();
        let networks =
            networks.filter_map(|network| Some((network.name.clone(), network.trunk.clone()?)));
        Self {
            networks: networks.collect(),
            host_counts: BTreeMap::new(),
            neighbors: status.neighbors.clone(),
        }
    }

    /// Adds this report to a status: the results of the verification, and the neighbours.
    pub(crate) fn add_to_status(&self, status: &mut InfraNodeStatus) {
        for network in &mut status.networks {
            network.trunk = self.networks.get(&network.name).cloned();
        }
        status.neighbors.clone_from(&self.neighbors);
    }
}

/// Returns the status of a network whose trunk is neither verified nor known to be faulty.
pub(super) fn unknown_status(
    reason: TrunkUnknownReason,
    message: impl Into<String>,
) -> TrunkStatus {
    TrunkStatus {
        state: TrunkState::Unknown,
        reason: Some(reason),
        message: Some(message.into()),
        ..TrunkStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn neighbor(port: &str) -> Neighbor {
        Neighbor {
            uplink: "eth0".parse().unwrap(),
            chassis: "00:1b:21:aa:bb:cc".to_owned(),
            system_name: None,
            port: port.to_owned(),
            description: None,
            port_vlan: None,
            vlans: Vec::new(),
        }
    }

    fn no_key() -> TrunkStatus {
        unknown_status(TrunkUnknownReason::NoKey, "no key file")
    }

    #[test]
    fn published_values_stay_until_there_are_results() {
        let wakes = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&wakes);
        let results = Results::new(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let verified = TrunkStatus { state: TrunkState::Verified, ..TrunkStatus::default() };
        let previous = TrunkReport {
            networks: [("tenants".to_owned(), verified.clone())].into(),
            host_counts: BTreeMap::new(),
            neighbors: vec![neighbor("Ethernet1/7")],
        };
        results.set_network("tenants", NetworkResult::default());
        let report = results.report(&previous);
        assert_eq!(
            (&report.networks, &report.neighbors),
            (&previous.networks, &previous.neighbors)
        );
        assert_eq!(wakes.load(Ordering::Relaxed), 0, "nothing is new");

        let result = NetworkResult { status: Some(no_key()), host_count: 0 };
        results.set_network("tenants", result.clone());
        results.set_network("tenants", result);
        results.set_neighbor(neighbor("Ethernet1/8"), Duration::from_secs(120));
        results.set_neighbor(neighbor("Ethernet1/8"), Duration::from_secs(120));
        assert_eq!(wakes.load(Ordering::Relaxed), 2, "only changes start a cycle");
        let report = results.report(&previous);
        assert_eq!(report.networks["tenants"], no_key());
        assert_eq!(report.neighbors, [neighbor("Ethernet1/8")]);
        results.set_neighbor(neighbor("Ethernet1/8"), Duration::ZERO);
        results.remove_network("tenants");
        assert_eq!(results.report(&TrunkReport::default()), TrunkReport::default());
    }

    /// A device that announces a different port in each frame does not keep the agent busy, and displaces a switch
    /// only until the switch sends its next frame.
    #[test]
    fn a_flood_of_neighbors_starts_few_cycles() {
        let wakes = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&wakes);
        let results = Results::new(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        for port in 0..1000 {
            results.set_neighbor(neighbor(&format!("forged{port}")), Duration::from_secs(65_535));
        }
        results.set_neighbor(neighbor("Ethernet1/7"), Duration::from_secs(120));
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        let report = results.report(&TrunkReport::default());
        assert!(report.neighbors.len() <= MAX_NEIGHBORS);
        assert!(report.neighbors.contains(&neighbor("Ethernet1/7")));
    }
}
