//! Tests of the plan of golden images.

use std::slice::from_ref;

use berth_api::GoldenImagePhase;
use berth_kubevirt_render::images::{DataVolumeState, GoldenImage, ImageSource, RegistrySource};
use proptest::prelude::*;
use serde_json::json;

use super::super::desired::desired_images;
use super::super::desired::tests::{golden_image, image_use};
use super::super::observed::ObservedImport;
use super::*;

fn images(value: Value) -> Images {
    serde_json::from_value(value).unwrap()
}

fn desired(all: &[GoldenImage]) -> DesiredImages {
    let uses: Vec<_> = all.iter().map(|image| image_use(image, "10Gi")).collect();
    desired_images(uses.iter().map(|one| ("images", one)))
}

fn scheduled_image() -> GoldenImage {
    let source = RegistrySource {
        url: "docker://registry/rhel:9".to_owned(),
        pull_method: "node".to_owned(),
        ..RegistrySource::default()
    };
    GoldenImage {
        source: ImageSource::Registry(source),
        schedule: Some("@daily".to_owned()),
        ..golden_image("images", "a.img")
    }
}

fn volume(uid: &str, state: DataVolumeState) -> ObservedVolume {
    let import = ObservedImport { uid: uid.to_owned(), ..ObservedImport::default() };
    ObservedVolume { import, state }
}

/// Returns the state after the changes were made.
fn after(changes: Vec<(ImageKey, ImageChange)>, mut observed: ObservedImages) -> ObservedImages {
    for (key, change) in changes {
        match change {
            ImageChange::CreateImport(object) if object["kind"] == "DataImportCron" => {
                let settings = changeable_fields(&object["spec"]);
                let cron = ObservedCron { settings, ..ObservedCron::default() };
                observed.crons.insert(key, cron);
            }
            ImageChange::CreateImport(_) => {
                observed.volumes.insert(key, volume("new", DataVolumeState::default()));
            }
            ImageChange::ApplyDataSource(object) => {
                observed.sources.insert(key, object["spec"].clone());
            }
            ImageChange::DeleteCron(_) => drop(observed.crons.remove(&key)),
            ImageChange::DeleteFailedImport(_) => drop(observed.volumes.remove(&key)),
            ImageChange::DeleteImage => {
                observed.crons.remove(&key);
                observed.volumes.remove(&key);
                observed.sources.remove(&key);
                observed.imports.remove(&key);
            }
        }
    }
    observed
}

#[test]
fn a_second_plan_is_empty() {
    let desired = desired(&[golden_image("images", "a.img"), scheduled_image()]);
    let config = Images::default();
    let changes = plan(&desired, &ObservedImages::default(), &config);
    let kinds: Vec<&str> = changes
        .iter()
        .filter_map(|(_, change)| match change {
            ImageChange::CreateImport(object) | ImageChange::ApplyDataSource(object) => {
                object["kind"].as_str()
            }
            _ => None,
        })
        .collect();
    assert_eq!(kinds.len(), 3, "{changes:?}");
    for kind in ["DataVolume", "DataSource", "DataImportCron"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let observed = after(changes, ObservedImages::default());
    assert_eq!(plan(&desired, &observed, &config), []);
}

#[test]
fn an_import_with_an_obstacle_is_not_created() {
    let mut desired = desired(&[golden_image("images", "a.img")]);
    for one in desired.values_mut() {
        one.obstacle = Some("StorageClass fast does not exist".to_owned());
    }
    assert_eq!(plan(&desired, &ObservedImages::default(), &Images::default()), []);
}

#[test]
fn a_failed_import_is_created_again_only_if_cdi_has_ended() {
    let image = golden_image("images", "a.img");
    let (key, desired) = (ImageKey::of_image(&image), desired(&[image]));
    let changes = |has_ended: bool, is_deleting: bool| {
        let mut observed = ObservedImages::default();
        let phase = GoldenImagePhase::Failed;
        let mut failed = volume("u", DataVolumeState { phase, has_ended, ..Default::default() });
        failed.import.is_deleting = is_deleting;
        observed.volumes.insert(key.clone(), failed);
        let mut changes = plan(&desired, &observed, &Images::default());
        changes.retain(|(_, change)| !matches!(change, ImageChange::ApplyDataSource(_)));
        changes
    };
    assert_eq!(changes(false, false), []);
    let delete = ImageChange::DeleteFailedImport("u".to_owned());
    assert_eq!(changes(true, false), [(key.clone(), delete)]);
    assert_eq!(changes(true, true), []);
}

#[test]
fn a_changed_schedule_replaces_the_cron_and_keeps_its_imports() {
    let image = scheduled_image();
    let key = ImageKey::of_image(&image);
    let config = Images::default();
    let first = plan(&desired(from_ref(&image)), &ObservedImages::default(), &config);
    let mut observed = after(first, ObservedImages::default());
    observed.imports.insert(key.clone(), 2);
    let changed = desired(&[GoldenImage { schedule: Some("@weekly".to_owned()), ..image.clone() }]);
    let delete = ImageChange::DeleteCron(String::new());
    assert_eq!(plan(&changed, &observed, &config), [(key.clone(), delete.clone())]);
    // Without a schedule, the DataVolume imports the image only after the DataImportCron is deleted.
    let once = desired(&[GoldenImage { schedule: None, ..image }]);
    assert_eq!(plan(&once, &observed, &config), [(key.clone(), delete)]);
    observed.crons.clear();
    assert_eq!(plan(&once, &observed, &config).len(), 2);
    assert!(!observed.imports.is_empty());
}

#[test]
fn incompletely_deleted_images_are_deleted() {
    let image = golden_image("images", "a.img");
    let key = ImageKey::of_image(&image);
    let config = images(json!({"keepLast": 3}));
    let mut observed = ObservedImages::default();
    observed.sources.insert(key.clone(), json!({}));
    let expected = [(key.clone(), ImageChange::DeleteImage)];
    assert_eq!(plan(&DesiredImages::new(), &observed, &config), expected);
    observed.clones.insert(key.name.clone(), 1);
    assert_eq!(plan(&DesiredImages::new(), &observed, &config), []);
    observed.clones.clear();
    let never = images(json!({"garbageCollect": "Never"}));
    assert_eq!(plan(&DesiredImages::new(), &observed, &never), []);
    // If the image is desired, its missing objects are created instead.
    let changes = plan(&desired(&[image]), &observed, &config);
    assert!(changes.iter().all(|(_, change)| *change != ImageChange::DeleteImage), "{changes:?}");
}

proptest! {
    #[test]
    fn no_image_that_is_needed_or_has_clones_is_deleted(
        states in prop::collection::vec((any::<bool>(), 0_u32..3, any::<bool>(), any::<bool>()), 0..8),
        keep_last in 0_u32..3,
    ) {
        let mut observed = ObservedImages::default();
        let mut needed = Vec::new();
        for (at, (is_needed, clones, has_volume, has_source)) in states.iter().enumerate() {
            let image = golden_image("images", &format!("{at}.img"));
            let key = ImageKey::of_image(&image);
            if *has_volume {
                observed.volumes.insert(key.clone(), volume("u", DataVolumeState::default()));
            }
            if *has_source {
                observed.sources.insert(key.clone(), json!({}));
            }
            observed.clones.insert(key.name.clone(), *clones);
            if *is_needed {
                needed.push(image);
            }
        }
        let desired = desired(&needed);
        let config = images(json!({"keepLast": keep_last}));
        let changes = plan(&desired, &observed, &config);
        for (key, change) in &changes {
            if *change == ImageChange::DeleteImage {
                prop_assert!(!desired.contains_key(key));
                prop_assert_eq!(observed.clones_of(key), 0);
            }
        }
        let observed = after(changes, observed);
        prop_assert_eq!(plan(&desired, &observed, &config), vec![]);
    }
}
