//! Address probes of one network, which its prober and its ports share.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use berth_api::Lease;
use berth_dhcp_responder::{
    AddressConflict, AddressProbes, AddressState, Probe, ProbeAnswer, ProbeStep, Uptime,
};
use tokio::sync::{Notify, broadcast};

use super::served_network::ServedNetwork;

/// Maximum number of probes that are queued for a busy port. A missed probe does no harm, because each address is
/// probed several times.
const MAX_QUEUED_PROBES: usize = 16;

/// Address probes of one network.
#[derive(Debug)]
pub(super) struct NetworkProbes {
    probes: Mutex<AddressProbes>,
    /// Address probes that each port sends to its guest. A port unsubscribes once its guest is known to have a lease.
    to_guests: broadcast::Sender<Probe>,
    changed: Notify,
    started: Instant,
}

impl NetworkProbes {
    pub(super) fn new(started: Instant) -> Self {
        let (to_guests, _) = broadcast::channel(MAX_QUEUED_PROBES);
        Self { probes: Mutex::default(), to_guests, changed: Notify::new(), started }
    }

    fn lock(&self) -> MutexGuard<'_, AddressProbes> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time since the start of the agent.
    pub(super) fn now(&self) -> Uptime {
        self.started.elapsed()
    }

    /// Replaces the leases.
    pub(super) fn set_leases(&self, network: &ServedNetwork) {
        let addresses = network
            .leases()
            .iter()
            .flat_map(|lease| addresses(lease).map(|address| (address, lease.mac)));
        // Two leases have the same address only if a manifest has a fault. In this case the first lease is used.
        let mut leases = std::collections::BTreeMap::new();
        for (address, owner) in addresses {
            leases.entry(address).or_insert(owner);
        }
        self.lock().set_leases(&leases, self.now());
    }

    /// Returns the states of the IPv4 and the IPv6 address of a lease whose guest sent a frame. Addresses that are not
    /// yet probed are probed next.
    pub(super) fn states_for_guest(&self, lease: &Lease) -> (AddressState, AddressState) {
        let mut probes = self.lock();
        let mut state = |address: Option<IpAddr>| {
            let Some(address) = address else { return AddressState::Free };
            if probes.prioritize(address) {
                self.changed.notify_one();
            }
            probes.state(address)
        };
        (state(lease.ipv4.map(Into::into)), state(lease.ipv6.map(Into::into)))
    }

    /// Returns the next step of the probes.
    pub(super) fn poll(&self) -> ProbeStep {
        self.lock().poll(self.now())
    }

    /// Handles an answer to a probe; see [`AddressProbes::observe`].
    pub(super) fn observe(&self, answer: ProbeAnswer) -> Option<AddressConflict> {
        let conflict = self.lock().observe(answer, self.now())?;
        self.changed.notify_one();
        Some(conflict)
    }

    /// Withholds an address that its guest declined.
    pub(super) fn decline(&self, address: IpAddr) {
        if self.lock().decline(address, self.now()).is_some() {
            self.changed.notify_one();
        }
    }

    /// Returns the addresses in use.
    pub(super) fn conflicts(&self) -> Vec<AddressConflict> {
        self.lock().conflicts().collect()
    }

    /// Subscribes a port to the probes that it sends to its guest.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Probe> {
        self.to_guests.subscribe()
    }

    /// Passes a probe to the ports, and returns the number of ports.
    pub(super) fn send_to_guests(&self, probe: Probe) -> usize {
        self.to_guests.send(probe).unwrap_or_default()
    }

    /// Waits until leases or answers have changed, so that [`Self::poll`] may return another step.
    pub(super) async fn wait_for_change(&self) {
        self.changed.notified().await;
    }
}

/// Returns the addresses of a lease.
fn addresses(lease: &Lease) -> impl Iterator<Item = IpAddr> + use<> {
    let ipv4 = lease.ipv4.map(IpAddr::V4);
    ipv4.into_iter().chain(lease.ipv6.map(IpAddr::V6))
}

/// Waits for the next probe that a port sends to its guest; waits forever after the end of the network.
pub(super) async fn next_probe(receiver: &mut broadcast::Receiver<Probe>) -> Probe {
    loop {
        match receiver.recv().await {
            Ok(probe) => return probe,
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::{LeaseNetwork, MacAddress};

    use super::*;

    fn lease(number: u8, ipv6: bool) -> Lease {
        Lease {
            mac: MacAddress([2, 0, 0, 0, 0, number]),
            machine: format!("cluster-a/m{number}"),
            hostname: None,
            ipv4: Some([10, 0, 0, number].into()),
            ipv6: ipv6.then(|| [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)].into()),
            default_route: None,
        }
    }

    #[test]
    fn both_addresses_of_a_waiting_guest_are_probed_first() {
        let probes = NetworkProbes::new(Instant::now());
        let leases = (1..=9).map(|number| lease(number, true)).collect();
        let network = LeaseNetwork { leases, ..LeaseNetwork::default() };
        probes.set_leases(&ServedNetwork::new(network));
        let unknown = (AddressState::Unknown, AddressState::Unknown);
        assert_eq!(probes.states_for_guest(&lease(9, true)), unknown);
        for _ in 0..2 {
            let step = probes.poll();
            let ProbeStep::Send(probe) = step else { panic!("{step:?}") };
            assert_eq!(probe.owner, lease(9, true).mac);
        }
        probes.decline([10, 0, 0, 9].into());
        let states = (AddressState::InUse, AddressState::Unknown);
        assert_eq!(probes.states_for_guest(&lease(9, true)), states);
        assert_eq!(probes.conflicts().len(), 1);
        let without_lease = (AddressState::Unknown, AddressState::Free);
        assert_eq!(probes.states_for_guest(&lease(10, false)), without_lease);
    }

    #[test]
    fn only_ports_that_wait_for_probes_are_counted() {
        let probes = NetworkProbes::new(Instant::now());
        let probe = Probe { owner: MacAddress([2; 6]), address: [10, 0, 0, 1].into() };
        assert_eq!(probes.send_to_guests(probe), 0);
        let receivers = [probes.subscribe(), probes.subscribe()];
        assert_eq!(probes.send_to_guests(probe), 2);
        drop(receivers);
        assert_eq!(probes.send_to_guests(probe), 0);
    }
}
