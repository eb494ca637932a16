//! Problems that frames on a port show: other DHCP servers and routers, and addresses that another machine uses. Each
//! problem is reported at most once an hour.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use berth_api::{EventReason, MacAddress};
use berth_dhcp_responder::{AddressConflict, ForeignServer};

use super::port_plan::ServedPort;
use crate::cluster::CycleEvent;

/// A problem, and the port on which it was found.
#[derive(Debug, Clone)]
pub(super) struct PortProblem {
    pub(super) port: ServedPort,
    pub(super) problem: Problem,
}

/// Problem that a frame on a port shows.
#[derive(Debug, Clone)]
pub(super) enum Problem {
    /// Another DHCP server or router sends to the guests.
    ForeignServer(ForeignServer),
    /// A guest found that another machine uses its address.
    DeclinedAddress(IpAddr),
    /// A VM declined the address of another VM, with the Ethernet address of that VM.
    ForeignDecline {
        address: IpAddr,
        /// Machine that has the lease.
        machine: String,
    },
    /// Another machine answered a probe of the address of a lease.
    AddressInUse {
        conflict: AddressConflict,
        /// Machine that has the lease.
        machine: String,
    },
}

impl PortProblem {
    /// Returns the event, with a sentence that names the network, the problem and the remedy.
    pub(super) fn event(&self) -> CycleEvent {
        let ServedPort { name, network, .. } = &self.port;
        let sentence = match &self.problem {
            Problem::ForeignServer(server) => {
                let (kind, mac, address) = (server.kind, server.mac, server.address);
                format!(
                    "{network}: another server ({kind}) with address {address} and MAC address {mac} sends to port {name}; \
                     stop it, or set spec.network.dhcp: false in the TenantCluster"
                )
            }
            Problem::DeclinedAddress(address) => format!(
                "{network}: the VM at port {name} declined its address {address}, because another machine uses it; \
                 exclude the address from the pool of the TenantCluster, or give that machine another address"
            ),
            Problem::ForeignDecline { address, machine } => format!(
                "{network}: the VM at port {name} declined the address {address} of {machine}, which is at another port; \
                 the message has no effect: find out why the VM sends with the MAC address of its neighbour"
            ),
            Problem::AddressInUse { conflict, machine } => {
                let AddressConflict { address, user, .. } = conflict;
                let user = user.map_or_else(|| "unknown".to_owned(), |mac| mac.to_string());
                format!(
                    "{network}: the address {address} of {machine} is in use by a machine with MAC address {user} at {name}; \
                     the VM gets no answer while that machine uses the address: stop the machine, or exclude the address from the pool of the \
                     TenantCluster and delete the VM, whose replacement gets another address"
                )
            }
        };
        CycleEvent { reason: self.problem.reason(), sentences: vec![sentence] }
    }
}

/// Time until the same problem is reported again.
const REPORT_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of problems of one reason that are remembered for one network. A guest can cause any number of
/// problems with forged source addresses, but only in its own network, so the limit is per network.
const MAX_PROBLEMS: usize = 16;

/// Key of a problem: two problems of one network with equal keys count as one problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ProblemKey {
    ForeignServer(MacAddress),
    DeclinedAddress(IpAddr),
    /// One key for all addresses, so that a VM that declines many of them hides no other problem.
    ForeignDecline,
    AddressInUse(IpAddr),
}

impl Problem {
    const fn key(&self) -> ProblemKey {
        match self {
            Self::ForeignServer(server) => ProblemKey::ForeignServer(server.mac),
            Self::DeclinedAddress(address) => ProblemKey::DeclinedAddress(*address),
            Self::ForeignDecline { .. } => ProblemKey::ForeignDecline,
            Self::AddressInUse { conflict, .. } => ProblemKey::AddressInUse(conflict.address),
        }
    }

    const fn reason(&self) -> EventReason {
        match self {
            Self::ForeignServer(_) => EventReason::ForeignDhcpServer,
            Self::DeclinedAddress(_) | Self::ForeignDecline { .. } | Self::AddressInUse { .. } => {
                EventReason::AddressConflict
            }
        }
    }
}

/// Problems that were reported recently, by network and reason.
#[derive(Debug, Default)]
pub(super) struct ReportedProblems(BTreeMap<(String, EventReason), BTreeMap<ProblemKey, Instant>>);

impl ReportedProblems {
    /// Returns true if the problem must be reported now, and remembers it. While too many problems of its network are
    /// remembered, no other problem of this reason is reported for this network.
    pub(super) fn must_report(&mut self, problem: &PortProblem, now: Instant) -> bool {
        let PortProblem { port, problem } = problem;
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < REPORT_INTERVAL;
        let group = (port.network.clone(), problem.reason());
        if !self.0.contains_key(&group) {
            // Forgets networks that the host no longer has.
            self.0.retain(|_, known| known.values().any(is_recent));
        }
        let known = self.0.entry(group).or_default();
        if known.get(&problem.key()).is_some_and(is_recent) {
            return false;
        }
        if known.len() >= MAX_PROBLEMS {
            known.retain(|_, at| is_recent(at));
        }
        let has_room = known.len() < MAX_PROBLEMS;
        if has_room {
            known.insert(problem.key(), now);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use berth_dhcp_responder::ForeignKind;

    use super::*;

    fn foreign_server(network: &str, number: u16) -> PortProblem {
        let [high, low] = number.to_be_bytes();
        let server = ForeignServer {
            kind: ForeignKind::Dhcpv4,
            mac: MacAddress([2, 0, 0, 0, high, low]),
            address: [10, 0, high, low].into(),
        };
        let name = "veth1".parse().unwrap();
        let port = ServedPort { name, network: network.to_owned(), vlan: None };
        PortProblem { port, problem: Problem::ForeignServer(server) }
    }

    #[test]
    fn a_server_is_reported_once_an_hour() {
        let mut reported = ReportedProblems::default();
        let now = Instant::now();
        let server = foreign_server("cluster-a", 1);
        assert!(reported.must_report(&server, now));
        assert!(!reported.must_report(&server, now + REPORT_INTERVAL / 2));
        assert!(reported.must_report(&foreign_server("cluster-b", 1), now));
        assert!(reported.must_report(&server, now + REPORT_INTERVAL));
        let event = server.event();
        assert_eq!(event.reason, EventReason::ForeignDhcpServer);
        assert!(event.note().starts_with("cluster-a: another server (dhcpv4)"), "{}", event.note());
    }

    #[test]
    fn a_conflict_names_both_machines() {
        let conflict = AddressConflict {
            address: [10, 0, 0, 7].into(),
            owner: MacAddress([2, 0, 0, 0, 0, 1]),
            user: Some(MacAddress([2, 0, 0, 0, 0, 9])),
        };
        let name = "bond0".parse().unwrap();
        let port = ServedPort { name, network: "cluster-a".to_owned(), vlan: None };
        let machine = "cluster-a/worker-0".to_owned();
        let event =
            PortProblem { port, problem: Problem::AddressInUse { conflict, machine } }.event();
        assert_eq!(event.reason, EventReason::AddressConflict);
        let start = "cluster-a: the address 10.0.0.7 of cluster-a/worker-0 is in use by a machine with MAC address \
                     02:00:00:00:00:09 at bond0";
        assert!(event.note().starts_with(start), "{}", event.note());
    }

    #[test]
    fn declines_of_a_neighbours_addresses_are_one_problem_that_names_the_port() {
        let decline = |number: u8| PortProblem {
            problem: Problem::ForeignDecline {
                address: [10, 0, 0, number].into(),
                machine: format!("cluster-a/m{number}"),
            },
            ..foreign_server("cluster-a", 1)
        };
        let note = decline(7).event().note().to_owned();
        let start = "cluster-a: the VM at port veth1 declined the address 10.0.0.7 of cluster-a/m7";
        assert!(note.starts_with(start), "{note}");
        let mut reported = ReportedProblems::default();
        let now = Instant::now();
        assert!(reported.must_report(&decline(7), now));
        assert!(!reported.must_report(&decline(8), now));
    }

    #[test]
    fn a_guest_with_many_addresses_fills_neither_memory_nor_log() {
        let mut reported = ReportedProblems::default();
        let now = Instant::now();
        let count = |reported: &mut ReportedProblems, at| {
            let servers = (0..5000).map(|number| foreign_server("cluster-a", number));
            servers.filter(|server| reported.must_report(server, at)).count()
        };
        assert_eq!(count(&mut reported, now), MAX_PROBLEMS);
        assert_eq!(count(&mut reported, now), 0);
        assert!(reported.must_report(&foreign_server("cluster-b", 1), now));
        let declined = PortProblem {
            problem: Problem::DeclinedAddress([10, 0, 0, 7].into()),
            ..foreign_server("cluster-a", 1)
        };
        assert!(reported.must_report(&declined, now), "other problems of the network are reported");
        assert_eq!(count(&mut reported, now + REPORT_INTERVAL), MAX_PROBLEMS);
        assert!(reported.must_report(&foreign_server("cluster-c", 1), now + 2 * REPORT_INTERVAL));
        assert_eq!(reported.0.len(), 1, "networks without recent problems are forgotten");
    }
}
