//! End of claims: a claim whose machine no longer exists is put into quarantine, and deleted after the quarantine.

use berth_api::{AddressClaim, InfraConfigSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Default of InfraConfig's `spec.addressQuarantineSeconds`.
const DEFAULT_QUARANTINE_SECONDS: u32 = 300;
/// Time after the creation of a claim within which its machine is created. The controller creates the claim first. If
/// the controller is stopped before it creates the machine, the machine never exists, because the next machine has
/// another name.
const CREATION_GRACE: SignedDuration = SignedDuration::from_secs(180);

/// State of the machine and of the tenant of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimOwner {
    /// True if the TenantCluster with the UID in the claim exists. It may be in deletion.
    pub tenant_exists: bool,
    /// True if the VirtualMachine or its instance exists.
    pub machine_exists: bool,
    /// True if the controller has seen the deletion of the VirtualMachine.
    pub machine_was_deleted: bool,
}

/// Due action on one AddressClaim. Before the caller takes it, the caller must read machine and tenant from the API
/// server and compute the action again, because a store may lack the newest objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimAction {
    /// Start the quarantine of the claim.
    Release,
    /// End the quarantine of the claim, because its machine exists.
    Reclaim,
    /// Delete the claim, because its quarantine has ended or its tenant no longer exists.
    Delete,
}

/// Returns the time for which no other machine gets an address after the deletion of its machine.
#[must_use]
pub fn quarantine_duration(config: &InfraConfigSpec) -> SignedDuration {
    let seconds = config.address_quarantine_seconds.unwrap_or(DEFAULT_QUARANTINE_SECONDS);
    SignedDuration::from_secs(seconds.into())
}

/// Returns true if the claim is in quarantine.
#[must_use]
pub fn is_released(claim: &AddressClaim) -> bool {
    claim.status.as_ref().is_some_and(|status| status.released_at.is_some())
}

/// Returns the end of a claim's quarantine; `None` if the claim is not in quarantine.
#[must_use]
pub fn quarantine_end(claim: &AddressClaim, quarantine: SignedDuration) -> Option<Timestamp> {
    let released = claim.status.as_ref()?.released_at.as_ref()?.0;
    Some(released.checked_add(quarantine).unwrap_or(Timestamp::MAX))
}

/// Returns the next action on a claim, and the time at which it is due.
#[must_use]
pub fn next_action(
    claim: &AddressClaim,
    owner: ClaimOwner,
    quarantine: SignedDuration,
) -> Option<(ClaimAction, Timestamp)> {
    if owner.machine_exists {
        return is_released(claim).then_some((ClaimAction::Reclaim, Timestamp::MIN));
    }
    if !owner.tenant_exists {
        // The tenant was deleted after its machines and its network. A quarantine would protect nothing.
        return Some((ClaimAction::Delete, Timestamp::MIN));
    }
    if let Some(end) = quarantine_end(claim, quarantine) {
        return Some((ClaimAction::Delete, end));
    }
    if owner.machine_was_deleted {
        return Some((ClaimAction::Release, Timestamp::MIN));
    }
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    Some((ClaimAction::Release, created.checked_add(CREATION_GRACE).unwrap_or(Timestamp::MAX)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::super::choose::test_helpers::{claim, released};
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn claims_end_after_their_machines() {
        let mut held = claim("10.0.0.2", "a");
        held.metadata.creation_timestamp = Some(Time(at(1000)));
        let quarantined = released("10.0.0.2", "a", 2000);
        let owner =
            ClaimOwner { tenant_exists: true, machine_exists: true, machine_was_deleted: false };
        let lost = ClaimOwner { machine_exists: false, ..owner };
        let deleted = ClaimOwner { machine_was_deleted: true, ..lost };
        let orphan = ClaimOwner { tenant_exists: false, ..lost };
        let left = ClaimOwner { machine_exists: true, ..orphan };
        let quarantine = quarantine_duration(&InfraConfigSpec::default());
        for (claim, owner, expected) in [
            (&held, owner, None),
            (&held, lost, Some((ClaimAction::Release, at(1180)))),
            (&held, deleted, Some((ClaimAction::Release, Timestamp::MIN))),
            (&held, orphan, Some((ClaimAction::Delete, Timestamp::MIN))),
            (&held, left, None),
            (&quarantined, owner, Some((ClaimAction::Reclaim, Timestamp::MIN))),
            (&quarantined, lost, Some((ClaimAction::Delete, at(2300)))),
            (&quarantined, orphan, Some((ClaimAction::Delete, Timestamp::MIN))),
        ] {
            assert_eq!(next_action(claim, owner, quarantine), expected, "{owner:?}");
        }
        let config =
            InfraConfigSpec { address_quarantine_seconds: Some(0), ..InfraConfigSpec::default() };
        assert_eq!(quarantine_end(&quarantined, quarantine_duration(&config)), Some(at(2000)));
    }
}
