//! Addresses that machines use without an AddressClaim, because a user has deleted their claims.

use std::net::IpAddr;

use berth_api::{AddressClaim, ClaimingMachine, ConditionReason};
use kube::ResourceExt as _;

use super::claims::NetworkClaims;
use super::family::Family;
use super::pools::NetworkPools;
use crate::tenants::fault::{Fault, join_names_limited};

/// An address that a machine uses without an AddressClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostAddress {
    pub address: IpAddr,
    /// Subject and verb of a clause about what prevents a new claim of this address: the claim of another machine or of
    /// an administrator, or the pool that reserves it. `None` if the address is free.
    pub other_user: Option<String>,
}

/// Returns the value of the annotation that records the addresses of a machine.
#[must_use]
pub fn record_addresses(addresses: impl IntoIterator<Item = IpAddr>) -> String {
    let all: Vec<String> = addresses.into_iter().map(|address| address.to_string()).collect();
    all.join(",")
}

/// Returns those addresses in `recorded`, the annotation of a machine, for which the interface of the machine has no
/// claim: at most one address of each family. A user may have changed the annotation, so entries that are not addresses
/// are ignored, and an address that a pool reserves does not count as free.
#[must_use]
pub fn lost_addresses(
    recorded: &str,
    machine: &ClaimingMachine,
    interface: &str,
    claims: &NetworkClaims,
    pools: Option<&NetworkPools>,
) -> Vec<LostAddress> {
    let addresses: Vec<IpAddr> =
        recorded.split(',').filter_map(|entry| entry.trim().parse().ok()).collect();
    let lost = [Family::V4, Family::V6].into_iter().filter_map(|family| {
        let is_of_family = |address: IpAddr| Family::of(address) == family;
        let mut own = claims.of_interface(machine, interface);
        if own.any(|claim| is_of_family(claim.spec.address)) {
            return None;
        }
        addresses.iter().copied().find(|address| is_of_family(*address))
    });
    lost.map(|address| {
        let claim = claims.at(address).next().map(|claim| describe(claim));
        LostAddress { address, other_user: claim.or_else(|| reserving_pool(address, pools?)) }
    })
    .collect()
}

fn describe(claim: &AddressClaim) -> String {
    let ClaimingMachine { namespace, name } = &claim.spec.machine;
    format!("AddressClaim {} of machine {namespace}/{name} has", claim.name_any())
}

/// Returns a description of the pool whose network contains the address, if the pool allocates the address to no
/// machine. An address outside of all pools was in an earlier pool, so its machine may retain it.
fn reserving_pool(address: IpAddr, pools: &NetworkPools) -> Option<String> {
    let pool = pools.iter().find(|pool| pool.cidr.contains(&address))?;
    (!pool.permits(address)).then(|| {
        let field = pool.family.field();
        format!(
            "{field} excludes, or reserves as network address, gateway, next hop or name server"
        )
    })
}

/// Returns the fault of machines that use addresses to which claims of others exist; `None` if there are no such
/// machines.
#[must_use]
pub fn lost_claims_fault(lost: &[(ClaimingMachine, LostAddress)]) -> Option<Fault> {
    let conflict = |(machine, lost): &(ClaimingMachine, LostAddress)| {
        let other = lost.other_user.as_ref()?;
        let ClaimingMachine { namespace, name } = machine;
        Some(format!("{namespace}/{name} uses {}, which {other}", lost.address))
    };
    let all: Vec<String> = lost.iter().filter_map(conflict).collect();
    (!all.is_empty()).then(|| {
        let message = format!(
            "the AddressClaims of {} machines were deleted, and their addresses were claimed again: {}; delete one \
             VirtualMachine of each pair, or the other AddressClaim if no machine uses it",
            all.len(),
            join_names_limited(&all),
        );
        Fault::new(ConditionReason::AddressClaimLost, message)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use serde_json::json;

    use super::super::choose::test_helpers::{claim, machine, pools, released};
    use super::*;

    fn claims(all: impl IntoIterator<Item = AddressClaim>) -> NetworkClaims {
        let mut claims = NetworkClaims::default();
        all.into_iter().for_each(|claim| claims.insert(Arc::new(claim)));
        claims
    }

    fn find(recorded: &str, all: impl IntoIterator<Item = AddressClaim>) -> Vec<LostAddress> {
        lost_addresses(recorded, &machine("web"), "tenant", &claims(all), None)
    }

    #[test]
    fn only_addresses_without_a_claim_are_lost() {
        let recorded = record_addresses(["10.0.0.7", "fd00::7"].map(|one| one.parse().unwrap()));
        assert_eq!(recorded, "10.0.0.7,fd00::7");
        let both = || [claim("10.0.0.7", "web"), claim("fd00::7", "web")];
        assert_eq!(find(&recorded, both()), []);
        let free =
            |address: &str| LostAddress { address: address.parse().unwrap(), other_user: None };
        assert_eq!(find(&recorded, [claim("10.0.0.7", "web")]), [free("fd00::7")]);
        assert_eq!(find(&recorded, []), [free("10.0.0.7"), free("fd00::7")]);
        // The machine exists, so the garbage collection will end the quarantine.
        assert_eq!(find("10.0.0.7", [released("10.0.0.7", "web", 0)]), []);
        // The interface already has a claim of this address family.
        assert_eq!(find("10.0.0.7", [claim("10.0.0.9", "web")]), []);
        assert_eq!(find("10.0.0.7, 10.0.0.8, x", []), [free("10.0.0.7")]);
    }

    #[test]
    fn an_address_that_was_claimed_again_is_a_fault() {
        let lost = find("10.0.0.7,fd00::7", [claim("10.0.0.7", "db")]);
        let lost: Vec<_> = lost.into_iter().map(|one| (machine("web"), one)).collect();
        let fault = lost_claims_fault(&lost).unwrap();
        assert_eq!(fault.reason, ConditionReason::AddressClaimLost);
        let words = "of 1 machines were deleted, and their addresses were claimed again: cluster-a/web uses 10.0.0.7, \
                     which AddressClaim cluster-a-10.0.0.7 of machine cluster-a/db has; delete one";
        assert!(fault.message.contains(words), "{fault}");
        assert_eq!(lost_claims_fault(&lost[1..]), None);
    }

    #[test]
    fn a_changed_annotation_does_not_get_a_reserved_address() {
        let pools = pools(json!({"ipv4": {
            "cidr": "10.0.0.0/24", "gateway": "10.0.0.1", "exclude": ["10.0.0.9"], "ranges": ["10.0.0.100-10.0.0.199"],
        }}));
        for (address, is_reserved) in [
            ("10.0.0.0", true),
            ("10.0.0.1", true),
            ("10.0.0.9", true),
            ("10.0.0.255", true),
            ("10.0.0.7", false),
            ("192.0.2.1", false),
            ("fd00::1", false),
        ] {
            let all = claims([]);
            let lost = lost_addresses(address, &machine("web"), "tenant", &all, Some(&pools));
            assert_eq!(lost[0].other_user.is_some(), is_reserved, "{address}");
            let lost: Vec<_> = lost.into_iter().map(|one| (machine("web"), one)).collect();
            let fault = lost_claims_fault(&lost).map(|fault| fault.message).unwrap_or_default();
            let words = format!("uses {address}, which spec.network.ipv4 excludes, or reserves as");
            assert_eq!(fault.contains(&words), is_reserved, "{fault}");
        }
    }

    proptest! {
        #[test]
        fn any_annotation_is_read(text in ".*") {
            prop_assert!(find(&text, []).len() <= 2);
        }
    }
}
