//! The peer: an allocator that checks the addresses of its range one after another, as the IPAM plugin whereabouts
//! does (`IterateForAssignment` in pkg/allocate/allocate.go).
//!
//! For each request, whereabouts reads the object that lists all reservations of the range, builds a map of these
//! reservations, and checks each address from the first on. Leader election allows only one pod of the cluster to
//! do this at a time, so the peer is one thread without conflicts. Here, the peer's requests to the API server take
//! no time.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};

/// First address of the tenants' pool: 10.0.0.2, the first after the network address and the gateway.
const FIRST_ADDRESS: u32 = 0x0a00_0002;
/// Last address of the tenants' pool: 10.0.255.254, the last before the broadcast address.
const LAST_ADDRESS: u32 = 0x0a00_fffe;
/// Addresses that the tenants' pool excludes.
const EXCLUDED_ADDRESSES: std::ops::RangeInclusive<u32> = 0x0a00_0100..=0x0a00_01ff;

/// Reservation of an address, as in the object that lists all reservations of the range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) address: Ipv4Addr,
    owner: String,
}

/// Reserves an address for each of these machines.
pub(super) fn reserve_all(machines: u32) -> Result<Vec<Reservation>> {
    let mut reservations: Vec<Reservation> = Vec::new();
    for machine in 0..machines {
        let owner = format!("cluster-a/workers-5d4f8c7b9-{machine:05}");
        let reserved: HashMap<Ipv4Addr, &str> =
            reservations.iter().map(|one| (one.address, one.owner.as_str())).collect();
        let mut numbers =
            (FIRST_ADDRESS..=LAST_ADDRESS).filter(|number| !EXCLUDED_ADDRESSES.contains(number));
        let free = numbers.find(|number| {
            let holder = reserved.get(&Ipv4Addr::from_bits(*number));
            holder.is_none_or(|holder| *holder == owner)
        });
        let address = Ipv4Addr::from_bits(free.context("all addresses are in use")?);
        reservations.push(Reservation { address, owner });
    }
    Ok(reservations)
}

#[cfg(test)]
mod tests {
    use super::super::tenant::new_pools;
    use super::*;

    #[test]
    fn the_peer_has_the_pool_of_the_tenants() {
        let pools = new_pools().unwrap();
        let pool = pools.iter().next().unwrap();
        let addresses: Vec<Ipv4Addr> =
            reserve_all(300).unwrap().into_iter().map(|one| one.address).collect();
        assert!(addresses.iter().all(|address| pool.allocates((*address).into())));
        assert!(addresses.is_sorted() && addresses.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(addresses[299], Ipv4Addr::new(10, 0, 2, 45));
        let count = (FIRST_ADDRESS..=LAST_ADDRESS)
            .filter(|number| !EXCLUDED_ADDRESSES.contains(number))
            .count();
        assert_eq!(pool.len(), count as u128);
    }
}
