//! State of the reconciler of golden images that is kept in memory only. If it is lost, some requests are repeated
//! earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use berth_api::{Images, InfraStorageClass};
use berth_kubevirt_render::images::StorageProfile;
use berth_kubevirt_render::machines::reconcile_steps::backoff_seconds;
use berth_kubevirt_render::machines::{RenderContext, StorageClass};

use crate::images::desired::Grant;
use crate::images::key::ImageKey;

/// State of the reconciler of golden images.
#[derive(Default)]
pub(super) struct ImageMemory {
    /// Refused and failed imports.
    pub(super) failures: BTreeMap<ImageKey, ImportFailure>,
    /// Permissions that were refused, with the messages of the API server.
    pub(super) refused_grants: BTreeMap<Grant, String>,
    /// UIDs of objects that were deleted, and that the stores may still contain.
    pub(super) deleted: BTreeSet<String>,
    /// Earliest time of the next check whether unused images can be deleted.
    pub(super) next_deletion: Option<Instant>,
    /// Time of the last report.
    pub(super) reported_at: Option<Instant>,
    input: Option<RenderInput>,
    /// Time of the last change of `input`.
    input_changed_at: Option<Instant>,
}

/// Failed import of an image.
#[derive(Default)]
pub(super) struct ImportFailure {
    /// Number of consecutive failures.
    count: u32,
    /// Time of the next attempt; `None` while an attempt is in progress.
    retry_at: Option<Instant>,
    /// Message of the API server, if it refused the import.
    message: Option<String>,
}

/// Change of the input from which golden images of machines result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputChange {
    /// The input is known for the first time.
    First,
    /// The input has changed.
    Changed,
    /// The input is the same.
    Same,
}

/// Input from which the machines of all MachineDeployments are rendered, and which determines their golden images.
#[derive(Clone, PartialEq)]
struct RenderInput {
    images: Option<Images>,
    listed_classes: Vec<InfraStorageClass>,
    classes: BTreeMap<String, StorageClass>,
    profiles: BTreeMap<String, StorageProfile>,
}

impl ImageMemory {
    /// Compares the input from which the golden images of machines result with the previous input.
    pub(super) fn update_input(&mut self, context: &RenderContext) -> InputChange {
        let input = RenderInput {
            images: context.config.images.clone(),
            listed_classes: context.config.infra_storage_classes.clone(),
            classes: context.storage_classes.clone(),
            profiles: context.storage_profiles.clone(),
        };
        let change = match &self.input {
            None => InputChange::First,
            Some(before) if *before == input => InputChange::Same,
            Some(_) => InputChange::Changed,
        };
        if change != InputChange::Same {
            self.input_changed_at = Some(Instant::now());
        }
        self.input = Some(input);
        change
    }

    /// Returns the time since the last change of the input.
    pub(super) fn input_age(&self) -> Duration {
        self.input_changed_at.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Forgets the input, so that the next one is the first. Returns true if it was known.
    pub(super) fn forget_input(&mut self) -> bool {
        self.input.take().is_some()
    }

    /// Returns true if an import may be created now.
    pub(super) fn may_create(&self, key: &ImageKey) -> bool {
        let retry_at = self.failures.get(key).and_then(|failure| failure.retry_at);
        retry_at.is_none_or(|at| at <= Instant::now())
    }

    /// Returns true if an import that CDI does not try again may be deleted now. The first call after each failure begins
    /// a backoff.
    pub(super) fn may_retry(&mut self, key: &ImageKey) -> bool {
        let failure = self.failures.entry(key.clone()).or_default();
        if failure.retry_at.is_none() {
            failure.begin_backoff(None);
        }
        self.may_create(key)
    }

    /// Records that the API server refused an import. The next attempt follows after a backoff.
    pub(super) fn record_refusal(&mut self, key: &ImageKey, message: String) {
        self.failures.entry(key.clone()).or_default().begin_backoff(Some(message));
    }

    /// Records that an attempt is in progress. If it fails, the next backoff is longer.
    pub(super) fn record_attempt(&mut self, key: &ImageKey) {
        if let Some(failure) = self.failures.get_mut(key) {
            failure.retry_at = None;
            failure.message = None;
        }
    }

    /// Returns the messages of refused imports.
    pub(super) fn refusals(&self) -> BTreeMap<ImageKey, String> {
        let failures = self.failures.iter();
        failures
            .filter_map(|(key, failure)| Some((key.clone(), failure.message.clone()?)))
            .collect()
    }

    /// Returns the time until the next attempt of a failed import; `None` if there is none.
    pub(super) fn next_retry(&self) -> Option<Duration> {
        let now = Instant::now();
        let retries = self.failures.values().filter_map(|failure| failure.retry_at);
        retries.map(|at| at.saturating_duration_since(now)).filter(|rest| !rest.is_zero()).min()
    }
}

impl ImportFailure {
    fn begin_backoff(&mut self, message: Option<String>) {
        self.count = self.count.saturating_add(1);
        let backoff = Duration::from_secs(backoff_seconds(self.count).into());
        self.retry_at = Instant::now().checked_add(backoff);
        self.message = message;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ImageKey {
        ImageKey { namespace: "images".to_owned(), name: "image-1".to_owned() }
    }

    #[test]
    fn each_failure_prolongs_the_backoff() {
        let mut memory = ImageMemory::default();
        assert!(memory.may_create(&key()));
        assert_eq!(memory.next_retry(), None);
        assert!(!memory.may_retry(&key()), "the first failure should begin a backoff");
        let first = memory.next_retry().unwrap();
        assert!(first > Duration::from_secs(5) && first <= Duration::from_secs(10), "{first:?}");
        assert!(!memory.may_retry(&key()));
        assert!(
            memory.next_retry().unwrap() <= first,
            "a second call should not prolong the backoff"
        );
        memory.record_attempt(&key());
        assert!(memory.may_create(&key()));
        assert!(!memory.may_retry(&key()), "the second failure should begin another backoff");
        assert!(memory.next_retry().unwrap() > Duration::from_secs(15));
        memory.record_refusal(&key(), "exceeded quota".to_owned());
        assert!(!memory.may_create(&key()));
        assert_eq!(memory.refusals().len(), 1);
        assert!(memory.next_retry().unwrap() > Duration::from_secs(35));
    }

    #[test]
    fn only_a_changed_input_is_reported() {
        let mut memory = ImageMemory::default();
        let mut context = RenderContext::default();
        assert_eq!(memory.update_input(&context), InputChange::First);
        assert_eq!(memory.update_input(&context), InputChange::Same);
        context.config.images = Some(Images { golden: Some(true), ..Images::default() });
        assert_eq!(memory.update_input(&context), InputChange::Changed);
        context.storage_profiles.insert("fast".to_owned(), StorageProfile::default());
        assert_eq!(memory.update_input(&context), InputChange::Changed);
        assert_eq!(memory.update_input(&context), InputChange::Same);
        assert!(memory.forget_input() && !memory.forget_input());
        assert_eq!(memory.update_input(&context), InputChange::First);
    }
}
