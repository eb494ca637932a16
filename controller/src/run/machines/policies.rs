//! Delays machines until the NetworkPolicies of their tenant are in force.

use berth_api::ConditionReason;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::tenants::status::POLICIES_READY;

/// Returns the reason why the NetworkPolicies of a tenant are not in force; `None` if the policies are in force.
///
/// A pod that starts before the policies can reach the whole pod network, and an importer that starts before the
/// policies may be refused. An invalid kubeconfig does not delay machines, because the tenant's API server may run
/// in these machines.
pub(super) fn not_in_force(tenant: &DynamicObject) -> Option<String> {
    let name = tenant.name_any();
    let conditions = tenant.data.pointer("/status/conditions").and_then(Value::as_array);
    match conditions.into_iter().flatten().find(|one| one["type"] == POLICIES_READY) {
        None => Some(format!("TenantCluster {name} has no condition {POLICIES_READY} yet")),
        Some(one)
            if one["status"] == "True"
                || reason(one) == Some(ConditionReason::InvalidKubeconfig) =>
        {
            None
        }
        Some(one) => {
            let message = one["message"].as_str().unwrap_or_default();
            Some(format!("{POLICIES_READY} of TenantCluster {name} is false: {message}"))
        }
    }
}

fn reason(condition: &Value) -> Option<ConditionReason> {
    condition["reason"].as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_wait_for_policies_but_not_for_a_kubeconfig() {
        let tenant = |conditions: Value| -> DynamicObject {
            serde_json::from_value(json!({
                "metadata": {"name": "abc"}, "status": {"conditions": conditions},
            }))
            .unwrap()
        };
        let one = |status: &str, reason: &str| {
            tenant(json!([{"type": "Ready", "status": "True"}, {
                "type": "PoliciesReady", "status": status, "reason": reason, "message": "why",
            }]))
        };
        assert_eq!(not_in_force(&one("True", "Ready")), None);
        assert_eq!(not_in_force(&one("False", "InvalidKubeconfig")), None);
        let why = not_in_force(&one("False", "ClusterFactsUnknown")).unwrap();
        assert_eq!(why, "PoliciesReady of TenantCluster abc is false: why");
        let why = not_in_force(&tenant(json!([]))).unwrap();
        assert_eq!(why, "TenantCluster abc has no condition PoliciesReady yet");
    }
}
