//! Report about golden images, for the status of the InfraConfig.

use std::collections::BTreeMap;

use berth_api::names::condition::GOLDEN_IMAGES_READY;
use berth_api::{CloneStrategy, ConditionReason, GoldenImagePhase, GoldenImageStatus};
use berth_kubevirt_render::images::{ClonePlan, CloneReason, ImageSource};

use super::desired::{DesiredImage, DesiredImages};
use super::key::ImageKey;
use super::observed::{ObservedImages, ObservedImport};
use super::state::{ImageState, ImageStates};
use crate::profiles::ConditionUpdate;
use crate::tenants::fault::{Fault, join_first};

/// Maximum number of images in a status.
const MAX_IMAGES: usize = 256;
/// Maximum length of the message of an image, in characters.
const MAX_MESSAGE_LENGTH: usize = 512;
/// Maximum length of the source of an image, in characters.
const MAX_SOURCE_LENGTH: usize = 256;
/// Maximum number of images in the message of the condition.
const MAX_NAMED_IMAGES: usize = 4;

/// Report about golden images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageReport {
    pub(crate) images: Vec<GoldenImageStatus>,
    /// Number of images that are left out of `images`.
    pub(crate) omitted: Option<u32>,
    pub(crate) condition: ConditionUpdate,
}

/// Input of a report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportInput<'a> {
    pub(crate) desired: &'a DesiredImages,
    pub(crate) observed: &'a ObservedImages,
    pub(crate) states: &'a ImageStates,
    /// Fault that affects all images.
    pub(crate) fault: Option<&'a Fault>,
}

impl ImageReport {
    /// Returns the report. `plan_clone` determines how disks are cloned from an image; `None` if this is unknown.
    pub(crate) fn new(
        input: ReportInput<'_>,
        plan_clone: impl Fn(&DesiredImage) -> Option<ClonePlan>,
    ) -> Self {
        let ReportInput { desired, observed, states, .. } = input;
        let mut images: Vec<GoldenImageStatus> = Vec::new();
        let mut fallbacks: Vec<(ConditionReason, String)> = Vec::new();
        for (key, one) in desired {
            let Some(state) = states.get(key) else { continue };
            let plan = plan_clone(one);
            let reason = plan.as_ref().and_then(|plan| missing_object(&plan.reason));
            if let Some((reason, plan)) = reason.zip(plan.as_ref()) {
                fallbacks.push((reason, format!("{key}: {plan}")));
            }
            images.push(desired_status(key, one, state, observed, plan));
        }
        // Images that are not needed are last, so that they are left out first: tenants can create such objects in
        // their namespaces.
        let mut others: BTreeMap<&ImageKey, GoldenImageStatus> = BTreeMap::new();
        let volumes = observed.volumes.iter().map(|(key, one)| (key, &one.import, one.state.phase));
        let crons = observed.crons.iter();
        let crons = crons.map(|(key, one)| (key, &one.import, phase_of_cron(one.is_imported)));
        for (key, import, phase) in volumes.chain(crons) {
            if !desired.contains_key(key) {
                let users = observed.clones_of(key);
                others.entry(key).or_insert_with(|| unneeded_status(key, import, phase, users));
            }
        }
        images.extend(others.into_values());
        let omitted = images.len().saturating_sub(MAX_IMAGES);
        images.truncate(MAX_IMAGES);
        let omitted = u32::try_from(omitted).ok().filter(|omitted| *omitted > 0);
        Self { images, omitted, condition: condition(input, &fallbacks) }
    }

    /// Returns true if the reports differ only in the numbers of clones.
    pub(crate) fn differs_only_in_users(&self, other: &Self) -> bool {
        let without_users = |report: &Self| {
            let mut report = report.clone();
            report.images.iter_mut().for_each(|image| image.users = 0);
            report
        };
        self != other && without_users(self) == without_users(other)
    }
}

const fn phase_of_cron(is_imported: bool) -> GoldenImagePhase {
    if is_imported { GoldenImagePhase::Ready } else { GoldenImagePhase::Importing }
}

fn desired_status(
    key: &ImageKey,
    desired: &DesiredImage,
    state: &ImageState,
    observed: &ObservedImages,
    plan: Option<ClonePlan>,
) -> GoldenImageStatus {
    let image = &desired.image;
    let size = state.volume.as_ref().and_then(|volume| volume.size);
    let mut message = match state.phase {
        GoldenImagePhase::Ready => plan.as_ref().map(ToString::to_string),
        _ => state.message.clone(),
    };
    let is_announced =
        plan.as_ref().is_none_or(|plan| plan.strategy == CloneStrategy::HostAssisted);
    if !is_announced && observed.copied.contains(&key.name) {
        let copied = "but CDI has copied at least one disk with two pods: the annotation \
                      cdi.kubevirt.io/cloneFallbackReason of its claim has the reason";
        message = message.map(|message| format!("{message}; {copied}"));
    }
    if state.volume.as_ref().is_some_and(|volume| volume.ignores_checksum(&image.source)) {
        let unverified = "the checksum is not verified: CDI verifies checksums since version 1.65";
        message =
            Some(message.map_or_else(
                || unverified.to_owned(),
                |message| format!("{unverified}; {message}"),
            ));
    }
    GoldenImageStatus {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        source: truncate(&image.source.to_string(), MAX_SOURCE_LENGTH),
        storage_class: Some(image.storage_class.clone()).filter(|class| !class.is_empty()),
        size: size.or(image.size),
        phase: state.phase,
        strategy: plan.map(|plan| plan.strategy),
        message: message.map(|message| truncate(&message, MAX_MESSAGE_LENGTH)),
        users: observed.clones_of(key),
    }
}

/// Returns the status of an image that no machine needs.
fn unneeded_status(
    key: &ImageKey,
    import: &ObservedImport,
    phase: GoldenImagePhase,
    users: u32,
) -> GoldenImageStatus {
    GoldenImageStatus {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        source: truncate(&import.source, MAX_SOURCE_LENGTH),
        storage_class: Some(import.storage_class.clone()).filter(|class| !class.is_empty()),
        phase,
        users,
        ..GoldenImageStatus::default()
    }
}

/// Returns the reason of the condition if disks are copied in full because an object of the storage is missing.
const fn missing_object(reason: &CloneReason) -> Option<ConditionReason> {
    match reason {
        CloneReason::NoCsiDriver { .. } => Some(ConditionReason::CsiDriverMissing),
        CloneReason::NoVolumeSnapshotClass { .. }
        | CloneReason::UnsuitableVolumeSnapshotClass { .. } => {
            Some(ConditionReason::VolumeSnapshotClassMissing)
        }
        CloneReason::Override
        | CloneReason::StorageProfile
        | CloneReason::VolumeSnapshotClass { .. }
        | CloneReason::IncompatibleProvisioners { .. }
        | CloneReason::IncompatibleVolumeModes { .. }
        | CloneReason::NoVolumeExpansion { .. } => None,
    }
}

/// `fallbacks` are the images whose disks are copied in full because an object of the storage is missing.
fn condition(input: ReportInput<'_>, fallbacks: &[(ConditionReason, String)]) -> ConditionUpdate {
    let ReportInput { desired, states, fault, .. } = input;
    let update = |status, reason, message: String| ConditionUpdate {
        type_: GOLDEN_IMAGES_READY,
        status,
        reason,
        message: truncate(&message, 4000),
    };
    if let Some(Fault { reason, message }) = fault {
        return update("False", *reason, message.clone());
    }
    let in_phase = |is_in: fn(GoldenImagePhase) -> bool| -> Vec<String> {
        let found = states.iter().filter(|(_, state)| is_in(state.phase));
        found
            .filter_map(|(key, state)| {
                let source = desired.get(key).map(|one| &one.image.source)?;
                Some(describe(key, source, state))
            })
            .collect()
    };
    let failed = in_phase(|phase| phase == GoldenImagePhase::Failed);
    if !failed.is_empty() {
        let images = join_first(&failed, MAX_NAMED_IMAGES, "; ");
        let message = format!("imports that fail and are tried again: {images}");
        return update("False", ConditionReason::ImportFailed, message);
    }
    let pending = in_phase(|phase| phase != GoldenImagePhase::Ready);
    if !pending.is_empty() {
        let images = join_first(&pending, MAX_NAMED_IMAGES, "; ");
        let message = format!("images that are not imported yet: {images}");
        return update("False", ConditionReason::ImportsPending, message);
    }
    let message = format!("disks can be cloned from {} golden images", states.len());
    if let Some((reason, _)) = fallbacks.first() {
        let images: Vec<String> = fallbacks.iter().map(|(_, image)| image.clone()).collect();
        let images = join_first(&images, MAX_NAMED_IMAGES, "; ");
        return update("True", *reason, format!("{message}; {images}"));
    }
    update("True", ConditionReason::ImagesImported, message)
}

/// Describes the state of an image in one sentence: `images/image-1 of http://...: Failed: MESSAGE`. The progress is left
/// out, because it changes often.
pub(crate) fn describe(key: &ImageKey, source: &ImageSource, state: &ImageState) -> String {
    let source = truncate(&source.to_string(), MAX_SOURCE_LENGTH);
    let phase = state.phase;
    let message = state.message.as_ref().map(|message| truncate(message, MAX_MESSAGE_LENGTH));
    match message {
        Some(message) => format!("{key} of {source}: {phase:?}: {message}"),
        None => format!("{key} of {source}: {phase:?}"),
    }
}

fn truncate(text: &str, length: usize) -> String {
    text.chars().take(length).collect()
}

#[cfg(test)]
mod tests {
    use berth_kubevirt_render::images::{CloneReason, DataVolumeState};
    use serde_json::json;

    use super::*;
    use crate::images::desired::desired_images;
    use crate::images::desired::tests::{golden_image, image_use};
    use crate::images::observed::ObservedVolume;
    use crate::images::state::image_states;

    fn volume(phase: GoldenImagePhase, message: Option<&str>) -> ObservedVolume {
        let message = message.map(str::to_owned);
        let state = DataVolumeState { phase, message, ..DataVolumeState::default() };
        ObservedVolume { state, ..ObservedVolume::default() }
    }

    /// Returns a report about images in these phases, each with a DataSource and `clones` clones.
    fn report(phases: &[(GoldenImagePhase, Option<&str>)], clones: u32) -> ImageReport {
        report_with(phases, clones, CloneStrategy::CsiClone, &CloneReason::StorageProfile)
    }

    /// Returns a report like [`report`], with this strategy of clones and its reason.
    fn report_with(
        phases: &[(GoldenImagePhase, Option<&str>)],
        clones: u32,
        strategy: CloneStrategy,
        reason: &CloneReason,
    ) -> ImageReport {
        let images: Vec<_> =
            (0..phases.len()).map(|at| golden_image("images", &format!("{at}.img"))).collect();
        let uses: Vec<_> = images.iter().map(|image| image_use(image, "10Gi")).collect();
        let desired = desired_images(uses.iter().map(|one| ("images", one)));
        let mut observed = ObservedImages::default();
        for (image, (phase, message)) in images.iter().zip(phases) {
            let key = ImageKey::of_image(image);
            observed.volumes.insert(key.clone(), volume(*phase, *message));
            observed.sources.insert(key.clone(), json!({}));
            observed.clones.insert(key.name, clones);
        }
        let states = image_states(&desired, &observed, &BTreeMap::new());
        let input =
            ReportInput { desired: &desired, observed: &observed, states: &states, fault: None };
        ImageReport::new(input, |_| {
            Some(ClonePlan { strategy, reason: reason.clone(), waits_for_source: false })
        })
    }

    #[test]
    fn the_condition_has_the_message_of_cdi() {
        use GoldenImagePhase::{Failed, Importing, Ready};
        let all_ready = report(&[(Ready, None), (Ready, None)], 3);
        assert_eq!(all_ready.condition.reason, ConditionReason::ImagesImported);
        let message = all_ready.images[0].message.as_deref();
        assert_eq!(message, Some("CSI clone: the StorageProfile selects it"));
        assert_eq!(all_ready.images[0].strategy, Some(CloneStrategy::CsiClone));
        assert_eq!(all_ready.images[0].users, 3);
        let pending = report(&[(Ready, None), (Importing, None)], 0);
        assert_eq!(pending.condition.reason, ConditionReason::ImportsPending);
        let failed = report(&[(Importing, None), (Failed, Some("checksum mismatch"))], 0);
        assert_eq!(failed.condition.reason, ConditionReason::ImportFailed);
        assert!(failed.condition.message.ends_with("Failed: checksum mismatch"), "{failed:?}");
        assert_eq!(report(&[], 0).condition.status, "True");
    }

    #[test]
    fn a_copy_that_was_not_announced_is_reported() {
        let image = golden_image("images", "a.img");
        let (key, one) = (ImageKey::of_image(&image), image_use(&image, "10Gi"));
        let desired = desired_images([("images", &one)]);
        let mut observed = ObservedImages::default();
        observed.copied.insert(key.name.clone());
        let ready = ImageState { phase: GoldenImagePhase::Ready, ..ImageState::default() };
        let message = |strategy: CloneStrategy| {
            let reason = CloneReason::StorageProfile;
            let plan = ClonePlan { strategy, reason, waits_for_source: false };
            let status = desired_status(&key, &desired[&key], &ready, &observed, Some(plan));
            status.message.unwrap()
        };
        assert!(message(CloneStrategy::CsiClone).contains("cloneFallbackReason"));
        assert!(!message(CloneStrategy::HostAssisted).contains("cloneFallbackReason"));
    }

    #[test]
    fn missing_objects_of_the_storage_are_the_reason() {
        use GoldenImagePhase::{Importing, Ready};
        let (driver, provisioner) = ("a.csi".to_owned(), "a.csi".to_owned());
        for (cause, expected) in [
            (CloneReason::NoCsiDriver { provisioner }, ConditionReason::CsiDriverMissing),
            (
                CloneReason::NoVolumeSnapshotClass { driver },
                ConditionReason::VolumeSnapshotClassMissing,
            ),
        ] {
            let of_phase = |phase: GoldenImagePhase| {
                report_with(&[(phase, None)], 0, CloneStrategy::HostAssisted, &cause).condition
            };
            let ready = of_phase(Ready);
            assert_eq!((ready.status, ready.reason), ("True", expected));
            assert!(ready.message.contains("a.csi"), "{}", ready.message);
            assert_eq!(of_phase(Importing).reason, ConditionReason::ImportsPending);
        }
    }

    #[test]
    fn the_status_has_a_maximum_length() {
        let many = vec![(GoldenImagePhase::Ready, None); 300];
        let report = report(&many, 0);
        assert_eq!((report.images.len(), report.omitted), (256, Some(44)));
    }

    #[test]
    fn numbers_of_clones_are_compared_separately() {
        let with = |clones: u32| report(&[(GoldenImagePhase::Ready, None)], clones);
        assert!(with(1).differs_only_in_users(&with(2)));
        assert!(!with(1).differs_only_in_users(&with(1)));
        let other = report(&[(GoldenImagePhase::Importing, None)], 2);
        assert!(!with(1).differs_only_in_users(&other));
    }

    #[test]
    fn a_fault_of_all_images_has_precedence() {
        let fault = Fault::new(ConditionReason::CrdMissing, "CDI is not installed".to_owned());
        let (desired, observed) = (DesiredImages::new(), ObservedImages::default());
        let states = ImageStates::new();
        let input = ReportInput {
            desired: &desired,
            observed: &observed,
            states: &states,
            fault: Some(&fault),
        };
        let report = ImageReport::new(input, |_| None);
        assert_eq!(report.condition.reason, ConditionReason::CrdMissing);
        assert_eq!(report.images, []);
    }
}
