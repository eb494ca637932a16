//! Steps of the deletion of a TenantRequest. The controller never deletes machines or volumes of the tenant: it waits until the
//! user has deleted them.
//!
//! The only state that is stored between the steps is the time in an annotation of the TenantCluster, so an interrupted deletion
//! continues from the actual state.

use berth_api::TenantCluster;
use berth_api::names::ACCESS_REVOKED_ANNOTATION;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::tenants::fault::join_names_limited;

/// Time between the deletion of the permissions and the last list of objects. API servers evaluate permissions with caches, and
/// requests that were permitted before may still be running.
const REVOCATION_DELAY: SignedDuration = SignedDuration::from_secs(10);

/// State from which the next step is computed.
#[derive(Clone, Copy, Debug)]
pub struct DeletionState<'a> {
    /// State of the TenantCluster that was created for the request.
    pub tenant: TenantState,
    /// Machines and volumes in the tenant's namespace, as `Kind name`.
    pub in_use: &'a [String],
    /// Permissions in the tenant's namespace.
    pub access: Access,
}

/// Permissions of the requester and of the tenant's CSI driver in the tenant's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// They can create machines or volumes.
    Granted,
    /// They were deleted a moment ago, and an API server may still permit requests.
    RevokedRecently,
    /// They have no permissions.
    Revoked,
}

impl Access {
    /// Returns the permissions. `has_bindings` is true if a RoleBinding exists.
    #[must_use]
    pub fn of_tenant(tenant: &TenantCluster, has_bindings: bool, now: Timestamp) -> Self {
        let since = tenant.annotations().get(ACCESS_REVOKED_ANNOTATION);
        let Some(since) = since.and_then(|since| since.parse::<Timestamp>().ok()) else {
            return Self::Granted;
        };
        // After a jump of the clock, the time may be in the future: the permissions are then deleted again.
        match now.duration_since(since) {
            _ if has_bindings => Self::Granted,
            elapsed if elapsed >= REVOCATION_DELAY => Self::Revoked,
            elapsed if elapsed >= SignedDuration::ZERO => Self::RevokedRecently,
            _ => Self::Granted,
        }
    }
}

/// State of the TenantCluster of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantState {
    /// There is none that was created for the request.
    Absent,
    Exists,
    /// It is being deleted.
    Deleting,
}

/// Next step of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionStep {
    /// Wait until the user has deleted machines and volumes, which the message names. The user needs the RoleBinding for it.
    WaitForUser(String),
    /// Delete the RoleBindings of the requester and of the CSI driver. Afterwards machines and volumes are listed again.
    RevokeAccess,
    /// Wait until no API server permits requests of the deleted RoleBindings.
    WaitForRevocation,
    /// Delete the TenantCluster, if a second list has no objects in use.
    DeleteTenant,
    /// Wait until the TenantCluster is deleted.
    WaitForTenant,
    /// Delete the kubeconfig and the grant, and remove the finalizer.
    Release,
}

/// Returns the next step.
#[must_use]
pub fn next_step(state: DeletionState<'_>) -> DeletionStep {
    match state.tenant {
        TenantState::Absent => DeletionStep::Release,
        TenantState::Deleting => DeletionStep::WaitForTenant,
        TenantState::Exists if !state.in_use.is_empty() => {
            DeletionStep::WaitForUser(join_names_limited(state.in_use))
        }
        TenantState::Exists => match state.access {
            Access::Granted => DeletionStep::RevokeAccess,
            Access::RevokedRecently => DeletionStep::WaitForRevocation,
            Access::Revoked => DeletionStep::DeleteTenant,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tenant_in_use_is_never_deleted() {
        let used = ["VirtualMachine web-1".to_owned()];
        for access in [Access::Granted, Access::RevokedRecently, Access::Revoked] {
            let state = DeletionState { tenant: TenantState::Exists, in_use: &used, access };
            let expected = DeletionStep::WaitForUser("VirtualMachine web-1".to_owned());
            assert_eq!(next_step(state), expected);
        }
    }

    #[test]
    fn the_access_is_revoked_before_the_last_list() {
        let state = |tenant, access| DeletionState { tenant, in_use: &[], access };
        let steps = [
            (state(TenantState::Exists, Access::Granted), DeletionStep::RevokeAccess),
            (state(TenantState::Exists, Access::RevokedRecently), DeletionStep::WaitForRevocation),
            (state(TenantState::Exists, Access::Revoked), DeletionStep::DeleteTenant),
            (state(TenantState::Deleting, Access::Revoked), DeletionStep::WaitForTenant),
            (state(TenantState::Absent, Access::Granted), DeletionStep::Release),
        ];
        for (state, step) in steps {
            assert_eq!(next_step(state), step);
        }
    }

    #[test]
    fn permissions_are_revoked_for_some_time_before_the_deletion() {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "spec": {},
            "metadata": {"name": "shop", "annotations": {"berth.dev/access-revoked": "2026-01-01T00:00:00Z"}},
        }))
        .unwrap();
        let access = |time: &str, has_bindings| {
            Access::of_tenant(&tenant, has_bindings, time.parse().unwrap())
        };
        assert_eq!(access("2026-01-01T00:00:09Z", false), Access::RevokedRecently);
        assert_eq!(access("2026-01-01T00:00:10Z", false), Access::Revoked);
        // A RoleBinding that was created again is deleted again.
        assert_eq!(access("2026-01-01T00:00:10Z", true), Access::Granted);
        assert_eq!(access("2025-12-31T00:00:00Z", false), Access::Granted);
        let mut without = tenant.clone();
        without.metadata.annotations = None;
        let now = "2026-01-01T00:00:10Z".parse().unwrap();
        assert_eq!(Access::of_tenant(&without, false, now), Access::Granted);
    }
}
