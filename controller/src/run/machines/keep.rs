//! One look at a MachineDeployment: what it lacks is made, what it has too much goes, and its status says how far it is.

use std::time::{Duration, Instant};

use berth_api::names::{FINALIZER, TENANT_PREFIX};
use berth_api::{EventReason, TenantCluster};
use berth_runtime::client::jittered;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, Preconditions};
use kube::runtime::events::EventType;
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::errors::{Error, at, found};
use super::make::Maker;
use super::say::Said;
use super::{Context, deployments, foreign_machines, machines, policies};
use crate::run::calls::patched_by;
use crate::run::packed::unpacked;
use berth_api::Problem;
use berth_kubevirt_render::machines::rollout::Counts;
use berth_kubevirt_render::machines::steps::{Owner, Steps, Vm, adoption, backoff_seconds, steps};
use berth_kubevirt_render::machines::{
    KIND, MachineDeployment, RenderContext, Residence, residence, unmet_prerequisite,
};

/// What is wrong for a reason that may pass is looked at again after so long.
pub(super) const RETRY: Duration = Duration::from_secs(30);

/// One MachineDeployment, and what is looked up for it.
pub(super) struct Look<'a> {
    pub(super) context: &'a Context,
    pub(super) object: &'a DynamicObject,
    pub(super) deployment: MachineDeployment,
    pub(super) owner: Owner,
    /// Of its VMs.
    pub(super) namespace: String,
    pub(super) around: RenderContext,
    /// Its VMs.
    pub(super) vms: Vec<Vm>,
}

/// Keeps one; says when to look again, if that is to be soon.
pub(super) async fn keep(
    context: &Context,
    object: &DynamicObject,
) -> Result<Option<Duration>, Error> {
    // First of all: whatever is wrong with it, or has it by now, its machines are Berth's to delete.
    if object.metadata.deletion_timestamp.is_some() {
        return context.finalize(object).await;
    }
    let value = serde_json::to_value(object).unwrap_or_default();
    let provider = value.pointer("/spec/template/spec/providerSpec/value/cloudProvider");
    // Whoever has another provider has another controller too.
    if provider.is_some_and(|provider| provider != "kubevirt") || context.is_off(object).await {
        return Ok(None);
    }
    let deployment = match MachineDeployment::read("the cluster", value) {
        Ok(deployment) => deployment,
        Err(problem) => {
            context.say(object, None, &Said::invalid(&[problem])).await?;
            return Ok(None);
        }
    };
    let around = context.known(&deployment);
    let Residence { tenant, namespace } = match residence(&deployment, &around) {
        Ok(home) => home,
        Err(problem) => {
            context.say(object, None, &Said::invalid(&[problem])).await?;
            return Ok(Some(jittered(RETRY)));
        }
    };
    let has_tenant = tenant.is_some();
    let shares_namespace = object.namespace().as_deref() == Some(namespace.as_str());
    let owner = Owner { uid: object.uid().unwrap_or_default(), shares_namespace };
    let vms = context.vms(&deployment, &namespace);
    let look = Look { context, object, deployment, owner, namespace, around, vms };
    let is_held = object.finalizers().iter().any(|one| one == FINALIZER);
    if !is_held && look.has_come_to_be_foreign().await? {
        return Ok(Some(jittered(RETRY)));
    }
    look.hold().await?;
    if let Some(problem) = look.settle(has_tenant).await? {
        context.say(object, None, &Said::invalid(&[problem])).await?;
        return Ok(Some(jittered(RETRY)));
    }
    look.keep().await
}

/// What came of making machines.
#[derive(Default)]
struct Made {
    problems: Vec<Problem>,
    /// What is odd about them; `None` if none was rendered.
    notes: Option<Vec<Problem>>,
    /// What they wait for.
    awaited: Option<String>,
}

impl Made {
    fn take(&mut self, maker: Result<Maker, Vec<Problem>>) -> Option<Maker> {
        match maker {
            Ok(maker) => {
                self.notes = Some(maker.notes.clone());
                Some(maker)
            }
            Err(wrong) => {
                self.problems.extend(wrong);
                None
            }
        }
    }
}

impl Context {
    /// Writes the list of finalizers, if no other wrote the object in between.
    pub(super) async fn set_finalizers(
        &self,
        object: &DynamicObject,
        all: &[String],
    ) -> Result<(), Error> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &deployments());
        let patch = json!({"metadata": {
            "finalizers": all, "uid": object.uid(), "resourceVersion": object.resource_version(),
        }});
        let patched = found(api.patch(&name, &patched_by(), &Patch::Merge(patch)).await);
        at(|| format!("patch {KIND} {namespace}/{name}"), patched).map(drop)
    }

    /// Whether machine-controller runs for it: two that make machines of the same object would make twice as many.
    async fn is_off(&self, object: &DynamicObject) -> bool {
        let namespace = object.namespace();
        let foreign = self.foreign.all().iter().any(|machine| machine.namespace() == namespace);
        let webhook =
            self.webhooks.all().iter().any(|hook| hook.name_any().contains("machine-controller"));
        let is_off = foreign || webhook;
        let (was_off, _) =
            self.remember(object, |memory| (std::mem::replace(&mut memory.is_off, is_off), ()));
        if is_off && !was_off {
            let why = if webhook {
                "its webhook is there"
            } else {
                "there are Machines in its namespace"
            };
            let note = format!("left to machine-controller, as {why}");
            tracing::info!(
                "{KIND} {}/{}: {note}",
                namespace.unwrap_or_default(),
                object.name_any()
            );
            // Its status is not ours to say anything in.
            let reference = object.object_ref(&deployments());
            let reason = EventReason::ManagedByMachineController.as_str();
            self.events.tell_of(EventType::Normal, reference, reason, &note).await;
        }
        is_off
    }

    /// The tenant of a namespace, if it is being deleted: a MachineDeployment elsewhere would make its machines anew.
    fn tenant_that_goes(&self, namespace: &str) -> Option<String> {
        let name = namespace.strip_prefix(TENANT_PREFIX)?;
        let tenant = self.tenants.get("", name)?;
        tenant.metadata.deletion_timestamp.is_some().then(|| name.to_owned())
    }

    /// Why NetworkPolicies of a namespace's tenant are not in force; `None` if they are, or if it is no tenant's.
    fn open_policies(&self, namespace: &str) -> Option<String> {
        let tenant = self.tenants.named(namespace.strip_prefix(TENANT_PREFIX)?)?;
        policies::not_in_force(&tenant)
    }

    fn vms(&self, deployment: &MachineDeployment, namespace: &str) -> Vec<Vm> {
        let all = self.wake.machines_of(namespace, &deployment.metadata.name);
        let there = all.iter().filter_map(|(namespace, name)| self.machines.get(namespace, name));
        there.map(|vm| self.vm(&vm)).collect()
    }

    fn vm(&self, vm: &DynamicObject) -> Vm {
        let instance = self.instances.get(&vm.namespace().unwrap_or_default(), &vm.name_any());
        let instance = instance.and_then(|one| serde_json::to_value(unpacked(&one)).ok());
        Vm::from_objects(&serde_json::to_value(unpacked(vm)).unwrap_or_default(), instance.as_ref())
    }
}

impl Look<'_> {
    fn called(&self) -> String {
        self.deployment.called()
    }

    pub(super) fn machines(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), &self.namespace, &machines())
    }

    async fn keep(&self) -> Result<Option<Duration>, Error> {
        if self.context.machines.is_missing() {
            let problem = Problem::new(
                self.called(),
                "",
                "",
                "KubeVirt is not installed: there are no VirtualMachines",
            );
            self.context.say(self.object, None, &Said::invalid(&[problem])).await?;
            return Ok(Some(jittered(RETRY)));
        }
        if let Some(tenant) = self.context.tenant_that_goes(&self.namespace) {
            let message =
                format!("tenant {tenant} is being deleted: no machines are made any more");
            let problem = Problem::new(self.called(), "", "", message);
            self.context.say(self.object, None, &Said::invalid(&[problem])).await?;
            return Ok(Some(jittered(RETRY)));
        }
        let now = Timestamp::now().as_second();
        let hold = self.context.remember(self.object, |memory| memory.hold);
        let hold = hold.and_then(|until| until.checked_duration_since(Instant::now()));
        let hold =
            hold.map(|left| u32::try_from(left.as_secs()).unwrap_or(u32::MAX).saturating_add(1));
        let decided = steps(&self.deployment, &self.owner, &self.vms, now, hold);
        let mut steps = match decided {
            Ok(steps) => steps,
            Err(error) => {
                let problem = Problem::new(self.called(), error.field, &error.value, error.message);
                self.context.say(self.object, None, &Said::invalid(&[problem])).await?;
                return Ok(None);
            }
        };
        self.adopt(&steps).await?;
        let open = self.context.open_policies(&self.namespace).filter(|_| steps.create > 0);
        let Made { problems, notes, awaited } = match open {
            Some(why) => {
                // A replacement cannot come either, so what is there stays.
                steps.create = 0;
                steps.delete.clear();
                let message = format!("no machine is made before its tenant is isolated: {why}");
                let problem = Problem::new(self.called(), "", "", message);
                Made { problems: vec![problem], ..Made::default() }
            }
            None => self.make(&mut steps, now).await?,
        };
        self.delete(&steps).await?;
        if steps.is_complete {
            self.context.remember(self.object, |memory| {
                memory.failures = 0;
                memory.hold = None;
            });
        }
        let said = if problems.is_empty() {
            Said::progress(self, &steps, awaited)
        } else {
            Said::invalid(&problems)
        };
        let said = said.noting(notes.as_deref());
        self.context.say(self.object, Some(steps.counts), &said).await?;
        let again = steps.requeue_after.map(|seconds| Duration::from_secs(seconds.into()));
        let again =
            again.or_else(|| (!problems.is_empty()).then(|| jittered(RETRY))).or(said.again_after);
        Ok(again)
    }

    async fn adopt(&self, steps: &Steps) -> Result<(), Error> {
        for name in &steps.adopt {
            let patch = Patch::Merge(adoption(&self.deployment, &self.owner));
            let adopted = self.machines().patch(name, &patched_by(), &patch).await;
            at(|| format!("adopt VirtualMachine {}/{name}", self.namespace), found(adopted))?;
            tracing::info!(
                "{}: VirtualMachine {}/{name} is its own from now on",
                self.called(),
                self.namespace
            );
        }
        Ok(())
    }

    /// Makes what is missing, by what the server has at this moment: the store may not have heard yet of what was made last.
    async fn make(&self, steps: &mut Steps, now: i64) -> Result<Made, Error> {
        let mut made = Made { problems: self.equip().await?, ..Made::default() };
        // A template that makes no sense is told also while nothing is to be made of it.
        let is_new = self.object.data.pointer("/status/observedGeneration").and_then(Value::as_i64)
            != self.object.metadata.generation;
        if steps.create == 0 {
            if is_new {
                made.take(self.maker().await?);
            }
            return Ok(made);
        }
        made.awaited = self.tenant().and_then(unmet_prerequisite);
        if made.awaited.is_some() {
            // What cannot be replaced stays.
            steps.create = 0;
            steps.delete.clear();
            return Ok(made);
        }
        let params = ListParams::default().labels(&format!("md={}", self.deployment.metadata.name));
        let list = at(
            || format!("list VirtualMachines of {}", self.namespace),
            self.machines().list(&params).await,
        )?;
        let vms: Vec<Vm> = list.items.iter().map(|vm| self.context.vm(vm)).collect();
        if let Ok(fresh) = berth_kubevirt_render::machines::steps::steps(
            &self.deployment,
            &self.owner,
            &vms,
            now,
            None,
        ) {
            let create = steps.create.min(fresh.create);
            *steps = Steps {
                create,
                requeue_after: steps.requeue_after.or(fresh.requeue_after),
                ..fresh
            };
        }
        if steps.create == 0 || self.has_come_to_be_foreign().await? {
            steps.create = 0;
            return Ok(made);
        }
        let maker = made.take(self.maker().await?);
        let mut count = 0_u32;
        for _ in 0..maker.as_ref().map_or(0, |_| steps.create) {
            let Some(maker) = &maker else { break };
            if let Some(refused) = self.create(maker).await? {
                made.problems.push(refused);
                break;
            }
            count = count.saturating_add(1);
        }
        // The watch will say so in a moment: then it need not be written again.
        let Counts { replicas, updated, .. } = &mut steps.counts;
        *replicas = replicas.saturating_add(count);
        *updated = updated.saturating_add(count);
        Ok(made)
    }

    /// Its tenant, if it has one.
    pub(super) fn tenant(&self) -> Option<&TenantCluster> {
        let name = self.namespace.strip_prefix(TENANT_PREFIX)?;
        self.around.tenants.get(name)
    }

    /// Whether machine-controller has begun with it; its kind may be so new that no watch knows of it.
    async fn has_come_to_be_foreign(&self) -> Result<bool, Error> {
        let namespace = self.object.namespace().unwrap_or_default();
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.context.client.clone(), &namespace, &foreign_machines());
        let list = api.list(&ListParams::default().limit(1)).await;
        let list = at(|| format!("list Machines of {namespace}"), found(list))?;
        Ok(list.is_some_and(|list| !list.items.is_empty()))
    }

    async fn delete(&self, steps: &Steps) -> Result<(), Error> {
        let known = |name: &String| self.vms.iter().find(|vm| vm.name == *name);
        for vm in steps.delete.iter().filter_map(known) {
            let preconditions = Preconditions { uid: Some(vm.uid.clone()), resource_version: None };
            let params =
                DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
            let name = &vm.name;
            let deleted = self.machines().delete(name, &params).await;
            at(|| format!("delete VirtualMachine {}/{name}", self.namespace), found(deleted))?;
            if vm.has_failed {
                self.context.remember(self.object, |memory| {
                    memory.failures = memory.failures.saturating_add(1);
                    let pause = Duration::from_secs(backoff_seconds(memory.failures).into());
                    memory.hold = Instant::now().checked_add(pause);
                });
                tracing::info!(
                    "{}: VirtualMachine {}/{name} has ended and is replaced",
                    self.called(),
                    self.namespace
                );
            }
        }
        Ok(())
    }

    /// Sees to it that the deployment does not go before its machines.
    async fn hold(&self) -> Result<(), Error> {
        if self.object.finalizers().iter().any(|one| one == FINALIZER) {
            return Ok(());
        }
        let mut all = self.object.finalizers().to_vec();
        all.push(FINALIZER.to_owned());
        self.context.set_finalizers(self.object, &all).await
    }
}
