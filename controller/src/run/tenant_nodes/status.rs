//! Conditions of a TenantCluster about the connection to the tenant's API server and the labels of its Nodes.

use std::time::{Duration, SystemTime};

use berth_api::names::TENANT_ACCESS_FIELD_MANAGER;
use berth_api::{Condition, ConditionReason, TenantCluster};
use berth_runtime::call::with_timeout;
use berth_runtime::certificate::{ExpiryState, Validity};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};

use super::write::WriteError;
use crate::profiles::{ConditionUpdate, new_condition};
use crate::run::clock::now_in_seconds;
use crate::run::context::Context;
use crate::run::tenant_conditions::conditions_body;
use crate::tenants::fault::Fault;
use crate::tenants::status::PartResult;

/// Type of the condition that is true while the tenant's API server answers. Absent without a kubeconfig.
const TENANT_ACCESS_READY: &str = "TenantAccessReady";
/// Type of the condition that is true if all Nodes have the labels of their hosts. Absent without a connection.
const NODE_LABELS_READY: &str = "NodeLabelsReady";
/// Types of the conditions that this reconciler writes.
const OWNED_CONDITIONS: [&str; 2] = [TENANT_ACCESS_READY, NODE_LABELS_READY];

/// State of the connection to a tenant, and of the labels of its Nodes.
#[derive(Clone, Debug)]
pub(super) enum AccessState {
    /// There is no connection.
    Failed(Fault),
    /// There is a connection.
    Connected { certificate: Option<Validity>, labels: PartResult },
}

impl AccessState {
    fn conditions(&self, now: SystemTime) -> Vec<ConditionUpdate> {
        match self {
            Self::Failed(fault) => vec![to_update(TENANT_ACCESS_READY, &Err(fault.clone()))],
            Self::Connected { certificate, labels } => {
                let (reason, message) = match certificate.map(|one| one.expiry_at(now)) {
                    Some(ExpiryState::Soon | ExpiryState::Expired) => (
                        ConditionReason::ExpiresSoon,
                        "the client certificate in the kubeconfig expires soon, or has expired: renew it",
                    ),
                    Some(ExpiryState::NotSoon) | None => {
                        (ConditionReason::Connected, "the tenant's API server answers")
                    }
                };
                let access = ConditionUpdate {
                    type_: TENANT_ACCESS_READY,
                    status: "True",
                    reason,
                    message: message.to_owned(),
                };
                vec![access, to_update(NODE_LABELS_READY, labels)]
            }
        }
    }
}

fn to_update(type_: &'static str, part: &PartResult) -> ConditionUpdate {
    let (status, reason, message) = match part {
        Ok(ready) => ("True", ready.reason, &ready.message),
        Err(fault) => ("False", fault.reason, &fault.message),
    };
    ConditionUpdate { type_, status, reason, message: message.clone() }
}

/// Writer of the conditions of one tenant.
pub(super) struct StatusWriter<'c> {
    context: &'c Context,
    tenant: &'c TenantCluster,
    /// Permits a write, or returns the time until the next one is permitted.
    take_token: &'c (dyn Fn() -> Result<(), Duration> + Send + Sync),
}

impl<'c> StatusWriter<'c> {
    pub(super) const fn new(
        context: &'c Context,
        tenant: &'c TenantCluster,
        take_token: &'c (dyn Fn() -> Result<(), Duration> + Send + Sync),
    ) -> Self {
        Self { context, tenant, take_token }
    }

    /// Writes the conditions if they differ. Without a state, the conditions are removed. Emits an Event for each new
    /// fault. Returns the time until the next write is permitted if the rate limit does not permit this one.
    pub(super) async fn write(
        &self,
        state: Option<AccessState>,
    ) -> Result<Option<Duration>, WriteError> {
        let tenant = self.tenant;
        let updates = state.map(|state| state.conditions(SystemTime::now())).unwrap_or_default();
        let before = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        let before = before.unwrap_or_default();
        let now = now_in_seconds();
        let generation = tenant.metadata.generation;
        let conditions: Vec<Condition> =
            updates.iter().map(|update| new_condition(update, before, generation, &now)).collect();
        let is_own = |one: &&Condition| OWNED_CONDITIONS.contains(&one.type_.as_str());
        let written: Vec<&Condition> = before.iter().filter(is_own).collect();
        if written.len() == conditions.len() && written.iter().all(|one| conditions.contains(one)) {
            return Ok(None);
        }
        if let Err(pause) = (self.take_token)() {
            return Ok(Some(pause));
        }
        let name = tenant.name_any();
        let api: Api<TenantCluster> = Api::all(self.context.client.clone());
        let params = PatchParams::apply(TENANT_ACCESS_FIELD_MANAGER).force();
        let patch = Patch::Apply(conditions_body(tenant, &OWNED_CONDITIONS, &conditions));
        match with_timeout(api.patch_status(&name, &params, &patch)).await {
            Ok(_) => {}
            // The tenant was deleted.
            Err(error) if error.status_code() == Some(404) => return Ok(None),
            Err(error) => return Err(WriteError::Status(name, error)),
        }
        for update in updates.iter().filter(|update| update.status == "False") {
            let is_known = |one: &&Condition| {
                one.type_ == update.type_
                    && one.status == update.status
                    && one.message == update.message
            };
            if !before.iter().any(|one| is_known(&one)) {
                self.context.events.warn(tenant, update.reason.as_str(), &update.message).await;
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::status::ReadyPart;

    #[test]
    fn labels_have_a_condition_only_with_a_connection() {
        let types = |state: &AccessState| {
            let all = state.conditions(SystemTime::now()).into_iter();
            all.map(|one| format!("{} {} {}", one.type_, one.status, one.reason))
                .collect::<Vec<_>>()
        };
        let fault = Fault::new(ConditionReason::TenantUnreachable, "no answer".to_owned());
        let failed = types(&AccessState::Failed(fault.clone()));
        assert_eq!(failed, ["TenantAccessReady False TenantUnreachable"]);
        let labels = Ok(ReadyPart::ready(String::new()));
        let connected = types(&AccessState::Connected { certificate: None, labels });
        assert_eq!(connected, ["TenantAccessReady True Connected", "NodeLabelsReady True Ready"]);
        let now = SystemTime::now();
        let certificate = Validity {
            not_before: now - Duration::from_secs(86_400),
            not_after: now + Duration::from_secs(60),
        };
        let expiring =
            types(&AccessState::Connected { certificate: Some(certificate), labels: Err(fault) });
        assert_eq!(expiring[0], "TenantAccessReady True ExpiresSoon");
    }
}
