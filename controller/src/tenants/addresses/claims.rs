//! Index of the AddressClaims of one network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::{AddressClaim, ClaimingMachine, MacAddress};
use kube::ResourceExt as _;
use rangemap::RangeInclusiveSet;

use super::family::{Family, to_number};

/// Address and name of a claim. A claim that an administrator creates to reserve an address may have any name, so
/// several claims may have the same address.
type AddressClaimKey = (IpAddr, String);

/// Index of the AddressClaims of one network. The duration of a search for a free address depends on the number of gaps
/// between claimed addresses, and not on the number of claims.
#[derive(Clone, Debug, Default)]
pub struct NetworkClaims {
    claims: BTreeMap<AddressClaimKey, Arc<AddressClaim>>,
    machines: BTreeMap<ClaimingMachine, BTreeSet<AddressClaimKey>>,
    macs: BTreeMap<MacAddress, BTreeSet<AddressClaimKey>>,
    ipv4: RangeInclusiveSet<u128>,
    ipv6: RangeInclusiveSet<u128>,
}

impl NetworkClaims {
    /// Adds a claim, which replaces an earlier version of the same claim.
    pub fn insert(&mut self, claim: Arc<AddressClaim>) {
        let key = (claim.spec.address, claim.name_any());
        self.remove_by_key(&key);
        self.machines.entry(claim.spec.machine.clone()).or_default().insert(key.clone());
        self.macs.entry(claim.spec.mac).or_default().insert(key.clone());
        if let Some(number) = indexed_number(key.0) {
            self.used_mut(Family::of(key.0)).insert(number..=number);
        }
        self.claims.insert(key, claim);
    }

    /// Removes a claim, even if its version differs from the version that was added. A later claim of the same name,
    /// which has another UID, is not removed.
    pub fn remove(&mut self, claim: &AddressClaim) {
        let key = (claim.spec.address, claim.name_any());
        if self.claims.get(&key).is_some_and(|known| known.metadata.uid == claim.metadata.uid) {
            self.remove_by_key(&key);
        }
    }

    fn remove_by_key(&mut self, key: &AddressClaimKey) {
        let Some(claim) = self.claims.remove(key) else { return };
        remove_key(&mut self.machines, &claim.spec.machine, key);
        remove_key(&mut self.macs, &claim.spec.mac, key);
        if let Some(number) = indexed_number(key.0)
            && self.at(key.0).next().is_none()
        {
            self.used_mut(Family::of(key.0)).remove(number..=number);
        }
    }

    /// Returns true if there is no claim.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Returns all claims, sorted by address.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<AddressClaim>> {
        self.claims.values()
    }

    /// Returns the claims to an address, usually at most one.
    pub fn at(&self, address: IpAddr) -> impl Iterator<Item = &Arc<AddressClaim>> {
        let all = self.claims.range((address, String::new())..);
        all.take_while(move |((other, _), _)| *other == address).map(|(_, claim)| claim)
    }

    /// Returns the claims of an interface of a machine, sorted by address.
    pub fn of_interface(
        &self,
        machine: &ClaimingMachine,
        interface: &str,
    ) -> impl Iterator<Item = &Arc<AddressClaim>> {
        let keys = self.machines.get(machine).into_iter().flatten();
        keys.filter_map(|key| self.claims.get(key))
            .filter(move |claim| claim.spec.interface == interface)
    }

    /// Returns the machines in a namespace whose names begin with a prefix, sorted by name.
    pub(super) fn machines_with_prefix(
        &self,
        namespace: &str,
        prefix: &str,
    ) -> impl Iterator<Item = &ClaimingMachine> {
        let first = ClaimingMachine { namespace: namespace.to_owned(), name: prefix.to_owned() };
        let all = self.machines.range(first.clone()..).map(|(machine, _)| machine);
        all.take_while(move |machine| {
            machine.namespace == first.namespace && machine.name.starts_with(&first.name)
        })
    }

    /// Returns true if no other interface in the network has this Ethernet address.
    #[must_use]
    pub fn is_mac_free(&self, mac: MacAddress, machine: &ClaimingMachine, interface: &str) -> bool {
        let keys = self.macs.get(&mac).into_iter().flatten();
        let mut claims = keys.filter_map(|key| self.claims.get(key));
        claims.all(|claim| claim.spec.machine == *machine && claim.spec.interface == interface)
    }

    /// Returns the lowest address in `range` that has no claim and is not in `refused`.
    pub(super) fn lowest_free_address(
        &self,
        family: Family,
        range: &std::ops::RangeInclusive<u128>,
        refused: &BTreeSet<IpAddr>,
    ) -> Option<IpAddr> {
        let used = if family == Family::V4 { &self.ipv4 } else { &self.ipv6 };
        used.gaps(range).find_map(|gap| {
            gap.map(|number| family.address(number)).find(|address| !refused.contains(address))
        })
    }

    const fn used_mut(&mut self, family: Family) -> &mut RangeInclusiveSet<u128> {
        match family {
            Family::V4 => &mut self.ipv4,
            Family::V6 => &mut self.ipv6,
        }
    }
}

/// Returns the number of an address, as used in the sets of ranges. Returns `None` for the first and the last possible
/// address, because the sets cannot compute both neighbours of their numbers; no pool contains these addresses.
fn indexed_number(address: IpAddr) -> Option<u128> {
    Some(to_number(address)).filter(|number| *number != 0 && *number != u128::MAX)
}

fn remove_key<K: Ord>(
    index: &mut BTreeMap<K, BTreeSet<AddressClaimKey>>,
    value: &K,
    key: &AddressClaimKey,
) {
    if let Some(keys) = index.get_mut(value) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(value);
        }
    }
}
