//! The guests behind one port: a responder for each Ethernet address that has a lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::MacAddress;
use berth_dhcp_responder::{Direction, Outcome, PortResponder, SERVER_MAC, Uptime};

use super::served_network::ServedNetwork;

/// Maximum number of Ethernet addresses that one port uses. A guest that sends with the addresses of others must not
/// occupy the agent's memory.
const MAX_GUESTS: usize = 8;

/// The responders of one port.
#[derive(Debug)]
pub(super) struct Port {
    network: Arc<ServedNetwork>,
    responders: BTreeMap<MacAddress, PortResponder>,
}

impl Port {
    pub(super) const fn new(network: Arc<ServedNetwork>) -> Self {
        Self { network, responders: BTreeMap::new() }
    }

    /// Updates the leases. Guests without a lease get no more answers.
    pub(super) fn set_network(&mut self, network: Arc<ServedNetwork>) {
        self.responders.retain(|mac, responder| {
            network.leases.get(mac).map(|lease| responder.update(&network.options, lease)).is_some()
        });
        self.network = network;
    }

    /// Handles a frame. Returns `None` if the port has more guests than are served.
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
        Some(self.responder(mac)?.handle(direction, frame, now))
    }

    /// Returns a router advertisement for the port; `None` if the network has no IPv6 configuration.
    pub(super) fn advertisement(&mut self) -> Option<Vec<u8>> {
        self.responder(None)?.advertisement()
    }

    /// Returns the responder of a guest. Without an address, or for an address without a lease, returns any responder
    /// of the port: it answers only its own guest, but recognizes the frames of foreign servers.
    fn responder(&mut self, mac: Option<MacAddress>) -> Option<&mut PortResponder> {
        let leased = mac.and_then(|mac| self.network.leases.get(&mac));
        if leased.is_none() && !self.responders.is_empty() {
            return self.responders.values_mut().next();
        }
        let lease = leased.or_else(|| self.network.leases.values().next())?;
        if self.responders.len() >= MAX_GUESTS && !self.responders.contains_key(&lease.mac) {
            return None;
        }
        let options = &self.network.options;
        let create = || PortResponder::new(options, lease, SERVER_MAC);
        Some(self.responders.entry(lease.mac).or_insert_with(create))
    }
}

/// Returns the source address of an Ethernet frame.
fn source_address(frame: &[u8]) -> Option<MacAddress> {
    frame.get(6..12)?.try_into().ok().map(MacAddress)
}

#[cfg(test)]
mod tests {
    use berth_api::{Lease, LeaseNetwork};
    use proptest::prelude::*;

    use super::*;

    fn network(count: u8) -> Arc<ServedNetwork> {
        let lease = |number| Lease {
            mac: MacAddress([2, 0, 0, 0, 0, number]),
            machine: format!("cluster-a/m{number}"),
            hostname: None,
            ipv4: Some([10, 0, 0, number].into()),
            ipv6: None,
        };
        let leases = (1..=count).map(lease).collect();
        let name = "cluster-a".to_owned();
        Arc::new(ServedNetwork::new(LeaseNetwork { name, leases, ..LeaseNetwork::default() }))
    }

    fn frame_from(number: u8) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, number]);
        frame.resize(60, 0);
        frame
    }

    fn macs(port: &Port) -> Vec<u8> {
        port.responders.keys().map(|mac| mac.0[5]).collect()
    }

    #[test]
    fn each_guest_has_a_responder_until_its_lease_ends() {
        let mut port = Port::new(network(3));
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

    #[test]
    fn a_guest_with_many_addresses_does_not_occupy_memory() {
        let mut port = Port::new(network(200));
        for number in 1..=200 {
            port.handle(Direction::FromGuest, &frame_from(number), Uptime::ZERO);
        }
        assert_eq!(port.responders.len(), MAX_GUESTS);
        assert!(port.handle(Direction::FromGuest, &frame_from(1), Uptime::ZERO).is_some());
    }

    proptest! {
        #[test]
        fn random_frames_are_handled(frames in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..100)), 0..20))
        {
            let mut port = Port::new(network(3));
            for (from_guest, frame) in frames {
                let direction =
                    if from_guest { Direction::FromGuest } else { Direction::ToGuest };
                prop_assert!(port.handle(direction, &frame, Uptime::ZERO).is_some());
            }
        }
    }
}
