//! Stream of changes for an open page (server-sent events). It contains no objects that the user may not see.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::Uri;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use berth_views::{Kind, ObjectName};
use futures::stream;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{MissedTickBehavior, interval};

use crate::error::PageError;
use crate::objects::store::Changed;
use crate::objects::visible::Visible;
use crate::pages::fleet::{element_id, host_tile};
use crate::query::Fields;
use crate::requests::SignedIn;
use crate::rights::RightsError;
use crate::session::store::Use;
use crate::state::Shared;

/// Time for which changes are collected before an open page is updated.
const DEBOUNCE: Duration = Duration::from_millis(150);
/// Minimum time between two updates of a page.
const MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between checks whether the session has ended, and between signs of life for proxies.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of hosts that are replaced one by one. With more changes, the page is refreshed.
const MAX_TILES: usize = 20;

/// Page that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Fleet,
    Host(String),
    Machine(ObjectName),
    /// A page with rows of these kinds.
    Rows(&'static [Kind]),
}

impl Subject {
    /// Parses the path of a page; `None` if the page has no changes.
    fn parse(path: &str) -> Option<Self> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match parts.as_slice() {
            [] => Some(Self::Fleet),
            ["hosts", name] => Some(Self::Host((*name).to_owned())),
            ["vms", namespace, name] => Some(Self::Machine(ObjectName::new(*namespace, *name))),
            ["vms"] => Some(Self::Rows(&berth_views::machines::KINDS)),
            ["tenants"] => Some(Self::Rows(&berth_views::tenants::KINDS)),
            ["tenants", _] => Some(Self::Rows(&berth_views::tenants::DETAIL_KINDS)),
            ["networks"] => Some(Self::Rows(&berth_views::networks::KINDS)),
            _ => None,
        }
    }

    /// Returns true if the page may show a difference after a change.
    fn concerns(&self, changed: &Changed) -> bool {
        let is = |name: &str| changed.name.as_ref().is_none_or(|changed| changed.name == name);
        match self {
            Self::Fleet => matches!(changed.kind, Kind::InfraNode | Kind::Node),
            Self::Host(host) => match changed.kind {
                Kind::InfraNode | Kind::Node => is(host),
                kind => berth_views::host_detail::KINDS.contains(&kind),
            },
            Self::Machine(machine) => match changed.kind {
                Kind::VirtualMachine | Kind::VirtualMachineInstance => {
                    changed.name.as_ref().is_none_or(|name| name == machine)
                }
                Kind::LauncherPod => {
                    changed.name.as_ref().is_none_or(|name| name.namespace == machine.namespace)
                }
                kind => matches!(kind, Kind::AddressClaim | Kind::InfraNode),
            },
            Self::Rows(kinds) => kinds.contains(&changed.kind),
        }
    }
}

/// Serves the changes of the page in the field `page`.
pub(crate) async fn stream(
    State(console): State<Shared>,
    user: SignedIn,
    uri: Uri,
) -> Result<Response, PageError> {
    let fields = Fields::parse(uri.query().unwrap_or_default().as_bytes());
    let subject = Subject::parse(fields.get("page")).ok_or(PageError::NotFound)?;
    let permit = Arc::clone(&console.streams).try_acquire_owned();
    let permit = permit.map_err(|_| PageError::TooManyPages)?;
    let changes = Changes {
        subject,
        received: console.store.subscribe(),
        console,
        user,
        queue: VecDeque::new(),
        last_update: None,
        has_ended: false,
        _permit: permit,
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
    received: Receiver<Changed>,
    queue: VecDeque<Event>,
    last_update: Option<Instant>,
    has_ended: bool,
    _permit: OwnedSemaphorePermit,
}

/// Update of an open page after changes.
enum Update {
    Nothing,
    Refresh,
    /// Replaces these hosts.
    Hosts(BTreeSet<String>),
}

impl Changes {
    /// Waits for the next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Event> {
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            if !self.has_session() {
                self.end();
                continue;
            }
            let first = tokio::select! {
                received = self.received.recv() => received,
                _ = checks.tick() => continue,
            };
            let batch = self.collect(first).await;
            if batch.as_ref().is_none_or(|batch| !batch.is_empty()) {
                self.apply(batch).await;
            }
        }
    }

    fn has_session(&self) -> bool {
        let (sessions, now) = (&self.console.sessions, Instant::now());
        sessions.get(&self.user.id, Use::ByRefresh, now).is_some()
    }

    /// The page opens the sign-in.
    fn end(&mut self) {
        self.queue.push_back(Event::default().event("ended").data("-"));
        self.has_ended = true;
    }

    /// Collects changes that concern the page; `None` if changes were missed.
    async fn collect(&mut self, first: Result<Changed, RecvError>) -> Option<Vec<Changed>> {
        let mut batch = Vec::new();
        let mut is_missed = false;
        match first {
            Ok(changed) if self.subject.concerns(&changed) => batch.push(changed),
            Ok(_) => return Some(batch),
            Err(_) => is_missed = true,
        }
        let since_update = self.last_update.map(|last| last.elapsed());
        let delay = since_update.map_or(Duration::ZERO, |since| MIN_INTERVAL.saturating_sub(since));
        tokio::time::sleep(delay.max(DEBOUNCE)).await;
        loop {
            match self.received.try_recv() {
                Ok(changed) if self.subject.concerns(&changed) => batch.push(changed),
                Ok(_) => {}
                Err(tokio::sync::broadcast::error::TryRecvError::Lagged(_)) => is_missed = true,
                Err(_) => break,
            }
        }
        (!is_missed).then_some(batch)
    }

    async fn apply(&mut self, batch: Option<Vec<Changed>>) {
        let visible = match self.console.visible(&self.user.session).await {
            Ok(visible) => visible,
            Err(RightsError::SignedOut) => return self.end(),
            // The next change, or the user's next page, shows the state.
            Err(RightsError::Unavailable(_)) => return,
        };
        let update = match batch {
            None => Update::Refresh,
            Some(batch) => update(&self.subject, &visible, &batch),
        };
        match update {
            Update::Nothing => return,
            Update::Refresh => self.push_refresh(),
            Update::Hosts(hosts) => self.push_hosts(&visible, &hosts),
        }
        self.last_update = Some(Instant::now());
    }

    fn push_refresh(&mut self) {
        self.queue.clear();
        self.queue.push_back(Event::default().event("refresh").data("-"));
    }

    fn push_hosts(&mut self, visible: &Visible, hosts: &BTreeSet<String>) {
        let store = &self.console.store;
        let tiles: Option<Vec<_>> = store.read(visible, |snapshot| {
            let tile = |host: &String| {
                let tile = host_tile(snapshot, host, store.rack(host).as_deref())?;
                Some((element_id(host), tile.into_string()))
            };
            hosts.iter().map(tile).collect()
        });
        // A host was deleted.
        let Some(tiles) = tiles else { return self.push_refresh() };
        for (id, html) in tiles {
            // JSON has no line ends, which would end an event.
            let data = json!({"id": id, "html": html}).to_string();
            self.queue.push_back(Event::default().event("replace").data(data));
        }
    }
}

/// Decides on the update of a page after changes.
fn update(subject: &Subject, visible: &Visible, batch: &[Changed]) -> Update {
    let is_visible = |changed: &&Changed| match &changed.name {
        Some(name) => visible.permits(changed.kind, name),
        None => true,
    };
    let seen: Vec<&Changed> = batch.iter().filter(is_visible).collect();
    if seen.is_empty() {
        return Update::Nothing;
    }
    if *subject == Subject::Fleet && seen.iter().all(|changed| changed.name.is_some()) {
        let names = seen.iter().filter_map(|changed| Some(changed.name.as_ref()?.name.clone()));
        let hosts: BTreeSet<String> = names.collect();
        if hosts.len() <= MAX_TILES {
            return Update::Hosts(hosts);
        }
    }
    Update::Refresh
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::objects::visible::Scope;

    fn changed(kind: Kind, namespace: &str, name: &str) -> Changed {
        Changed { kind, name: Some(ObjectName::new(namespace, name)) }
    }

    #[test]
    fn pages_are_updated_only_after_changes_that_they_show() {
        let host = changed(Kind::InfraNode, "", "a");
        let machine = changed(Kind::VirtualMachine, "cluster-x", "vm");
        let tenant = changed(Kind::TenantCluster, "", "x");
        for (path, expected) in [
            ("/", [true, false, false]),
            ("/?q=a", [true, false, false]),
            ("/hosts/a", [true, true, false]),
            ("/hosts/b", [false, true, false]),
            ("/vms", [false, true, false]),
            ("/vms/cluster-x/vm", [true, true, false]),
            ("/vms/cluster-x/other", [true, false, false]),
            ("/tenants", [false, false, true]),
            ("/tenants/x", [false, true, true]),
            ("/networks", [true, false, true]),
        ] {
            let subject = Subject::parse(path).unwrap();
            let concerned = [&host, &machine, &tenant].map(|changed| subject.concerns(changed));
            assert_eq!(concerned, expected, "{path}");
        }
        for path in ["/sign-in", "/hosts", "/hosts/a/b", "/vms/a/b/c"] {
            assert_eq!(Subject::parse(path), None, "{path}");
        }
    }

    #[test]
    fn changes_of_objects_that_the_user_may_not_see_are_not_reported() {
        let own = Scope::Some(BTreeSet::from(["cluster-x".to_owned()]));
        let visible = Visible::new(BTreeMap::from([(Kind::VirtualMachine, own)]));
        let machines = Subject::parse("/vms").unwrap();
        for (namespace, is_reported) in [("cluster-x", true), ("cluster-y", false)] {
            let batch = [changed(Kind::VirtualMachine, namespace, "vm")];
            let update = update(&machines, &visible, &batch);
            assert_eq!(matches!(update, Update::Refresh), is_reported, "{namespace}");
            assert_eq!(matches!(update, Update::Nothing), !is_reported, "{namespace}");
        }
        let batch = [changed(Kind::InfraNode, "", "a")];
        assert!(matches!(update(&Subject::Fleet, &visible, &batch), Update::Nothing));
        let visible = Visible::new(BTreeMap::from([(Kind::InfraNode, Scope::All)]));
        let Update::Hosts(hosts) = update(&Subject::Fleet, &visible, &batch) else {
            panic!("the host is not replaced")
        };
        assert_eq!(hosts.into_iter().collect::<Vec<_>>(), ["a"]);
    }
}
