//! Reconciles golden images, in numbered steps.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::names::INFRA_CONFIG;
use berth_api::{GoldenImagePhase, Images, InfraConfig};
use berth_kubevirt_render::machines::{RenderContext, plan_image_clone};
use berth_runtime::backoff::add_jitter;
use kube::ResourceExt as _;
use tokio::sync::Mutex;

use super::memory::{ImageMemory, InputChange};
use super::stores::ImageStores;
use crate::images::desired::DesiredImages;
use crate::images::observed::ObservedImages;
use crate::images::plan::plan;
use crate::images::report::{ImageReport, ReportInput};
use crate::images::state::{ImageState, ImageStates, image_states};
use crate::run::context::Context;
use crate::run::reconcile::ReconcileFailure;
use crate::tenants::fault::Fault;

/// Minimum interval between reports that differ only in the numbers of clones. A report is a write of the InfraConfig's
/// status, and a thousand machines may be created at the same time.
const USERS_INTERVAL: Duration = Duration::from_secs(60);
/// Time after a change of the input after which unused images are deleted although the images of a MachineDeployment are
/// unknown, for example because it is invalid since the start of the controller, or a StorageProfile is missing.
const RECORD_TIMEOUT: Duration = Duration::from_secs(600);

/// Interval between reconciles while a kind is missing or not listed. The list of a kind without objects sends no signal.
const FAULT_INTERVAL: Duration = Duration::from_secs(15);
/// Delay after which the controller tries again to grant a permission that the API server has refused.
const GRANT_INTERVAL: Duration = Duration::from_secs(30);

/// Reconciler of golden images.
pub(super) struct ImageReconciler {
    pub(super) context: Arc<Context>,
    pub(super) stores: ImageStores,
    memory: Mutex<ImageMemory>,
}

impl ImageReconciler {
    pub(super) fn new(context: Arc<Context>, stores: ImageStores) -> Self {
        Self { context, stores, memory: Mutex::default() }
    }

    /// Reconciles all golden images. Returns the delay of the next reconcile.
    pub(super) async fn reconcile(
        &self,
        config: &InfraConfig,
    ) -> Result<Duration, ReconcileFailure> {
        let resync = add_jitter(self.context.resync);
        let images = config.spec.images.as_ref().filter(|images| images.has_golden_images());
        let Some(images) = images.filter(|_| config.name_any() == INFRA_CONFIG) else {
            self.disable().await;
            return Ok(resync);
        };
        let mut memory = self.memory.lock().await;
        // 1. Observe (from stores only).
        let mut render_context = self.observe_context(config);
        match memory.update_input(&render_context) {
            InputChange::First => self.context.images.reconcile_deployments(),
            InputChange::Changed => self.context.images.change_input(),
            InputChange::Same => {}
        }
        let desired = self.observe_desired(&mut render_context);
        let fault = self.observe_fault();
        let is_blocked = fault.is_some();
        self.forget_deleted(&mut memory.deleted);
        let observed = self.observe_images(&memory.deleted);
        // 2. Plan and apply.
        let applied = match fault {
            Some(_) => Ok(()),
            None => self.apply_all(&desired, &observed, images, &mut memory).await,
        };
        // 3. Publish the states and the report, also if a request failed.
        let observed = self.observe_images(&memory.deleted);
        let states = match &fault {
            Some(_) => ImageStates::default(),
            None => image_states(&desired, &observed, &memory.refusals()),
        };
        let has_failed = states.values().any(|state| state.phase == GoldenImagePhase::Failed);
        let is_ready = |state: &ImageState| state.phase == GoldenImagePhase::Ready;
        memory
            .failures
            .retain(|key, _| desired.contains_key(key) && !states.get(key).is_some_and(is_ready));
        // If an import has failed, the condition reports the import instead of a refused permission: the cause is
        // usually the same, such as a missing namespace, and the failed import prevents more machines.
        let refused_grants = self.grant_fault(&memory);
        let grant_delay = refused_grants.is_some().then_some(GRANT_INTERVAL);
        let fault = fault.or_else(|| refused_grants.filter(|_| !has_failed));
        let report_delay = self.publish(
            &desired,
            &observed,
            states,
            fault.as_ref(),
            &mut render_context,
            &mut memory,
        );
        applied?;
        let fault_delay = is_blocked.then_some(FAULT_INTERVAL);
        let delays = [memory.next_retry(), report_delay, fault_delay, grant_delay];
        Ok(delays.into_iter().flatten().fold(resync, Duration::min))
    }

    /// Removes the states and the report, because golden images are disabled or the InfraConfig does not exist. Machines
    /// that wait for an image need it no longer.
    pub(super) async fn disable(&self) {
        let was_enabled = self.memory.lock().await.forget_input();
        let table = &self.context.images;
        table.set_report(None);
        table.set_states(ImageStates::default(), BTreeSet::new());
        self.context.metrics.set_golden_images(iter::empty());
        if was_enabled {
            table.change_input();
        }
    }

    async fn apply_all(
        &self,
        desired: &DesiredImages,
        observed: &ObservedImages,
        images: &Images,
        memory: &mut ImageMemory,
    ) -> Result<(), ReconcileFailure> {
        let granted = self.apply_grants(desired, images, memory).await;
        let changes = plan(desired, observed, images);
        let created = self.apply_changes(&changes, desired, memory).await;
        let are_needs_known = (self.context.images.is_complete() && self.are_profiles_complete())
            || memory.input_age() > RECORD_TIMEOUT;
        let deleted = self.delete_unused(&changes, are_needs_known, memory).await;
        granted.and(created).and(deleted)
    }

    /// Sets the states on which machines depend, and the report for the status of the InfraConfig. Returns the time until
    /// a report that is delayed.
    fn publish(
        &self,
        desired: &DesiredImages,
        observed: &ObservedImages,
        states: ImageStates,
        fault: Option<&Fault>,
        render_context: &mut RenderContext,
        memory: &mut ImageMemory,
    ) -> Option<Duration> {
        for (key, state) in &states {
            if let Some(volume) = &state.volume {
                let key = (key.namespace.clone(), key.name.clone());
                render_context.data_volumes.insert(key, volume.clone());
            }
        }
        let input = ReportInput { desired, observed, states: &states, fault };
        let render_context = &*render_context;
        let report = ImageReport::new(input, |one| {
            plan_image_clone(render_context, &one.image, Some(one.largest_disk))
        });
        self.context.metrics.set_golden_images(states.values().map(|state| state.phase));
        let table = &self.context.images;
        table.set_states(states, self.observe_grants());
        let is_minor = table.report().is_some_and(|before| report.differs_only_in_users(&before));
        let age = memory.reported_at.map(|at| at.elapsed()).filter(|age| *age < USERS_INTERVAL);
        if let Some(age) = age.filter(|_| is_minor) {
            return Some(USERS_INTERVAL.saturating_sub(age));
        }
        if table.report().as_deref() != Some(&report) {
            memory.reported_at = Some(Instant::now());
            table.set_report(Some(report));
        }
        None
    }
}
