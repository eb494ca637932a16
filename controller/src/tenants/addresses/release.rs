//! Release of AddressClaims: a claim whose machine no longer exists is put into quarantine, and deleted after the
//! quarantine.

use berth_api::{AddressClaim, InfraConfigSpec, TenantCluster};
use berth_kubevirt_render::machines::TENANT_INTERFACE;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::managed_by::is_created_by_berth;

/// Default of `spec.addressQuarantineSeconds` of InfraConfig, in seconds.
const DEFAULT_QUARANTINE_SECONDS: u32 = 300;
/// Time after the creation of a claim until which its machine may be created: the controller creates the claim first,
/// and then the machine. If the controller is stopped in between, the next machine of the MachineDeployment can get the
/// claim until then ([`super::interrupted`]).
const CREATION_GRACE: SignedDuration = SignedDuration::from_secs(180);

/// State of the machine and of the tenant to which a claim refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimOwner {
    /// True if the claim's TenantCluster exists with another UID than that in the claim, because the TenantCluster was
    /// restored from a backup, or created again.
    pub tenant_has_other_uid: bool,
    /// True if the VirtualMachine or its VirtualMachineInstance exists.
    pub machine_exists: bool,
    /// True if the controller has observed the deletion of the VirtualMachine.
    pub machine_was_deleted: bool,
}

/// Action that is due on an AddressClaim. Before it takes the action, the caller must read the machine and the tenant
/// from the API server and compute the action again, because a store may lack the newest objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimAction {
    /// Start the quarantine of the claim.
    Release,
    /// End the quarantine of the claim, because its machine exists.
    Reclaim,
    /// Write the current UID of the TenantCluster to the claim, because the machine belongs to this TenantCluster.
    Adopt,
    /// Delete the claim, because its quarantine has ended.
    Delete,
}

/// Returns the duration of the quarantine: the time after the deletion of a machine during which its address is not
/// allocated to other machines.
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

/// Returns the time until which the machine of a claim may be created.
#[must_use]
pub(super) fn creation_deadline(claim: &AddressClaim) -> Option<Timestamp> {
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    Some(created.checked_add(CREATION_GRACE).unwrap_or(Timestamp::MAX))
}

/// Returns the end of a claim's quarantine; `None` if the claim is not in quarantine.
#[must_use]
pub fn quarantine_end(claim: &AddressClaim, quarantine: SignedDuration) -> Option<Timestamp> {
    let released = claim.status.as_ref()?.released_at.as_ref()?.0;
    Some(released.checked_add(quarantine).unwrap_or(Timestamp::MAX))
}

/// Returns the next action on a claim with this quarantine, and the time at which it is due. A claim whose tenant does
/// not exist is also put into quarantine, and not deleted immediately: a restore from a backup may create the tenant and
/// the machine later than the claim.
#[must_use]
pub fn next_action(
    claim: &AddressClaim,
    owner: ClaimOwner,
    quarantine_end: Option<Timestamp>,
) -> Option<(ClaimAction, Timestamp)> {
    // A claim that an administrator created is never changed or deleted.
    if !is_created_by_berth(claim.labels()) {
        return None;
    }
    if owner.machine_exists {
        if is_released(claim) {
            return Some((ClaimAction::Reclaim, Timestamp::MIN));
        }
        // A machine with another interface belongs to another tenant.
        let may_use_network = claim.spec.interface != TENANT_INTERFACE
            || claim.spec.machine.namespace == TenantCluster::namespace_of(&claim.spec.tenant);
        let is_adopted = owner.tenant_has_other_uid && may_use_network;
        return is_adopted.then_some((ClaimAction::Adopt, Timestamp::MIN));
    }
    if let Some(end) = quarantine_end {
        return Some((ClaimAction::Delete, end));
    }
    if owner.machine_was_deleted {
        return Some((ClaimAction::Release, Timestamp::MIN));
    }
    Some((ClaimAction::Release, creation_deadline(claim)?))
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
        let owner = ClaimOwner {
            tenant_has_other_uid: false,
            machine_exists: true,
            machine_was_deleted: false,
        };
        let restored = ClaimOwner { tenant_has_other_uid: true, ..owner };
        let lost = ClaimOwner { machine_exists: false, ..owner };
        let deleted = ClaimOwner { machine_was_deleted: true, ..lost };
        let orphan = ClaimOwner { tenant_has_other_uid: true, ..deleted };
        let mut elsewhere = held.clone();
        "default".clone_into(&mut elsewhere.spec.machine.namespace);
        let mut attached = elsewhere.clone();
        "additional-1".clone_into(&mut attached.spec.interface);
        let limit = quarantine_duration(&InfraConfigSpec::default());
        for (claim, owner, expected) in [
            (&held, owner, None),
            (&held, restored, Some((ClaimAction::Adopt, Timestamp::MIN))),
            (&elsewhere, restored, None),
            (&attached, restored, Some((ClaimAction::Adopt, Timestamp::MIN))),
            (&held, lost, Some((ClaimAction::Release, at(1180)))),
            (&held, deleted, Some((ClaimAction::Release, Timestamp::MIN))),
            (&held, orphan, Some((ClaimAction::Release, Timestamp::MIN))),
            (&quarantined, owner, Some((ClaimAction::Reclaim, Timestamp::MIN))),
            (&quarantined, restored, Some((ClaimAction::Reclaim, Timestamp::MIN))),
            (&quarantined, lost, Some((ClaimAction::Delete, at(2300)))),
            (&quarantined, orphan, Some((ClaimAction::Delete, at(2300)))),
        ] {
            let end = quarantine_end(claim, limit);
            assert_eq!(next_action(claim, owner, end), expected, "{owner:?}");
            let mut reserved = claim.clone();
            reserved.metadata.labels = None;
            assert_eq!(next_action(&reserved, owner, end), None, "{owner:?}");
        }
        let config =
            InfraConfigSpec { address_quarantine_seconds: Some(0), ..InfraConfigSpec::default() };
        assert_eq!(quarantine_end(&quarantined, quarantine_duration(&config)), Some(at(2000)));
    }
}
