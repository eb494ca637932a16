//! Steps of the deletion of a TenantRequest. The controller never deletes machines or volumes of the tenant: it waits until the
//! user has deleted them.
//!
//! No state is stored between the steps, so an interrupted deletion continues from the actual state.

use crate::tenants::fault::join_names_limited;

/// State from which the next step is computed.
#[derive(Clone, Copy, Debug)]
pub struct DeletionState<'a> {
    /// State of the TenantCluster that was created for the request.
    pub tenant: TenantState,
    /// Machines and volumes in the tenant's namespace, as `Kind name`.
    pub in_use: &'a [String],
    /// True if the requester's RoleBinding exists, so that the requester can still create machines.
    pub has_access: bool,
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
    /// Delete the RoleBinding of the requester. Afterwards machines and volumes are listed again.
    RevokeAccess,
    /// Delete the TenantCluster.
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
        TenantState::Exists if state.has_access => DeletionStep::RevokeAccess,
        TenantState::Exists => DeletionStep::DeleteTenant,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_in_use_is_never_deleted() {
        let used = ["VirtualMachine web-1".to_owned()];
        for has_access in [false, true] {
            let state = DeletionState { tenant: TenantState::Exists, in_use: &used, has_access };
            let expected = DeletionStep::WaitForUser("VirtualMachine web-1".to_owned());
            assert_eq!(next_step(state), expected);
        }
    }

    #[test]
    fn the_access_is_revoked_before_the_last_list() {
        let state = |tenant, has_access| DeletionState { tenant, in_use: &[], has_access };
        let steps = [
            (state(TenantState::Exists, true), DeletionStep::RevokeAccess),
            (state(TenantState::Exists, false), DeletionStep::DeleteTenant),
            (state(TenantState::Deleting, false), DeletionStep::WaitForTenant),
            (state(TenantState::Absent, false), DeletionStep::Release),
        ];
        for (state, step) in steps {
            assert_eq!(next_step(state), step);
        }
    }
}
