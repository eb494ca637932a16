//! Events of objects: what began to be so. While the server is away they are lost; what is so is in conditions.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_api::names::CONTROLLER;
use berth_runtime::events::{LONGEST, publish};
use berth_runtime::pace::Pace;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};

/// Events of one object at once, and one more in each while; as client-go's correlator.
const PACE: (u32, Duration) = (25, Duration::from_secs(300));

/// Tells.
pub struct Events {
    recorder: Recorder,
    paces: Mutex<HashMap<String, Pace>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    /// By a controller of this name.
    #[must_use]
    pub fn new(client: Client, identity: &str) -> Self {
        let reporter =
            Reporter { controller: CONTROLLER.to_owned(), instance: Some(identity.to_owned()) };
        Self { recorder: Recorder::new(client, reporter), paces: Mutex::default() }
    }

    /// Warns of an object.
    pub async fn warn<K: Resource<DynamicType = ()>>(&self, object: &K, reason: &str, note: &str) {
        self.warn_of(object.object_ref(&()), reason, note).await;
    }

    /// As [`Self::warn`], of an object whose kind is not known here.
    pub async fn warn_of(&self, reference: ObjectReference, reason: &str, note: &str) {
        self.tell_of(EventType::Warning, reference, reason, note).await;
    }

    /// Says something of an object that may be as it should be.
    pub async fn tell_of(
        &self,
        type_: EventType,
        reference: ObjectReference,
        reason: &str,
        note: &str,
    ) {
        if !self.may(&reference) {
            return;
        }
        let mut note = berth_runtime::cli::text::printable(note);
        while note.len() > LONGEST {
            note.pop();
        }
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = publish(&self.recorder, &event, reference).await {
            tracing::warn!("an Event was not written: {error}");
        }
    }

    fn may(&self, reference: &ObjectReference) -> bool {
        let mut paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Objects that went away are not kept for ever.
        if paces.len() > 10_000 {
            paces.clear();
        }
        let key = reference.uid.clone().unwrap_or_default();
        paces.entry(key).or_insert_with(|| Pace::new(PACE.0, PACE.1)).take(now).is_ok()
    }
}
