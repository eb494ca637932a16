//! Addresses that machines use without an AddressClaim, because a user has deleted the claim.

use std::net::IpAddr;

use berth_api::{AddressClaim, ClaimingMachine, ConditionReason};
use kube::ResourceExt as _;

use super::claims::NetworkClaims;
use super::family::Family;
use crate::tenants::fault::{Fault, join_names_limited};

/// An address that a machine uses without an AddressClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostAddress {
    /// The address.
    pub address: IpAddr,
    /// Claim that another machine, or an administrator, has to this address now; `None` if the address is free.
    pub other_claim: Option<String>,
}

/// Returns the text of the annotation that records the addresses of a machine.
#[must_use]
pub fn record_addresses(addresses: impl IntoIterator<Item = IpAddr>) -> String {
    let all: Vec<String> = addresses.into_iter().map(|address| address.to_string()).collect();
    all.join(",")
}

/// Returns the addresses in `recorded`, the annotation of a machine, for which its interface has no claim: at most one
/// of each family. A user may have changed the annotation, so entries that are no addresses are ignored.
#[must_use]
pub fn lost_addresses(
    recorded: &str,
    machine: &ClaimingMachine,
    interface: &str,
    claims: &NetworkClaims,
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
        let other_claim = claims.at(address).next().map(|claim| describe(claim));
        LostAddress { address, other_claim }
    })
    .collect()
}

fn describe(claim: &AddressClaim) -> String {
    let ClaimingMachine { namespace, name } = &claim.spec.machine;
    format!("AddressClaim {} of machine {namespace}/{name}", claim.name_any())
}

/// Returns the fault of machines that use addresses to which other claims exist; `None` if there are none.
#[must_use]
pub fn lost_claims_fault(lost: &[(ClaimingMachine, LostAddress)]) -> Option<Fault> {
    let conflict = |(machine, lost): &(ClaimingMachine, LostAddress)| {
        let other = lost.other_claim.as_ref()?;
        let ClaimingMachine { namespace, name } = machine;
        Some(format!("{namespace}/{name} uses {}, which {other} has", lost.address))
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

    use super::super::choose::test_helpers::{claim, machine, released};
    use super::*;

    fn claims(all: impl IntoIterator<Item = AddressClaim>) -> NetworkClaims {
        let mut claims = NetworkClaims::default();
        all.into_iter().for_each(|claim| claims.insert(Arc::new(claim)));
        claims
    }

    fn find(recorded: &str, all: impl IntoIterator<Item = AddressClaim>) -> Vec<LostAddress> {
        lost_addresses(recorded, &machine("web"), "tenant", &claims(all))
    }

    #[test]
    fn only_addresses_without_a_claim_are_lost() {
        let recorded = record_addresses(["10.0.0.7", "fd00::7"].map(|one| one.parse().unwrap()));
        assert_eq!(recorded, "10.0.0.7,fd00::7");
        let both = || [claim("10.0.0.7", "web"), claim("fd00::7", "web")];
        assert_eq!(find(&recorded, both()), []);
        let free =
            |address: &str| LostAddress { address: address.parse().unwrap(), other_claim: None };
        assert_eq!(find(&recorded, [claim("10.0.0.7", "web")]), [free("fd00::7")]);
        assert_eq!(find(&recorded, []), [free("10.0.0.7"), free("fd00::7")]);
        // Garbage collection ends the quarantine, because the machine exists.
        assert_eq!(find("10.0.0.7", [released("10.0.0.7", "web", 0)]), []);
        // An interface has one address of each family.
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

    proptest! {
        #[test]
        fn any_annotation_is_read(text in ".*") {
            prop_assert!(find(&text, []).len() <= 2);
        }
    }
}
