//! Golden images that are deleted because no machine uses them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use berth_api::{GarbageCollect, Images};

/// A golden image that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExistingImage {
    /// Namespace of the golden image.
    pub namespace: String,
    /// Name of the golden image.
    pub name: String,
    /// The image without its checksum, in the annotation [`IMAGE_SOURCE_ANNOTATION`](berth_api::names::IMAGE_SOURCE_ANNOTATION).
    pub source: String,
    /// Storage class of the volume.
    pub storage_class: String,
    /// Creation time, in seconds since the epoch.
    pub creation_time: i64,
    /// True if a MachineDeployment or an entry of the catalog with `preload` needs the image.
    pub is_desired: bool,
    /// Number of disks that are clones, including those of machines that are being deleted.
    pub users: u32,
}

/// Returns the golden images to delete. An image with clones is never deleted: depending on the storage, a clone shares
/// its blocks with the image, and the storage may refuse the deletion or keep the space. Of the other images that are
/// not desired, the most recent ones of each image, storage class and namespace stay, so that a machine with an earlier
/// checksum does not need another import.
#[must_use]
pub fn images_to_delete<'e>(
    existing: &'e [ExistingImage],
    images: &Images,
) -> Vec<&'e ExistingImage> {
    if images.garbage_collect.unwrap_or_default() == GarbageCollect::Never {
        return Vec::new();
    }
    let mut unused: BTreeMap<_, Vec<&ExistingImage>> = BTreeMap::new();
    for image in existing.iter().filter(|image| !image.is_desired && image.users == 0) {
        let series = (&image.namespace, &image.source, &image.storage_class);
        unused.entry(series).or_default().push(image);
    }
    let keep_last = usize::try_from(images.keep_last()).unwrap_or(usize::MAX);
    let mut deleted = Vec::new();
    for mut series in unused.into_values() {
        series.sort_by_key(|image| (Reverse(image.creation_time), image.name.clone()));
        deleted.extend(series.into_iter().skip(keep_last));
    }
    deleted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn image(name: &str, class: &str, creation_time: i64) -> ExistingImage {
        ExistingImage {
            namespace: "images".to_owned(),
            name: name.to_owned(),
            source: "http://images/a.img".to_owned(),
            storage_class: class.to_owned(),
            creation_time,
            ..ExistingImage::default()
        }
    }

    fn deleted_names(existing: &[ExistingImage], images: serde_json::Value) -> Vec<String> {
        let images = serde_json::from_value(images).unwrap();
        images_to_delete(existing, &images).iter().map(|image| image.name.clone()).collect()
    }

    #[test]
    fn the_most_recent_unused_images_stay() {
        let mut existing =
            vec![image("a", "fast", 1), image("b", "fast", 3), image("c", "fast", 2)];
        existing.push(image("d", "slow", 0));
        assert_eq!(deleted_names(&existing, json!({})), ["c", "a"]);
        assert_eq!(deleted_names(&existing, json!({"keepLast": 2})), ["a"]);
        assert_eq!(deleted_names(&existing, json!({"keepLast": 0})), ["b", "c", "a", "d"]);
        assert_eq!(
            deleted_names(&existing, json!({"keepLast": 0, "garbageCollect": "Never"})),
            Vec::<String>::new()
        );
    }

    proptest! {
        #[test]
        fn an_image_that_is_needed_or_has_clones_is_never_deleted(
            states in prop::collection::vec((any::<bool>(), 0_u32..3, 0_i64..5), 0..12),
            keep_last in 0_u32..3,
        ) {
            let existing: Vec<ExistingImage> = states
                .iter()
                .enumerate()
                .map(|(at, (is_desired, users, creation_time))| ExistingImage {
                    is_desired: *is_desired,
                    users: *users,
                    ..image(&at.to_string(), "fast", *creation_time)
                })
                .collect();
            let images = serde_json::from_value(json!({"keepLast": keep_last})).unwrap();
            let deleted = images_to_delete(&existing, &images);
            prop_assert!(deleted.iter().all(|image| !image.is_desired && image.users == 0));
            let unused = existing.iter().filter(|image| !image.is_desired && image.users == 0).count();
            let kept = unused.saturating_sub(deleted.len());
            prop_assert_eq!(kept, unused.min(usize::try_from(keep_last).unwrap()));
        }
    }
}
