//! Lists and watches a collection of an untrusted API server, with limits for each page and event, and for the rate of
//! events.

use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::Request;
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{timeout, timeout_at};

use super::bounded::BoundedVec;
use super::client::UntrustedClient;
use super::error::UntrustedError;
use super::slots::{LargeAnswerPermit, MAX_SMALL_ANSWER_LENGTH};
use crate::backoff::add_jitter;
use crate::call::CALL_TIMEOUT;
use crate::token_bucket::TokenBucket;

/// Time without an event or a bookmark after which a watch is started again. Servers send a bookmark each minute.
const IDLE_TIMEOUT: Duration = Duration::from_secs(200);
/// Timeout that a watch requests from the server. Jitter is added, so that the watches of many servers do not end at
/// the same time.
const WATCH_TIMEOUT: Duration = Duration::from_secs(2400);
/// Rate limit of a server's events: capacity and refill interval of a token bucket. If a server sends events faster,
/// its watch is delayed, and other servers are not affected.
const EVENT_RATE_LIMIT: (u32, Duration) = (500, Duration::from_millis(10));
/// Size in bytes that counts as one event in the rate limit. A larger event counts as several events.
const BYTES_PER_EVENT: usize = 1 << 15;
/// Minimum time between the starts of two watches, because a server may end each watch immediately.
const MIN_WATCH_TIME: Duration = Duration::from_secs(2);
/// Maximum number of objects in a page. The size of a page is limited, too.
const MAX_PAGE_ITEMS: usize = 500;
/// Maximum length of a resource version or of a list's continue token, in bytes.
const MAX_TOKEN_LENGTH: usize = 4096;

/// Limits of a list and a watch.
#[derive(Clone, Copy, Debug)]
pub struct CollectionLimits {
    /// Number of objects that are requested for each page of a list.
    pub page_size: u32,
    /// Maximum number of pages of a list.
    pub max_pages: u32,
    /// Maximum size of a page in bytes.
    pub max_page_length: usize,
    /// Maximum size of an event in bytes.
    pub max_event_length: usize,
}

/// An object that has a resource version.
pub trait Versioned {
    /// Returns `metadata.resourceVersion`.
    fn resource_version(&self) -> &str;
}

/// An event of a list or a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectionEvent<T> {
    /// A list begins.
    ListStarted,
    /// An object of the list.
    Listed(T),
    /// The list is complete: an object that was not listed does not exist.
    ListCompleted,
    /// An object was created or changed.
    Applied(T),
    /// An object was deleted.
    Deleted(T),
}

#[derive(Deserialize)]
#[serde(default, bound = "T: DeserializeOwned")]
struct Page<T> {
    metadata: ListMetadata,
    items: Option<BoundedVec<T, MAX_PAGE_ITEMS>>,
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { metadata: ListMetadata::default(), items: None }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: String,
}

/// The type of an event. The event's object is parsed in a second step, because the type of the object depends on the
/// type of the event.
#[derive(Deserialize)]
struct EventKind {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct EventObject<T> {
    object: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorStatus {
    code: u16,
}

/// Lists the collection at `path`, and then watches it. `handle` is called with each event; if `handle` returns an
/// error, the watch ends. Returns `Ok` if the collection must be listed again: the resource version has expired, or a
/// watch ended without any event or bookmark.
///
/// # Errors
///
/// Returns the error of the server, or of `handle`.
pub async fn watch_collection<T: Versioned + DeserializeOwned>(
    client: &UntrustedClient,
    path: &str,
    limits: CollectionLimits,
    mut handle: impl FnMut(CollectionEvent<T>) -> Result<(), UntrustedError>,
) -> Result<(), UntrustedError> {
    let mut version = list(client, path, limits, &mut handle).await?;
    let mut rate = TokenBucket::new(EVENT_RATE_LIMIT.0, EVENT_RATE_LIMIT.1);
    loop {
        let seconds = add_jitter(WATCH_TIMEOUT).as_secs();
        let uri = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}",
            check_token(&version)?
        );
        let opened = timeout(CALL_TIMEOUT, client.open(get(&uri)?)).await;
        let response = match opened.unwrap_or(Err(UntrustedError::Timeout)) {
            Ok(response) => response,
            // The resource version has expired (410 Gone), so the collection must be listed again.
            Err(UntrustedError::Status(410)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let (mut body, mut lines) =
            (response.into_body(), LineSplitter::new(limits.max_event_length));
        let (previous, begin) = (version.clone(), Instant::now());
        // Permit for a large event. It is held until the event is handled.
        let mut large: Option<LargeAnswerPermit> = None;
        loop {
            let next = match &large {
                Some(large) => timeout_at(large.deadline, body.frame()).await,
                None => timeout(IDLE_TIMEOUT, body.frame()).await,
            };
            // The end of the body, an error, and the idle timeout have the same effect: the watch ends, and a new watch
            // continues from the last version.
            let Ok(Some(Ok(frame))) = next else { break };
            let Ok(data) = frame.into_data() else { continue };
            for part in data.split_inclusive(|byte| *byte == b'\n') {
                if large.is_none() && lines.length_with(part) > MAX_SMALL_ANSWER_LENGTH {
                    large = Some(client.acquire_large_event().await?);
                }
                let Some(line) = lines.add(part)? else { continue };
                for _ in 0..=line.len() / BYTES_PER_EVENT {
                    while let Err(delay) = rate.take_token(Instant::now()) {
                        tokio::time::sleep(delay).await;
                    }
                }
                match parse_event::<T>(&line)? {
                    ParsedEvent::Object(event, new) => {
                        version = new;
                        handle(event)?;
                    }
                    ParsedEvent::Bookmark(new) => version = new,
                    ParsedEvent::Expired => return Ok(()),
                }
                large = None;
            }
        }
        drop((large, lines));
        if version == previous {
            return Ok(());
        }
        tokio::time::sleep(MIN_WATCH_TIME.saturating_sub(begin.elapsed())).await;
    }
}

/// Lists the collection at `path`, which may contain a query, and calls `handle` with each object.
///
/// # Errors
///
/// Returns the error of the server.
pub async fn list_collection<T: DeserializeOwned>(
    client: &UntrustedClient,
    path: &str,
    limits: CollectionLimits,
    mut handle: impl FnMut(T),
) -> Result<(), UntrustedError> {
    let mut handle = |event: CollectionEvent<T>| {
        if let CollectionEvent::Listed(object) = event {
            handle(object);
        }
        Ok(())
    };
    list(client, path, limits, &mut handle).await.map(drop)
}

async fn list<T: DeserializeOwned>(
    client: &UntrustedClient,
    path: &str,
    limits: CollectionLimits,
    handle: &mut impl FnMut(CollectionEvent<T>) -> Result<(), UntrustedError>,
) -> Result<String, UntrustedError> {
    handle(CollectionEvent::ListStarted)?;
    let mut token = String::new();
    for _ in 0..limits.max_pages {
        let separator = if path.contains('?') { '&' } else { '?' };
        let mut uri = format!("{path}{separator}limit={}", limits.page_size);
        if !token.is_empty() {
            uri = format!("{uri}&continue={}", check_token(&token)?);
        }
        let page: Page<T> = client.request(get(&uri)?, limits.max_page_length).await?;
        let page_items = page.items.unwrap_or_default();
        if page_items.is_truncated {
            return Err(UntrustedError::TooLong);
        }
        for item in page_items.items {
            handle(CollectionEvent::Listed(item))?;
        }
        token = page.metadata.continue_token;
        if token.is_empty() {
            handle(CollectionEvent::ListCompleted)?;
            return Ok(page.metadata.resource_version);
        }
    }
    Err(UntrustedError::TooLong)
}

fn get(uri: &str) -> Result<Request<Body>, UntrustedError> {
    Request::get(uri).body(Body::empty()).map_err(|_| UntrustedError::Malformed)
}

/// Returns the resource version or continue token if it can be a part of a URL. Kubernetes encodes continue tokens in
/// URL-safe base64.
fn check_token(token: &str) -> Result<&str, UntrustedError> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '=');
    let is_token = token.len() <= MAX_TOKEN_LENGTH && token.chars().all(is_valid);
    is_token.then_some(token).ok_or(UntrustedError::Malformed)
}

enum ParsedEvent<T> {
    /// An event about an object, with the object's resource version.
    Object(CollectionEvent<T>, String),
    /// A bookmark with a new resource version.
    Bookmark(String),
    /// The resource version from which the watch started has expired (410 Gone).
    Expired,
}

/// Parses a line of a watch as [`watch_collection`] does. Returns the event if it is about an object; `None` for a
/// bookmark, or if the watch's resource version has expired.
///
/// # Errors
///
/// Returns an error if the line is malformed, or if it contains an error of the server.
pub fn parse_watch_line<T: Versioned + DeserializeOwned>(
    line: &[u8],
) -> Result<Option<CollectionEvent<T>>, UntrustedError> {
    match parse_event(line)? {
        ParsedEvent::Object(event, _) => Ok(Some(event)),
        ParsedEvent::Bookmark(_) | ParsedEvent::Expired => Ok(None),
    }
}

fn parse_event<T: Versioned + DeserializeOwned>(
    line: &[u8],
) -> Result<ParsedEvent<T>, UntrustedError> {
    let EventKind { kind } = parse(line)?;
    if kind == "ERROR" {
        let status: EventObject<ErrorStatus> = parse(line)?;
        return match status.object.code {
            410 => Ok(ParsedEvent::Expired),
            code => Err(UntrustedError::Status(code)),
        };
    }
    let EventObject::<T> { object } = parse(line)?;
    let version = object.resource_version().to_owned();
    match kind.as_str() {
        "ADDED" | "MODIFIED" => Ok(ParsedEvent::Object(CollectionEvent::Applied(object), version)),
        "DELETED" => Ok(ParsedEvent::Object(CollectionEvent::Deleted(object), version)),
        "BOOKMARK" => Ok(ParsedEvent::Bookmark(version)),
        _ => Err(UntrustedError::Malformed),
    }
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, UntrustedError> {
    serde_json::from_slice(text).map_err(|_| UntrustedError::Malformed)
}

/// Splits a body into lines of a limited length.
struct LineSplitter {
    incomplete: Vec<u8>,
    max_length: usize,
}

impl LineSplitter {
    const fn new(max_length: usize) -> Self {
        Self { incomplete: Vec::new(), max_length }
    }

    /// Returns the length that the incomplete line would have after adding `part`.
    const fn length_with(&self, part: &[u8]) -> usize {
        self.incomplete.len().saturating_add(part.len())
    }

    /// Adds a part of the body, which may contain one line break, at its end. Returns the line if it is complete. Each
    /// byte is examined only once, even if the server sends the bytes one by one.
    fn add(&mut self, part: &[u8]) -> Result<Option<Vec<u8>>, UntrustedError> {
        let content = part.strip_suffix(b"\n");
        let length = content.unwrap_or(part).len();
        if length > self.max_length.saturating_sub(self.incomplete.len()) {
            return Err(UntrustedError::TooLong);
        }
        self.incomplete.extend_from_slice(content.unwrap_or(part));
        Ok(content.is_some().then(|| std::mem::take(&mut self.incomplete)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use hyper::Response;
    use kube::Client;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(default)]
    struct Object {
        metadata: Metadata,
    }

    #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Metadata {
        name: String,
        resource_version: String,
    }

    impl Versioned for Object {
        fn resource_version(&self) -> &str {
            &self.metadata.resource_version
        }
    }

    const LIMITS: CollectionLimits = CollectionLimits {
        page_size: 2,
        max_pages: 3,
        max_page_length: 1000,
        max_event_length: 200,
    };

    fn object(name: &str, version: &str) -> serde_json::Value {
        json!({"metadata": {"name": name, "resourceVersion": version}})
    }

    /// Watches a simulated server that returns these answers one after the other. Returns the events, the result of the
    /// watch, and the URIs of the requests.
    async fn watch(answers: &[&str]) -> (Vec<String>, Result<(), UntrustedError>, Vec<String>) {
        let answers: Vec<String> = answers.iter().map(|one| (*one).to_owned()).collect();
        let uris: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&uris);
        let service = tower::service_fn(move |request: Request<Body>| {
            let mut seen = seen.lock().unwrap();
            let answer = answers.get(seen.len()).cloned();
            seen.push(request.uri().to_string());
            let status = if answer.is_some() { 200 } else { 410 };
            let body = Body::from(answer.unwrap_or_default().into_bytes());
            std::future::ready(Response::builder().status(status).body(body))
        });
        let client = UntrustedClient::from_client(Client::new(service, "default"));
        let mut events = Vec::new();
        let handle = |event: CollectionEvent<Object>| {
            events.push(match event {
                CollectionEvent::ListStarted => "start".to_owned(),
                CollectionEvent::Listed(one) => format!("listed {}", one.metadata.name),
                CollectionEvent::ListCompleted => "completed".to_owned(),
                CollectionEvent::Applied(one) => format!("applied {}", one.metadata.name),
                CollectionEvent::Deleted(one) => format!("deleted {}", one.metadata.name),
            });
            Ok(())
        };
        let result = watch_collection(&client, "/nodes", LIMITS, handle).await;
        let uris = uris.lock().unwrap().clone();
        (events, result, uris)
    }

    fn page(names: &[&str], next: &str) -> String {
        let items: Vec<_> = names.iter().map(|name| object(name, "1")).collect();
        json!({"metadata": {"resourceVersion": "7", "continue": next}, "items": items}).to_string()
    }

    #[tokio::test]
    async fn pages_and_events_are_delivered() {
        let lines = [
            json!({"type": "ADDED", "object": object("c", "8")}),
            json!({"type": "BOOKMARK", "object": object("", "12")}),
            json!({"type": "DELETED", "object": object("a", "13")}),
        ]
        .map(|line| format!("{line}\n"))
        .concat();
        let (events, result, uris) =
            watch(&[&page(&["a", "b"], "next-1"), &page(&[], ""), &lines]).await;
        let expected = ["start", "listed a", "listed b", "completed", "applied c", "deleted a"];
        assert_eq!(events, expected);
        assert_eq!(result, Ok(()));
        assert_eq!(uris[0], "/nodes?limit=2");
        assert_eq!(uris[1], "/nodes?limit=2&continue=next-1");
        assert!(uris[2].ends_with("&resourceVersion=7"), "{uris:?}");
        assert!(uris[3].ends_with("&resourceVersion=13"), "the watch continues: {uris:?}");
    }

    #[test]
    fn lines_may_arrive_in_any_parts() {
        let text = b"first\n\nsecond\nrest";
        for size in 1..text.len() {
            let (mut lines, mut found) = (LineSplitter::new(6), Vec::new());
            for part in text.chunks(size).flat_map(|one| one.split_inclusive(|byte| *byte == b'\n'))
            {
                found.extend(lines.add(part).unwrap());
            }
            assert_eq!(found, [&b"first"[..], b"", b"second"], "{size}");
            assert_eq!(lines.add(b"abc"), Err(UntrustedError::TooLong));
        }
    }

    #[tokio::test]
    async fn hostile_answers_end_the_watch() {
        let too_many = page(&["a"], "x");
        let (.., result, _) = watch(&[&too_many, &too_many, &too_many, &too_many]).await;
        assert_eq!(result, Err(UntrustedError::TooLong));
        let (.., result, uris) = watch(&[&page(&["a"], "x&watch=true")]).await;
        assert_eq!((result, uris.len()), (Err(UntrustedError::Malformed), 1));
        for (line, expected) in [
            ("x".repeat(201), UntrustedError::TooLong),
            ("{}\n".to_owned(), UntrustedError::Malformed),
            ("{\"type\": \"NEW\", \"object\": {}}\n".to_owned(), UntrustedError::Malformed),
            (
                "{\"type\": \"ERROR\", \"object\": {\"code\": 403}}\n".to_owned(),
                UntrustedError::Status(403),
            ),
        ] {
            let (.., result, _) = watch(&[&page(&["a"], ""), &line]).await;
            assert_eq!(result, Err(expected), "{line}");
        }
        let expired = "{\"type\": \"ERROR\", \"object\": {\"code\": 410}}\n";
        let (.., result, _) = watch(&[&page(&["a"], ""), expired]).await;
        assert_eq!(result, Ok(()));
    }

    proptest! {
        #[test]
        fn any_line_gives_an_event_or_an_error(line in "\\PC{0,80}") {
            drop(parse_event::<Object>(line.as_bytes()));
            prop_assert!(check_token(&line).is_err() || !line.contains(['&', '?', '#', ' ']));
        }
    }
}
