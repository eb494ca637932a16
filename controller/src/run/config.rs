//! Reconciler of the InfraConfig: validates the object and writes its status. Other reconcilers read the InfraConfig
//! from an informer store.

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::condition::READY;
use berth_api::{ConditionReason, InfraConfig, InfraConfigStatus};
use futures::channel::mpsc::unbounded;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;

use super::apply::ApplyTarget;
use super::clock::now_in_seconds;
use super::context::{Context, INFRA_CONFIG};
use super::reconcile::{ReconcileFailure, reconcile};
use crate::profiles::{ConditionUpdate, config_problems, new_condition};
use berth_runtime::reconcile::ReconcilerOptions;
use berth_runtime::watch::Change;

const OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "config", concurrency: 1, debounce: Duration::from_millis(200) };

/// Reconciles the InfraConfig until the future is dropped.
pub(super) async fn run(context: Arc<Context>) {
    let mut changes = context.configs.subscribe();
    let mut claims = context.vlan_claims.subscribe();
    tokio::join!(
        context.configs.wait_until_ready(),
        context.profiles.wait_until_ready(),
        context.vlan_claims.wait_until_ready()
    );
    let (wake, queue) = unbounded();
    let notify = async {
        loop {
            for config in context.configs.all() {
                wake.unbounded_send(ObjectRef::from_obj(config.as_ref())).unwrap_or_default();
            }
            // A change of a profile can add or remove the host network that a VLAN pool names.
            tokio::select! {
                change = changes.recv() => match change {
                    Some(Change::Object(_, Some(_)) | Change::Relisted) => {}
                    Some(Change::Object(_, None)) => tracing::info!(name = INFRA_CONFIG, "InfraConfig was deleted, using defaults"),
                    None => return,
                },
                () = context.host_networks_changed.notified() => {}
                // A new claim can conflict with another tenant's claim on a second network, if both networks may be on
                // the same segment.
                change = claims.recv() => if change.is_none() { return },
            }
        }
    };
    let store = context.configs.store().clone();
    tokio::join!(notify, reconcile(OPTIONS, Arc::clone(&context), store, queue, reconcile_config));
}

async fn reconcile_config(
    config: Arc<InfraConfig>,
    context: Arc<Context>,
) -> Result<(), ReconcileFailure> {
    let name = config.name_any();
    let (status, reason, message) = if name == INFRA_CONFIG {
        let claims = context.vlan_claims.all();
        let faults =
            config_problems(&config.spec, context.resolved_profiles.get().networks(), &claims);
        if faults.is_empty() {
            ("True", ConditionReason::Accepted, "the spec is valid".to_owned())
        } else {
            ("False", ConditionReason::InvalidSpec, faults.join("; "))
        }
    } else {
        (
            "False",
            ConditionReason::Ignored,
            format!("only the InfraConfig named {INFRA_CONFIG} is used"),
        )
    };
    let is_wrong = status == "False";
    let update = ConditionUpdate { type_: READY, status, reason, message };
    let observed = config.status.as_ref();
    let before = observed.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let generation = config.metadata.generation;
    let ready = new_condition(&update, before, generation, &now_in_seconds());
    let is_new = !before.iter().any(|one| one.type_ == READY && one.message == ready.message);
    // The other fields and conditions of the status belong to other field managers.
    let is_current = observed.is_some_and(|status| status.observed_generation == generation);
    if is_current && before.contains(&ready) {
        return Ok(());
    }
    let status = InfraConfigStatus {
        observed_generation: generation,
        conditions: vec![ready],
        ..InfraConfigStatus::default()
    };
    let request = format!("apply status of InfraConfig {name}");
    let body = serde_json::to_value(&status).unwrap_or_default();
    context
        .writer
        .apply_status(&ApplyTarget::from_object(config.as_ref()), body)
        .await
        .map_err(ReconcileFailure::with_request(request))?;
    if is_new && is_wrong {
        context.events.warn(config.as_ref(), reason.as_str(), &update.message).await;
    }
    Ok(())
}
