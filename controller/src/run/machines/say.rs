//! What is said of a MachineDeployment: numbers and conditions in its status, an Event when it begins to be wrong, and the
//! machines of its tenant counted in that one's status.

use std::time::{Duration, Instant};

use berth_api::ConditionReason;
use berth_api::names::CONTROLLER_STATUS;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::errors::{Error, at, found};
use super::keep::Look;
use super::{Context, deployments, resource};
use crate::fields::conditions_are_one;
use berth_api::Problem;
use berth_kubevirt_render::machines::rollout::Counts;
use berth_kubevirt_render::machines::steps::Steps;

/// Condition: whether machines have all that their template says.
const HONORED: &str = "TemplateHonored";
/// Characters of a message that a condition holds.
const LONGEST: usize = 8000;
/// Seconds without progress, unless a deployment says otherwise (as Kubernetes' Deployments).
const DEADLINE: u64 = 600;

/// What is so.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// Type, status, reason and message of conditions.
    conditions: Vec<(&'static str, bool, ConditionReason, String)>,
    /// When that may change by itself.
    pub(super) again_after: Option<Duration>,
}

impl Said {
    /// It makes no sense.
    pub(super) fn invalid(problems: &[Problem]) -> Self {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let message: String = all.join("\n").chars().take(LONGEST).collect();
        Self {
            conditions: vec![("Valid", false, ConditionReason::InvalidSpec, message)],
            again_after: None,
        }
    }

    /// It makes sense, and so far it is.
    pub(super) fn progress(look: &Look<'_>, steps: &Steps, awaited: Option<String>) -> Self {
        let deadline = look.deployment.spec.progress_deadline_seconds;
        let deadline = deadline.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(DEADLINE);
        let deadline = Duration::from_secs(deadline);
        let since = look.context.remember(look.object, |memory| {
            let now = Instant::now();
            match memory.progress {
                Some((counts, since)) if counts == steps.counts => since,
                _ => {
                    memory.progress = Some((steps.counts, now));
                    now
                }
            }
        });
        let Counts { replicas, updated, available, unavailable, .. } = steps.counts;
        let numbers = format!(
            "{updated} of {replicas} machines are as the template says, {available} available"
        );
        let left = deadline.checked_sub(since.elapsed());
        let (progressing, again_after) = if steps.is_complete {
            (("Progressing", true, ConditionReason::Complete, numbers), None)
        } else if look.deployment.spec.paused {
            (("Progressing", false, ConditionReason::Paused, numbers), None)
        } else if let Some(awaited) = awaited {
            (
                (
                    "Progressing",
                    false,
                    ConditionReason::WaitingForTenant,
                    format!("machines wait for {awaited}"),
                ),
                None,
            )
        } else if let Some(left) = left {
            (("Progressing", true, ConditionReason::Progressing, numbers), Some(left))
        } else {
            let seconds = deadline.as_secs();
            let message = format!("nothing has changed for {seconds} s: {numbers}");
            (("Progressing", false, ConditionReason::ProgressDeadlineExceeded, message), None)
        };
        let is_available = unavailable == 0;
        let reason = if is_available {
            ConditionReason::MachinesAvailable
        } else {
            ConditionReason::MachinesUnavailable
        };
        let message = format!("{available} available, {unavailable} missing");
        let conditions = vec![
            ("Valid", true, ConditionReason::Valid, "machines can be made of it".to_owned()),
            progressing,
            ("Available", is_available, reason, message),
        ];
        Self { conditions, again_after }
    }

    /// With what is odd about the template of the machines that were made last; without, as it was said before.
    pub(super) fn noting(mut self, notes: Option<&[Problem]>) -> Self {
        let Some(notes) = notes else { return self };
        let all: Vec<String> = notes.iter().map(ToString::to_string).collect();
        let message: String = all.join("\n").chars().take(LONGEST).collect();
        self.conditions.push(if notes.is_empty() {
            (
                HONORED,
                true,
                ConditionReason::AllHonored,
                "machines have all that the template says".to_owned(),
            )
        } else {
            (HONORED, false, ConditionReason::PartiallyHonored, message)
        });
        self
    }

    fn is_valid(&self) -> bool {
        self.conditions.iter().all(|(name, is_so, ..)| *name != "Valid" || *is_so)
    }
}

impl Context {
    /// Writes the status, if it says something else now.
    pub(super) async fn say(
        &self,
        object: &DynamicObject,
        counts: Option<Counts>,
        said: &Said,
    ) -> Result<(), Error> {
        let before = object.data.get("status").cloned().unwrap_or_else(|| json!({}));
        let mut status = json!({"observedGeneration": object.metadata.generation});
        if let Some(counts) = counts {
            let Counts { replicas, updated, ready, available, unavailable } = counts;
            status["replicas"] = replicas.into();
            status["updatedReplicas"] = updated.into();
            status["readyReplicas"] = ready.into();
            status["availableReplicas"] = available.into();
            status["unavailableReplicas"] = unavailable.into();
            status["labelSelector"] = format!("md={}", object.name_any()).into();
        }
        let mut conditions = conditions(&before, said);
        if let Some(all) = conditions.as_array_mut() {
            let is_said = all.iter().any(|one| one["type"] == HONORED);
            let known = before["conditions"].as_array().into_iter().flatten();
            all.extend(
                known.filter(|one| one["type"] == HONORED && !is_said).cloned().collect::<Vec<_>>(),
            );
        }
        status["conditions"] = conditions;
        let is_new = status
            .as_object()
            .is_some_and(|fields| fields.iter().any(|(key, value)| before.get(key) != Some(value)));
        if is_new {
            if !said.is_valid() {
                self.warn(object, said).await;
            }
            let namespace = object.namespace().unwrap_or_default();
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &namespace, &deployments());
            let patch = Patch::Merge(json!({"status": status}));
            let params = PatchParams {
                field_manager: Some(CONTROLLER_STATUS.to_owned()),
                ..PatchParams::default()
            };
            let patched = api.patch_status(&object.name_any(), &params, &patch).await;
            at(
                || format!("status of MachineDeployment {namespace}/{}", object.name_any()),
                found(patched),
            )?;
        }
        self.count(object).await
    }

    async fn warn(&self, object: &DynamicObject, said: &Said) {
        let Some((.., reason, message)) = said.conditions.first() else { return };
        self.events.warn_of(object.object_ref(&deployments()), reason.as_str(), message).await;
    }

    /// Counts the machines of the deployment's tenant in its status.
    async fn count(&self, object: &DynamicObject) -> Result<(), Error> {
        let namespace = object.namespace().unwrap_or_default();
        let Some(tenant) = namespace.strip_prefix("cluster-") else { return Ok(()) };
        let Some(known) = self.tenants.named(tenant) else { return Ok(()) };
        let all = self.wake.beside(&namespace);
        let own = all.iter().filter_map(|(namespace, name)| self.deployments.get(namespace, name));
        let (mut desired, mut current, mut ready, mut wrong) = (0_u64, 0_u64, 0_u64, Vec::new());
        for one in own {
            let number = |pointer: &str| one.data.pointer(pointer).and_then(Value::as_u64);
            desired += number("/spec/replicas").unwrap_or(1);
            current += number("/status/replicas").unwrap_or(0);
            ready += number("/status/readyReplicas").unwrap_or(0);
            let conditions = one.data.pointer("/status/conditions").and_then(Value::as_array);
            let is_wrong = |one: &Value| one["type"] == "Valid" && one["status"] == "False";
            if conditions.into_iter().flatten().any(is_wrong) {
                wrong.push(one.name_any());
            }
        }
        let (is_so, reason, message) = if !wrong.is_empty() {
            (
                false,
                ConditionReason::InvalidSpec,
                format!("MachineDeployments make no sense: {}", wrong.join(", ")),
            )
        } else if ready < desired {
            (false, ConditionReason::MachinesNotReady, format!("{ready} of {desired} machines run"))
        } else {
            (true, ConditionReason::MachinesReady, format!("{ready} of {desired} machines run"))
        };
        let before = known.data.get("status").cloned().unwrap_or_default();
        let said =
            Said { conditions: vec![("MachinesReady", is_so, reason, message)], again_after: None };
        let machines = json!({"desired": desired, "current": current, "ready": ready});
        let conditions: Vec<Value> =
            conditions(&before, &said).as_array().cloned().unwrap_or_default();
        let is_known = |condition: &Value| {
            before["conditions"].as_array().is_some_and(|known| known.contains(condition))
        };
        if before["machines"] == machines && conditions.iter().all(is_known) {
            return Ok(());
        }
        let tenants = resource("berth.dev", "v1alpha1", "TenantCluster", "tenantclusters");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &tenants);
        let mut body = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": tenant, "uid": known.uid()},
            "status": {"machines": machines, "conditions": conditions},
        });
        if conditions_are_one(known.metadata.managed_fields.as_deref().unwrap_or_default()) {
            let there = before["conditions"].as_array().into_iter().flatten();
            let others =
                there.filter(|one| conditions.iter().all(|own| own["type"] != one["type"]));
            body["status"]["conditions"] = others.chain(&conditions).cloned().collect();
            // What is written of the others must be what they say now.
            body["metadata"]["resourceVersion"] = known.resource_version().into();
        }
        let params = PatchParams::apply(CONTROLLER_STATUS).force();
        let patched = api.patch_status(tenant, &params, &Patch::Apply(body)).await;
        at(|| format!("status of TenantCluster {tenant}"), found(patched)).map(drop)
    }
}

/// As a list; what has not changed keeps its time.
fn conditions(before: &Value, said: &Said) -> Value {
    let known = before.get("conditions").and_then(Value::as_array);
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    let condition = |(name, is_so, reason, message): &(&str, bool, ConditionReason, String)| {
        let status = if *is_so { "True" } else { "False" };
        let same =
            known.into_iter().flatten().find(|one| one["type"] == *name && one["status"] == status);
        let since = same.map(|one| one["lastTransitionTime"].clone());
        json!({
            "type": name, "status": status, "reason": reason.as_str(), "message": message,
            "lastTransitionTime": since.unwrap_or_else(|| now.to_string().into()),
        })
    };
    said.conditions.iter().map(condition).collect()
}
