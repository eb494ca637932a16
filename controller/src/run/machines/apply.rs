//! Applies the computed steps of a MachineDeployment: adopts, creates and deletes machines.

use std::time::{Duration, Instant};

use kube::api::{DeleteParams, ListParams, Patch, Preconditions};
use serde_json::Value;

use super::address_plans::AddressPlans;
use super::attached::AttachmentFault;
use super::errors::{RequestError, none_if_not_found, with_request};
use super::machine::MachineCreation;
use super::prefixes::unmet_prefix;
use super::template::MachineTemplate;
use super::validated::ValidatedDeployment;
use crate::removal::drains_machines;
use crate::run::api_requests::patch_params;
use crate::tenants::addresses::pools::NetworkPools;
use crate::tenants::fault::Fault;
use berth_api::{ConditionReason, Problem};
use berth_kubevirt_render::machines::reconcile_steps::{
    ExistingVm, ReconcileSteps, adoption_patch, backoff_seconds, compute_steps as fresh_steps,
};
use berth_kubevirt_render::machines::rollout::ReplicaCounts;
use berth_kubevirt_render::machines::unmet_prerequisite;

/// Seconds until the next reconcile while an evacuation holds the removal lock.
const LOCKED_RETRY_SECONDS: u32 = 2;

/// Result of applying the steps.
#[derive(Default)]
pub(super) struct ApplyResult {
    pub(super) problems: Vec<Problem>,
    /// Fields of the template that machines do not honor; `None` if no machine was rendered.
    pub(super) notes: Option<Vec<Problem>>,
    /// Reason why machines are not created yet.
    pub(super) unmet_prerequisite: Option<Fault>,
}

impl ApplyResult {
    fn record_template(
        &mut self,
        template: Result<MachineTemplate, Vec<Problem>>,
    ) -> Option<MachineTemplate> {
        match template {
            Ok(template) => {
                self.notes = Some(template.notes.clone());
                Some(template)
            }
            Err(problems) => {
                self.problems.extend(problems);
                None
            }
        }
    }
}

impl ValidatedDeployment<'_> {
    /// Applies the steps. `missing_policies` is the reason why NetworkPolicies of the tenant are not in force. In this
    /// case, no machine is created, and no machine is deleted that would have to be replaced.
    pub(super) async fn apply(
        &self,
        steps: &mut ReconcileSteps,
        now: i64,
        missing_policies: Option<String>,
    ) -> Result<ApplyResult, RequestError> {
        self.adopt_machines(steps).await?;
        let is_blocked = steps.create_count > 0 || self.replaces_machines(steps);
        let applied = match missing_policies.filter(|_| is_blocked) {
            Some(reason) => {
                self.delete_surplus_only(steps);
                let message = format!(
                    "no machine is created until the tenant's NetworkPolicies are in force: \
                     {reason}"
                );
                let problem = Problem::new(self.deployment.qualified_name(), "", "", message);
                ApplyResult { problems: vec![problem], ..ApplyResult::default() }
            }
            None => self.create_missing(steps, now).await?,
        };
        self.remove_machines(steps, now).await?;
        if steps.is_complete {
            self.context.with_state(self.object, |memory| {
                memory.failure_count = 0;
                memory.backoff_until = None;
            });
        }
        Ok(applied)
    }

    async fn adopt_machines(&self, steps: &ReconcileSteps) -> Result<(), RequestError> {
        for name in &steps.vms_to_adopt {
            let patch = Patch::Merge(adoption_patch(&self.deployment, &self.owner));
            let adopted = self.machines_api().patch(name, &patch_params(), &patch).await;
            with_request(
                || format!("adopt VirtualMachine {}/{name}", self.namespace),
                none_if_not_found(adopted),
            )?;
            tracing::info!(namespace = %self.namespace, machine = %name, "adopted VirtualMachine");
        }
        Ok(())
    }

    /// Returns the deletions after which the MachineDeployment still has the desired number of machines.
    fn surplus_deletions(&self, steps: &ReconcileSteps) -> Vec<String> {
        let desired = self.deployment.spec.replicas.unwrap_or(1);
        let surplus = steps.counts.replicas.saturating_sub(u32::try_from(desired).unwrap_or(0));
        let has_failed = |name: &str| self.vms.iter().any(|vm| vm.name == name && vm.has_failed);
        surplus_deletions(&steps.machines_to_delete, surplus, has_failed)
    }

    /// Returns true if the steps delete machines for which new machines must be created, now or later.
    fn replaces_machines(&self, steps: &ReconcileSteps) -> bool {
        self.surplus_deletions(steps).len() < steps.machines_to_delete.len()
    }

    /// Removes the steps that need new machines, because no machine can be created: creations, and deletions of
    /// machines that would have to be replaced.
    fn delete_surplus_only(&self, steps: &mut ReconcileSteps) {
        steps.create_count = 0;
        steps.machines_to_delete = self.surplus_deletions(steps);
    }

    /// Creates the missing machines. First lists the machines from the API server, because the store may lack
    /// machines that were created a moment ago.
    async fn create_missing(
        &self,
        steps: &mut ReconcileSteps,
        now: i64,
    ) -> Result<ApplyResult, RequestError> {
        let mut applied =
            ApplyResult { problems: self.ensure_user_data().await?, ..ApplyResult::default() };
        // A changed template is rendered to report its problems, even if no machine is to be created. It is also
        // rendered before the deletion of a machine that a later reconcile replaces.
        let is_new = self.object.data.pointer("/status/observedGeneration").and_then(Value::as_i64)
            != self.object.metadata.generation;
        let needs_new_machines = steps.create_count > 0 || self.replaces_machines(steps);
        let plan = match self.check_prerequisites() {
            Ok(pools) => match self.address_plan(pools) {
                Ok(plan) => plan,
                Err(problem) => {
                    applied.problems.push(problem);
                    self.delete_surplus_only(steps);
                    None
                }
            },
            Err(fault) if needs_new_machines => {
                applied.unmet_prerequisite = Some(fault);
                self.delete_surplus_only(steps);
                return Ok(applied);
            }
            Err(_) => None,
        };
        let lacks_images = self.lacks_image_record();
        // While machines wait for a golden image, a valid template is not read again.
        if needs_new_machines
            && !is_new
            && self.has_valid_image_record()
            && let Some(fault) = self.image_fault()
        {
            applied.unmet_prerequisite = Some(fault);
            self.delete_surplus_only(steps);
            return Ok(applied);
        }
        let mut template = None;
        if is_new || needs_new_machines || lacks_images {
            template = applied.record_template(self.read_template().await?);
            if template.is_none() {
                self.delete_surplus_only(steps);
            }
        }
        // The images are recorded now, so they are not deleted while machines are created.
        if needs_new_machines
            && template.is_some()
            && let Some(fault) = self.image_fault()
        {
            applied.unmet_prerequisite = Some(fault);
            self.delete_surplus_only(steps);
            return Ok(applied);
        }
        let mut attached = Vec::new();
        if needs_new_machines && let Some(template) = &template {
            match self.attached_plans(template) {
                Ok(plans) => attached = plans,
                Err(fault) => {
                    match fault {
                        AttachmentFault::Waiting(fault) => applied.unmet_prerequisite = Some(fault),
                        AttachmentFault::InvalidAddresses(problem) => {
                            applied.problems.push(problem)
                        }
                    }
                    self.delete_surplus_only(steps);
                    return Ok(applied);
                }
            }
        }
        let Some(template) = template.filter(|_| steps.create_count > 0) else {
            return Ok(applied);
        };
        let vms = self.list_vms().await?;
        if let Ok(fresh) = fresh_steps(&self.deployment, &self.owner, &vms, now, None) {
            let create = steps.create_count.min(fresh.create_count);
            *steps = ReconcileSteps {
                create_count: create,
                requeue_after: steps.requeue_after.or(fresh.requeue_after),
                ..fresh
            };
        }
        if steps.create_count == 0 || self.has_machine_controller_machines().await? {
            steps.create_count = 0;
            return Ok(applied);
        }
        let plans = AddressPlans { own: plan, attached };
        let interrupted = plans.own.as_ref().map(|plan| self.interrupted_machines(plan, &vms));
        let mut interrupted = interrupted.unwrap_or_default();
        let mut count = 0_u32;
        for _ in 0..steps.create_count {
            let name = interrupted.pop().unwrap_or_else(|| self.new_machine_name());
            match self.create_machine(&template, &plans, &name).await? {
                MachineCreation::Created => count = count.saturating_add(1),
                MachineCreation::Refused(problems) => {
                    applied.problems.extend(problems);
                    break;
                }
                // Deletions continue, because they free addresses.
                MachineCreation::NoAddress(fault) => {
                    let message = format!("machines wait for addresses: {fault}");
                    applied.unmet_prerequisite = Some(Fault::new(fault.reason, message));
                    break;
                }
            }
        }
        // The new machines are added to the counts. The watch will report the same counts in a moment, so the status
        // need not be written twice.
        let ReplicaCounts { replicas, updated, .. } = &mut steps.counts;
        *replicas = replicas.saturating_add(count);
        *updated = updated.saturating_add(count);
        Ok(applied)
    }

    /// Lists the machines from the API server.
    async fn list_vms(&self) -> Result<Vec<ExistingVm>, RequestError> {
        let params = ListParams::default().labels(&format!("md={}", self.deployment.metadata.name));
        let list = with_request(
            || format!("list VirtualMachines in namespace {}", self.namespace),
            self.machines_api().list(&params).await,
        )?;
        let mut vms: Vec<ExistingVm> =
            list.items.iter().map(|vm| self.context.read_vm(vm)).collect();
        self.context.add_node_readiness(&self.namespace, &mut vms);
        Ok(vms)
    }

    /// Deletes or marks the machines. While an evacuation holds the removal lock, removes nothing and requests a
    /// reconcile after a short delay.
    async fn remove_machines(
        &self,
        steps: &mut ReconcileSteps,
        now: i64,
    ) -> Result<(), RequestError> {
        if steps.machines_to_delete.is_empty() {
            return Ok(());
        }
        let Some(_own_removals) = self.context.removal_lock.try_lock_deployment() else {
            steps.machines_to_delete.clear();
            let after = steps.requeue_after.unwrap_or(LOCKED_RETRY_SECONDS);
            steps.requeue_after = Some(after.min(LOCKED_RETRY_SECONDS));
            return Ok(());
        };
        self.confirm_deletions(steps, now).await?;
        self.delete_machines(steps).await
    }

    /// Drops the deletions that are not due according to the API server. The store may lack a removal mark that this or
    /// another reconciler wrote a moment ago; all removals together must not exceed `maxUnavailable`.
    async fn confirm_deletions(
        &self,
        steps: &mut ReconcileSteps,
        now: i64,
    ) -> Result<(), RequestError> {
        let vms = self.list_vms().await?;
        if let Ok(fresh) = fresh_steps(&self.deployment, &self.owner, &vms, now, None) {
            steps.machines_to_delete.retain(|name| fresh.machines_to_delete.contains(name));
        }
        Ok(())
    }

    /// Returns the address pools for the machines; `None` if machines get no addresses from Berth.
    ///
    /// # Errors
    /// Returns a fault if machines cannot be created until the tenant changes.
    fn check_prerequisites(&self) -> Result<Option<NetworkPools>, Fault> {
        if let Some(missing) = self.tenant().and_then(unmet_prerequisite) {
            let message = format!("machines wait for {missing}");
            return Err(Fault::new(ConditionReason::WaitingForTenant, message));
        }
        let config = &self.render_context.config;
        let unmet = self.tenant().and_then(|tenant| unmet_prefix(tenant, config));
        unmet.map_or_else(|| self.address_pools(), Err).map_err(|fault| {
            let message = format!("machines wait for valid address pools of the tenant: {fault}");
            Fault::new(fault.reason, message)
        })
    }

    /// Deletes machines. If the tenant's machines are drained, sets removal marks instead; the reconciler of removals
    /// deletes the machines after the drain.
    async fn delete_machines(&self, steps: &ReconcileSteps) -> Result<(), RequestError> {
        let known = |name: &String| self.vms.iter().find(|vm| vm.name == *name);
        for vm in steps.machines_to_delete.iter().filter_map(known) {
            let name = &vm.name;
            if self.tenant().is_some_and(drains_machines) {
                self.mark_machine(vm).await?;
            } else {
                let (uid, resource_version) = (Some(vm.uid.clone()), None);
                let preconditions = Some(Preconditions { uid, resource_version });
                let params = DeleteParams { preconditions, ..DeleteParams::background() };
                let deleted = none_if_not_found(self.machines_api().delete(name, &params).await);
                let request = || format!("delete VirtualMachine {}/{name}", self.namespace);
                with_request(request, deleted)?;
            }
            if vm.has_failed {
                self.context.with_state(self.object, |memory| {
                    memory.failure_count = memory.failure_count.saturating_add(1);
                    let backoff = Duration::from_secs(backoff_seconds(memory.failure_count).into());
                    memory.backoff_until = Instant::now().checked_add(backoff);
                });
                tracing::info!(namespace = %self.namespace, machine = %name, "removing failed VirtualMachine");
            }
        }
        Ok(())
    }
}

/// Returns at most `surplus` deletions, deletions of failed machines first. The remaining deletions would leave the
/// MachineDeployment with less than the desired number of machines.
fn surplus_deletions(
    deletions: &[String],
    surplus: u32,
    has_failed: impl Fn(&str) -> bool,
) -> Vec<String> {
    let (mut kept, others): (Vec<String>, Vec<String>) =
        deletions.iter().cloned().partition(|name| has_failed(name));
    kept.extend(others);
    kept.truncate(usize::try_from(surplus).unwrap_or(usize::MAX));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_surplus_machines_are_deleted_if_none_can_be_created() {
        let keep = |deletions: &[&str], surplus: u32| {
            let deletions: Vec<String> = deletions.iter().map(|&name| name.to_owned()).collect();
            surplus_deletions(&deletions, surplus, |name| name.starts_with("failed"))
        };
        // A rollout with maxSurge 0 deletes a machine before it creates the next one.
        assert!(keep(&["old-1"], 0).is_empty());
        // With maxSurge 1, the new machine exists already. A lower spec.replicas has the same result.
        assert_eq!(keep(&["old-1"], 1), ["old-1"]);
        assert_eq!(keep(&["old-1", "old-2", "old-3"], 2), ["old-1", "old-2"]);
        assert_eq!(keep(&["old-1", "failed-1"], 1), ["failed-1"]);
        assert!(keep(&["failed-1"], 0).is_empty());
    }
}
