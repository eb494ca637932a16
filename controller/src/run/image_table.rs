//! Table that the reconcilers of machines, of golden images and of the InfraConfig share: which golden images the
//! MachineDeployments need, the states of these images, and the report about them.
//!
//! A MachineDeployment records the images that its machines need before it reads their states, and an image is marked
//! before it is deleted, both under one lock. So no machine is created from an image that is being deleted. A
//! MachineDeployment whose template becomes invalid still needs its images. After a restart of the controller, the table is
//! computed again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::GoldenImagePhase;
use berth_kubevirt_render::images::{DataVolumeState, GoldenImageUse};
use tokio::sync::Notify;

use crate::images::desired::{Grant, cloning_tenant};
use crate::images::key::ImageKey;
use crate::images::report::{ImageReport, describe};
use crate::images::state::{ImageState, ImageStates};

/// Namespace and name of a MachineDeployment.
pub(super) type DeploymentKey = (String, String);
/// Function that is called with each MachineDeployment whose images have changed.
type Handler = Arc<dyn Fn(&DeploymentKey) + Send + Sync>;

/// Golden images that MachineDeployments need, and their states.
#[derive(Default)]
pub struct ImageTable {
    state: Mutex<TableState>,
    /// Wakes the reconciler of golden images.
    changed: Arc<Notify>,
    /// Wakes the reconciler of the InfraConfig.
    report_changed: Notify,
}

#[derive(Default)]
struct TableState {
    records: BTreeMap<DeploymentKey, ImageRecord>,
    /// MachineDeployments in the store.
    deployments: BTreeSet<DeploymentKey>,
    /// True if all MachineDeployments are listed.
    is_listed: bool,
    images: ImageStates,
    grants: BTreeSet<Grant>,
    /// Images that are being deleted.
    deleting: BTreeSet<ImageKey>,
    /// Number of changes of the input from which all machines are rendered.
    input_version: u64,
    report: Option<Arc<ImageReport>>,
    handlers: Vec<Handler>,
}

/// Golden images that the machines of a MachineDeployment need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageRecord {
    /// UID of the MachineDeployment.
    pub(super) uid: Option<String>,
    /// Generation of the MachineDeployment from which the machines were rendered.
    pub(super) generation: Option<i64>,
    /// Version of the input, from [`ImageTable::input_version`] before the machines were rendered.
    pub(super) input_version: u64,
    /// Namespace of the machines.
    pub(super) namespace: String,
    pub(super) uses: Arc<[GoldenImageUse]>,
    pub(super) template: RecordedTemplate,
}

/// Template from which the images of an [`ImageRecord`] result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordedTemplate {
    /// The current template, which is valid.
    Valid,
    /// The last valid template, because the current one is invalid.
    LastValid,
    /// No template, because none has been valid since the start of the controller. The images are unknown.
    Unknown,
}

impl fmt::Debug for ImageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageTable").finish_non_exhaustive()
    }
}

/// For the reconciler of machines.
impl ImageTable {
    /// Calls `handle` with each MachineDeployment whose images change from now on.
    pub(super) fn subscribe(&self, handle: impl Fn(&DeploymentKey) + Send + Sync + 'static) {
        self.lock().handlers.push(Arc::new(handle));
    }

    /// Handles a change of a MachineDeployment.
    pub(super) fn handle_deployment(&self, key: &DeploymentKey, is_deleted: bool) {
        let mut state = self.lock();
        if !is_deleted {
            state.deployments.insert(key.clone());
            return;
        }
        state.deployments.remove(key);
        if state.records.remove(key).is_some() {
            self.changed.notify_one();
        }
    }

    /// Records that [`Self::handle_deployment`] was called with all MachineDeployments.
    pub(super) fn set_listed(&self) {
        self.lock().is_listed = true;
        self.changed.notify_one();
    }

    /// Returns the version of the input from which machines are rendered.
    pub(super) fn input_version(&self) -> u64 {
        self.lock().input_version
    }

    /// Returns true if the images of this generation of a MachineDeployment are recorded.
    pub(super) fn has_record(
        &self,
        key: &DeploymentKey,
        uid: Option<&str>,
        generation: Option<i64>,
    ) -> bool {
        self.lock().current_record(key, uid, generation).is_some()
    }

    /// Returns true if the images of this generation of a MachineDeployment are recorded, and its template is valid.
    pub(super) fn has_valid_record(
        &self,
        key: &DeploymentKey,
        uid: Option<&str>,
        generation: Option<i64>,
    ) -> bool {
        let state = self.lock();
        let record = state.current_record(key, uid, generation);
        record.is_some_and(|record| record.template == RecordedTemplate::Valid)
    }

    /// Records the images that the machines of a MachineDeployment need.
    pub(super) fn record(&self, key: DeploymentKey, record: ImageRecord) {
        self.set_record(&mut self.lock(), key, record);
    }

    /// Records that the template of a MachineDeployment is invalid. The images of the last valid template stay, because the
    /// cause may be temporary: to change a StorageClass, an administrator deletes it and creates it again, and the import
    /// that had begun would be lost. `record` is a record without images.
    pub(super) fn record_invalid(&self, key: DeploymentKey, record: ImageRecord) {
        let mut state = self.lock();
        let is_known = |known: &&ImageRecord| {
            known.uid == record.uid && known.template != RecordedTemplate::Unknown
        };
        let record = match state.records.get(&key).filter(is_known) {
            Some(known) => ImageRecord {
                namespace: known.namespace.clone(),
                uses: Arc::clone(&known.uses),
                template: RecordedTemplate::LastValid,
                ..record
            },
            None => ImageRecord { template: RecordedTemplate::Unknown, ..record },
        };
        self.set_record(&mut state, key, record);
    }

    fn set_record(&self, state: &mut TableState, key: DeploymentKey, record: ImageRecord) {
        if state.records.get(&key) != Some(&record) {
            state.records.insert(key, record);
            self.changed.notify_one();
        }
    }

    /// Describes the first image of a MachineDeployment that is not ready; `None` if machines can be created.
    pub(super) fn unready_image(&self, key: &DeploymentKey) -> Option<String> {
        let state = self.lock();
        let record = state.records.get(key)?;
        record.uses.iter().find_map(|one| state.describe_unready(&record.namespace, one))
    }

    /// Returns the DataVolumes of golden images in these namespaces.
    pub(super) fn data_volumes(
        &self,
        namespaces: &[&str],
    ) -> BTreeMap<(String, String), DataVolumeState> {
        let state = self.lock();
        let images = state.images.iter();
        let found = images.filter(|(key, _)| namespaces.contains(&key.namespace.as_str()));
        found
            .filter_map(|(key, image)| {
                Some(((key.namespace.clone(), key.name.clone()), image.volume.clone()?))
            })
            .collect()
    }
}

/// For the reconcilers of golden images and of the InfraConfig.
impl ImageTable {
    /// Removes everything. The caller must do this before the reconcilers start.
    pub(super) fn reset(&self) {
        *self.lock() = TableState::default();
    }

    /// Returns the signal for changes of the needed images.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Returns the needed images, with the namespaces of the machines.
    pub(super) fn uses(&self) -> Vec<(String, Arc<[GoldenImageUse]>)> {
        let state = self.lock();
        let records = state.records.values();
        records.map(|record| (record.namespace.clone(), Arc::clone(&record.uses))).collect()
    }

    /// Returns true if it is known which images all MachineDeployments need. After a change of the input, it is unknown
    /// until their machines have been rendered again.
    pub(super) fn is_complete(&self) -> bool {
        let state = self.lock();
        let is_current = |record: &ImageRecord| {
            record.input_version == state.input_version
                && record.template != RecordedTemplate::Unknown
        };
        let is_known = |key: &DeploymentKey| state.records.get(key).is_some_and(is_current);
        state.is_listed && state.deployments.iter().all(is_known)
    }

    /// Sets the states of the images, and the permissions that exist. Reconciles the MachineDeployments that need a changed
    /// image.
    pub(super) fn set_states(&self, images: ImageStates, grants: BTreeSet<Grant>) {
        let mut state = self.lock();
        let are_grants_same = state.grants == grants;
        let affected: Vec<DeploymentKey> = state
            .records
            .iter()
            .filter(|(_, record)| {
                record.uses.iter().any(|one| {
                    let key = ImageKey::of_image(&one.image);
                    let is_same = same_for_machines(state.images.get(&key), images.get(&key));
                    let is_local = cloning_tenant(&record.namespace, &one.image).is_none();
                    !is_same || !(are_grants_same || is_local)
                })
            })
            .map(|(key, _)| key.clone())
            .collect();
        state.images = images;
        state.grants = grants;
        let handlers = state.handlers.clone();
        // The handlers read the table.
        drop(state);
        notify(&handlers, &affected);
    }

    /// Records that the input from which all machines are rendered has changed, and reconciles all MachineDeployments.
    pub(super) fn change_input(&self) {
        {
            let mut state = self.lock();
            state.input_version = state.input_version.saturating_add(1);
        }
        self.reconcile_deployments();
    }

    /// Reconciles all MachineDeployments, which then record the images that they need.
    pub(super) fn reconcile_deployments(&self) {
        let (handlers, all) = {
            let state = self.lock();
            let all: Vec<DeploymentKey> = state.deployments.iter().cloned().collect();
            (state.handlers.clone(), all)
        };
        notify(&handlers, &all);
    }

    /// Marks an image that will be deleted: no machine is created from it. Returns false if a MachineDeployment needs the
    /// image.
    pub(super) fn begin_deletion(&self, key: &ImageKey) -> bool {
        let mut state = self.lock();
        let mut uses = state.records.values().flat_map(|record| record.uses.iter());
        if uses.any(|one| ImageKey::of_image(&one.image) == *key) {
            return false;
        }
        state.deleting.insert(key.clone());
        true
    }

    /// Removes the mark of an image. Its state is unknown until the next [`Self::set_states`].
    pub(super) fn end_deletion(&self, key: &ImageKey) {
        let mut state = self.lock();
        state.deleting.remove(key);
        state.images.remove(key);
    }

    /// Sets the report. `None` means that there are no golden images, or that they are unknown.
    pub(super) fn set_report(&self, report: Option<ImageReport>) {
        let mut state = self.lock();
        if state.report.as_deref() != report.as_ref() {
            state.report = report.map(Arc::new);
            self.report_changed.notify_one();
        }
    }

    /// Returns the report.
    pub(super) fn report(&self) -> Option<Arc<ImageReport>> {
        self.lock().report.clone()
    }

    /// Waits for a change of the report. At most one task may wait.
    pub(super) async fn report_changed(&self) {
        self.report_changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableState {
    /// Returns the record of this generation of a MachineDeployment for the current input.
    fn current_record(
        &self,
        key: &DeploymentKey,
        uid: Option<&str>,
        generation: Option<i64>,
    ) -> Option<&ImageRecord> {
        self.records.get(key).filter(|record| {
            record.uid.as_deref() == uid
                && record.generation == generation
                && record.input_version == self.input_version
        })
    }

    fn describe_unready(&self, namespace: &str, one: &GoldenImageUse) -> Option<String> {
        let key = ImageKey::of_image(&one.image);
        let source = &one.image.source;
        let state = self.images.get(&key).filter(|_| !self.deleting.contains(&key));
        let Some(state) = state else {
            return Some(describe(&key, source, &ImageState::default()));
        };
        if !is_ready(state) {
            return Some(describe(&key, source, state));
        }
        let tenant = cloning_tenant(namespace, &one.image)?;
        let is_granted = self.grants.contains(&(key.namespace.clone(), tenant.to_owned()));
        let message = "the permission to clone it does not exist yet".to_owned();
        let waiting = ImageState { message: Some(message), ..state.clone() };
        (!is_granted).then(|| describe(&key, source, &waiting))
    }
}

fn is_ready(state: &ImageState) -> bool {
    state.phase == GoldenImagePhase::Ready
}

/// Returns true if a change of an image does not concern machines.
fn same_for_machines(before: Option<&ImageState>, after: Option<&ImageState>) -> bool {
    let shown = |state: Option<&ImageState>| state.map(|one| (one.phase, one.message.clone()));
    shown(before) == shown(after)
}

fn notify(handlers: &[Handler], deployments: &[DeploymentKey]) {
    for deployment in deployments {
        handlers.iter().for_each(|handle| handle(deployment));
    }
}

#[cfg(test)]
mod tests {
    use berth_kubevirt_render::images::{GoldenImage, HttpSource, ImageSource};

    use super::*;

    fn image(namespace: &str) -> GoldenImageUse {
        let source = HttpSource { url: "http://images/a.img".to_owned(), ..HttpSource::default() };
        let image = GoldenImage {
            namespace: namespace.to_owned(),
            source: ImageSource::Http(source),
            storage_class: String::new(),
            volume_mode: None,
            is_preallocated: false,
            size: None,
            schedule: None,
        };
        let mut uses = Vec::new();
        GoldenImageUse::add(&mut uses, image, "1Gi".parse().unwrap());
        uses.remove(0)
    }

    fn deployment(name: &str) -> DeploymentKey {
        ("cluster-a".to_owned(), name.to_owned())
    }

    fn record(uses: &[GoldenImageUse], input_version: u64) -> ImageRecord {
        ImageRecord {
            uid: Some("u".to_owned()),
            generation: Some(1),
            input_version,
            namespace: "cluster-a".to_owned(),
            uses: uses.into(),
            template: RecordedTemplate::Valid,
        }
    }

    fn states(one: &GoldenImageUse, phase: GoldenImagePhase) -> ImageStates {
        let state = ImageState { phase, ..ImageState::default() };
        ImageStates::from([(ImageKey::of_image(&one.image), state)])
    }

    #[test]
    fn machines_wait_for_image_and_permission() {
        let (table, shared) = (ImageTable::default(), image("images"));
        let web = deployment("web");
        assert_eq!(table.unready_image(&web), None, "no image is needed");
        table.record(web.clone(), record(std::slice::from_ref(&shared), 0));
        let waiting = table.unready_image(&web).unwrap();
        assert!(waiting.ends_with("of http://images/a.img: Pending"), "{waiting}");
        table.set_states(states(&shared, GoldenImagePhase::Ready), BTreeSet::new());
        assert!(table.unready_image(&web).unwrap().contains("permission"));
        let grants = BTreeSet::from([("images".to_owned(), "a".to_owned())]);
        table.set_states(states(&shared, GoldenImagePhase::Ready), grants);
        assert_eq!(table.unready_image(&web), None);
    }

    #[test]
    fn an_image_that_is_needed_is_not_deleted() {
        let (table, own) = (ImageTable::default(), image("cluster-a"));
        let (key, web) = (ImageKey::of_image(&own.image), deployment("web"));
        table.set_states(states(&own, GoldenImagePhase::Ready), BTreeSet::new());
        assert!(table.begin_deletion(&key));
        table.record(web.clone(), record(std::slice::from_ref(&own), 0));
        assert!(table.unready_image(&web).is_some(), "it is being deleted");
        assert!(!table.begin_deletion(&key));
        table.end_deletion(&key);
        assert!(table.unready_image(&web).is_some(), "its state is unknown");
        table.set_states(states(&own, GoldenImagePhase::Ready), BTreeSet::new());
        assert_eq!(table.unready_image(&web), None);
    }

    #[test]
    fn an_invalid_template_still_needs_its_images() {
        let (table, own) = (ImageTable::default(), image("cluster-a"));
        let (key, web) = (ImageKey::of_image(&own.image), deployment("web"));
        table.handle_deployment(&web, false);
        table.set_listed();
        table.record(web.clone(), record(std::slice::from_ref(&own), 0));
        // Its StorageClass is deleted.
        table.change_input();
        assert!(!table.is_complete(), "the machines have not been rendered again");
        table.record_invalid(web.clone(), record(&[], 1));
        assert!(table.is_complete());
        assert!(!table.begin_deletion(&key), "the image would be imported again");
        assert!(table.has_record(&web, Some("u"), Some(1)));
        assert!(!table.has_valid_record(&web, Some("u"), Some(1)));
        // It stays invalid for several reconciles.
        table.record_invalid(web.clone(), record(&[], 1));
        assert!(!table.begin_deletion(&key));
        // Another MachineDeployment has the name.
        let other = ImageRecord { uid: Some("v".to_owned()), ..record(&[], 1) };
        table.record_invalid(web.clone(), other.clone());
        assert!(!table.is_complete(), "its images are unknown");
        assert!(table.begin_deletion(&key), "only the deleted MachineDeployment needed it");
        table.end_deletion(&key);
        table.record(web.clone(), other);
        assert!(table.is_complete() && table.has_valid_record(&web, Some("v"), Some(1)));
    }

    #[test]
    fn only_affected_deployments_are_reconciled() {
        let (table, own) = (ImageTable::default(), image("cluster-a"));
        let seen: Arc<Mutex<Vec<DeploymentKey>>> = Arc::default();
        let record_call = Arc::clone(&seen);
        table.subscribe(move |key| record_call.lock().unwrap().push(key.clone()));
        for name in ["db", "web"] {
            table.handle_deployment(&deployment(name), false);
        }
        table.record(deployment("web"), record(std::slice::from_ref(&own), 0));
        assert!(!table.is_complete());
        table.record(deployment("db"), record(&[], 0));
        assert!(!table.is_complete());
        table.set_listed();
        assert!(table.is_complete());
        for _ in 0..2 {
            table.set_states(states(&own, GoldenImagePhase::Ready), BTreeSet::new());
        }
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [deployment("web")]);
        assert!(table.has_record(&deployment("web"), Some("u"), Some(1)));
        table.change_input();
        assert_eq!(*seen.lock().unwrap(), [deployment("db"), deployment("web")]);
        assert!(!table.has_record(&deployment("web"), Some("u"), Some(1)));
        table.handle_deployment(&deployment("web"), true);
        assert_eq!(table.uses().len(), 1);
    }
}
