//! Writes the numbers of desired and ready machines of a tenant to the status of its TenantCluster.

use berth_api::ConditionReason;
use berth_api::names::{API_VERSION, CONTROLLER_STATUS_FIELD_MANAGER};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::context::MachineContext;
use super::errors::{RequestError, none_if_not_found, with_request};
use super::update_status::{StatusReport, report_conditions};
use crate::api_resource::api_resource;
use crate::managed_fields::conditions_are_atomic;

impl MachineContext {
    /// Writes the numbers of desired and ready machines of a tenant, over all its MachineDeployments, to the status of
    /// its TenantCluster. The namespace of the MachineDeployment determines the tenant.
    pub(super) async fn update_tenant_status(
        &self,
        object: &DynamicObject,
    ) -> Result<(), RequestError> {
        let namespace = object.namespace().unwrap_or_default();
        let Some(tenant) = namespace.strip_prefix("cluster-") else { return Ok(()) };
        let Some(known) = self.tenants.get(tenant) else { return Ok(()) };
        let all = self.triggers.deployments_in(&namespace);
        let own = all.iter().filter_map(|(namespace, name)| self.deployments.get(namespace, name));
        let (mut desired, mut current, mut ready, mut invalid) = (0_u64, 0_u64, 0_u64, Vec::new());
        for one in own {
            let number = |pointer: &str| one.data.pointer(pointer).and_then(Value::as_u64);
            desired += number("/spec/replicas").unwrap_or(1);
            current += number("/status/replicas").unwrap_or(0);
            ready += number("/status/readyReplicas").unwrap_or(0);
            let conditions = one.data.pointer("/status/conditions").and_then(Value::as_array);
            let is_invalid = |one: &Value| one["type"] == "Valid" && one["status"] == "False";
            if conditions.into_iter().flatten().any(is_invalid) {
                invalid.push(one.name_any());
            }
        }
        let (is_true, reason, message) = if !invalid.is_empty() {
            (
                false,
                ConditionReason::InvalidSpec,
                format!("invalid MachineDeployments: {}", invalid.join(", ")),
            )
        } else if ready < desired {
            (
                false,
                ConditionReason::MachinesNotReady,
                format!("{ready} of {desired} machines are ready"),
            )
        } else {
            (
                true,
                ConditionReason::MachinesReady,
                format!("{ready} of {desired} machines are ready"),
            )
        };
        let before = serde_json::to_value(&known.status).unwrap_or_default();
        let report = StatusReport {
            conditions: vec![("MachinesReady", is_true, reason, message)],
            ..StatusReport::default()
        };
        let machines = json!({"desired": desired, "current": current, "ready": ready});
        let conditions: Vec<Value> =
            report_conditions(&before, &report).as_array().cloned().unwrap_or_default();
        let is_known = |condition: &Value| {
            before["conditions"].as_array().is_some_and(|known| known.contains(condition))
        };
        if before["machines"] == machines && conditions.iter().all(is_known) {
            return Ok(());
        }
        let tenants = api_resource("berth.dev", "v1alpha1", "TenantCluster", "tenantclusters");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &tenants);
        let mut body = json!({
            "apiVersion": API_VERSION, "kind": "TenantCluster",
            "metadata": {"name": tenant, "uid": known.uid()},
            "status": {"machines": machines, "conditions": conditions},
        });
        if conditions_are_atomic(known.metadata.managed_fields.as_deref().unwrap_or_default()) {
            let existing = before["conditions"].as_array().into_iter().flatten();
            let others =
                existing.filter(|one| conditions.iter().all(|own| own["type"] != one["type"]));
            body["status"]["conditions"] = others.chain(&conditions).cloned().collect();
            // The write replaces the whole list of conditions, with those of other reconcilers. The resource version
            // makes the API server refuse the write if the list has changed meanwhile.
            body["metadata"]["resourceVersion"] = known.resource_version().into();
        }
        let params = PatchParams::apply(CONTROLLER_STATUS_FIELD_MANAGER).force();
        let patched = api.patch_status(tenant, &params, &Patch::Apply(body)).await;
        with_request(
            || format!("apply status of TenantCluster {tenant}"),
            none_if_not_found(patched),
        )
        .map(drop)
    }
}
