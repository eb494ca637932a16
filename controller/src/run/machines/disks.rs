//! Updates the hotpluggable disks of existing machines. [`hotplug`](berth_kubevirt_render::machines::hotplug) computes the
//! changes of each machine.
//!
//! Annotations of the VirtualMachine record which disks it has, and which DataVolumes are to be deleted. So a machine without
//! a difference costs no request, and another leader continues from the objects alone. A failed request for one machine does
//! not prevent the update of the others.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use berth_kubevirt_render::launcher::{Configuration, HotplugUnsupported};
use berth_kubevirt_render::machines::hotplug::{DiskFault, DiskPlan, HotplugDisk, detached_claims};
use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;
use berth_kubevirt_render::machines::{MACHINE_DEPLOYMENT_KIND, RenderOptions};
use kube::api::{DynamicObject, ListParams, Patch};
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::disk_backoff::DiskBackoff;
use super::disk_expansion::ExpansionFault;
use super::disk_pass::{DiskPass, sort_after};
use super::disk_report::{DETACH_DELAY, DiskMessages, DiskReport};
use super::errors::{
    RequestError, has_changed, none_if_not_found, redact_message, refusal_message, with_request,
};
use super::template::MachineTemplate;
use super::validated::ValidatedDeployment;
use crate::api_resource::deployment_resource;
use crate::run::api_requests::{kubevirt_resource, patch_params};
use crate::run::packed_content::unpack_content;
use crate::tenants::fault::Fault;

/// Template of the disks, and the reason why KubeVirt changes no disks of running machines.
struct DiskTemplate {
    template: MachineTemplate,
    support: Result<(), HotplugUnsupported>,
}

/// Desired disks of one machine.
struct DesiredDisks {
    disks: Vec<HotplugDisk>,
    /// True if the disks contain values from Secrets, which messages must not quote.
    has_secrets: bool,
}

impl ValidatedDeployment<'_> {
    /// Attaches, detaches and expands the hotpluggable disks of existing machines, and deletes the DataVolumes of detached
    /// disks. Machines that are removed or replaced are not changed; neither are those of a paused MachineDeployment. Also
    /// returns the first failed request.
    pub(super) async fn update_disks(&self) -> (DiskReport, Option<RequestError>) {
        let mut messages = DiskMessages::default();
        let own = self.vms.iter().filter(|vm| vm.is_owned_by(&self.owner) && !vm.is_deleting);
        own.for_each(|vm| messages.observe(vm));
        self.forget_deleted_claims(&mut messages).await;
        let needs_update = |vm: &&ExistingVm| vm.needs_disk_update(&self.deployment, &self.owner);
        let mut machines: Vec<&ExistingVm> = self.vms.iter().filter(needs_update).collect();
        if machines.is_empty() || self.deployment.spec.paused {
            self.context.with_state(self.object, |memory| memory.disk_backoff = None);
            messages.record_paused(machines.len());
            // The removal of `spec.paused` is a change of the MachineDeployment.
            let requeue_after = messages.next_check;
            let (report, _, failure) = messages.into_report();
            return (DiskReport { requeue_after, ..report }, failure);
        }
        if let Some(backoff) =
            self.context.with_state(self.object, |memory| memory.disk_backoff.clone())
            && let Some(remaining) =
                backoff.remaining_time(self.object.metadata.generation, Instant::now())
        {
            let (report, _, failure) = messages.into_report();
            let fault = Some(backoff.fault);
            return (DiskReport { fault, requeue_after: Some(remaining), ..report }, failure);
        }
        let mut template = None;
        if machines.iter().any(|vm| !vm.has_current_disks(&self.deployment)) {
            match self.read_disk_template(&mut messages).await {
                Ok(Some(read)) => template = Some(read),
                Ok(None) => {
                    let (report, _, failure) = messages.into_report();
                    let requeue_after = Some(DETACH_DELAY);
                    let keeps_condition = failure.is_none();
                    return (DiskReport { requeue_after, keeps_condition, ..report }, failure);
                }
                Err(error) => messages.record_shared_failure(error),
            }
        }
        let template = template.flatten();
        let last = self.context.with_state(self.object, |memory| memory.last_disk_machine.clone());
        sort_after(&mut machines, last.as_deref());
        let (mut pass, begin) = (DiskPass::default(), Instant::now());
        let mut is_complete = true;
        for vm in machines {
            if messages.is_interrupted || pass.has_ended(begin.elapsed()) {
                is_complete = false;
                break;
            }
            let failures = messages.failed.len();
            if let Err(error) = self.update_disks_of(vm, template.as_ref(), &mut messages).await {
                messages.record_failure(vm, error);
            }
            pass.record(&vm.name, messages.failed.len() > failures);
        }
        let last_of_pass = pass.into_last();
        messages.is_incomplete = !is_complete && last_of_pass.is_some();
        let last = last_of_pass.or(last).filter(|_| !is_complete);
        self.context.with_state(self.object, |memory| memory.last_disk_machine = last);
        let (report, backoff, failure) = messages.into_report();
        self.set_backoff(report.fault.clone().zip(backoff));
        (report, failure)
    }

    fn set_backoff(&self, fault: Option<(Fault, Duration)>) {
        let backoff = fault.and_then(|(fault, time)| {
            let until = Instant::now().checked_add(time)?;
            let generation = self.object.metadata.generation;
            Some(DiskBackoff { generation, until, fault })
        });
        self.context.with_state(self.object, |memory| memory.disk_backoff = backoff);
    }

    /// Reads the template of the disks. Returns `None` if the MachineDeployment of the watch is not that of the API server,
    /// and `Some(None)` if the template is invalid.
    async fn read_disk_template(
        &self,
        messages: &mut DiskMessages,
    ) -> Result<Option<Option<DiskTemplate>>, RequestError> {
        if !self.has_latest_template().await? {
            return Ok(None);
        }
        match self.read_template().await? {
            Ok(template) => {
                let support = self.check_hotplug().await?;
                Ok(Some(Some(DiskTemplate { template, support })))
            }
            Err(problems) => {
                messages.refused.extend(problems.iter().map(ToString::to_string));
                Ok(Some(None))
            }
        }
    }

    /// Returns true if the MachineDeployment of the watch is that of the API server. A watch can go back in time when it
    /// connects to another API server. A disk that the older template lacks would be removed.
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
        template: Option<&DiskTemplate>,
        messages: &mut DiskMessages,
    ) -> Result<(), RequestError> {
        let mut desired = None;
        if let Some(template) = template.filter(|_| !vm.has_current_disks(&self.deployment)) {
            match self.render_disks(vm, &template.template) {
                Ok(disks) => desired = Some((disks, &template.support)),
                Err(problems) => messages.refused.extend(problems),
            }
            if desired.as_ref().is_some_and(|(disks, support)| {
                self.are_changes_refused(vm, disks, support, messages)
            }) {
                return Ok(());
            }
        }
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
        let object = match desired.filter(|_| !latest.has_current_disks(&self.deployment)) {
            Some((desired, support)) => {
                self.apply_disks(vm, object, &desired, support, messages).await?
            }
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

    /// Renders the desired disks of a machine. Returns the problems of the MachineDeployment as messages.
    fn render_disks(
        &self,
        vm: &ExistingVm,
        template: &MachineTemplate,
    ) -> Result<DesiredDisks, Vec<String>> {
        let options = RenderOptions {
            machine_name: Some(vm.name.clone()),
            namespace: Some(self.namespace.clone()),
            user_data: Some(template.data.user_data.clone()),
            ..RenderOptions::default()
        };
        let rendered = HotplugDisk::render(&self.deployment, &template.render_context, &options);
        let (disks, has_secrets) = rendered
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        Ok(DesiredDisks { disks, has_secrets })
    }

    /// Returns true if the store shows that no disk of a machine can be changed, and records the reasons. Such a machine costs
    /// no request.
    fn are_changes_refused(
        &self,
        vm: &ExistingVm,
        desired: &DesiredDisks,
        support: &Result<(), HotplugUnsupported>,
        messages: &mut DiskMessages,
    ) -> bool {
        let Some(stored) = self.context.machines.get(&self.namespace, &vm.name) else {
            return false;
        };
        let stored = serde_json::to_value(unpack_content(&stored)).unwrap_or_default();
        let plan = DiskPlan::new(&stored, &desired.disks);
        if !detached_claims(&stored).is_empty() || !plan.is_refused(support.is_ok()) {
            return false;
        }
        record_faults(vm, &plan, desired.has_secrets, messages);
        record_unsupported(&plan, support, messages);
        true
    }

    /// Expands the disks, and attaches and detaches them in the VirtualMachine. Returns the VirtualMachine after the change;
    /// `None` if it was deleted, or if its change is refused.
    async fn apply_disks(
        &self,
        vm: &ExistingVm,
        object: Value,
        DesiredDisks { disks, has_secrets }: &DesiredDisks,
        support: &Result<(), HotplugUnsupported>,
        messages: &mut DiskMessages,
    ) -> Result<Option<Value>, RequestError> {
        let has_secrets = *has_secrets;
        let mut plan = DiskPlan::new(&object, disks);
        record_faults(vm, &plan, has_secrets, messages);
        if record_unsupported(&plan, support, messages) {
            plan = plan.without_volumes();
        }
        let expanded = self.expand_claims(vm, &plan, has_secrets, messages).await;
        if !plan.needs_patch(&expanded) {
            return Ok(Some(object));
        }
        let revision = self.deployment.hotplug_revision();
        let patch = Patch::Merge(plan.patch(&object, &expanded, revision));
        let patched = self.machines_api().patch(&vm.name, &patch_params(), &patch).await;
        if has_changed(&patched) {
            messages.record_change(vm);
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

    /// Expands the claims of a machine. Returns those that have the desired size.
    async fn expand_claims(
        &self,
        vm: &ExistingVm,
        plan: &DiskPlan,
        has_secrets: bool,
        messages: &mut DiskMessages,
    ) -> BTreeSet<String> {
        let mut expanded = BTreeSet::new();
        for expansion in &plan.expansions {
            match self.expand_claim(expansion, has_secrets).await {
                Ok(Ok(())) => {
                    expanded.insert(expansion.claim.clone());
                }
                // The retained claim was deleted, so KubeVirt creates the DataVolume again.
                Ok(Err(ExpansionFault::NoClaim { .. })) if expansion.is_retained => {
                    expanded.insert(expansion.claim.clone());
                }
                Ok(Err(fault)) => {
                    let text = if has_secrets { fault.redacted() } else { fault.to_string() };
                    let message = format!("machine {}: {text}", vm.name);
                    let list = match fault.is_temporary() {
                        true => &mut messages.pending,
                        false => &mut messages.refused,
                    };
                    list.push(message);
                }
                Err(error) => messages.record_failure(vm, error),
            }
        }
        expanded
    }
}

fn record_faults(vm: &ExistingVm, plan: &DiskPlan, has_secrets: bool, messages: &mut DiskMessages) {
    for fault in &plan.faults {
        let text = if has_secrets { fault.redacted() } else { fault.to_string() };
        let message = format!("machine {}: {text}", vm.name);
        if DiskFault::is_temporary(fault) {
            messages.pending.push(message);
        } else {
            messages.refused.push(message);
        }
    }
}

/// Records the reason why KubeVirt does not attach or detach the disks of a plan. Returns true if there is one.
fn record_unsupported(
    plan: &DiskPlan,
    support: &Result<(), HotplugUnsupported>,
    messages: &mut DiskMessages,
) -> bool {
    let Err(unsupported) = support else { return false };
    if plan.changes_volumes() {
        messages.unsupported = Some(format!(
            "the disks of existing machines are not changed: {unsupported}; new machines have the disks of the template"
        ));
    }
    plan.changes_volumes()
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
}
