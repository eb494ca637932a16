//! Conditions of a TenantCluster about the connection to the tenant's API server and the labels of its Nodes.

use std::time::SystemTime;

use berth_api::ConditionReason;
use berth_runtime::certificate::{ExpiryState, Validity};

use crate::profiles::ConditionUpdate;
use crate::run::tenant_conditions::part_condition_update;
use crate::tenants::fault::Fault;
use crate::tenants::status::PartResult;

/// Type of the condition that is true while the tenant's API server answers. The condition is absent if the tenant has
/// no kubeconfig.
const TENANT_ACCESS_READY: &str = "TenantAccessReady";
/// Type of the condition that is true if all Nodes have the labels of their hosts. The condition is absent while there
/// is no connection.
const NODE_LABELS_READY: &str = "NodeLabelsReady";
/// Types of the conditions that this reconciler writes.
pub(super) const OWNED_CONDITIONS: &[&str] = &[TENANT_ACCESS_READY, NODE_LABELS_READY];

/// State of the connection to a tenant, and of the labels of the tenant's Nodes.
#[derive(Clone, Debug)]
pub(super) enum AccessState {
    /// There is no connection, for this reason.
    Failed(Fault),
    /// There is a connection, whose client certificate has this validity period.
    Connected { certificate: Option<Validity>, labels: PartResult },
}

impl AccessState {
    /// Returns the conditions for this state.
    pub(super) fn conditions(&self, now: SystemTime) -> Vec<ConditionUpdate> {
        match self {
            Self::Failed(fault) => {
                vec![part_condition_update(TENANT_ACCESS_READY, &Err(fault.clone()))]
            }
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
                vec![access, part_condition_update(NODE_LABELS_READY, labels)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
