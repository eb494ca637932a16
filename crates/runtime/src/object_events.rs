//! Reads the latest Events about an object.

use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::Serialize;

use crate::call::{CallError, with_timeout};
use crate::events::CLUSTER_EVENT_NAMESPACE;

/// Maximum number of Events that are returned.
pub const MAX_EVENTS: usize = 50;
/// Number of Events in one page of a list. The API server returns them by name, so that all are read to find the latest.
const PAGE_SIZE: u32 = 500;
/// Maximum number of pages of Events about an object.
const MAX_PAGES: usize = 10;

/// An Event. Fields that the Event does not have are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectEvent {
    /// Time of the last occurrence, as in `2026-11-28T12:00:00Z`.
    pub time: String,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub type_: String,
    /// Reason, such as `FailedScheduling`.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Component that reported the Event.
    pub source: String,
    /// Number of occurrences.
    pub count: i32,
}

/// Returns the latest Events about objects with this name and one of these kinds, the latest first; at most
/// [`MAX_EVENTS`]. The namespace of cluster-scoped objects is empty.
///
/// # Errors
/// Returns an error if the API server refuses the list, or does not answer.
pub async fn latest_events(
    client: &Client,
    kinds: &[&str],
    namespace: &str,
    name: &str,
) -> Result<Vec<ObjectEvent>, CallError> {
    let namespace = if namespace.is_empty() { CLUSTER_EVENT_NAMESPACE } else { namespace };
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let selector = format!("involvedObject.name={name}");
    let mut params = ListParams::default().fields(&selector).limit(PAGE_SIZE);
    let mut latest = Vec::new();
    for _ in 0..MAX_PAGES {
        let list = with_timeout(events.list(&params)).await?;
        let is_own = |event: &Event| {
            let kind = event.involved_object.kind.as_deref().unwrap_or_default();
            kinds.contains(&kind)
        };
        latest.extend(list.items.into_iter().filter(is_own).map(ObjectEvent::from));
        keep_latest(&mut latest, MAX_EVENTS);
        let token = list.metadata.continue_.filter(|token| !token.is_empty());
        let Some(token) = token else { break };
        params = params.continue_token(&token);
    }
    Ok(latest)
}

/// Sorts Events, the latest first, and removes all but this number of them.
pub fn keep_latest(events: &mut Vec<ObjectEvent>, number: usize) {
    events.sort_by(|a, b| b.time.cmp(&a.time));
    events.truncate(number);
}

impl From<Event> for ObjectEvent {
    fn from(event: Event) -> Self {
        let source = event.source.and_then(|source| source.component);
        let observed = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
        let observed = observed.map(|time| time.0);
        let last = event.last_timestamp.or(event.first_timestamp).map(|time| time.0);
        let time = observed.or(last).or_else(|| event.event_time.map(|time| time.0));
        let count = event.count.or_else(|| event.series.and_then(|series| series.count));
        let time = time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let reporter = event.reporting_component.filter(|name| !name.is_empty());
        Self {
            time: time.unwrap_or_default(),
            type_: event.type_.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
            source: reporter.or(source).unwrap_or_default(),
            count: count.unwrap_or(1),
        }
    }
}
