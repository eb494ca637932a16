//! Reconciler of the InfraConfig: validates the object and writes its status, with the report about golden images. Other
//! reconcilers read the InfraConfig from an informer store.

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::condition::{GOLDEN_IMAGES_READY, READY};
use berth_api::{Condition, ConditionReason, Images, InfraConfig, InfraConfigStatus};
use futures::channel::mpsc::unbounded;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;

use super::apply::ApplyTarget;
use super::clock::now_in_seconds;
use super::context::{Context, INFRA_CONFIG};
use super::image_table::ImageTable;
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
                () = context.images.report_changed() => {}
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
    let observed = config.status.clone().unwrap_or_default();
    let before = observed.conditions.as_slice();
    let generation = config.metadata.generation;
    let ready = new_condition(&update, before, generation, &now_in_seconds());
    let is_new = !before.iter().any(|one| one.type_ == READY && one.message == ready.message);
    let mut status = image_status(&config, &context.images);
    status.observed_generation = generation;
    status.conditions.insert(0, ready);
    let is_same = observed.observed_generation == status.observed_generation
        && observed.golden_images == status.golden_images
        && observed.golden_images_omitted == status.golden_images_omitted
        && same_conditions(before, &status.conditions);
    if is_same {
        return Ok(());
    }
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
    emit_failed_imports(&config, &context, &status).await;
    Ok(())
}

/// Returns the part of the status about golden images. While the images are unknown, for example after a restart, the
/// observed part stays.
fn image_status(config: &InfraConfig, images: &ImageTable) -> InfraConfigStatus {
    let observed = config.status.clone().unwrap_or_default();
    let is_of_images = |one: &&Condition| one.type_ == GOLDEN_IMAGES_READY;
    match images.report() {
        Some(report) => {
            let generation = config.metadata.generation;
            let before = &observed.conditions;
            let ready = new_condition(&report.condition, before, generation, &now_in_seconds());
            InfraConfigStatus {
                golden_images: report.images.clone(),
                golden_images_omitted: report.omitted,
                conditions: vec![ready],
                ..InfraConfigStatus::default()
            }
        }
        None if config.spec.images.as_ref().is_some_and(Images::has_golden_images) => {
            let conditions = observed.conditions.iter().filter(is_of_images).cloned().collect();
            InfraConfigStatus { conditions, ..observed }
        }
        None => InfraConfigStatus::default(),
    }
}

/// Returns true if the observed conditions are those that this reconciler writes. Other conditions belong to other field
/// managers.
fn same_conditions(observed: &[Condition], written: &[Condition]) -> bool {
    let is_own = |one: &&Condition| [READY, GOLDEN_IMAGES_READY].contains(&one.type_.as_str());
    observed.iter().filter(is_own).count() == written.len()
        && written.iter().all(|one| observed.contains(one))
}

/// Emits an Event if imports of golden images fail, and the condition reported no failures or others before.
async fn emit_failed_imports(config: &InfraConfig, context: &Context, status: &InfraConfigStatus) {
    let failed = |conditions: &[Condition]| {
        let of_images = conditions.iter().find(|one| one.type_ == GOLDEN_IMAGES_READY);
        let failed =
            of_images.filter(|one| one.reason.parse() == Ok(ConditionReason::ImportFailed));
        failed.map(|one| one.message.clone())
    };
    let before = config.status.as_ref().and_then(|status| failed(&status.conditions));
    let Some(message) = failed(&status.conditions) else { return };
    if before.as_ref() != Some(&message) {
        context.events.warn(config, ConditionReason::ImportFailed.as_str(), &message).await;
    }
}

#[cfg(test)]
mod tests {
    use berth_api::GoldenImageStatus;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_observed_images_stay_until_the_images_are_known() {
        let config = |images: serde_json::Value| -> InfraConfig {
            serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "InfraConfig", "metadata": {"name": "default"},
                "spec": {"images": images},
                "status": {
                    "goldenImages": [{"namespace": "images", "name": "image-1", "source": "a", "phase": "Ready", "users": 1}],
                    "conditions": [
                        {"type": "Ready", "status": "True", "reason": "Accepted", "message": "m",
                            "lastTransitionTime": "2026-01-01T00:00:00Z"},
                        {"type": "GoldenImagesReady", "status": "True", "reason": "ImagesImported", "message": "m",
                            "lastTransitionTime": "2026-01-01T00:00:00Z"},
                    ],
                },
            }))
            .unwrap()
        };
        let table = ImageTable::default();
        let kept = image_status(&config(json!({"golden": true})), &table);
        assert_eq!((kept.golden_images.len(), kept.conditions.len()), (1, 1));
        let disabled = image_status(&config(json!({})), &table);
        assert_eq!(disabled.golden_images, Vec::<GoldenImageStatus>::new());
        assert_eq!(disabled.conditions.len(), 0);
    }
}
