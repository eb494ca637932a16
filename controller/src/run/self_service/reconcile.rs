//! Reconciles a TenantRequest, in numbered steps.

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::condition::{KUBECONFIG_READY, UP_TO_DATE};
use berth_api::{ConditionReason, IssuedKubeconfig, TenantGrant, TenantQuota, TenantRequest};
use kube::ResourceExt as _;

use super::failure::without_failure;
use super::issue::until_rotation;
use super::ledger::Decision;
use super::service::SelfService;
use crate::run::apply::ApplyTarget;
use crate::run::clock::now_in_seconds;
use crate::run::reconcile::ReconcileFailure;
use crate::self_service::objects::request_uid;
use crate::self_service::status::{
    RequestState, request_status, request_status_differs, tenant_result, time_since_transition,
};
use crate::tenants::fault::Fault;

/// Shortest delay before the next reconcile after a fault that may disappear without an event.
const RETRY_DELAY: Duration = Duration::from_secs(30);
/// Shortest delay before a token is replaced, also if an earlier replacement failed.
const MIN_DELAY: Duration = Duration::from_secs(10);

impl SelfService {
    /// Reconciles a request. Returns the delay before the next reconcile.
    pub(super) async fn reconcile_request(
        &self,
        request: Arc<TenantRequest>,
    ) -> Result<Duration, ReconcileFailure> {
        if request.metadata.deletion_timestamp.is_some() {
            return self.finalize(&request).await;
        }
        // 1. Grant.
        let Decision { grant, refusal } = self.decide(&request).await?;
        // 2. Finalizer. The plan adds it before a grant, and another client may have removed it. A request without a tenant has
        // none, so that undecided requests cause fewer writes.
        let needs_finalizer = grant.is_some() || self.has_tenant(&request);
        if needs_finalizer && !self.ensure_finalizer(&request).await? {
            return Ok(self.context.resync);
        }
        // 3. and 4. TenantCluster, access and kubeconfig.
        let access = match &grant {
            Some((quota, grant)) => self.ensure_granted(&request, quota, grant).await,
            None => {
                let message = "the request is not granted".to_owned();
                let fault = Fault::new(ConditionReason::KubeconfigPending, message);
                self.renew_without_access(&request, tenant_result(None), fault).await
            }
        };
        // 5. Status.
        let names = grant.as_ref().map(|(quota, grant)| (quota.name_any(), grant));
        let state = RequestState {
            grant: names.as_ref().map(|(quota, grant)| (quota.as_str(), *grant)),
            refusal,
            tenant: access.tenant,
            kubeconfig: access.kubeconfig,
            issued: access.issued,
            deletion: None,
        };
        self.write_status(&request, &state).await?;
        access.failure.map_or_else(|| Ok(self.next_delay(&request, &state)), Err)
    }

    /// Ensures TenantCluster, access and kubeconfig of a granted request.
    async fn ensure_granted(
        &self,
        request: &TenantRequest,
        quota: &TenantQuota,
        grant: &TenantGrant,
    ) -> AccessResult {
        let (ensured, failure) =
            without_failure(self.ensure_tenant(&quota.name_any(), grant).await);
        let tenant = match ensured {
            Ok(tenant) => tenant_result(Some(&tenant)),
            Err(fault) => {
                let tenant = Err(fault.clone());
                let access = self.renew_without_access(request, tenant, fault).await;
                return AccessResult { failure: failure.or(access.failure), ..access };
            }
        };
        let (access, failure) =
            without_failure(self.ensure_access(request, grant, quota.token_seconds()).await);
        match access {
            Ok(issued) => {
                AccessResult { tenant, kubeconfig: Ok(issued), issued: None, failure: None }
            }
            Err(fault) => {
                let access = self.renew_without_access(request, tenant, fault).await;
                AccessResult { failure: failure.or(access.failure), ..access }
            }
        }
    }

    /// Renews the kubeconfig of a request whose access cannot be ensured, for example because its quota was deleted, as long as its
    /// TenantCluster exists: without a valid token, the requester could not delete machines. `fault` is the reason, which is also
    /// reported if the kubeconfig cannot be renewed.
    async fn renew_without_access(
        &self,
        request: &TenantRequest,
        tenant: Result<String, Fault>,
        fault: Fault,
    ) -> AccessResult {
        let uid = request.uid();
        let mut issued = request.status.as_ref().and_then(|status| status.kubeconfig.clone());
        let is_own = |name: &String| {
            let tenant = self.context.tenants.get(name);
            tenant.is_some_and(|tenant| request_uid(&tenant) == uid.as_deref())
        };
        let mut failure = None;
        if let Some(name) = self.tenant_names(request).into_iter().find(is_own) {
            let (renewed, failed) = without_failure(self.renew_kubeconfig(request, &name).await);
            issued = renewed.ok().or(issued);
            failure = failed;
        }
        AccessResult { tenant, kubeconfig: Err(fault), issued, failure }
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
        let is_decided = |refusal: &&Fault| refusal.reason != ConditionReason::Pending;
        let Some(refusal) = state.refusal.as_ref().filter(is_decided) else { return Ok(()) };
        let mut before = request.status.iter().flat_map(|status| &status.conditions);
        let is_reported =
            before.any(|one| one.type_ == UP_TO_DATE && one.reason.parse() == Ok(refusal.reason));
        if !is_reported {
            let reason = refusal.reason.as_str();
            self.context.events.warn(request, reason, &refusal.message).await;
        }
        Ok(())
    }

    /// Returns the delay before the next reconcile. A refused spec, or a kubeconfig that cannot be issued, is retried with a delay
    /// that grows with the time since the fault occurred, up to the resync. Plans and changes of objects trigger earlier reconciles.
    fn next_delay(&self, request: &TenantRequest, state: &RequestState<'_>) -> Duration {
        let issued = state.kubeconfig.as_ref().ok().or(state.issued.as_ref());
        let rotation = issued.map(|issued| until_rotation(issued).max(MIN_DELAY));
        let now = now_in_seconds();
        let retry = |is_faulty: bool, type_: &str| {
            let elapsed = time_since_transition(request, type_, &now);
            is_faulty.then(|| elapsed.max(RETRY_DELAY))
        };
        let refused = retry(state.refusal.is_some(), UP_TO_DATE);
        let failed = retry(state.grant.is_some() && state.kubeconfig.is_err(), KUBECONFIG_READY);
        [rotation, refused, failed].into_iter().flatten().fold(self.context.resync, Duration::min)
    }
}

/// Result of the steps after the grant.
struct AccessResult {
    /// Result for the TenantCluster.
    tenant: Result<String, Fault>,
    /// Result for the kubeconfig.
    kubeconfig: Result<IssuedKubeconfig, Fault>,
    /// Kubeconfig that stays valid if the result is a fault.
    issued: Option<IssuedKubeconfig>,
    /// Error after which the reconcile is retried.
    failure: Option<ReconcileFailure>,
}
