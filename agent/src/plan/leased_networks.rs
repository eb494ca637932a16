//! Addresses of the VMs on this host, by network, from their leases.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::{HostLeasesSpec, Lease, MacAddress};

/// Networks with leases on this host, by the name of the tenant's network.
pub type LeasedNetworks = BTreeMap<String, LeasedNetwork>;

/// Leases of one network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeasedNetwork {
    /// VLAN id or VNI of the network, if the leases contain it.
    pub segment: Option<u32>,
    /// Ethernet address and IP address of each lease.
    pub addresses: BTreeSet<(MacAddress, IpAddr)>,
}

impl LeasedNetwork {
    /// Returns the addresses of these leases. If two leases have the same Ethernet address, the first is used, because
    /// guests get only the addresses of the first.
    #[must_use]
    pub fn new(segment: Option<u32>, leases: &[Lease]) -> Self {
        let mut macs = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for lease in leases.iter().filter(|lease| macs.insert(lease.mac)) {
            let of_family = [lease.ipv4.map(IpAddr::V4), lease.ipv6.map(IpAddr::V6)];
            addresses.extend(of_family.into_iter().flatten().map(|address| (lease.mac, address)));
        }
        Self { segment, addresses }
    }
}

/// Returns the networks of a HostLeases. If two networks have the same name, the first is used.
#[must_use]
pub fn leased_networks(leases: &HostLeasesSpec) -> LeasedNetworks {
    let mut all = LeasedNetworks::new();
    for network in &leases.networks {
        let segment = network.vlan.map(|vlan| u32::from(u16::from(vlan))).or(network.vni);
        let leased = || LeasedNetwork::new(segment, &network.leases);
        all.entry(network.name.clone()).or_insert_with(leased);
    }
    all
}

#[cfg(test)]
mod tests {
    use berth_api::LeaseNetwork;

    use super::*;

    #[test]
    fn the_first_lease_of_an_ethernet_address_and_of_a_name_is_used() {
        let lease = |mac: u8, ipv4: u8, ipv6: bool| Lease {
            mac: MacAddress([2, 0, 0, 0, 0, mac]),
            machine: "cluster-a/m".to_owned(),
            hostname: None,
            ipv4: Some([10, 0, 0, ipv4].into()),
            ipv6: ipv6.then(|| "fd00::1".parse().unwrap()),
            default_route: None,
        };
        let network = |vni: u32, leases: Vec<Lease>| LeaseNetwork {
            name: "cluster-a".to_owned(),
            vni: Some(vni),
            leases,
            ..LeaseNetwork::default()
        };
        let first = vec![lease(1, 1, true), lease(1, 2, false), lease(2, 3, false)];
        let networks = vec![network(7, first), network(8, vec![lease(3, 4, false)])];
        let all = leased_networks(&HostLeasesSpec { networks });
        let addresses = |mac: u8, address: &str| {
            (MacAddress([2, 0, 0, 0, 0, mac]), address.parse::<IpAddr>().unwrap())
        };
        let expected = LeasedNetwork {
            segment: Some(7),
            addresses: [
                addresses(1, "10.0.0.1"),
                addresses(1, "fd00::1"),
                addresses(2, "10.0.0.3"),
            ]
            .into(),
        };
        assert_eq!(all, [("cluster-a".to_owned(), expected)].into());
    }
}
