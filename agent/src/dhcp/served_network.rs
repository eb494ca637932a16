//! A tenant's network with the leases of its VMs on this host, by Ethernet address.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::{HostLeasesSpec, Lease, LeaseNetwork, MacAddress};
use berth_dhcp_responder::{NetworkSettings, PortResponder, SERVER_MAC};

/// A tenant's network, and the leases of its VMs. All ports of the network share one value.
#[derive(Debug)]
pub(super) struct ServedNetwork {
    /// The network's configuration, without leases.
    options: LeaseNetwork,
    /// The part of the configuration that the responders of all guests share.
    settings: Arc<NetworkSettings>,
    /// Leases, sorted by Ethernet address. A map would need twice as much memory.
    leases: Box<[Lease]>,
    /// Responder for frames that belong to no guest with a lease: it sends no answers, but reports foreign servers.
    observer: Option<PortResponder>,
}

/// Networks that have leases, by name.
pub(super) type ServedNetworks = BTreeMap<String, Arc<ServedNetwork>>;

impl PartialEq for ServedNetwork {
    /// Compares the data from which the other fields are computed.
    fn eq(&self, other: &Self) -> bool {
        self.options == other.options && self.leases == other.leases
    }
}

impl Eq for ServedNetwork {}

impl ServedNetwork {
    /// Indexes the leases by Ethernet address. If two leases have the same address, the first is used.
    pub(super) fn new(mut network: LeaseNetwork) -> Self {
        let mut leases = std::mem::take(&mut network.leases);
        leases.sort_by_key(|lease| lease.mac);
        leases.dedup_by_key(|lease| lease.mac);
        let settings = Arc::new(NetworkSettings::new(&network, SERVER_MAC));
        let observer = create_network_responder(&settings, &leases);
        Self { options: network, settings, leases: leases.into_boxed_slice(), observer }
    }

    /// Returns all leases.
    pub(super) fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Returns the lease of this Ethernet address.
    pub(super) fn lease(&self, mac: MacAddress) -> Option<&Lease> {
        let position = self.leases.binary_search_by_key(&mac, |lease| lease.mac).ok()?;
        self.leases.get(position)
    }

    /// Returns the part of the configuration that the responders of all guests share.
    pub(super) const fn settings(&self) -> &Arc<NetworkSettings> {
        &self.settings
    }

    /// Returns the responder for frames that belong to no guest with a lease; `None` without leases.
    pub(super) const fn observer(&self) -> Option<&PortResponder> {
        self.observer.as_ref()
    }

    /// Returns the name of the machine whose lease has this Ethernet address, or the address itself if there is no such
    /// lease.
    pub(super) fn machine(&self, mac: MacAddress) -> String {
        self.lease(mac).map_or_else(|| mac.to_string(), |lease| lease.machine.clone())
    }

    /// Returns the VLAN id or the VNI of the network, if the HostLeases contains it.
    pub(super) fn segment(&self) -> Option<u32> {
        self.options.vlan.map(|vlan| u32::from(u16::from(vlan))).or(self.options.vni)
    }
}

/// Creates a responder for one lease of the network. A lease with IPv6 is preferred, because its responder has the
/// whole configuration of the network. Among these, a lease without a default gateway is preferred: its advertisements
/// are sent to ports whose guests are not known yet, and a guest must not get a gateway that its lease does not have. A
/// guest whose lease has one gets it with the answer to its router solicitation.
fn create_network_responder(
    settings: &Arc<NetworkSettings>,
    leases: &[Lease],
) -> Option<PortResponder> {
    let with_ipv6 = || leases.iter().filter(|lease| lease.ipv6.is_some());
    let mut without_gateway = with_ipv6().filter(|lease| lease.default_route == Some(false));
    let preferred = without_gateway.next().or_else(|| with_ipv6().next());
    let lease = preferred.or_else(|| leases.first())?;
    Some(PortResponder::with_network(settings, lease))
}

/// Returns the networks that have leases, by name. If two networks have the same name, the first is used. An unchanged
/// network is taken from `current`, so that its ports do not keep a second copy of its leases.
pub(super) fn served_networks(leases: &HostLeasesSpec, current: &ServedNetworks) -> ServedNetworks {
    let mut networks = ServedNetworks::new();
    for network in leases.networks.iter().filter(|network| !network.leases.is_empty()) {
        if networks.contains_key(&network.name) {
            continue;
        }
        let served = Arc::new(ServedNetwork::new(network.clone()));
        let unchanged = current.get(&network.name).filter(|current| **current == served).cloned();
        networks.insert(network.name.clone(), unchanged.unwrap_or(served));
    }
    networks
}

#[cfg(test)]
mod tests {
    use berth_api::LeaseOptions;

    use super::*;

    fn lease(number: u8, machine: &str) -> Lease {
        Lease {
            mac: MacAddress([2, 0, 0, 0, 0, number]),
            machine: machine.to_owned(),
            hostname: None,
            ipv4: Some([10, 0, 0, number].into()),
            ipv6: None,
            default_route: None,
        }
    }

    fn network(name: &str, leases: Vec<Lease>) -> LeaseNetwork {
        LeaseNetwork { name: name.to_owned(), leases, ..LeaseNetwork::default() }
    }

    #[test]
    fn the_first_lease_of_an_ethernet_address_is_used() {
        let leases = vec![lease(3, "c"), lease(1, "a"), lease(3, "other"), lease(2, "b")];
        let served = ServedNetwork::new(network("cluster-a", leases));
        let machines: Vec<&str> =
            served.leases().iter().map(|lease| lease.machine.as_str()).collect();
        assert_eq!(machines, ["a", "b", "c"]);
        assert_eq!(served.machine(lease(3, "").mac), "c");
        assert_eq!(served.machine(lease(4, "").mac), "02:00:00:00:00:04");
        assert!(served.observer().is_some());
        assert!(ServedNetwork::new(network("cluster-a", Vec::new())).observer().is_none());
    }

    #[test]
    fn unknown_guests_get_no_gateway_that_one_of_the_leases_lacks() {
        let ipv6 = LeaseOptions {
            prefix_length: 64,
            gateway: Some("fe80::1".parse().unwrap()),
            ..LeaseOptions::default()
        };
        let advertisement = |leases: Vec<Lease>| {
            let network = LeaseNetwork { ipv6: Some(ipv6.clone()), ..network("cluster-a", leases) };
            ServedNetwork::new(network).observer().unwrap().advertisement().unwrap()
        };
        let with_ipv6 = |number: u8, default_route| Lease {
            ipv6: Some([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)].into()),
            default_route,
            ..lease(number, "a")
        };
        let (own, attached) = (with_ipv6(1, None), with_ipv6(2, Some(false)));
        let of_attached = advertisement(vec![attached.clone()]);
        assert_ne!(advertisement(vec![own.clone()]), of_attached);
        assert_eq!(advertisement(vec![own, attached]), of_attached);
    }

    #[test]
    fn an_unchanged_network_is_stored_once() {
        let spec = |machine: &str| HostLeasesSpec {
            networks: vec![
                network("cluster-a", vec![lease(1, "a")]),
                network("cluster-b", vec![lease(2, machine)]),
                network("cluster-b", vec![lease(3, "second")]),
                network("empty", Vec::new()),
            ],
        };
        let before = served_networks(&spec("b"), &ServedNetworks::new());
        let after = served_networks(&spec("new"), &before);
        assert!(before.keys().eq(["cluster-a", "cluster-b"]));
        assert!(Arc::ptr_eq(&before["cluster-a"], &after["cluster-a"]));
        assert_ne!(before["cluster-b"], after["cluster-b"]);
        assert_eq!(after["cluster-b"].machine(lease(2, "").mac), "new");
    }
}
