//! Failed requests as faults for the status.

use berth_api::ConditionReason;

use super::tenant::refused;
use crate::run::reconcile::ReconcileFailure;
use crate::tenants::fault::Fault;

/// Returns a failed request as a fault for the status, and its error if a retry may succeed. A request that the API server refuses
/// regardless of retries is only a fault.
pub(super) fn without_failure<T>(
    result: Result<Result<T, Fault>, ReconcileFailure>,
) -> (Result<T, Fault>, Option<ReconcileFailure>) {
    let failure = match result {
        Ok(result) => return (result, None),
        Err(failure) => failure,
    };
    let request = match &failure {
        ReconcileFailure::RequestFailed(request, error) => {
            match refused(error, &format!("`{request}`")) {
                Some(fault) => return (Err(fault), None),
                None => request,
            }
        }
        ReconcileFailure::PrerequisiteNotMet(message) => message,
    };
    let message = format!("{request}: failed, and is retried");
    (Err(Fault::new(ConditionReason::ApplyFailed, message)), Some(failure))
}
