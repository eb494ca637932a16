//! What a call waits for: that all is listed, and that this one decides. A scheduler that is made to wait a moment goes
//! on at once; one that is answered an error comes back after a minute (Kubernetes before 1.22).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::watch;

use super::Settings;
use crate::run::calls::found;
use berth_extender::{LeaseGuard, READ_VALIDITY};

/// The longest that a call takes, with all its requests to the API server. kube-scheduler waits for ten seconds
/// (`httpTimeout`): what is answered later is a failure to it, even where the pod was bound.
pub(super) const BUDGET: Duration = Duration::from_secs(9);
/// The longest that a call is held before anything is decided.
pub(super) const HOLD: Duration = Duration::from_secs(8);
/// The longest that a call is held for an object that another watch is to tell of.
pub(super) const BRIEFLY: Duration = Duration::from_secs(1);
/// After the last call for so long the next one is expected.
const BUSY: Duration = Duration::from_secs(5);
/// Between looks at a Lease that is not ours.
const AGAIN: Duration = Duration::from_millis(300);
/// A call whose time is over.
const LATE: &str = "the API server did not answer in time for kube-scheduler";
/// A look at the Lease that takes longer is given up.
const LEASE: Duration = Duration::from_secs(2);

/// Kinds of objects that all decisions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Hosts,
    Namespaces,
    Claims,
    Instances,
    Pods,
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Hosts, Self::Namespaces, Self::Claims, Self::Instances, Self::Pods];

    const fn name(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Namespaces => "namespaces",
            Self::Claims => "persistentvolumeclaims",
            Self::Instances => "virtualmachineinstances",
            Self::Pods => "pods",
        }
    }
}

/// Kinds of objects that are listed already, of those that all decisions depend on.
#[derive(Debug)]
pub(in crate::run) struct Listed {
    unlisted: Mutex<BTreeSet<Kind>>,
}

impl Listed {
    /// None of them, where there is to be an extender; else none is waited for.
    pub(in crate::run) fn new(has_extender: bool) -> Self {
        let kinds = if has_extender { Kind::ALL.into() } else { BTreeSet::new() };
        Self { unlisted: Mutex::new(kinds) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Kind>> {
        lock(&self.unlisted)
    }

    /// Returns what is not listed yet: until then no call can be answered.
    pub(in crate::run) fn unready(&self) -> Option<String> {
        let kinds: Vec<&str> = self.lock().iter().map(|kind| kind.name()).collect();
        (!kinds.is_empty()).then(|| format!("{} are not listed yet", kinds.join(", ")))
    }
}

/// Lets calls through.
pub(super) struct Gate {
    listed: Arc<Listed>,
    changed: watch::Sender<()>,
    lease: Option<(Api<Lease>, String)>,
    guard: Mutex<LeaseGuard>,
    /// Taken by a call that looks at the Lease; others wait for what it sees.
    looking: tokio::sync::Mutex<()>,
    /// The last call.
    called: Mutex<Option<Instant>>,
}

impl Gate {
    pub(super) fn new(client: &Client, settings: &Settings, listed: Arc<Listed>) -> Self {
        let lease = settings
            .lease
            .as_ref()
            .map(|(namespace, name)| (Api::namespaced(client.clone(), namespace), name.clone()));
        Self {
            listed,
            changed: watch::Sender::new(()),
            lease,
            guard: Mutex::new(LeaseGuard::new(&settings.host)),
            looking: tokio::sync::Mutex::new(()),
            called: Mutex::new(None),
        }
    }

    fn unlisted(&self) -> MutexGuard<'_, BTreeSet<Kind>> {
        self.listed.lock()
    }

    /// A kind is listed, or is being listed anew.
    pub(super) fn listed(&self, kind: Kind, is: bool) {
        if is {
            self.unlisted().remove(&kind);
        } else {
            self.unlisted().insert(kind);
        }
        self.changed();
    }

    /// All is to be listed anew.
    pub(super) fn close(&self) {
        self.unlisted().extend(Kind::ALL);
    }

    /// Something has changed.
    pub(super) fn changed(&self) {
        self.changed.send_replace(());
    }

    /// Until all but pods is listed: pods are counted by what else is known.
    pub(super) async fn all_but_pods(&self) {
        let mut changed = self.changed.subscribe();
        while self.unlisted().iter().any(|kind| *kind != Kind::Pods) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// For whoever waits for a change; it must be asked for before the look that found nothing.
    pub(super) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Until a decision may be made here.
    ///
    /// # Errors
    /// Why it may not, at the end.
    pub(super) async fn pass(&self, until: Instant) -> Result<(), String> {
        loop {
            let mut changed = self.watch();
            let (why, pause) = match self.listed.unready() {
                Some(why) => (why, HOLD),
                None => match self.fence().await {
                    Ok(()) => return Ok(()),
                    Err(why) => (why, AGAIN),
                },
            };
            let now = Instant::now();
            if now >= until {
                return Err(why);
            }
            let end = until.min(now.checked_add(pause).unwrap_or(until));
            // A change, or the end of the pause: either is a reason to look again.
            drop(tokio::time::timeout_at(end.into(), changed.changed()).await);
        }
    }

    /// The same as [`Self::pass`], with all that it asks the API server, until the end of a call.
    ///
    /// # Errors
    /// Why it may not, or that it is not known in time.
    pub(super) async fn pass_by(&self, until: Instant, end: Instant) -> Result<(), String> {
        let pass = tokio::time::timeout_at(end.into(), self.pass(until)).await;
        pass.unwrap_or_else(|_| Err(LATE.to_owned()))
    }

    /// The same as [`Self::fence`], until the end of a call.
    ///
    /// # Errors
    /// Which scheduler decides, or that it is not known in time.
    pub(super) async fn fence_by(&self, end: Instant) -> Result<(), String> {
        let fence = tokio::time::timeout_at(end.into(), self.fence()).await;
        fence.unwrap_or_else(|_| Err(LATE.to_owned()))
    }

    /// Whether this one decides.
    ///
    /// # Errors
    /// Who does, or why it is not known.
    pub(super) async fn fence(&self) -> Result<(), String> {
        if self.lease.is_none() {
            return Ok(());
        }
        let is_sure = || lock(&self.guard).is_held(Instant::now());
        *lock(&self.called) = Some(Instant::now());
        if is_sure() {
            return Ok(());
        }
        let _turn = self.looking.lock().await;
        if is_sure() { Ok(()) } else { self.look().await }
    }

    async fn look(&self) -> Result<(), String> {
        let Some((api, name)) = &self.lease else { return Ok(()) };
        let began = Instant::now();
        let lease = match tokio::time::timeout(LEASE, api.get(name)).await {
            Ok(lease) => found(lease).map_err(|error| berth_runtime::cli::text::chain(&error)),
            Err(_) => Err(format!("no answer in {} s", LEASE.as_secs())),
        };
        let lease = lease.map_err(|why| format!("Lease {name} cannot be read: {why}"))?;
        let update = lock(&self.guard).update(began, Instant::now(), lease.as_ref());
        update.map_err(|error| error.to_string())
    }

    /// Looks at the Lease again and again as long as calls come, so that none has to wait for it. For ever.
    pub(super) async fn keep(&self) {
        let mut ticks = tokio::time::interval(READ_VALIDITY / 3);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let is_busy = lock(&self.called).is_some_and(|last| last.elapsed() < BUSY);
            if is_busy && lock(&self.guard).is_held(Instant::now()) {
                // Whoever asks next says what is wrong.
                drop(self.look().await);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
