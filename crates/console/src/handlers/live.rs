//! Stream of changes for an open page (server-sent events). It contains no objects that the user may not see.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::Uri;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use berth_views::ObjectName;
use futures::stream;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::subject::{Subject, Update, update};
use crate::error::PageError;
use crate::keyed_limit::KeyedPermit;
use crate::objects::changed::Changed;
use crate::objects::visible::Visible;
use crate::pages::fleet::{element_id, host_tile};
use crate::query::Fields;
use crate::random::IdHash;
use crate::requests::SignedIn;
use crate::session::store::Use;
use crate::state::Shared;

/// Time for which changes are collected before an open page is updated.
const DEBOUNCE: Duration = Duration::from_millis(150);
/// Minimum time between two updates of a page. It doubles while updates follow each other, up to the maximum.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
const MAX_INTERVAL: Duration = Duration::from_secs(8);
/// Time until an update is tried again for which the API server did not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of changes that a page does not show yet. With more, for example because the API server does not answer, the
/// whole page is refreshed.
const MAX_PENDING: usize = 1000;
/// Interval between checks whether the session has ended, and between signs of life for proxies.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Serves the changes of the page in the field `page`.
pub(crate) async fn stream(
    State(console): State<Shared>,
    user: SignedIn,
    uri: Uri,
) -> Result<Response, PageError> {
    let fields = Fields::parse(uri.query().unwrap_or_default().as_bytes());
    let subject = Subject::parse(fields.get("page")).ok_or(PageError::NotFound)?;
    let of_user = console.user_streams.try_acquire(user.session.owner);
    let of_user = of_user.ok_or(PageError::TooManyPages)?;
    let permit = Arc::clone(&console.streams).try_acquire_owned();
    let permit = permit.map_err(|_| PageError::TooManyPages)?;
    let mut checks = interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let changes = Changes {
        subject,
        received: console.store.subscribe(),
        console,
        user,
        checks,
        pending: Pending::default(),
        // Changes between the page and its stream.
        queue: VecDeque::from([Event::default().event("refresh").data("-")]),
        state: None,
        pace: Pace::default(),
        has_ended: false,
        _permits: (permit, of_user),
    };
    let events = stream::unfold(changes, |mut changes| async move {
        let event = changes.next().await?;
        Some((Ok::<_, Infallible>(event), changes))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(CHECK_INTERVAL)).into_response())
}

/// Changes of an open page.
struct Changes {
    subject: Subject,
    console: Shared,
    user: SignedIn,
    received: Receiver<Arc<Changed>>,
    checks: Interval,
    pending: Pending,
    queue: VecDeque<Event>,
    /// State that the page shows.
    state: Option<String>,
    pace: Pace,
    has_ended: bool,
    _permits: (OwnedSemaphorePermit, KeyedPermit<IdHash>),
}

/// Changes that the page does not show yet.
#[derive(Default)]
struct Pending {
    changes: Vec<Arc<Changed>>,
    /// True if changes were missed.
    is_missed: bool,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.is_missed
    }

    fn add(&mut self, changed: Arc<Changed>) {
        if self.changes.len() >= MAX_PENDING {
            self.miss();
        } else if !self.is_missed {
            self.changes.push(changed);
        }
    }

    /// The page is refreshed, so that single changes are not needed any more.
    fn miss(&mut self) {
        *self = Self { changes: Vec::new(), is_missed: true };
    }
}

/// Time between updates.
#[derive(Debug)]
struct Pace {
    interval: Duration,
    /// Last update.
    last: Option<Instant>,
    /// Last check whether changes are visible.
    checked: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { interval: MIN_INTERVAL, last: None, checked: None }
    }
}

impl Pace {
    /// Returns the time until the next update.
    fn delay(&self, now: Instant) -> Duration {
        let remaining = |last: Option<Instant>, interval: Duration| {
            let since = last.map(|last| now.saturating_duration_since(last));
            since.map_or(Duration::ZERO, |since| interval.saturating_sub(since))
        };
        let until_update = remaining(self.last, self.interval);
        until_update.max(remaining(self.checked, MIN_INTERVAL)).max(DEBOUNCE)
    }

    /// Records an update.
    fn record(&mut self, now: Instant) {
        let is_busy =
            self.last.is_some_and(|last| now.saturating_duration_since(last) < self.interval * 2);
        self.interval = if is_busy { (self.interval * 2).min(MAX_INTERVAL) } else { MIN_INTERVAL };
        self.last = Some(now);
    }
}

impl Changes {
    /// Waits for the next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            self.push_state();
            if !self.queue.is_empty() {
                continue;
            }
            if self.pending.is_empty() {
                let received = tokio::select! {
                    received = self.received.recv() => received,
                    _ = self.checks.tick() => {
                        self.check_session();
                        continue;
                    }
                };
                self.receive(received);
                continue;
            }
            tokio::time::sleep(self.pace.delay(Instant::now())).await;
            self.receive_all();
            self.check_session();
            if !self.has_ended {
                self.apply().await;
            }
        }
    }

    /// Ends the stream if the session has ended.
    fn check_session(&mut self) {
        let (sessions, now) = (&self.console.sessions, Instant::now());
        if sessions.get(&self.user.id, Use::ByRefresh, now).is_none() {
            self.end();
        }
    }

    /// The page opens the sign-in.
    fn end(&mut self) {
        self.queue.push_back(Event::default().event("ended").data("-"));
        self.has_ended = true;
    }

    /// Reports to the page that its objects are outdated, or current again.
    fn push_state(&mut self) {
        let state = match self.console.store.outdated_since() {
            Some(since) => format!("Outdated since {since}"),
            None => "Live".to_owned(),
        };
        if self.state.as_ref() != Some(&state) {
            self.queue.push_back(Event::default().event("state").data(&state));
            self.state = Some(state);
        }
    }

    /// Adds a change that concerns the page to those that it does not show yet.
    fn receive(&mut self, received: Result<Arc<Changed>, RecvError>) {
        match received {
            Ok(changed) => {
                let host_of = |machine: &ObjectName| self.console.store.host_of(machine);
                if self.subject.concerns(&changed, host_of) {
                    self.pending.add(changed);
                }
            }
            Err(_) => self.pending.miss(),
        }
    }

    fn receive_all(&mut self) {
        loop {
            match self.received.try_recv() {
                Ok(changed) => self.receive(Ok(changed)),
                Err(TryRecvError::Lagged(missed)) => self.receive(Err(RecvError::Lagged(missed))),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    /// Updates the page. If this fails, the changes stay pending.
    async fn apply(&mut self) {
        let visible = match self.user.visible(&self.console).await {
            Ok(visible) => visible,
            Err(PageError::SignedOut { .. }) => return self.end(),
            Err(_) => return tokio::time::sleep(RETRY_INTERVAL).await,
        };
        let update = if self.pending.is_missed {
            Update::Refresh
        } else {
            update(&self.subject, &visible, &self.pending.changes)
        };
        let is_done = match update {
            Update::Nothing => {
                self.pending = Pending::default();
                self.pace.checked = Some(Instant::now());
                return;
            }
            Update::Refresh => self.push_refresh(visible).await.is_ok(),
            Update::Hosts(hosts) => self.push_hosts(visible, hosts).await.is_ok(),
        };
        if is_done {
            self.pending = Pending::default();
            self.pace.record(Instant::now());
        } else {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// The page loads its content again; or shows that its object was deleted, or is not visible any more.
    async fn push_refresh(&mut self, visible: Visible) -> Result<(), PageError> {
        let subject = self.subject.clone();
        let session = &self.user.session;
        let exists =
            self.console.render(session, visible, move |snapshot| subject.exists(snapshot));
        let name = if exists.await? { "refresh" } else { "gone" };
        self.queue.push_back(Event::default().event(name).data("-"));
        Ok(())
    }

    async fn push_hosts(
        &mut self,
        visible: Visible,
        hosts: BTreeSet<String>,
    ) -> Result<(), PageError> {
        let all = visible.clone();
        let session = &self.user.session;
        let tiles = self.console.render(session, visible, move |snapshot| {
            let tile =
                |host: &String| Some((element_id(host), host_tile(snapshot, host)?.into_string()));
            hosts.iter().map(tile).collect::<Option<Vec<_>>>()
        });
        // A host was deleted.
        let Some(tiles) = tiles.await? else { return self.push_refresh(all).await };
        for (id, html) in tiles {
            // JSON has no line ends, which would end an event.
            let data = json!({"id": id, "html": html}).to_string();
            self.queue.push_back(Event::default().event("replace").data(data));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use berth_views::Kind;

    use super::*;

    #[test]
    fn pending_changes_are_bounded() {
        let mut pending = Pending::default();
        for _ in 0..MAX_PENDING {
            pending.add(Arc::new(Changed::of_kind(Kind::Node)));
        }
        assert!(!pending.is_missed);
        for _ in 0..2 {
            pending.add(Arc::new(Changed::of_kind(Kind::Node)));
            assert!(pending.is_missed && pending.changes.is_empty());
        }
    }

    #[test]
    fn constant_changes_slow_updates_down() {
        let (mut pace, begin) = (Pace::default(), Instant::now());
        assert_eq!(pace.delay(begin), DEBOUNCE);
        let (mut now, mut updates) = (begin, 0);
        while now < begin + Duration::from_secs(60) {
            now += pace.delay(now);
            pace.record(now);
            updates += 1;
        }
        assert!((8..=15).contains(&updates), "{updates} updates in a minute");
        assert_eq!(pace.interval, MAX_INTERVAL);
        // After some time without changes, the next change is shown at once.
        let later = now + MAX_INTERVAL * 2;
        assert_eq!(pace.delay(later), DEBOUNCE);
        pace.record(later);
        assert_eq!(pace.interval, MIN_INTERVAL);
    }
}
