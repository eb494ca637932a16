//! Shows a view again after each change of its objects.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use berth_runtime::cli::text::{error_chain, to_single_line};
use berth_runtime::cli::{EXIT_UNREACHABLE, Failure, Reader, print_error, print_to_reader};
use berth_runtime::watch::{Config, Error, Event, event_stream};
use berth_views::{Kind, ObjectName, Snapshot};
use futures::StreamExt as _;
use futures::stream::{BoxStream, select_all};
use kube::api::DynamicObject;
use kube::{Api, ResourceExt as _};
use tokio::time::{Instant, sleep_until};

use super::arguments::Output;
use super::program::PROGRAM;
use super::read::{Session, resource};

/// Time for which changes are collected before the view is shown again.
const DEBOUNCE: Duration = Duration::from_millis(250);
/// Escape sequences that clear a terminal.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J\u{1b}[3J";

type KindEvent = (Kind, Result<Event<DynamicObject>, Error>);

/// A view as text, with lines for standard error.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) text: String,
    pub(super) remarks: Vec<String>,
}

/// Shows what `render` returns for the objects of these kinds, now and after each change. Returns after an error, after the
/// reader of standard output has closed the pipe, or if the objects of the `required` kind are refused.
pub(super) async fn watch(
    session: &Session,
    kinds: &[Kind],
    required: Kind,
    output: Output,
    mut render: impl FnMut(&Snapshot) -> Result<Shown, Failure>,
) -> Result<ExitCode, Failure> {
    let mut state = WatchState::default();
    let mut streams = Vec::new();
    for kind in kinds {
        streams.extend(state.start(session, *kind).await?);
    }
    let mut screen = Screen::new(output);
    // The view would never show an object.
    if state.snapshot.is_refused(required) {
        screen.show(render(&state.snapshot)?)?;
        return Ok(ExitCode::from(EXIT_UNREACHABLE));
    }
    let mut events = select_all(streams);
    let mut show_at = None::<Instant>;
    loop {
        let deadline = show_at.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        tokio::select! {
            event = events.next() => match event {
                Some((kind, event)) => {
                    if state.apply(kind, event) && state.unlisted.is_empty() {
                        show_at.get_or_insert_with(|| Instant::now() + DEBOUNCE);
                    }
                }
                None => return Ok(ExitCode::SUCCESS),
            },
            () = sleep_until(deadline) => {
                show_at = None;
                if state.unlisted.is_empty()
                    && screen.show(render(&state.snapshot)?)? == Reader::Closed
                {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }
}

/// Standard output and standard error, with what they show.
struct Screen {
    is_terminal: bool,
    /// Text between two views, if standard output is no terminal.
    separator: &'static str,
    shown: Option<Shown>,
}

impl Screen {
    fn new(output: Output) -> Self {
        let separator = if output == Output::Yaml { "---\n" } else { "\n" };
        Self { is_terminal: std::io::stdout().is_terminal(), separator, shown: None }
    }

    /// Shows a view, unless it is shown already.
    fn show(&mut self, next: Shown) -> Result<Reader, Failure> {
        let mut reader = Reader::Present;
        let is_new = self.shown.as_ref().is_none_or(|shown| shown.text != next.text);
        if is_new {
            let before = match (self.is_terminal, &self.shown) {
                (true, _) => CLEAR,
                (false, None) => "",
                (false, Some(_)) => self.separator,
            };
            reader = print_to_reader(&format!("{before}{}", next.text))?;
        }
        let known = self.shown.as_ref().map(|shown| shown.remarks.as_slice()).unwrap_or_default();
        // A terminal was cleared, so it needs all remarks again.
        let is_cleared = self.is_terminal && is_new;
        let remarks = next.remarks.iter().filter(|line| is_cleared || !known.contains(line));
        remarks.for_each(|line| print_error(line));
        self.shown = Some(next);
        Ok(reader)
    }
}

#[derive(Default)]
struct WatchState {
    snapshot: Snapshot,
    /// Kinds whose first list is not complete.
    unlisted: BTreeSet<Kind>,
    /// Objects of the list that is being received, by kind.
    listed: BTreeMap<Kind, BTreeSet<ObjectName>>,
    /// Objects that are known, by kind.
    known: BTreeMap<Kind, BTreeSet<ObjectName>>,
    /// Last error of each kind, so that a repeated error is printed once.
    errors: BTreeMap<Kind, String>,
}

impl WatchState {
    /// Starts the watch of a kind; `None` if the user may not list it.
    async fn start(
        &mut self,
        session: &Session,
        kind: Kind,
    ) -> Result<Option<BoxStream<'static, KindEvent>>, Failure> {
        let mut namespace = session.namespace.as_deref().filter(|_| kind.is_namespaced());
        if let Some(refusal) = session.probe(kind, namespace).await? {
            let fallback = session.fallback_namespace(kind, &refusal);
            let is_permitted = match fallback {
                Some(other) => session.probe(kind, Some(other)).await?.is_none(),
                None => false,
            };
            let fallback = fallback.filter(|_| is_permitted);
            self.snapshot.set_unread(kind, fallback, refusal.message);
            if fallback.is_none() {
                return Ok(None);
            }
            namespace = fallback;
        }
        let (client, resource) = (session.client.clone(), resource(kind));
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let config = Config {
            label_selector: kind.label_selector().map(str::to_owned),
            ..Config::default()
        };
        self.unlisted.insert(kind);
        let events = event_stream(api, config);
        Ok(Some(events.map(move |event| (kind, event)).boxed()))
    }

    /// Applies an event; returns true if the snapshot may have changed.
    fn apply(&mut self, kind: Kind, event: Result<Event<DynamicObject>, Error>) -> bool {
        match event {
            Ok(Event::Init) => {
                self.listed.insert(kind, BTreeSet::new());
                false
            }
            Ok(Event::InitApply(object)) => {
                self.listed.entry(kind).or_default().insert(object_name(&object));
                self.add(kind, &object);
                false
            }
            Ok(Event::InitDone) => {
                let listed = self.listed.remove(&kind).unwrap_or_default();
                let before = self.known.insert(kind, listed.clone()).unwrap_or_default();
                before.difference(&listed).for_each(|name| self.snapshot.remove(kind, name));
                self.unlisted.remove(&kind);
                self.errors.remove(&kind);
                true
            }
            Ok(Event::Apply(object)) => {
                self.known.entry(kind).or_default().insert(object_name(&object));
                self.add(kind, &object);
                true
            }
            Ok(Event::Delete(object)) => {
                let name = object_name(&object);
                self.known.entry(kind).or_default().remove(&name);
                self.snapshot.remove(kind, &name);
                true
            }
            Err(error) => {
                let text = error_chain(&error);
                let [_, _, _, plural] = kind.resource();
                if self.errors.insert(kind, text.clone()).as_ref() != Some(&text) {
                    let line = format!("{PROGRAM}: failed to watch {plural}; trying again: {text}");
                    print_error(&to_single_line(&line));
                }
                false
            }
        }
    }

    fn add(&mut self, kind: Kind, object: &DynamicObject) {
        if let Ok(value) = serde_json::to_value(object) {
            self.snapshot.add(kind, &value);
        }
    }
}

fn object_name(object: &DynamicObject) -> ObjectName {
    ObjectName::new(object.namespace().unwrap_or_default(), object.name_any())
}
