//! Updates the hotpluggable disks of existing machines. [`hotplug`](berth_kubevirt_render::machines::hotplug) computes the
//! changes of each machine.
//!
//! Annotations of the VirtualMachine record which disks it has, and which DataVolumes are to be deleted. So a machine without
//! a difference costs no request, and another leader continues from the objects alone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use berth_api::ConditionReason;
use berth_kubevirt_render::launcher::{Configuration, HotplugUnsupported};
use berth_kubevirt_render::machines::hotplug::{
    DiskPlan, HotplugDisk, detached_claims, detached_patch, is_claim_in_use, is_own_volume,
};
use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;
use berth_kubevirt_render::machines::{MACHINE_DEPLOYMENT_KIND, RenderOptions};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, Preconditions};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::disk_backoff::DiskBackoff;
use super::errors::{
    RequestError, has_changed, none_if_not_found, redact_message, refusal_message, with_request,
};
use super::resources::instance_resource;
use super::template::MachineTemplate;
use super::validated::ValidatedDeployment;
use crate::api_resource::{api_resource, deployment_resource};
use crate::run::api_requests::{kubevirt_resource, patch_params};
use crate::tenants::fault::{Fault, join_first};

/// Delay before a removed disk that is still in use is examined again.
const DETACH_DELAY: Duration = Duration::from_secs(10);
/// Time for which disks are not compared again after changes were refused, unless the MachineDeployment changes.
const REFUSAL_TIME: Duration = Duration::from_secs(300);
/// Maximum number of messages in the condition.
const MAX_MESSAGES: usize = 8;

/// State of the hotpluggable disks of the machines of a MachineDeployment.
#[derive(Debug, Default)]
pub(super) struct DiskReport {
    /// Fault of the condition DisksReady; `None` if all machines have the disks of the template.
    pub(super) fault: Option<Fault>,
    /// Time until the next reconcile, if no event triggers a reconcile before.
    pub(super) requeue_after: Option<Duration>,
}

/// Disks that are not as desired, as messages.
#[derive(Debug, Default)]
struct DiskMessages {
    /// Changes that are not possible.
    refused: Vec<String>,
    /// Changes that are not complete.
    pending: Vec<String>,
    /// Reason why KubeVirt changes no disks of running machines.
    unsupported: Option<String>,
}

impl DiskMessages {
    fn into_fault(self) -> Option<Fault> {
        let Self { refused, pending, unsupported } = self;
        let (reason, messages) = match unsupported {
            Some(message) => (ConditionReason::HotplugUnsupported, vec![message]),
            None if !refused.is_empty() => (ConditionReason::DiskChangesRefused, refused),
            None if !pending.is_empty() => (ConditionReason::DisksChanging, pending),
            None => return None,
        };
        Some(Fault::new(reason, join_first(&messages, MAX_MESSAGES, "; ")))
    }
}

impl ValidatedDeployment<'_> {
    /// Attaches, detaches and expands the hotpluggable disks of existing machines, and deletes the DataVolumes of detached
    /// disks. Machines that are removed or replaced are not changed; neither are those of a paused MachineDeployment.
    pub(super) async fn update_disks(&self) -> Result<DiskReport, RequestError> {
        let needs_update = |vm: &&ExistingVm| vm.needs_disk_update(&self.deployment, &self.owner);
        let machines: Vec<&ExistingVm> = self.vms.iter().filter(needs_update).collect();
        if machines.is_empty() || self.deployment.spec.paused {
            self.context.with_state(self.object, |memory| memory.disk_backoff = None);
            return Ok(DiskReport::default());
        }
        if let Some(report) = self.report_during_backoff() {
            return Ok(report);
        }
        let mut messages = DiskMessages::default();
        let mut template = None;
        if machines.iter().any(|vm| !vm.has_current_disks(&self.deployment)) {
            if !self.has_latest_template().await? {
                return Ok(DiskReport { fault: None, requeue_after: Some(DETACH_DELAY) });
            }
            match self.read_template().await? {
                Ok(read) => template = Some((read, self.check_hotplug().await?)),
                Err(problems) => messages.refused.extend(problems.iter().map(ToString::to_string)),
            }
        }
        for vm in machines {
            self.update_disks_of(vm, template.as_ref(), &mut messages).await?;
        }
        let requeue_after = if !messages.refused.is_empty() || messages.unsupported.is_some() {
            Some(REFUSAL_TIME)
        } else {
            (!messages.pending.is_empty()).then_some(DETACH_DELAY)
        };
        let fault = messages.into_fault();
        self.set_backoff(fault.as_ref().filter(|_| requeue_after == Some(REFUSAL_TIME)));
        Ok(DiskReport { fault, requeue_after })
    }

    /// Returns the last fault while disks are not compared.
    fn report_during_backoff(&self) -> Option<DiskReport> {
        let backoff = self.context.with_state(self.object, |memory| memory.disk_backoff.clone())?;
        let remaining = backoff.remaining_time(self.object.metadata.generation, Instant::now())?;
        Some(DiskReport { fault: Some(backoff.fault), requeue_after: Some(remaining) })
    }

    fn set_backoff(&self, fault: Option<&Fault>) {
        let backoff = fault.and_then(|fault| {
            let until = Instant::now().checked_add(REFUSAL_TIME)?;
            let generation = self.object.metadata.generation;
            Some(DiskBackoff { generation, until, fault: fault.clone() })
        });
        self.context.with_state(self.object, |memory| memory.disk_backoff = backoff);
    }

    /// Returns true if the MachineDeployment of the watch is that of the API server. A watch can go back in time when it
    /// connects to another API server. A disk that the older template lacks would be deleted with its data.
    async fn has_latest_template(&self) -> Result<bool, RequestError> {
        let namespace = self.object.namespace().unwrap_or_default();
        let name = self.object.name_any();
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.context.client.clone(), &namespace, &deployment_resource());
        let found = with_request(
            || format!("get {MACHINE_DEPLOYMENT_KIND} {namespace}/{name}"),
            none_if_not_found(api.get(&name).await),
        )?;
        Ok(found.is_some_and(|found| is_same_template(&found, self.object)))
    }

    /// Reads whether KubeVirt changes the disks of running machines.
    async fn check_hotplug(&self) -> Result<Result<(), HotplugUnsupported>, RequestError> {
        let api: Api<DynamicObject> =
            Api::all_with(self.context.client.clone(), &kubevirt_resource());
        let all = with_request(
            || "list KubeVirt objects".to_owned(),
            api.list(&ListParams::default().limit(1)).await,
        )?;
        let object = all.items.into_iter().next();
        let object = object.and_then(|object| serde_json::to_value(object).ok());
        // KubeVirt of an unknown release is treated like one that does not have the feature gate.
        let configuration = object.and_then(|object| Configuration::from_kubevirt(&object).ok());
        Ok(configuration.map_or(Err(HotplugUnsupported::GateDisabled), |configuration| {
            configuration.check_declarative_hotplug()
        }))
    }

    /// Updates the disks of one machine. Without a template, only detached disks are deleted.
    async fn update_disks_of(
        &self,
        vm: &ExistingVm,
        template: Option<&(MachineTemplate, Result<(), HotplugUnsupported>)>,
        messages: &mut DiskMessages,
    ) -> Result<(), RequestError> {
        // The store has only a part of each VirtualMachine.
        let found = none_if_not_found(self.machines_api().get(&vm.name).await);
        let request = || format!("get VirtualMachine {}/{}", self.namespace, vm.name);
        let Some(found) = with_request(request, found)? else { return Ok(()) };
        let Ok(object) = serde_json::to_value(found) else { return Ok(()) };
        // The machine may have been marked for removal or updated since the store received it, also by this reconcile.
        let latest = ExistingVm::from_objects(&object, None);
        if latest.uid != vm.uid || !latest.needs_disk_update(&self.deployment, &self.owner) {
            return Ok(());
        }
        let detached = detached_claims(&object);
        let object = match template.filter(|_| !latest.has_current_disks(&self.deployment)) {
            Some(template) => self.apply_disks(vm, object, template, messages).await?,
            None => Some(object),
        };
        match object {
            // DataVolumes that were detached just now are still in use.
            Some(object) if !detached.is_empty() => {
                self.delete_detached(vm, &object, &detached, messages).await
            }
            _ => Ok(()),
        }
    }

    /// Expands the disks, and attaches and detaches them in the VirtualMachine. Returns the VirtualMachine after the change;
    /// `None` if it was deleted, or if its change is refused.
    async fn apply_disks(
        &self,
        vm: &ExistingVm,
        object: Value,
        (template, support): &(MachineTemplate, Result<(), HotplugUnsupported>),
        messages: &mut DiskMessages,
    ) -> Result<Option<Value>, RequestError> {
        let options = RenderOptions {
            machine_name: Some(vm.name.clone()),
            namespace: Some(self.namespace.clone()),
            user_data: Some(template.data.user_data.clone()),
            ..RenderOptions::default()
        };
        let rendered = HotplugDisk::render(&self.deployment, &template.render_context, &options);
        let (desired, has_secrets) = match rendered {
            Ok(rendered) => rendered,
            Err(problems) => {
                messages.refused.extend(problems.iter().map(ToString::to_string));
                return Ok(Some(object));
            }
        };
        let plan = DiskPlan::new(&object, &desired);
        let mut expanded = BTreeSet::new();
        for expansion in &plan.expansions {
            match self.expand_claim(expansion).await? {
                Ok(()) => {
                    expanded.insert(expansion.claim.clone());
                }
                Err(fault) => {
                    let text = if has_secrets { fault.redacted() } else { fault.to_string() };
                    let message = format!("machine {}: {text}", vm.name);
                    let list = match fault.is_temporary() {
                        true => &mut messages.pending,
                        false => &mut messages.refused,
                    };
                    list.push(message);
                }
            }
        }
        for fault in &plan.faults {
            let text = if has_secrets { fault.redacted() } else { fault.to_string() };
            let message = format!("machine {}: {text}", vm.name);
            if fault.is_temporary() {
                messages.pending.push(message);
            } else {
                messages.refused.push(message);
            }
        }
        if plan.changes_volumes()
            && let Err(unsupported) = support
        {
            messages.unsupported = Some(format!(
                "the disks of existing machines are not changed: {unsupported}; new machines have the disks of the template"
            ));
            return Ok(Some(object));
        }
        if !plan.needs_patch(&expanded) {
            return Ok(Some(object));
        }
        let revision = self.deployment.hotplug_revision();
        let patch = Patch::Merge(plan.patch(&object, &expanded, revision));
        let patched = self.machines_api().patch(&vm.name, &patch_params(), &patch).await;
        if has_changed(&patched) {
            messages.pending.push(changed_message(vm));
            return Ok(None);
        }
        let patched = if has_secrets { patched.map_err(redact_message) } else { patched };
        let patched = none_if_not_found(patched);
        if let Some(reason) = refusal_message(&patched) {
            let message = format!(
                "machine {}: the API server refuses the change of its disks: {reason}",
                vm.name
            );
            messages.refused.push(message);
            return Ok(None);
        }
        let request = || format!("change disks of VirtualMachine {}/{}", self.namespace, vm.name);
        let Some(patched) = with_request(request, patched)? else { return Ok(None) };
        tracing::info!(namespace = %self.namespace, machine = %vm.name, "changed disks of VirtualMachine");
        Ok(serde_json::to_value(patched).ok())
    }

    /// Deletes the DataVolumes of detached disks that neither the VirtualMachine nor its instance uses.
    async fn delete_detached(
        &self,
        vm: &ExistingVm,
        object: &Value,
        detached: &BTreeSet<String>,
        messages: &mut DiskMessages,
    ) -> Result<(), RequestError> {
        let instances: Api<DynamicObject> = Api::namespaced_with(
            self.context.client.clone(),
            &self.namespace,
            &instance_resource(),
        );
        let instance = with_request(
            || format!("get VirtualMachineInstance {}/{}", self.namespace, vm.name),
            none_if_not_found(instances.get(&vm.name).await),
        )?;
        let instance = instance.and_then(|instance| serde_json::to_value(instance).ok());
        let mut remaining = detached_claims(object);
        for claim in detached {
            if is_claim_in_use(object, instance.as_ref(), claim) {
                let message = format!("machine {}: {claim} is being detached", vm.name);
                messages.pending.push(message);
            } else if self.delete_data_volume(claim, object).await? {
                remaining.remove(claim);
            } else {
                messages.pending.push(format!("machine {}: {claim} is being deleted", vm.name));
            }
        }
        if remaining == detached_claims(object) {
            return Ok(());
        }
        let patch = Patch::Merge(detached_patch(object, &remaining));
        let patched = self.machines_api().patch(&vm.name, &patch_params(), &patch).await;
        if has_changed(&patched) {
            messages.pending.push(changed_message(vm));
            return Ok(());
        }
        let request = || format!("patch VirtualMachine {}/{}", self.namespace, vm.name);
        with_request(request, none_if_not_found(patched)).map(drop)
    }

    /// Deletes the DataVolume of a detached disk of the VirtualMachine `vm`, and with it its claim. Returns true if the
    /// machine does not have the DataVolume any more.
    async fn delete_data_volume(&self, name: &str, vm: &Value) -> Result<bool, RequestError> {
        let kind = api_resource("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes");
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.context.client.clone(), &self.namespace, &kind);
        let request = || format!("get DataVolume {}/{name}", self.namespace);
        let found = with_request(request, none_if_not_found(api.get(name).await))?;
        let Some(found) = found else { return Ok(true) };
        let uid = found.metadata.uid.clone();
        let is_deleting = found.metadata.deletion_timestamp.is_some();
        if !serde_json::to_value(found).is_ok_and(|found| is_own_volume(&found, vm)) {
            tracing::warn!(
                namespace = %self.namespace, name,
                "the DataVolume of a removed disk belongs to another object and is not deleted"
            );
            return Ok(true);
        }
        if is_deleting {
            return Ok(false);
        }
        let preconditions = Some(Preconditions { uid, resource_version: None });
        // In the foreground, the DataVolume exists until its claim is deleted. Otherwise a disk that is added with the same
        // name would get the claim that is being deleted.
        let params = DeleteParams { preconditions, ..DeleteParams::foreground() };
        let request = || format!("delete DataVolume {}/{name}", self.namespace);
        with_request(request, none_if_not_found(api.delete(name, &params).await))?;
        tracing::info!(namespace = %self.namespace, name, "deleting the DataVolume of a removed disk");
        Ok(false)
    }
}

/// Returns the message for a machine that KubeVirt or a user has changed since it was read. The other machines are updated.
fn changed_message(vm: &ExistingVm) -> String {
    format!("machine {}: another client has changed the VirtualMachine", vm.name)
}

/// Returns true if an object has the same spec as the observed one, and is not being deleted.
fn is_same_template(latest: &DynamicObject, observed: &DynamicObject) -> bool {
    let identity = |object: &DynamicObject| (object.uid(), object.metadata.generation);
    identity(latest) == identity(observed) && latest.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_older_template_is_not_the_latest() {
        let object = |uid: &str, generation: i64, deleted: Value| -> DynamicObject {
            let metadata = json!({
                "name": "web", "uid": uid, "generation": generation, "deletionTimestamp": deleted,
            });
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let observed = object("u-1", 4, Value::Null);
        assert!(is_same_template(&object("u-1", 4, Value::Null), &observed));
        assert!(!is_same_template(&object("u-1", 5, Value::Null), &observed));
        assert!(!is_same_template(&object("u-2", 4, Value::Null), &observed));
        let deleted = object("u-1", 4, json!("2026-01-01T00:00:00Z"));
        assert!(!is_same_template(&deleted, &observed));
    }

    #[test]
    fn the_most_severe_state_is_reported() {
        let mut messages = DiskMessages::default();
        assert_eq!(messages.into_fault(), None);
        let texts = |text: &str| vec![text.to_owned()];
        messages = DiskMessages { pending: texts("p"), ..DiskMessages::default() };
        let fault = messages.into_fault();
        let changing = Fault::new(ConditionReason::DisksChanging, "p".to_owned());
        assert_eq!(fault, Some(changing));
        messages = DiskMessages {
            pending: texts("p"),
            refused: vec!["r".to_owned(); 10],
            ..DiskMessages::default()
        };
        let fault = messages.into_fault().unwrap();
        assert_eq!(fault.reason, ConditionReason::DiskChangesRefused);
        assert!(fault.message.ends_with("; and 2 more"), "{fault}");
        messages = DiskMessages {
            refused: texts("r"),
            unsupported: Some("u".to_owned()),
            ..DiskMessages::default()
        };
        let unsupported = Fault::new(ConditionReason::HotplugUnsupported, "u".to_owned());
        assert_eq!(messages.into_fault(), Some(unsupported));
    }
}
