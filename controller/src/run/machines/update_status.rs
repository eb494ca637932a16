//! Updates the status of a MachineDeployment: counts and conditions. Emits an Event when the MachineDeployment becomes
//! invalid.

use std::time::{Duration, Instant};

use berth_api::ConditionReason;
use berth_api::names::CONTROLLER_STATUS_FIELD_MANAGER;
use berth_runtime::backoff::add_jitter;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::context::MachineContext;
use super::delays::RETRY_DELAY;
use super::disk_report::DiskReport;
use super::errors::{RequestError, none_if_not_found, with_request};
use super::validated::ValidatedDeployment;
use crate::api_resource::deployment_resource;
use crate::tenants::fault::Fault;
use berth_api::Problem;
use berth_kubevirt_render::machines::reconcile_steps::ReconcileSteps;
use berth_kubevirt_render::machines::rollout::ReplicaCounts;

/// Type of the condition that is true if machines honor all fields of their template.
const TEMPLATE_HONORED: &str = "TemplateHonored";
/// Type of the condition that is false if machines have lost the claims of their addresses.
const ADDRESSES_READY: &str = "AddressesReady";
/// Type of the condition that is false if Services of machines have no node ports of the tenant's range.
const ACCESS_READY: &str = "AccessReady";
/// Type of the condition that is false while existing machines do not have the hotpluggable disks of the template. It exists
/// only in this case, and while claims of removed disks are retained.
const DISKS_READY: &str = "DisksReady";
/// Type of the condition that is false while machines are being removed.
pub(super) const MACHINES_REMOVED: &str = "MachinesRemoved";
/// Maximum length of a condition's message, in characters.
const MAX_MESSAGE_LENGTH: usize = 8000;
/// Default of `progressDeadlineSeconds` in seconds, as for Deployments of Kubernetes.
const DEFAULT_PROGRESS_DEADLINE_SECONDS: u64 = 600;

/// Conditions to write to the status of a MachineDeployment.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusReport {
    /// Type, status (true for `True`), reason and message of each condition.
    pub(super) conditions: Vec<(&'static str, bool, ConditionReason, String)>,
    /// Time until the next reconcile without a change of an object; `None` if only a change of an object can change the
    /// conditions.
    pub(super) requeue_after: Option<Duration>,
    /// True if the current condition about disks stays, because the disks were not compared.
    pub(super) keeps_disks: bool,
}

impl StatusReport {
    /// Returns the report for an invalid MachineDeployment.
    pub(super) fn invalid(problems: &[Problem]) -> Self {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let message: String = all.join("\n").chars().take(MAX_MESSAGE_LENGTH).collect();
        Self {
            conditions: vec![("Valid", false, ConditionReason::InvalidSpec, message)],
            ..Self::default()
        }
    }

    /// Returns the report for a valid MachineDeployment, with its progress.
    pub(super) fn progress(
        validated: &ValidatedDeployment<'_>,
        steps: &ReconcileSteps,
        unmet_prerequisite: Option<Fault>,
    ) -> Self {
        let deadline = validated.deployment.spec.progress_deadline_seconds;
        let deadline = deadline
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(DEFAULT_PROGRESS_DEADLINE_SECONDS);
        let deadline = Duration::from_secs(deadline);
        let since = validated.context.with_state(validated.object, |memory| {
            let now = Instant::now();
            match memory.last_progress {
                Some((counts, since)) if counts == steps.counts => since,
                _ => {
                    memory.last_progress = Some((steps.counts, now));
                    now
                }
            }
        });
        let ReplicaCounts { replicas, updated, available, unavailable, .. } = steps.counts;
        let numbers =
            format!("{updated} of {replicas} machines are up to date, {available} are available");
        let remaining = deadline.checked_sub(since.elapsed());
        let (progressing, requeue_after) = if steps.is_complete {
            (("Progressing", true, ConditionReason::Complete, numbers), None)
        } else if validated.deployment.spec.paused {
            (("Progressing", false, ConditionReason::Paused, numbers), None)
        } else if let Some(Fault { reason, message }) = unmet_prerequisite {
            // A change of the tenant triggers a reconcile, but the end of the quarantine of an address does not.
            let is_temporary = reason == ConditionReason::AddressesExhausted;
            (("Progressing", false, reason, message), is_temporary.then(|| add_jitter(RETRY_DELAY)))
        } else if let Some(remaining) = remaining {
            (("Progressing", true, ConditionReason::Progressing, numbers), Some(remaining))
        } else {
            let seconds = deadline.as_secs();
            let message = format!("no progress for {seconds} s: {numbers}");
            (("Progressing", false, ConditionReason::ProgressDeadlineExceeded, message), None)
        };
        let is_available = unavailable == 0;
        let reason = if is_available {
            ConditionReason::MachinesAvailable
        } else {
            ConditionReason::MachinesUnavailable
        };
        let message = format!("{available} machines are available, {unavailable} are not");
        let conditions = vec![
            ("Valid", true, ConditionReason::Valid, "the template is valid".to_owned()),
            progressing,
            ("Available", is_available, reason, message),
        ];
        Self { conditions, requeue_after, keeps_disks: false }
    }

    /// Adds the condition about the fields of the template that the last rendered machines do not honor. `None` if no
    /// machine was rendered: the existing condition stays.
    pub(super) fn with_notes(mut self, notes: Option<&[Problem]>) -> Self {
        let Some(notes) = notes else { return self };
        let all: Vec<String> = notes.iter().map(ToString::to_string).collect();
        let message: String = all.join("\n").chars().take(MAX_MESSAGE_LENGTH).collect();
        self.conditions.push(if notes.is_empty() {
            (
                TEMPLATE_HONORED,
                true,
                ConditionReason::AllHonored,
                "machines honor all fields of the template".to_owned(),
            )
        } else {
            (TEMPLATE_HONORED, false, ConditionReason::PartiallyHonored, message)
        });
        self
    }

    /// Adds the condition that machines have lost the claims of their addresses; without a fault, the condition is
    /// removed.
    pub(super) fn with_lost_claims(mut self, lost_claims: Option<Fault>) -> Self {
        let Some(Fault { reason, message }) = lost_claims else { return self };
        let message = message.chars().take(MAX_MESSAGE_LENGTH).collect();
        self.conditions.push((ADDRESSES_READY, false, reason, message));
        // The deletion of the conflicting claim triggers no reconcile, so the next reconcile is scheduled.
        let retry = add_jitter(RETRY_DELAY);
        self.requeue_after = Some(self.requeue_after.map_or(retry, |after| after.min(retry)));
        self
    }

    /// Adds the condition that machines are being removed; without a fault, the condition is removed.
    pub(super) fn with_removals(mut self, removals: Option<Fault>) -> Self {
        if let Some(Fault { reason, message }) = removals {
            let message = message.chars().take(MAX_MESSAGE_LENGTH).collect();
            self.conditions.push((MACHINES_REMOVED, false, reason, message));
        }
        self
    }

    /// Adds the condition that Services of machines have no node ports of the tenant's range; without a fault, the
    /// condition is removed.
    pub(super) fn with_access(mut self, fault: Option<Fault>) -> Self {
        let Some(Fault { reason, message }) = fault else { return self };
        let message = message.chars().take(MAX_MESSAGE_LENGTH).collect();
        self.conditions.push((ACCESS_READY, false, reason, message));
        // If another user deletes the conflicting Service, no reconcile is triggered, so the next reconcile is
        // scheduled.
        let retry = add_jitter(RETRY_DELAY);
        self.requeue_after = Some(self.requeue_after.map_or(retry, |after| after.min(retry)));
        self
    }

    /// Adds the condition that existing machines do not have the hotpluggable disks of the template, or that claims of removed
    /// disks are retained; without both, the condition is removed.
    pub(super) fn with_disks(mut self, disks: DiskReport) -> Self {
        let DiskReport { fault, retained, requeue_after, keeps_condition } = disks;
        self.keeps_disks = keeps_condition;
        let fault = fault.filter(|_| !keeps_condition);
        let retained = retained.filter(|_| !keeps_condition);
        if let Some(Fault { reason, message }) = fault {
            let message = message.chars().take(MAX_MESSAGE_LENGTH).collect();
            self.conditions.push((DISKS_READY, false, reason, message));
        } else if let Some(message) = retained {
            // The names of the claims are from an annotation, which tenants may write.
            let message = message.chars().take(MAX_MESSAGE_LENGTH).collect();
            self.conditions.push((DISKS_READY, true, ConditionReason::DisksRetained, message));
        }
        if let Some(requeue) = requeue_after.map(add_jitter) {
            self.requeue_after =
                Some(self.requeue_after.map_or(requeue, |after| after.min(requeue)));
        }
        self
    }

    fn is_valid(&self) -> bool {
        self.conditions.iter().all(|(name, is_true, ..)| *name != "Valid" || *is_true)
    }
}

impl MachineContext {
    /// Writes the status of a MachineDeployment if it differs from the current status.
    pub(super) async fn update_status(
        &self,
        object: &DynamicObject,
        counts: Option<ReplicaCounts>,
        report: &StatusReport,
    ) -> Result<(), RequestError> {
        let before = object.data.get("status").cloned().unwrap_or_else(|| json!({}));
        let mut status = json!({"observedGeneration": object.metadata.generation});
        if let Some(counts) = counts {
            let ReplicaCounts { replicas, updated, ready, available, unavailable } = counts;
            status["replicas"] = replicas.into();
            status["updatedReplicas"] = updated.into();
            status["readyReplicas"] = ready.into();
            status["availableReplicas"] = available.into();
            status["unavailableReplicas"] = unavailable.into();
            status["labelSelector"] = format!("md={}", object.name_any()).into();
        }
        let mut conditions = report_conditions(&before, report);
        if let Some(all) = conditions.as_array_mut() {
            let is_set = all.iter().any(|one| one["type"] == TEMPLATE_HONORED);
            let is_kept = |one: &&Value| {
                (one["type"] == TEMPLATE_HONORED && !is_set)
                    || (one["type"] == DISKS_READY && report.keeps_disks)
            };
            let known = before["conditions"].as_array().into_iter().flatten();
            all.extend(known.filter(is_kept).cloned().collect::<Vec<_>>());
        }
        status["conditions"] = conditions;
        let is_new = status
            .as_object()
            .is_some_and(|fields| fields.iter().any(|(key, value)| before.get(key) != Some(value)));
        if is_new {
            if !report.is_valid() {
                self.emit_warning(object, report).await;
            }
            let namespace = object.namespace().unwrap_or_default();
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &namespace, &deployment_resource());
            let patch = Patch::Merge(json!({"status": status}));
            let params = PatchParams {
                field_manager: Some(CONTROLLER_STATUS_FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let patched = api.patch_status(&object.name_any(), &params, &patch).await;
            with_request(
                || format!("patch status of MachineDeployment {namespace}/{}", object.name_any()),
                none_if_not_found(patched),
            )?;
        }
        self.update_tenant_status(object).await
    }

    async fn emit_warning(&self, object: &DynamicObject, report: &StatusReport) {
        let Some((.., reason, message)) = report.conditions.first() else { return };
        self.events
            .warn_for(object.object_ref(&deployment_resource()), reason.as_str(), message)
            .await;
    }
}

/// Returns the conditions as a JSON list. A condition whose status is unchanged retains its `lastTransitionTime`.
pub(super) fn report_conditions(before: &Value, report: &StatusReport) -> Value {
    let known = before.get("conditions").and_then(Value::as_array);
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let condition = |(name, is_true, reason, message): &(&str, bool, ConditionReason, String)| {
        let status = if *is_true { "True" } else { "False" };
        let same =
            known.into_iter().flatten().find(|one| one["type"] == *name && one["status"] == status);
        let since = same.map(|one| one["lastTransitionTime"].clone());
        json!({
            "type": name, "status": status, "reason": reason.as_str(), "message": message,
            "lastTransitionTime": since.unwrap_or_else(|| now.to_string().into()),
        })
    };
    report.conditions.iter().map(condition).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_of_disks_is_short_and_stays_without_a_comparison() {
        let retained = || Some("x".repeat(MAX_MESSAGE_LENGTH + 1));
        let disks = DiskReport { retained: retained(), ..DiskReport::default() };
        let report = StatusReport::default().with_disks(disks);
        let [(name, true, ConditionReason::DisksRetained, message)] = report.conditions.as_slice()
        else {
            panic!("{report:?}");
        };
        assert_eq!((*name, message.len()), (DISKS_READY, MAX_MESSAGE_LENGTH));
        assert!(!report.keeps_disks);
        let fault = Some(Fault::new(ConditionReason::DisksNotAttached, "x".to_owned()));
        let disks = DiskReport {
            fault,
            retained: retained(),
            keeps_condition: true,
            ..DiskReport::default()
        };
        let report = StatusReport::default().with_disks(disks);
        assert!(report.keeps_disks && report.conditions.is_empty(), "{report:?}");
    }
}
