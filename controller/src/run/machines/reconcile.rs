//! Reconciles a MachineDeployment, in numbered steps.

use std::time::{Duration, Instant};

use berth_api::names::{FINALIZER, TENANT_PREFIX};
use berth_runtime::backoff::add_jitter;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::apply::ApplyResult;
use super::context::MachineContext;
use super::delays::RETRY_DELAY;
use super::errors::{RequestError, none_if_not_found, with_request};
use super::readiness;
use super::update_status::StatusReport;
use super::validated::ValidatedDeployment;
use crate::api_resource::deployment_resource;
use crate::run::api_requests::patch_params;
use crate::run::packed_content::unpack_content;
use crate::run::removal::DrainingTenant;
use crate::tenants::policies_ready::policies_not_ready_reason;
use berth_api::Problem;
use berth_kubevirt_render::machines::reconcile_steps::{
    DeploymentOwner, ExistingVm, compute_steps,
};
use berth_kubevirt_render::machines::{
    MACHINE_DEPLOYMENT_KIND, MachineDeployment, MachineNamespace, determine_machine_namespace,
};

/// Reconciles a MachineDeployment. Returns the delay of the next reconcile; `None` if the resync period applies.
pub(super) async fn reconcile(
    context: &MachineContext,
    object: &DynamicObject,
) -> Result<Option<Duration>, RequestError> {
    // 1. Finalize: Berth deletes the machines that it created, even if the object is invalid or now belongs to
    // another controller.
    if object.metadata.deletion_timestamp.is_some() {
        return context.finalize(object).await;
    }
    // 2. Read (from stores only). A MachineDeployment with another cloud provider belongs to another controller.
    let value = serde_json::to_value(object).unwrap_or_default();
    let provider = value.pointer("/spec/template/spec/providerSpec/value/cloudProvider");
    if provider.is_some_and(|provider| provider != "kubevirt")
        || context.is_managed_by_machine_controller(object).await
    {
        context.record_no_images(object);
        return Ok(None);
    }
    // 3. Validate (sends no requests).
    let deployment = match MachineDeployment::read("the cluster", value) {
        Ok(deployment) => deployment,
        Err(problem) => {
            context.record_unreadable_template(object);
            return context.report_invalid(object, problem, None).await;
        }
    };
    let render_context = context.render_context(&deployment);
    let MachineNamespace { tenant, namespace } =
        match determine_machine_namespace(&deployment, &render_context) {
            Ok(machine_namespace) => machine_namespace,
            Err(problem) => {
                return context.report_invalid(object, problem, Some(RETRY_DELAY)).await;
            }
        };
    let has_tenant = tenant.is_some();
    let shares_namespace = object.namespace().as_deref() == Some(namespace.as_str());
    let owner = DeploymentOwner { uid: object.uid().unwrap_or_default(), shares_namespace };
    let vms = context.read_vms(&deployment, &namespace);
    if !has_tenant
        && matches!(context.draining_tenant(&namespace).await?, DrainingTenant::Malformed)
    {
        let message = format!(
            "the TenantCluster of namespace {namespace} cannot be parsed: correct the field that its condition Ready \
             names; no machine is created or replaced"
        );
        let problem = Problem::new(deployment.qualified_name(), "", "", message);
        let counts = readiness::counts_of_unknown_tenant(object, &deployment, &owner, vms);
        context.update_status(object, counts, &StatusReport::invalid(&[problem])).await?;
        return Ok(Some(add_jitter(RETRY_DELAY)));
    }
    let validated =
        ValidatedDeployment { context, object, deployment, owner, namespace, render_context, vms };
    // 4. Prepare (sends requests): add the finalizer, record the machines' namespace, and restore deleted
    // AddressClaims.
    let has_finalizer = object.finalizers().iter().any(|one| one == FINALIZER);
    if !has_finalizer && validated.has_machine_controller_machines().await? {
        return Ok(Some(add_jitter(RETRY_DELAY)));
    }
    validated.ensure_finalizer().await?;
    if let Some(problem) = validated.record_namespace(has_tenant).await? {
        return context.report_invalid(object, problem, Some(RETRY_DELAY)).await;
    }
    if let Some(problem) = validated.blocking_problem() {
        return context.report_invalid(object, problem, Some(RETRY_DELAY)).await;
    }
    let lost_claims = validated.restore_claims().await?;
    // 5. Build the steps (sends no requests).
    let now = Timestamp::now().as_second();
    let decided = compute_steps(
        &validated.deployment,
        &validated.owner,
        &validated.vms,
        now,
        validated.remaining_backoff(),
    );
    let mut steps = match decided {
        Ok(steps) => steps,
        Err(error) => {
            let qualified_name = validated.deployment.qualified_name();
            let problem = Problem::new(qualified_name, error.field, &error.value, error.message);
            return context.report_invalid(object, problem, None).await;
        }
    };
    // 6. Apply (sends requests): adopt, create, delete or mark, and change disks.
    let missing = context.missing_policies_reason(&validated.namespace);
    let mut applied = validated.apply(&mut steps, now, missing).await?;
    let access = validated.ensure_access_services().await?;
    applied.problems.extend(access.problems);
    let (disks, failed_request) = validated.update_disks().await;
    // 7. Update the status (sends requests).
    if steps.is_readiness_unknown {
        readiness::restore_counts(object, &mut steps);
    }
    let ApplyResult { problems, notes, unmet_prerequisite } = applied;
    let report = if problems.is_empty() {
        StatusReport::progress(&validated, &steps, unmet_prerequisite)
    } else {
        StatusReport::invalid(&problems)
    };
    let removals = validated.removal_fault();
    let report = report.with_notes(notes.as_deref()).with_lost_claims(lost_claims);
    let report = report.with_removals(removals).with_access(access.fault).with_disks(disks);
    context.update_status(object, Some(steps.counts), &report).await?;
    if let Some(error) = failed_request {
        return Err(error);
    }
    let requeue = steps.requeue_after.map(|seconds| Duration::from_secs(seconds.into()));
    let retry = (!problems.is_empty()).then(|| add_jitter(RETRY_DELAY));
    Ok([requeue.or(retry), report.requeue_after].into_iter().flatten().min())
}

impl MachineContext {
    /// Reports in the status of a MachineDeployment that it is invalid. Returns `retry`, the delay of the next
    /// reconcile.
    async fn report_invalid(
        &self,
        object: &DynamicObject,
        problem: Problem,
        retry: Option<Duration>,
    ) -> Result<Option<Duration>, RequestError> {
        self.update_status(object, None, &StatusReport::invalid(&[problem])).await?;
        Ok(retry.map(add_jitter))
    }

    /// Writes the list of finalizers. The write fails with a conflict if another client has written the object since
    /// it was read.
    pub(super) async fn set_finalizers(
        &self,
        object: &DynamicObject,
        finalizers: &[String],
    ) -> Result<(), RequestError> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &deployment_resource());
        let patch = json!({"metadata": {
            "finalizers": finalizers, "uid": object.uid(), "resourceVersion": object.resource_version(),
        }});
        let patched =
            none_if_not_found(api.patch(&name, &patch_params(), &Patch::Merge(patch)).await);
        with_request(|| format!("patch {MACHINE_DEPLOYMENT_KIND} {namespace}/{name}"), patched)
            .map(drop)
    }

    /// Returns the name of the tenant of a namespace if the tenant is being deleted. No machine may be created then:
    /// a MachineDeployment in another namespace would recreate the machines that the deletion removes.
    fn name_of_deleting_tenant(&self, namespace: &str) -> Option<String> {
        let name = namespace.strip_prefix(TENANT_PREFIX)?;
        let tenant = self.tenants.get(name)?;
        tenant.metadata.deletion_timestamp.is_some().then(|| name.to_owned())
    }

    /// Returns the reason why the NetworkPolicies of a namespace's tenant are not in force; `None` if the policies
    /// are in force, or if the namespace belongs to no tenant.
    fn missing_policies_reason(&self, namespace: &str) -> Option<String> {
        let tenant = self.tenants.get(namespace.strip_prefix(TENANT_PREFIX)?)?;
        policies_not_ready_reason(&tenant)
    }

    fn read_vms(&self, deployment: &MachineDeployment, namespace: &str) -> Vec<ExistingVm> {
        let all = self.triggers.machines_of(namespace, &deployment.metadata.name);
        let machines =
            all.iter().filter_map(|(namespace, name)| self.machines.get(namespace, name));
        let mut vms = machines.map(|vm| self.read_vm(&vm)).collect::<Vec<_>>();
        self.add_node_readiness(namespace, &mut vms);
        vms
    }

    pub(super) fn read_vm(&self, vm: &DynamicObject) -> ExistingVm {
        let instance = self.instances.get(&vm.namespace().unwrap_or_default(), &vm.name_any());
        let instance = instance.and_then(|one| serde_json::to_value(unpack_content(&one)).ok());
        ExistingVm::from_objects(
            &serde_json::to_value(unpack_content(vm)).unwrap_or_default(),
            instance.as_ref(),
        )
    }
}

impl ValidatedDeployment<'_> {
    /// Returns the reason why no machine can be created or deleted now; `None` if there is no such reason.
    fn blocking_problem(&self) -> Option<Problem> {
        let message = if self.context.machines.is_not_installed() {
            "KubeVirt is not installed, so no machine can be created: install KubeVirt".to_owned()
        } else {
            let tenant = self.context.name_of_deleting_tenant(&self.namespace)?;
            format!("tenant {tenant} is being deleted: no machines are created")
        };
        Some(Problem::new(self.deployment.qualified_name(), "", "", message))
    }

    /// Returns the number of seconds for which no machine may be created because of failed machines; `None` if there
    /// is no backoff.
    fn remaining_backoff(&self) -> Option<u32> {
        let backoff_until = self.context.with_state(self.object, |memory| memory.backoff_until)?;
        let remaining = backoff_until.checked_duration_since(Instant::now())?;
        Some(u32::try_from(remaining.as_secs()).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Adds the finalizer to the MachineDeployment. This must precede the creation of the first machine.
    async fn ensure_finalizer(&self) -> Result<(), RequestError> {
        if self.object.finalizers().iter().any(|one| one == FINALIZER) {
            return Ok(());
        }
        let mut finalizers = self.object.finalizers().to_vec();
        finalizers.push(FINALIZER.to_owned());
        self.context.set_finalizers(self.object, &finalizers).await
    }
}
