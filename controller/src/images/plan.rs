//! Plans the changes of the objects of golden images.

use std::collections::BTreeSet;

use berth_api::{GarbageCollect, Images};
use berth_kubevirt_render::images::{ExistingImage, images_to_delete};
use serde_json::Value;

use super::desired::{DesiredImage, DesiredImages};
use super::key::ImageKey;
use super::observed::{ObservedCron, ObservedImages, ObservedVolume, changeable_fields};

/// A change of the objects of a golden image. There are no other changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ImageChange {
    /// Creates the DataVolume or DataImportCron that imports the image.
    CreateImport(Value),
    /// Applies the DataSource to which disks refer.
    ApplyDataSource(Value),
    /// Deletes the DataImportCron with this UID, because CDI permits no change of its spec. Its imports stay.
    DeleteCron(String),
    /// Deletes the DataVolume with this UID, whose import has failed and is not tried again. The next plan creates it.
    DeleteFailedImport(String),
    /// Deletes all objects of an image that no machine needs.
    DeleteImage,
}

/// Returns the changes, in the order in which they must be made.
pub(crate) fn plan(
    desired: &DesiredImages,
    observed: &ObservedImages,
    images: &Images,
) -> Vec<(ImageKey, ImageChange)> {
    let mut changes = Vec::new();
    for (key, one) in desired.iter().filter(|(_, one)| one.obstacle.is_none()) {
        let of_image: Vec<ImageChange> = match one.image.schedule {
            Some(_) => cron_change(one, observed.crons.get(key), images).into_iter().collect(),
            None => volume_changes(key, one, observed, images).unwrap_or_default(),
        };
        changes.extend(of_image.into_iter().map(|change| (key.clone(), change)));
    }
    let unused = unused_images(desired, observed, images);
    changes.extend(unused.into_iter().map(|key| (key, ImageChange::DeleteImage)));
    changes
}

/// Returns the objects that import the image, beginning with the DataVolume or DataImportCron.
fn image_objects(desired: &DesiredImage, images: &Images) -> Vec<Value> {
    let smallest = desired.smallest_disk;
    let size = desired.image.volume_size([smallest]).unwrap_or(smallest);
    desired.image.objects(size, images)
}

fn cron_change(
    desired: &DesiredImage,
    cron: Option<&ObservedCron>,
    images: &Images,
) -> Option<ImageChange> {
    let wanted = image_objects(desired, images).into_iter().next()?;
    match cron {
        None => Some(ImageChange::CreateImport(wanted)),
        Some(cron) if cron.import.is_deleting => None,
        Some(cron) if cron.settings == changeable_fields(&wanted["spec"]) => None,
        Some(cron) => Some(ImageChange::DeleteCron(cron.import.uid.clone())),
    }
}

/// Returns the changes of an image without a schedule; `None` does not occur, because such an image has two objects.
fn volume_changes(
    key: &ImageKey,
    desired: &DesiredImage,
    observed: &ObservedImages,
    images: &Images,
) -> Option<Vec<ImageChange>> {
    // A DataImportCron would change the DataSource again.
    if let Some(ObservedCron { import, .. }) = observed.crons.get(key) {
        let delete = ImageChange::DeleteCron(import.uid.clone());
        return Some(if import.is_deleting { Vec::new() } else { vec![delete] });
    }
    let mut objects = image_objects(desired, images).into_iter();
    let (volume, source) = (objects.next()?, objects.next()?);
    let mut changes = Vec::new();
    match observed.volumes.get(key) {
        None => changes.push(ImageChange::CreateImport(volume)),
        Some(ObservedVolume { import, state }) if state.has_ended && !import.is_deleting => {
            changes.push(ImageChange::DeleteFailedImport(import.uid.clone()));
        }
        Some(_) => {}
    }
    if observed.sources.get(key) != Some(&source["spec"]) {
        changes.push(ImageChange::ApplyDataSource(source));
    }
    Some(changes)
}

/// Returns the images to delete: those that no machine needs, and incompletely deleted images.
fn unused_images(
    desired: &DesiredImages,
    observed: &ObservedImages,
    images: &Images,
) -> BTreeSet<ImageKey> {
    if images.garbage_collect.unwrap_or_default() == GarbageCollect::Never {
        return BTreeSet::new();
    }
    let volumes = observed.volumes.iter().map(|(key, volume)| (key, &volume.import));
    let crons = observed.crons.iter().map(|(key, cron)| (key, &cron.import));
    let existing = volumes.chain(crons).filter(|(_, import)| !import.is_deleting);
    let existing: Vec<ExistingImage> = existing
        .map(|(key, import)| ExistingImage {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            source: import.source.clone(),
            storage_class: import.storage_class.clone(),
            creation_time: import.creation_time,
            is_desired: desired.contains_key(key),
            users: observed.clones_of(key),
        })
        .collect();
    let unused = images_to_delete(&existing, images)
        .into_iter()
        .map(|image| ImageKey { namespace: image.namespace.clone(), name: image.name.clone() });
    let parts = observed.sources.keys().chain(observed.imports.keys());
    let remains = parts.filter(|key| {
        let is_whole = observed.volumes.contains_key(*key) || observed.crons.contains_key(*key);
        !is_whole && !desired.contains_key(*key) && observed.clones_of(key) == 0
    });
    unused.chain(remains.cloned()).collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
