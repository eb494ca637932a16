//! The guests behind one port: a responder for each Ethernet address that has a lease.

use std::sync::Arc;

use berth_api::MacAddress;
use berth_dhcp_responder::{Direction, Outcome, PortResponder, Uptime};

use super::network_probes::NetworkProbes;
use super::served_network::ServedNetwork;

/// Maximum number of Ethernet addresses that one port uses. A guest that sends frames with many source addresses must
/// not exhaust the agent's memory.
const MAX_GUESTS: usize = 8;

/// The responders of one port.
#[derive(Debug)]
pub(super) struct Port {
    network: Arc<ServedNetwork>,
    /// Responders of the guests that sent a frame, sorted by Ethernet address. Usually there is one guest, and a map
    /// would reserve memory for eleven.
    responders: Vec<PortResponder>,
    /// Decides whether the address of a guest may be served.
    probes: Arc<NetworkProbes>,
}

impl Port {
    pub(super) fn new(network: Arc<ServedNetwork>, probes: Arc<NetworkProbes>) -> Self {
        Self { network, responders: Vec::new(), probes }
    }

    /// Returns true if a guest with a lease has sent a frame. The port then belongs to a VM of Berth, which uses no
    /// address of another lease.
    pub(super) fn has_known_guest(&self) -> bool {
        !self.responders.is_empty()
    }

    /// Returns the name of the machine whose lease has this Ethernet address, or the address itself if there is no such
    /// lease.
    pub(super) fn machine(&self, mac: MacAddress) -> String {
        self.network.machine(mac)
    }

    /// Updates the leases. Guests without a lease get no more answers.
    pub(super) fn set_network(&mut self, network: Arc<ServedNetwork>) {
        self.responders.retain_mut(|responder| {
            let lease = network.lease(responder.mac());
            lease.map(|lease| responder.set_lease(network.settings(), lease)).is_some()
        });
        self.network = network;
    }

    /// Handles a frame. Returns `None` if the port already serves [`MAX_GUESTS`] other guests, or if the network has no
    /// leases. The observer of the network handles frames without an address and frames of an address without a lease.
    pub(super) fn handle(
        &mut self,
        direction: Direction,
        frame: &[u8],
        now: Uptime,
    ) -> Option<Outcome> {
        let mac = match direction {
            Direction::FromGuest => source_address(frame),
            Direction::ToGuest => None,
        };
        let Some(lease) = mac.and_then(|mac| self.network.lease(mac)) else {
            return Some(self.network.observer()?.observe(direction, frame));
        };
        let position = match self.responders.binary_search_by_key(&lease.mac, PortResponder::mac) {
            Ok(position) => position,
            Err(_) if self.responders.len() >= MAX_GUESTS => return None,
            Err(position) => {
                let responder = PortResponder::with_network(self.network.settings(), lease);
                // Without the exact size, a vector reserves memory for four guests.
                self.responders.reserve_exact(1);
                self.responders.insert(position, responder);
                position
            }
        };
        let (ipv4, ipv6) = self.probes.states_for_guest(lease);
        let responder = self.responders.get_mut(position)?;
        responder.set_address_states(ipv4, ipv6);
        Some(responder.handle(direction, frame, now))
    }

    /// Returns an unsolicited router advertisement for the port, to all nodes. Its content is the same for all leases
    /// with an IPv6 address, except the default gateway. A guest without IPv6 must not get the advertisement, because
    /// the name servers in it would be unreachable. So all guests that have sent a frame must have an IPv6 address;
    /// before the first frame, one lease of the network with an IPv6 address is enough.
    pub(super) fn advertisement(&self) -> Option<Vec<u8>> {
        let advertisements: Option<Vec<_>> =
            self.responders.iter().map(PortResponder::advertisement).collect();
        advertisements?.pop().or_else(|| self.network.observer()?.advertisement())
    }
}

/// Returns the source address of an Ethernet frame.
pub(super) fn source_address(frame: &[u8]) -> Option<MacAddress> {
    frame.get(6..12)?.try_into().ok().map(MacAddress)
}

#[cfg(test)]
mod tests {
    use berth_api::{Lease, LeaseNetwork, LeaseOptions};
    use proptest::prelude::*;

    use super::*;

    fn lease_network(count: u8) -> LeaseNetwork {
        let lease = |number| Lease {
            mac: MacAddress([2, 0, 0, 0, 0, number]),
            machine: format!("cluster-a/m{number}"),
            hostname: None,
            ipv4: Some([10, 0, 0, number].into()),
            ipv6: None,
            default_route: None,
        };
        let leases = (1..=count).map(lease).collect();
        LeaseNetwork { name: "cluster-a".to_owned(), leases, ..LeaseNetwork::default() }
    }

    fn network(count: u8) -> Arc<ServedNetwork> {
        Arc::new(ServedNetwork::new(lease_network(count)))
    }

    fn new_port(network: Arc<ServedNetwork>) -> Port {
        Port::new(network, Arc::new(NetworkProbes::new(std::time::Instant::now())))
    }

    fn frame_from(number: u8) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, number]);
        frame.resize(60, 0);
        frame
    }

    fn macs(port: &Port) -> Vec<u8> {
        port.responders.iter().map(|responder| responder.mac().0[5]).collect()
    }

    #[test]
    fn each_guest_has_a_responder_until_its_lease_ends() {
        let mut port = new_port(network(3));
        for number in [3, 2, 77] {
            port.handle(Direction::FromGuest, &frame_from(number), Uptime::ZERO);
        }
        assert_eq!(macs(&port), [2, 3], "an address without a lease has no responder");
        port.set_network(network(2));
        assert_eq!(macs(&port), [2]);
        port.set_network(network(0));
        assert_eq!(macs(&port), [0_u8; 0]);
        assert!(port.handle(Direction::FromGuest, &frame_from(2), Uptime::ZERO).is_none());
    }

    /// A network with IPv4 and IPv6, whose guests with even numbers have no IPv6 address.
    fn dual_stack_network(count: u8) -> Arc<ServedNetwork> {
        let mut network = lease_network(count);
        network.ipv6 = Some(LeaseOptions { prefix_length: 64, ..LeaseOptions::default() });
        for lease in network.leases.iter_mut().filter(|lease| lease.mac.0[5] % 2 == 1) {
            let number = u16::from(lease.mac.0[5]);
            lease.ipv6 = Some([0xfd00, 0, 0, 0, 0, 0, 0, number].into());
        }
        Arc::new(ServedNetwork::new(network))
    }

    #[test]
    fn routers_are_advertised_unless_a_guest_has_no_ipv6() {
        let mut port = new_port(network(3));
        assert_eq!(port.advertisement(), None, "no lease has IPv6");
        port.set_network(dual_stack_network(3));
        let advertisement = port.advertisement();
        assert!(advertisement.is_some(), "the guest is unknown");
        port.handle(Direction::FromGuest, &frame_from(77), Uptime::ZERO);
        port.handle(Direction::FromGuest, &frame_from(3), Uptime::ZERO);
        assert_eq!(port.advertisement(), advertisement, "the guest has IPv6");
        port.handle(Direction::FromGuest, &frame_from(2), Uptime::ZERO);
        assert_eq!(port.advertisement(), None, "a guest has no IPv6");
        port.set_network(dual_stack_network(1));
        assert_eq!(port.advertisement(), advertisement, "the leases of these guests ended");
    }

    #[test]
    fn a_guest_with_many_addresses_does_not_occupy_memory() {
        let mut port = new_port(network(200));
        for number in 1..=200 {
            port.handle(Direction::FromGuest, &frame_from(number), Uptime::ZERO);
        }
        assert_eq!(port.responders.len(), MAX_GUESTS);
        assert_eq!(port.responders.capacity(), MAX_GUESTS);
        assert!(port.handle(Direction::FromGuest, &frame_from(1), Uptime::ZERO).is_some());
    }

    proptest! {
        #[test]
        fn random_frames_are_handled(frames in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..100)), 0..20))
        {
            let mut port = new_port(network(3));
            for (from_guest, frame) in frames {
                let direction =
                    if from_guest { Direction::FromGuest } else { Direction::ToGuest };
                prop_assert!(port.handle(direction, &frame, Uptime::ZERO).is_some());
            }
        }
    }
}
