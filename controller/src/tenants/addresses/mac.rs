//! Stable Ethernet addresses of the machines' interfaces.

use berth_api::{ClaimingMachine, MacAddress};

use super::claims::NetworkClaims;
use crate::tenants::claims::hash_strings;

/// Maximum number of candidates that are compared with the addresses in use. The first candidate almost always
/// suffices: among ten thousand machines, the probability that two have the same first candidate is 0.005 %.
const MAX_CANDIDATES: u8 = 16;

/// Returns the Ethernet address of an interface: that of its claims, or else one that depends only on the tenant, the
/// machine and the interface. If another interface of the network already has this address, returns the next candidate.
#[must_use]
pub fn choose_mac(
    tenant_uid: &str,
    machine: &ClaimingMachine,
    interface: &str,
    claims: &NetworkClaims,
) -> MacAddress {
    let mut own = claims.of_interface(machine, interface);
    if let Some(claim) = own.find(|claim| claim.spec.tenant_uid == tenant_uid) {
        return claim.spec.mac;
    }
    let candidate = |salt: u8| candidate(tenant_uid, machine, interface, salt);
    let mut all = (0..MAX_CANDIDATES).map(candidate);
    all.find(|mac| claims.is_mac_free(*mac, machine, interface)).unwrap_or_else(|| candidate(0))
}

/// Returns a locally administered unicast address: the byte 02, and 40 bits of a hash.
fn candidate(tenant_uid: &str, machine: &ClaimingMachine, interface: &str, salt: u8) -> MacAddress {
    let salt = salt.to_string();
    let hash = hash_strings(&[tenant_uid, &machine.namespace, &machine.name, interface, &salt]);
    // The upper bits are folded into the lower ones, because the lowest bits of FNV-1a depend on few input bits.
    let [_, _, _, a, b, c, d, e] = (hash ^ (hash >> 40)).to_be_bytes();
    MacAddress([0x02, a, b, c, d, e])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::choose::test_helpers::{claim, machine};
    use super::*;

    #[test]
    fn addresses_are_stable_local_and_different() {
        let none = NetworkClaims::default();
        let mac = |uid: &str, name: &str, interface: &str| {
            choose_mac(uid, &machine(name), interface, &none)
        };
        // This value must be the same in every release.
        assert_eq!(
            mac("u-1", "web-1", "tenant").to_string(),
            mac("u-1", "web-1", "tenant").to_string()
        );
        let all = [
            mac("u-1", "web-1", "tenant"),
            mac("u-2", "web-1", "tenant"),
            mac("u-1", "web-2", "tenant"),
            mac("u-1", "web-1", "second"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(one.0[0], 2, "{one}");
            assert!(!all[..at].contains(one), "{all:?}");
        }
    }

    #[test]
    fn a_taken_address_leads_to_another_one_and_a_claim_keeps_its_own() {
        let first = choose_mac("u-1", &machine("web-1"), "tenant", &NetworkClaims::default());
        let mut claims = NetworkClaims::default();
        let mut other = claim("10.0.0.2", "db-1");
        other.spec.mac = first;
        claims.insert(Arc::new(other));
        let second = choose_mac("u-1", &machine("web-1"), "tenant", &claims);
        assert_ne!(first, second);
        let mut own = claim("10.0.0.3", "web-1");
        own.spec.mac = second;
        claims.insert(Arc::new(own));
        assert_eq!(choose_mac("u-1", &machine("web-1"), "tenant", &claims), second);
    }
}
