//! Readiness gate: delays each call until all kinds are listed and the lease guard permits this extender to decide.
//!
//! A scheduler whose call is delayed for a moment continues as soon as it gets the response. A scheduler that gets an
//! error retries the pod after a minute (Kubernetes before 1.22).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_extender::{LeaseGuard, READ_VALIDITY};
use berth_runtime::call::none_if_not_found;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::watch;

use super::error::GateError;
use super::settings::Settings;
use super::unlisted_kinds::{ListedKind, UnlistedKinds};

/// Maximum duration of a call, including all its requests to the API server. kube-scheduler waits for ten seconds
/// (`httpTimeout`) and treats a later response as a failure, even if the pod was bound.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(9);
/// Maximum time for which a call is delayed before the extender decides.
pub(super) const HOLD_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum time for which a call is delayed until another watch delivers an object that the decision requires.
pub(super) const OBJECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after a call during which the extender expects another call, and therefore reads the Lease in advance.
const BUSY_PERIOD: Duration = Duration::from_secs(5);
/// Interval between reads of the Lease while this extender may not decide.
const LEASE_RETRY_DELAY: Duration = Duration::from_millis(300);
/// Timeout of a read of the Lease.
const LEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// State of the readiness gate.
pub(super) struct ReadinessGate {
    unlisted_kinds: Arc<UnlistedKinds>,
    change_sender: watch::Sender<()>,
    lease: Option<(Api<Lease>, String)>,
    lease_guard: Mutex<LeaseGuard>,
    /// Lock held by the call that reads the Lease; other calls wait for the result.
    read_lock: tokio::sync::Mutex<()>,
    last_call: Mutex<Option<Instant>>,
}

impl ReadinessGate {
    pub(super) fn new(
        client: &Client,
        settings: &Settings,
        unlisted_kinds: Arc<UnlistedKinds>,
    ) -> Self {
        let lease = settings
            .lease
            .as_ref()
            .map(|(namespace, name)| (Api::namespaced(client.clone(), namespace), name.clone()));
        Self {
            unlisted_kinds,
            change_sender: watch::Sender::new(()),
            lease,
            lease_guard: Mutex::new(LeaseGuard::new(&settings.hostname)),
            read_lock: tokio::sync::Mutex::new(()),
            last_call: Mutex::new(None),
        }
    }

    /// Records that a kind has been listed, or that a new list of the kind has begun.
    pub(super) fn set_listed(&self, kind: ListedKind, is_listed: bool) {
        if is_listed {
            self.unlisted_kinds.lock_kinds().remove(&kind);
        } else {
            self.unlisted_kinds.lock_kinds().insert(kind);
        }
        self.notify();
    }

    /// Returns true if all kinds are listed.
    pub(super) fn are_all_listed(&self) -> bool {
        self.unlisted_kinds.lock_kinds().is_empty()
    }

    /// Records that no kind is listed.
    pub(super) fn mark_all_unlisted(&self) {
        self.unlisted_kinds.lock_kinds().extend(ListedKind::ALL);
    }

    /// Notifies the calls that wait for a change of the state.
    pub(super) fn notify(&self) {
        self.change_sender.send_replace(());
    }

    /// Waits until all kinds except pods are listed. The other kinds are needed to count pods.
    pub(super) async fn wait_for_other_kinds(&self) {
        let mut changed = self.change_sender.subscribe();
        while self.unlisted_kinds.lock_kinds().iter().any(|kind| *kind != ListedKind::Pods) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns a receiver that is notified of changes of the state. A caller must create the receiver before it checks
    /// the state, so that it misses no change.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.change_sender.subscribe()
    }

    /// Waits until this extender may decide, at most until `deadline`.
    ///
    /// # Errors
    /// Returns the reason if this extender may not decide at the end of the wait.
    pub(super) async fn wait_until_allowed(&self, deadline: Instant) -> Result<(), GateError> {
        loop {
            let mut changed = self.subscribe();
            let (error, delay) = match self.unlisted_kinds.not_ready_reason() {
                Some(unlisted) => (GateError::KindsNotListed(unlisted), HOLD_TIMEOUT),
                None => match self.check_lease().await {
                    Ok(()) => return Ok(()),
                    Err(error) => (error, LEASE_RETRY_DELAY),
                },
            };
            let now = Instant::now();
            if now >= deadline {
                return Err(error);
            }
            let wait_deadline = deadline.min(now.checked_add(delay).unwrap_or(deadline));
            // The check is repeated after a change of the state, and also after the delay.
            drop(tokio::time::timeout_at(wait_deadline.into(), changed.changed()).await);
        }
    }

    /// Waits as [`Self::wait_until_allowed`] does, but ends at `call_deadline`, even during a request.
    ///
    /// # Errors
    /// Returns an error if this extender may not decide, or if the Lease cannot be read in time.
    pub(super) async fn wait_until_allowed_before(
        &self,
        deadline: Instant,
        call_deadline: Instant,
    ) -> Result<(), GateError> {
        let result =
            tokio::time::timeout_at(call_deadline.into(), self.wait_until_allowed(deadline)).await;
        result.unwrap_or(Err(GateError::DeadlineExceeded))
    }

    /// Checks the Lease as [`Self::check_lease`] does, but ends at `deadline`.
    ///
    /// # Errors
    /// Returns an error if this extender may not decide, or if the Lease cannot be read in time.
    pub(super) async fn check_lease_before(&self, deadline: Instant) -> Result<(), GateError> {
        let check = tokio::time::timeout_at(deadline.into(), self.check_lease()).await;
        check.unwrap_or(Err(GateError::DeadlineExceeded))
    }

    /// Checks that the scheduler of this pod holds the Lease, so that this extender decides. Reads the Lease if the
    /// last read is too old.
    ///
    /// # Errors
    /// Returns an error if another extender decides, or if the Lease cannot be read.
    async fn check_lease(&self) -> Result<(), GateError> {
        if self.lease.is_none() {
            return Ok(());
        }
        let is_held = || lock(&self.lease_guard).is_held(Instant::now());
        *lock(&self.last_call) = Some(Instant::now());
        if is_held() {
            return Ok(());
        }
        let _read_guard = self.read_lock.lock().await;
        if is_held() { Ok(()) } else { self.read_lease().await }
    }

    async fn read_lease(&self) -> Result<(), GateError> {
        let Some((api, name)) = &self.lease else { return Ok(()) };
        let started_at = Instant::now();
        let Ok(lease) = tokio::time::timeout(LEASE_TIMEOUT, api.get(name)).await else {
            let (name, seconds) = (name.clone(), LEASE_TIMEOUT.as_secs());
            return Err(GateError::LeaseTimeout { name, seconds });
        };
        let lease = none_if_not_found(lease)
            .map_err(|source| GateError::ReadLease { name: name.clone(), source })?;
        lock(&self.lease_guard).update(started_at, Instant::now(), lease.as_ref())?;
        Ok(())
    }

    /// Reads the Lease repeatedly as long as calls arrive, so that no call has to wait for a read. Never ends.
    pub(super) async fn refresh_lease(&self) {
        let mut ticks = tokio::time::interval(READ_VALIDITY / 3);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let is_busy = lock(&self.last_call).is_some_and(|last| last.elapsed() < BUSY_PERIOD);
            if is_busy && lock(&self.lease_guard).is_held(Instant::now()) {
                // An error is ignored, because the next call reads the Lease again and returns the error.
                drop(self.read_lease().await);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
