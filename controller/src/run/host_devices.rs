//! Reconciler of `hostDevices` of the InfraConfig: adds its entries to `permittedHostDevices` of the KubeVirt object, if the
//! InfraConfig requests it. [`crate::host_devices`] computes the entries.
//!
//! The apply is not forced. If another field manager owns the list, the entries are not added, and the condition
//! HostDevicesReady names the manager.

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::HOST_DEVICES_FIELD_MANAGER;
use berth_api::names::condition::HOST_DEVICES_READY;
use berth_api::{ConditionReason, HostDevices, InfraConfig};
use berth_runtime::call::{CallError, with_timeout};
use berth_runtime::field_conflicts::conflicting_managers;
use berth_runtime::reconcile::ReconcilerOptions;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::api_requests::kubevirt_resource;
use super::apply::ApplyTarget;
use super::clock::now_in_seconds;
use super::context::{Context, INFRA_CONFIG};
use super::reconcile::{ReconcileFailure, reconcile};
use crate::host_devices::{PciHostDevice, PermittedPlan, plan_permitted};
use crate::profiles::{ConditionUpdate, new_condition};
use crate::tenants::fault::Fault;

const OPTIONS: ReconcilerOptions = ReconcilerOptions {
    name: "host-devices",
    concurrency: 1,
    debounce: Duration::from_millis(200),
};

/// Reconciles the devices of the InfraConfig until the future is dropped, which may happen at any await point.
pub(super) async fn run(context: Arc<Context>) {
    context.configs.wait_until_ready().await;
    let (queue, requests) = unbounded();
    let store = context.configs.store().clone();
    tokio::join!(
        trigger_reconciles(&context, &queue),
        reconcile(OPTIONS, Arc::clone(&context), store, requests, reconcile_devices)
    );
}

/// Triggers a reconcile at the start and after each change of the spec of the InfraConfig, because its status changes more
/// often.
async fn trigger_reconciles(context: &Context, queue: &UnboundedSender<ObjectRef<InfraConfig>>) {
    let mut changes = context.configs.subscribe();
    let mut last = None;
    loop {
        let config = context.configs.get(INFRA_CONFIG);
        let version = config.map(|config| (config.uid(), config.metadata.generation));
        if version.is_some() && version != last {
            queue.unbounded_send(ObjectRef::new(INFRA_CONFIG)).unwrap_or_default();
        }
        last = version;
        if changes.recv().await.is_none() {
            // The watch ends only if the program is ending.
            std::future::pending::<()>().await;
        }
    }
}

async fn reconcile_devices(
    config: Arc<InfraConfig>,
    context: Arc<Context>,
) -> Result<(), ReconcileFailure> {
    if config.name_any() != INFRA_CONFIG {
        return Ok(());
    }
    let Some(devices) = config.spec.host_devices.as_ref().filter(|one| one.is_managed()) else {
        return remove_condition(&config, &context).await;
    };
    let fault = permit_devices(devices, &context).await?;
    update_condition(&config, fault, &context).await
}

/// Adds the entries to the KubeVirt object. Returns the state of the condition: a fault, or the message without one.
async fn permit_devices(
    devices: &HostDevices,
    context: &Context,
) -> Result<Result<String, Fault>, ReconcileFailure> {
    let missing = || {
        let message = "there is no KubeVirt object: install KubeVirt".to_owned();
        Ok(Err(Fault::new(ConditionReason::KubeVirtMissing, message)))
    };
    let all: Api<DynamicObject> = Api::all_with(context.client.clone(), &kubevirt_resource());
    // KubeVirt permits only one object.
    let found = match with_timeout(all.list(&ListParams::default().limit(1))).await {
        Ok(found) => found.items.into_iter().next(),
        Err(error) if error.status_code() == Some(404) => return missing(),
        Err(error) => return Err(ReconcileFailure::with_request("list KubeVirt objects")(error)),
    };
    let Some(kubevirt) = found.and_then(|found| serde_json::to_value(found).ok()) else {
        return missing();
    };
    let plan = plan_permitted(&kubevirt, &PciHostDevice::of_config(devices));
    if let Some(body) = &plan.apply {
        let text = |field: &str| kubevirt["metadata"][field].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("name"));
        let api: Api<DynamicObject> =
            Api::namespaced_with(context.client.clone(), namespace, &kubevirt_resource());
        let params = PatchParams::apply(HOST_DEVICES_FIELD_MANAGER);
        if let Err(error) = with_timeout(api.patch(name, &params, &Patch::Apply(body))).await {
            return match refusal(&error, &plan) {
                Some(fault) => Ok(Err(fault)),
                None => {
                    let request = format!("apply KubeVirt {namespace}/{name}");
                    Err(ReconcileFailure::with_request(request)(error))
                }
            };
        }
        tracing::info!(namespace, name, added = ?plan.added, "changed the permitted devices of KubeVirt");
    }
    Ok(outcome(&plan))
}

/// Returns the fault if the API server refused the apply in a way that a retry would not change.
fn refusal(error: &CallError, plan: &PermittedPlan) -> Option<Fault> {
    let status = error.status()?;
    let added = plan.added.join(", ");
    let managers = conflicting_managers(status);
    let (reason, message) = match status.code {
        409 if !managers.is_empty() => {
            let names: Vec<&str> = managers.values().map(String::as_str).collect();
            let message = format!(
                "permittedHostDevices.pciHostDevices of the KubeVirt object belongs to {}, and Berth does not change it; add \
                 these entries there: {added} (berth-controller check kubevirt.host-devices prints them)",
                names.join(", ")
            );
            (ConditionReason::FieldsOwnedByOthers, message)
        }
        403 => {
            let message = format!(
                "the controller may not change the KubeVirt object; apply the component manage-host-devices, or add these \
                 entries yourself: {added}"
            );
            (ConditionReason::AccessDenied, message)
        }
        400 | 422 => {
            let message = format!("the API server refuses the entries {added}: {}", status.message);
            (ConditionReason::ApplyFailed, message)
        }
        _ => return None,
    };
    Some(Fault::new(reason, message))
}

/// Returns the state of the condition after the KubeVirt object has all entries that can be added.
fn outcome(plan: &PermittedPlan) -> Result<String, Fault> {
    if plan.refused.is_empty() {
        return Ok(format!(
            "KubeVirt permits all devices of hostDevices.allowed; {} entries belong to others",
            plan.other_count
        ));
    }
    let message = format!(
        "these devices have another resource, and Berth does not change entries of others: {}; use the same resourceName in \
         hostDevices.allowed, or remove the other entry",
        plan.refused.join("; ")
    );
    Err(Fault::new(ConditionReason::DevicesNotPermitted, message))
}

/// Writes the condition if it differs from the observed one.
async fn update_condition(
    config: &InfraConfig,
    state: Result<String, Fault>,
    context: &Context,
) -> Result<(), ReconcileFailure> {
    let (status, reason, message) = match state {
        Ok(message) => ("True", ConditionReason::DevicesPermitted, message),
        Err(Fault { reason, message }) => ("False", reason, message),
    };
    let update = ConditionUpdate { type_: HOST_DEVICES_READY, status, reason, message };
    let before = config.status.as_ref().map(|status| status.conditions.as_slice());
    let before = before.unwrap_or_default();
    let condition = new_condition(&update, before, config.metadata.generation, &now_in_seconds());
    if before.contains(&condition) {
        return Ok(());
    }
    write_conditions(config, json!([condition]), context).await
}

async fn remove_condition(config: &InfraConfig, context: &Context) -> Result<(), ReconcileFailure> {
    let mut conditions = config.status.iter().flat_map(|status| &status.conditions);
    if conditions.any(|one| one.type_ == HOST_DEVICES_READY) {
        return write_conditions(config, json!([]), context).await;
    }
    Ok(())
}

async fn write_conditions(
    config: &InfraConfig,
    conditions: Value,
    context: &Context,
) -> Result<(), ReconcileFailure> {
    let target = ApplyTarget::from_object(config);
    let body = json!({"conditions": conditions});
    let written = context.writer.apply_status_as(HOST_DEVICES_FIELD_MANAGER, &target, body).await;
    let request = format!("apply condition {HOST_DEVICES_READY} of the InfraConfig");
    written.map(drop).map_err(ReconcileFailure::with_request(request))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refused(status: Value) -> Option<Fault> {
        let status: Status = serde_json::from_value(status).unwrap();
        let plan =
            PermittedPlan { added: vec!["144d:a80a=a/x".to_owned()], ..PermittedPlan::default() };
        refusal(&kube::Error::Api(status.into()).into(), &plan)
    }

    #[test]
    fn refusals_name_the_entries() {
        let cause = json!({
            "reason": "FieldManagerConflict", "message": "conflict with \"helm\" using kubevirt.io/v1",
            "field": ".spec.configuration.permittedHostDevices.pciHostDevices",
        });
        let status = |code: u16, causes: Value| {
            json!({
                "status": "Failure", "code": code, "reason": "x", "message": "m", "details": {"causes": causes},
            })
        };
        let fault = refused(status(409, json!([cause]))).unwrap();
        assert_eq!(fault.reason, ConditionReason::FieldsOwnedByOthers);
        assert!(
            fault.message.contains("belongs to helm") && fault.message.contains("144d:a80a=a/x"),
            "{fault}"
        );
        assert_eq!(refused(status(409, json!([]))), None, "the object has changed");
        assert_eq!(refused(status(500, json!([]))), None);
        let denied = refused(status(403, json!([]))).unwrap();
        assert!(denied.message.contains("manage-host-devices"), "{denied}");
    }

    #[test]
    fn entries_of_others_are_reported() {
        let plan = PermittedPlan { other_count: 2, ..PermittedPlan::default() };
        assert!(outcome(&plan).unwrap().ends_with("2 entries belong to others"));
        let plan = PermittedPlan { refused: vec!["a".to_owned()], ..plan };
        assert_eq!(outcome(&plan).unwrap_err().reason, ConditionReason::DevicesNotPermitted);
    }
}
