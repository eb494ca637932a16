//! Emits Kubernetes Events of the InfraNode: changes applied, blocked or failed, and drift corrected.
//!
//! A cycle may apply a thousand changes, so it emits one Event for each reason, with the first sentences and a
//! count. While the API server is unreachable, Events are lost; the status has the current state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::names::AGENT_FIELD_MANAGER;
use berth_api::{EventReason, InfraNode};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use tokio::sync::mpsc::Receiver;

use super::settings::Settings;
use super::store::{ObservedObject, Store};
use berth_runtime::events::MAX_NOTE_BYTES;
use berth_runtime::token_bucket::TokenBucket;

/// Event about the results of one cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CycleEvent {
    pub reason: EventReason,
    /// One sentence for each change or fault.
    pub sentences: Vec<String>,
}

impl CycleEvent {
    /// Returns the text of the Event: as many sentences as it can hold, and the number of the other sentences.
    #[must_use]
    pub fn note(&self) -> String {
        // The last 24 bytes are reserved for the number of the sentences that do not fit.
        let limit = MAX_NOTE_BYTES - 24;
        let mut note = String::new();
        for (n, sentence) in self.sentences.iter().enumerate() {
            let sentence: String = berth_runtime::cli::text::replace_control_characters(sentence)
                .chars()
                .take(300)
                .collect();
            let separator = if n == 0 { "" } else { "; " };
            if note.len() + separator.len() + sentence.len() > limit {
                note.push_str(&format!("; and {} more", self.sentences.len() - n));
                break;
            }
            note.push_str(separator);
            note.push_str(&sentence);
        }
        note
    }
}

const fn event_type(reason: EventReason) -> EventType {
    match reason {
        EventReason::Applied | EventReason::DriftCorrected => EventType::Normal,
        _ => EventType::Warning,
    }
}

/// Rate limit of Events: the number that is emitted at once, and the interval after which one more Event is allowed.
/// Another program that reverts each correction must not cost the cluster one write per second. The event correlator of
/// client-go has the same limits for one object.
const RATE_LIMIT: (u32, Duration) = (25, Duration::from_secs(300));

/// Emits the events of the channel until it closes.
pub(super) async fn emit_events(
    client: Client,
    settings: Settings,
    store: Arc<Store>,
    mut events: Receiver<CycleEvent>,
) {
    let reporter = Reporter {
        controller: AGENT_FIELD_MANAGER.to_owned(),
        instance: Some(settings.node.clone()),
    };
    // A recorder counts an event as a repetition even if its note differs, so a new recorder is created for each new
    // note.
    let mut recorders: BTreeMap<EventReason, (String, Recorder)> = BTreeMap::new();
    let mut failure_logged = false;
    let mut token_bucket = TokenBucket::new(RATE_LIMIT.0, RATE_LIMIT.1);
    while let Some(event) = events.recv().await {
        if token_bucket.take_token(Instant::now()).is_err() {
            tracing::debug!(reason = %event.reason, note = %event.note(), "dropped an Event: rate limit exceeded");
            continue;
        }
        let ObservedObject::Present(object) = store.observed_infra_node() else { continue };
        let reference = ObjectReference {
            api_version: Some(InfraNode::api_version(&()).into_owned()),
            kind: Some(InfraNode::kind(&()).into_owned()),
            name: Some(settings.node.clone()),
            uid: Some(object.uid),
            ..ObjectReference::default()
        };
        let note = event.note();
        let reason = event.reason;
        if recorders.get(&reason).is_none_or(|(last_note, _)| *last_note != note) {
            recorders
                .insert(reason, (note.clone(), Recorder::new(client.clone(), reporter.clone())));
        }
        let Some((_, recorder)) = recorders.get(&reason) else { continue };
        let event = Event {
            type_: event_type(reason),
            reason: reason.to_string(),
            note: Some(note),
            action: "Shape".to_owned(),
            secondary: None,
        };
        let result = berth_runtime::events::publish_event(recorder, &event, reference).await;
        match result {
            Ok(()) => failure_logged = false,
            // The error is logged once, because the next Events will fail too.
            Err(error) if !failure_logged => {
                tracing::warn!(infra_node = %settings.node, %error, "failed to emit Events");
                failure_logged = true;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_fits_into_an_event_and_counts_the_other_sentences() {
        let event = |n: usize| CycleEvent {
            reason: EventReason::Applied,
            sentences: (0..n)
                .map(|n| format!("add VLAN {n} to bond0 on br-tenant \u{e9}"))
                .collect(),
        };
        assert_eq!(
            event(2).note(),
            "add VLAN 0 to bond0 on br-tenant é; add VLAN 1 to bond0 on br-tenant é"
        );
        let many = event(4000).note();
        assert!(many.len() <= MAX_NOTE_BYTES && many.ends_with(" more"), "{many}");
        let long =
            CycleEvent { reason: EventReason::ChangeFailed, sentences: vec!["é".repeat(2000); 3] };
        assert!(long.note().len() <= MAX_NOTE_BYTES);
    }
}
