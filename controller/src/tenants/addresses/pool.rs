//! A valid pool of addresses of one family.

use std::net::IpAddr;

use berth_api::AddressRange;
use ipnet::IpNet;
use rangemap::RangeInclusiveSet;

use super::family::{Family, to_number};
use super::resolved::ResolvedPool;

/// A pool that passed validation. A pool may have 2^64 addresses; therefore it is stored as a set of ranges, and no
/// function iterates over single addresses.
#[derive(Clone, Debug)]
pub struct ValidPool {
    /// Family of the addresses.
    pub family: Family,
    /// Network of the pool, without host bits.
    pub cidr: IpNet,
    /// Addresses and configuration of the pool, as in the Kubernetes objects.
    pub config: ResolvedPool,
    /// Addresses that are allocated to machines automatically.
    allocatable: RangeInclusiveSet<u128>,
    /// Addresses that the list of a MachineDeployment may contain: all host addresses of the network that are not
    /// excluded, including those outside of `ranges`.
    permitted: RangeInclusiveSet<u128>,
}

impl ValidPool {
    /// Returns the pool. The caller has checked that all fields are of the family of `cidr`, and that `ranges` and
    /// `exclude` are inside of `cidr`.
    pub(super) fn new(family: Family, config: ResolvedPool) -> Self {
        let cidr = config.cidr.trunc();
        let mut permitted = RangeInclusiveSet::new();
        let (first, last) = (to_number(cidr.network()), to_number(cidr.broadcast()));
        // Hosts cannot have the first address of a network: in IPv4 it is the network address, in IPv6 the anycast
        // address of routers (RFC 4291, 2.6.1). The last address is the broadcast address in IPv4; IPv6 has none.
        let last_host = if family == Family::V4 { last.saturating_sub(1) } else { last };
        if first < last_host {
            permitted.insert(first.saturating_add(1)..=last_host);
        }
        for range in &config.exclude {
            permitted.remove(to_number(range.first())..=to_number(range.last()));
        }
        for reserved in reserved_addresses(family, &config) {
            permitted.remove(to_number(reserved)..=to_number(reserved));
        }
        let allocatable = if config.ranges.is_empty() {
            permitted.clone()
        } else {
            intersection(&permitted, &config.ranges)
        };
        Self { family, cidr, config, allocatable, permitted }
    }

    /// Returns true if this address may be allocated to a machine automatically.
    #[must_use]
    pub fn allocates(&self, address: IpAddr) -> bool {
        Family::of(address) == self.family && self.allocatable.contains(&to_number(address))
    }

    /// Returns true if the list of a MachineDeployment may contain this address.
    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        Family::of(address) == self.family && self.permitted.contains(&to_number(address))
    }

    /// Returns the gateway and the range that contains it, if `ranges` contains the gateway and `exclude` does not. The
    /// gateway is never allocated, so the range has one address fewer than it seems to have.
    #[must_use]
    pub fn gateway_in_ranges(&self) -> Option<(IpAddr, AddressRange)> {
        let gateway = self.config.gateway?;
        let find =
            |ranges: &[AddressRange]| ranges.iter().copied().find(|range| range.contains(gateway));
        let range = find(&self.config.ranges)?;
        find(&self.config.exclude).is_none().then_some((gateway, range))
    }

    /// Returns the ranges of the addresses that are allocated automatically, in ascending order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = &std::ops::RangeInclusive<u128>> {
        self.allocatable.iter()
    }

    /// Returns the number of addresses that are allocated automatically.
    #[must_use]
    pub fn len(&self) -> u128 {
        let count = |range: &std::ops::RangeInclusive<u128>| {
            range.end().saturating_sub(*range.start()).saturating_add(1)
        };
        self.allocatable.iter().map(count).fold(0, u128::saturating_add)
    }

    /// Returns true if no address is allocated automatically.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allocatable.is_empty()
    }
}

/// Returns the addresses that belong to other devices in the network.
fn reserved_addresses(family: Family, config: &ResolvedPool) -> impl Iterator<Item = IpAddr> {
    let next_hops = config.routes.iter().map(|route| route.via);
    let all = config.gateway.into_iter().chain(next_hops).chain(config.nameservers.iter().copied());
    all.filter(move |address| Family::of(*address) == family)
}

fn intersection(set: &RangeInclusiveSet<u128>, ranges: &[AddressRange]) -> RangeInclusiveSet<u128> {
    let mut all = RangeInclusiveSet::new();
    for range in ranges {
        let (first, last) = (to_number(range.first()), to_number(range.last()));
        for part in set.overlapping(first..=last) {
            all.insert(*part.start().max(&first)..=*part.end().min(&last));
        }
    }
    all
}
