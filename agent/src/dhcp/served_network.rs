//! A tenant's network with the leases of its VMs on this host, by Ethernet address.

use std::collections::BTreeMap;

use berth_api::{HostLeasesSpec, Lease, LeaseNetwork, MacAddress};

/// A tenant's network, and the leases of its VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServedNetwork {
    /// The network's configuration, without leases: each responder stores the part that it needs.
    pub(super) options: LeaseNetwork,
    pub(super) leases: BTreeMap<MacAddress, Lease>,
}

impl ServedNetwork {
    /// Indexes the leases by Ethernet address. If two leases have the same address, the first is used.
    pub(super) fn new(mut network: LeaseNetwork) -> Self {
        let mut leases = BTreeMap::new();
        for lease in std::mem::take(&mut network.leases) {
            leases.entry(lease.mac).or_insert(lease);
        }
        Self { options: network, leases }
    }

    /// Returns the name of the machine whose lease has this Ethernet address, or the address itself if there is no such
    /// lease.
    pub(super) fn machine(&self, mac: MacAddress) -> String {
        self.leases.get(&mac).map_or_else(|| mac.to_string(), |lease| lease.machine.clone())
    }

    /// Returns the VLAN id or the VNI of the network, if the HostLeases contains it.
    pub(super) fn segment(&self) -> Option<u32> {
        self.options.vlan.map(|vlan| u32::from(u16::from(vlan))).or(self.options.vni)
    }
}

/// Returns the networks that have leases, by name. If two networks have the same name, the first is used.
pub(super) fn served_networks(leases: &HostLeasesSpec) -> BTreeMap<String, ServedNetwork> {
    let mut networks = BTreeMap::new();
    for network in leases.networks.iter().filter(|network| !network.leases.is_empty()) {
        networks.entry(network.name.clone()).or_insert_with(|| ServedNetwork::new(network.clone()));
    }
    networks
}
