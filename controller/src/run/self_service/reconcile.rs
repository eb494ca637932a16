//! Reconciles a TenantRequest, in numbered steps.

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::condition::UP_TO_DATE;
use berth_api::{ConditionReason, IssuedKubeconfig, TenantRequest};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::ledger::Decision;
use super::service::SelfService;
use crate::run::apply::ApplyTarget;
use crate::run::clock::now_in_seconds;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::kubeconfig::rotation_time;
use crate::self_service::status::{
    RequestState, request_status, request_status_differs, tenant_result,
};
use crate::tenants::fault::Fault;

/// Delay before the next reconcile after a fault that may disappear without an event.
const RETRY_DELAY: Duration = Duration::from_secs(30);

impl SelfService {
    /// Reconciles a request. Returns the delay before the next reconcile.
    pub(super) async fn reconcile_request(
        &self,
        request: Arc<TenantRequest>,
    ) -> Result<Duration, ReconcileFailure> {
        if request.metadata.deletion_timestamp.is_some() {
            return self.finalize(&request).await;
        }
        // 1. Finalizer.
        if !self.ensure_finalizer(&request).await? {
            return Ok(self.context.resync);
        }
        // 2. Grant.
        let Decision { grant, refusal } = self.decide(&request).await?;
        let issued = request.status.as_ref().and_then(|status| status.kubeconfig.clone());
        let message = "the request is not granted".to_owned();
        let mut kubeconfig = Err(Fault::new(ConditionReason::KubeconfigPending, message));
        let mut tenant = tenant_result(None);
        if let Some((quota, grant)) = &grant {
            // 3. TenantCluster.
            match self.ensure_tenant(&quota.name_any(), grant).await? {
                Ok(found) => {
                    tenant = tenant_result(Some(&found));
                    // 4. Access and kubeconfig.
                    kubeconfig = self.ensure_access(&request, grant, quota.token_seconds()).await?;
                }
                Err(fault) => {
                    tenant = Err(fault.clone());
                    kubeconfig = Err(fault);
                }
            }
        }
        // 5. Status.
        let names = grant.as_ref().map(|(quota, grant)| (quota.name_any(), grant));
        let state = RequestState {
            grant: names.as_ref().map(|(quota, grant)| (quota.as_str(), *grant)),
            refusal,
            tenant,
            kubeconfig,
            issued,
            deletion: None,
        };
        self.write_status(&request, &state).await?;
        Ok(self.next_delay(&state))
    }

    /// Writes the status of a request that is being deleted.
    pub(super) async fn report_deletion(
        &self,
        request: &TenantRequest,
        fault: Fault,
        kubeconfig: Result<IssuedKubeconfig, Fault>,
    ) -> Result<(), ReconcileFailure> {
        let uid = request.uid().unwrap_or_default();
        let status = request.status.as_ref();
        let quota = status.and_then(|status| status.quota.clone()).unwrap_or_default();
        let grants = self.known_grants(&uid);
        let issued = status.and_then(|status| status.kubeconfig.clone());
        let state = RequestState {
            grant: grants.first().map(|grant| (quota.as_str(), grant)),
            refusal: None,
            tenant: Err(fault.clone()),
            kubeconfig,
            issued,
            deletion: Some(fault),
        };
        self.write_status(request, &state).await
    }

    /// Writes the status if it differs, and emits an Event if the current spec is refused for a new reason.
    async fn write_status(
        &self,
        request: &TenantRequest,
        state: &RequestState<'_>,
    ) -> Result<(), ReconcileFailure> {
        let desired = request_status(request, state, &now_in_seconds());
        if !request_status_differs(request, &desired) {
            return Ok(());
        }
        let body = serde_json::to_value(&desired).unwrap_or_default();
        let written =
            self.context.writer.apply_status(&ApplyTarget::from_object(request), body).await;
        let namespace = request.namespace().unwrap_or_default();
        let what = format!("apply status of TenantRequest {namespace}/{}", request.name_any());
        written.map_err(ReconcileFailure::with_request(what))?;
        let Some(refusal) = &state.refusal else { return Ok(()) };
        let mut before = request.status.iter().flat_map(|status| &status.conditions);
        let is_reported =
            before.any(|one| one.type_ == UP_TO_DATE && one.reason.parse() == Ok(refusal.reason));
        if !is_reported {
            let reason = refusal.reason.as_str();
            self.context.events.warn(request, reason, &refusal.message).await;
        }
        Ok(())
    }

    fn next_delay(&self, state: &RequestState<'_>) -> Duration {
        let rotation = state.kubeconfig.as_ref().ok().map(until_rotation);
        // A namespace may get a label, an instance type may be created, and a quarantine may end. Approvals and changes of
        // the quota trigger a reconcile.
        let waits_for_event = |fault: &Fault| {
            matches!(
                fault.reason,
                ConditionReason::WaitingForApproval | ConditionReason::ApprovalDenied
            )
        };
        let is_retried = state.refusal.as_ref().is_some_and(|fault| !waits_for_event(fault))
            || (state.grant.is_some() && state.kubeconfig.is_err());
        let retry = is_retried.then_some(RETRY_DELAY);
        [rotation, retry].into_iter().flatten().fold(self.context.resync, Duration::min)
    }
}

/// Returns the time until the token of a kubeconfig is replaced.
pub(super) fn until_rotation(issued: &IssuedKubeconfig) -> Duration {
    let seconds = rotation_time(issued).as_second() - Timestamp::now().as_second();
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default() + 1)
}
