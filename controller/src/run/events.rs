//! Emits Events about objects. Events are lost while the API server is unavailable, so the state is also in
//! conditions.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_runtime::events::{MAX_NOTE_BYTES, publish_event};
use berth_runtime::token_bucket::TokenBucket;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};

/// Maximum number of Events about one object that are emitted at once, and the time after which one more Event is
/// allowed. client-go's event correlator has the same values.
const EVENT_RATE_LIMIT: (u32, Duration) = (25, Duration::from_secs(300));

/// Emits Events, with a rate limit for each object.
pub struct EventEmitter {
    recorder: Recorder,
    rate_limits: Mutex<HashMap<String, TokenBucket>>,
}

impl std::fmt::Debug for EventEmitter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl EventEmitter {
    /// Returns an emitter. `identity` becomes `reportingInstance` of the Events.
    #[must_use]
    pub fn new(client: Client, identity: &str) -> Self {
        let reporter = Reporter {
            controller: CONTROLLER_FIELD_MANAGER.to_owned(),
            instance: Some(identity.to_owned()),
        };
        Self { recorder: Recorder::new(client, reporter), rate_limits: Mutex::default() }
    }

    /// Emits a warning Event about an object.
    pub async fn warn<K: Resource<DynamicType = ()>>(&self, object: &K, reason: &str, note: &str) {
        self.warn_for(object.object_ref(&()), reason, note).await;
    }

    /// Emits a warning Event about the object with this reference.
    pub async fn warn_for(&self, reference: ObjectReference, reason: &str, note: &str) {
        self.emit_for(EventType::Warning, reference, reason, note).await;
    }

    /// Emits an Event about the object with this reference.
    pub async fn emit_for(
        &self,
        type_: EventType,
        reference: ObjectReference,
        reason: &str,
        note: &str,
    ) {
        if !self.is_within_rate_limit(&reference) {
            return;
        }
        let mut note = berth_runtime::cli::text::replace_control_characters(note);
        while note.len() > MAX_NOTE_BYTES {
            note.pop();
        }
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = publish_event(&self.recorder, &event, reference).await {
            tracing::warn!(reason, %error, "failed to write an Event");
        }
    }

    fn is_within_rate_limit(&self, reference: &ObjectReference) -> bool {
        let mut rate_limits = self.rate_limits.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // All rate limits are reset when there are many, because limits of deleted objects are not removed otherwise.
        if rate_limits.len() > 10_000 {
            rate_limits.clear();
        }
        let key = reference.uid.clone().unwrap_or_default();
        rate_limits
            .entry(key)
            .or_insert_with(|| TokenBucket::new(EVENT_RATE_LIMIT.0, EVENT_RATE_LIMIT.1))
            .take_token(now)
            .is_ok()
    }
}
