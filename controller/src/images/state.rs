//! State of golden images, on which the creation of machines depends.

use std::collections::BTreeMap;

use berth_api::GoldenImagePhase;
use berth_kubevirt_render::images::DataVolumeState;

use super::desired::{DesiredImage, DesiredImages};
use super::key::ImageKey;
use super::observed::ObservedImages;

/// State of a golden image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageState {
    pub(crate) phase: GoldenImagePhase,
    /// Reason why the image is not ready, without credentials.
    pub(crate) message: Option<String>,
    /// DataVolume of the image.
    pub(crate) volume: Option<DataVolumeState>,
}

/// States of the golden images that are needed.
pub(crate) type ImageStates = BTreeMap<ImageKey, ImageState>;

/// Returns the states of the desired images. `failures` has the messages of requests that the API server refused.
pub(crate) fn image_states(
    desired: &DesiredImages,
    observed: &ObservedImages,
    failures: &BTreeMap<ImageKey, String>,
) -> ImageStates {
    let states = desired.iter().map(|(key, one)| {
        let state = match (&one.obstacle, failures.get(key)) {
            (Some(obstacle), _) => pending(obstacle.clone()),
            (None, Some(failure)) => ImageState {
                phase: GoldenImagePhase::Failed,
                message: Some(one.image.source.redact(failure)),
                volume: None,
            },
            (None, None) => import_state(key, one, observed),
        };
        (key.clone(), state)
    });
    states.collect()
}

fn pending(message: String) -> ImageState {
    ImageState { message: Some(message), ..ImageState::default() }
}

fn import_state(key: &ImageKey, desired: &DesiredImage, observed: &ObservedImages) -> ImageState {
    let redact = |message: &String| desired.image.source.redact(message);
    if desired.image.schedule.is_some() {
        return match observed.crons.get(key) {
            Some(cron) if cron.is_imported => {
                ImageState { phase: GoldenImagePhase::Ready, ..ImageState::default() }
            }
            Some(cron) => {
                let message = cron.message.as_ref().map(redact);
                ImageState { phase: GoldenImagePhase::Importing, message, volume: None }
            }
            None => pending("the DataImportCron does not exist yet".to_owned()),
        };
    }
    let Some(volume) = observed.volumes.get(key) else {
        return pending("the DataVolume does not exist yet".to_owned());
    };
    if volume.import.is_deleting {
        return pending("the DataVolume is being deleted".to_owned());
    }
    let state = &volume.state;
    if state.phase == GoldenImagePhase::Ready && !observed.sources.contains_key(key) {
        let message = Some("the DataSource does not exist yet".to_owned());
        return ImageState {
            phase: GoldenImagePhase::Importing,
            message,
            volume: Some(state.clone()),
        };
    }
    let message = state.message.as_ref().map(redact);
    ImageState { phase: state.phase, message, volume: Some(state.clone()) }
}

#[cfg(test)]
mod tests {
    use berth_kubevirt_render::images::{HttpSource, ImageSource};
    use serde_json::json;

    use super::*;
    use crate::images::desired::desired_images;
    use crate::images::desired::tests::{golden_image, image_use};
    use crate::images::observed::{ObservedCron, ObservedVolume};

    fn state_of(
        change: impl FnOnce(&ImageKey, &mut DesiredImages, &mut ObservedImages),
    ) -> ImageState {
        let mut image = golden_image("images", "a.img");
        let url = "http://user:secret@images/a.img".to_owned();
        image.source = ImageSource::Http(HttpSource { url, ..HttpSource::default() });
        let (key, golden_use) = (ImageKey::of_image(&image), image_use(&image, "10Gi"));
        let mut desired = desired_images([("images", &golden_use)]);
        let mut observed = ObservedImages::default();
        change(&key, &mut desired, &mut observed);
        image_states(&desired, &observed, &BTreeMap::new()).remove(&key).unwrap()
    }

    fn volume(phase: GoldenImagePhase, message: Option<&str>) -> ObservedVolume {
        let message = message.map(str::to_owned);
        let state = DataVolumeState { phase, message, ..DataVolumeState::default() };
        ObservedVolume { state, ..ObservedVolume::default() }
    }

    #[test]
    fn an_image_is_ready_with_its_data_source() {
        let with = |phase: GoldenImagePhase, has_source: bool| {
            state_of(|key, _, observed| {
                observed.volumes.insert(key.clone(), volume(phase, None));
                if has_source {
                    observed.sources.insert(key.clone(), json!({}));
                }
            })
        };
        assert_eq!(with(GoldenImagePhase::Ready, true).phase, GoldenImagePhase::Ready);
        assert_eq!(with(GoldenImagePhase::Ready, false).phase, GoldenImagePhase::Importing);
        assert_eq!(with(GoldenImagePhase::Importing, true).phase, GoldenImagePhase::Importing);
        assert_eq!(state_of(|_, _, _| {}).phase, GoldenImagePhase::Pending);
    }

    #[test]
    fn messages_have_no_credentials() {
        let message = "Get http://user:secret@images/a.img: checksum mismatch";
        let failed = state_of(|key, _, observed| {
            let failed = volume(GoldenImagePhase::Failed, Some(message));
            observed.volumes.insert(key.clone(), failed);
        });
        assert_eq!(failed.phase, GoldenImagePhase::Failed);
        assert_eq!(failed.message.unwrap(), "Get http://images/a.img: checksum mismatch");
    }

    #[test]
    fn an_obstacle_and_a_deletion_make_an_image_unavailable() {
        let waiting = state_of(|key, desired, observed| {
            observed.volumes.insert(key.clone(), volume(GoldenImagePhase::Ready, None));
            desired.get_mut(key).unwrap().obstacle = Some("why".to_owned());
        });
        assert_eq!(
            (waiting.phase, waiting.message.as_deref()),
            (GoldenImagePhase::Pending, Some("why"))
        );
        let deleting = state_of(|key, _, observed| {
            let mut deleting = volume(GoldenImagePhase::Ready, None);
            deleting.import.is_deleting = true;
            observed.volumes.insert(key.clone(), deleting);
        });
        assert_eq!(deleting.phase, GoldenImagePhase::Pending);
    }

    #[test]
    fn an_image_with_a_schedule_is_ready_after_its_first_import() {
        let with = |is_imported: bool| {
            state_of(|key, desired, observed| {
                desired.get_mut(key).unwrap().image.schedule = Some("@daily".to_owned());
                let cron = ObservedCron { is_imported, ..ObservedCron::default() };
                observed.crons.insert(key.clone(), cron);
            })
        };
        assert_eq!(with(true).phase, GoldenImagePhase::Ready);
        assert_eq!(with(false).phase, GoldenImagePhase::Importing);
    }
}
