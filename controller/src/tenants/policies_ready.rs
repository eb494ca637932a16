//! Delays the creation of machines and the import of images until the NetworkPolicies of their tenant are in force.

use berth_api::{ConditionReason, TenantCluster};
use kube::ResourceExt as _;

use super::status::POLICIES_READY;

/// Returns the reason why the NetworkPolicies of a tenant are not in force; `None` if the policies are in force.
///
/// A pod that starts before the policies can reach the whole pod network, and the connections of an importer that
/// starts before the policies may be refused. An invalid kubeconfig does not delay machines, because the tenant's API
/// server may run in these machines.
#[must_use]
pub fn policies_not_ready_reason(tenant: &TenantCluster) -> Option<String> {
    let name = tenant.name_any();
    let mut conditions = tenant.status.iter().flat_map(|status| &status.conditions);
    match conditions.find(|one| one.type_ == POLICIES_READY) {
        None => Some(format!("TenantCluster {name} has no condition {POLICIES_READY} yet")),
        Some(one)
            if one.status == "True"
                || one.reason.parse() == Ok(ConditionReason::InvalidKubeconfig) =>
        {
            None
        }
        Some(one) => {
            Some(format!("{POLICIES_READY} of TenantCluster {name} is false: {}", one.message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use berth_api::TenantClusterSpec;

    use super::*;

    #[test]
    fn machines_wait_for_policies_but_not_for_a_kubeconfig() {
        let tenant = |conditions: Value| -> TenantCluster {
            let mut tenant = TenantCluster::new("abc", TenantClusterSpec::default());
            tenant.status = serde_json::from_value(json!({"conditions": conditions})).unwrap();
            tenant
        };
        let one = |status: &str, reason: &str| {
            let since = "2026-01-01T00:00:00Z";
            let condition = |type_: &str, status: &str, reason: &str| {
                json!({
                    "type": type_, "status": status, "reason": reason, "message": "why", "lastTransitionTime": since,
                })
            };
            tenant(json!([
                condition("Ready", "True", "Ready"),
                condition("PoliciesReady", status, reason)
            ]))
        };
        assert_eq!(policies_not_ready_reason(&one("True", "Ready")), None);
        assert_eq!(policies_not_ready_reason(&one("False", "InvalidKubeconfig")), None);
        let reason = policies_not_ready_reason(&one("False", "ClusterFactsUnknown")).unwrap();
        assert_eq!(reason, "PoliciesReady of TenantCluster abc is false: why");
        let reason = policies_not_ready_reason(&tenant(json!([]))).unwrap();
        assert_eq!(reason, "TenantCluster abc has no condition PoliciesReady yet");
    }
}
