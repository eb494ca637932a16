//! One leads: a Lease, by the rules of client-go's `tools/leaderelection`.
//!
//! Whether another's Lease has run out is judged by how long it has not changed here, so clocks may differ. Each change
//! of it carries the version that was seen, so of two that try at once one is refused. Who leads stops at two thirds of
//! the time for which others wait, also if the way to the server is lost; and the end of a term is known to whoever
//! writes, so that nothing is sent after it by a process that had been stopped for a while.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::client::{CallError, jittered};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ObjectMeta;
use tokio::sync::watch;

use super::calls::made_by;

/// Whether we lead, and for how long that is sure.
#[derive(Debug, Clone)]
pub(super) struct Term(Arc<Mutex<Option<Instant>>>);

impl Term {
    /// Nobody leads yet.
    #[must_use]
    pub(super) fn none() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Whether we lead now.
    #[must_use]
    pub(super) fn lasts(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }
}

/// One that wants to lead.
pub(super) struct Candidate {
    api: Api<Lease>,
    name: &'static str,
    identity: String,
    duration: Duration,
    term: Term,
    /// As it was seen last, and when it was first seen so.
    seen: Option<(Lease, Instant)>,
    said: String,
}

impl Candidate {
    pub(super) fn new(
        api: Api<Lease>,
        name: &'static str,
        identity: String,
        duration: Duration,
        term: Term,
    ) -> Self {
        Self { api, name, identity, duration, term, seen: None, said: String::new() }
    }

    /// Tries for ever, and tells whether it leads.
    pub(super) async fn run(&mut self, leading: &watch::Sender<bool>) {
        loop {
            let begin = Instant::now();
            let leads = self.turn().await;
            if leads {
                // As long as no other may think that we are gone.
                self.term.set(begin.checked_add(self.duration * 2 / 3));
            } else if !self.term.lasts() {
                self.term.set(None);
            }
            let lasts = self.term.lasts();
            leading.send_if_modified(|before| std::mem::replace(before, lasts) != lasts);
            let pause = if lasts && !leads { self.duration / 15 } else { self.duration / 4 };
            let pause = jittered(pause);
            // The end of a term is not slept through.
            let end = *self.term.0.lock().unwrap_or_else(PoisonError::into_inner);
            let pause =
                end.map_or(pause, |end| pause.min(end.saturating_duration_since(Instant::now())));
            tokio::time::sleep(pause).await;
        }
    }

    /// Gives the Lease back, so that another can lead at once.
    pub(super) async fn release(mut self) {
        let held = self.term.lasts();
        self.term.set(None);
        if !held {
            return;
        }
        // A renewal may have been under way.
        self.look().await.unwrap_or_default();
        let ours = self.seen.take().filter(|(lease, _)| self.is_ours(lease));
        let Some((lease, _)) = ours else { return };
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        // As client-go leaves it: a holder without a name for one second.
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(Timestamp::now())),
            acquire_time: Some(MicroTime(Timestamp::now())),
            lease_transitions: transitions,
            ..LeaseSpec::default()
        };
        if let Err(error) = self.write(Lease { spec: Some(spec), ..lease }).await {
            tracing::warn!(
                "Lease {} was not given back: {error}; another leads when it has run out",
                self.name
            );
        }
    }

    /// One try to get or to keep it.
    async fn turn(&mut self) -> bool {
        match self.acquire().await {
            Ok(leads) => {
                self.said.clear();
                leads
            }
            Err(error) => {
                // Whatever is there is to be looked at anew.
                if error.code() == Some(409) {
                    self.look().await.unwrap_or_default();
                    return false;
                }
                let error = error.to_string();
                if error != self.said {
                    tracing::warn!("Lease {}: {error}", self.name);
                    self.said = error;
                }
                false
            }
        }
    }

    async fn acquire(&mut self) -> Result<bool, CallError> {
        // Its holder changes it without a look: what another did meanwhile is a conflict.
        let is_ours = self.seen.as_ref().is_some_and(|(lease, _)| self.is_ours(lease));
        if !(is_ours && self.term.lasts()) {
            self.look().await?;
        }
        let Some((lease, since)) = self.seen.clone() else {
            let metadata = ObjectMeta { name: Some(self.name.to_owned()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(None)) };
            let made = self.limit(self.api.create(&made_by(), &lease)).await?;
            self.seen = Some((made, Instant::now()));
            return Ok(true);
        };
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        let lasts = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        if !holder.is_empty() && holder != self.identity && since.elapsed() < lasts {
            return Ok(false);
        }
        let spec = self.spec(lease.spec.as_ref());
        self.write(Lease { spec: Some(spec), ..lease }).await?;
        Ok(true)
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder == Some(self.identity.as_str())
    }

    /// The Lease as ours from now on.
    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let is_ours =
            before.is_some_and(|spec| spec.holder_identity.as_ref() == Some(&self.identity));
        let acquired = before.and_then(|spec| spec.acquire_time.clone()).filter(|_| is_ours);
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            acquire_time: acquired.or_else(|| now.clone()),
            renew_time: now,
            lease_transitions: Some(
                transitions.saturating_add((before.is_some() && !is_ours).into()),
            ),
            ..LeaseSpec::default()
        }
    }

    async fn write(&mut self, lease: Lease) -> Result<(), CallError> {
        let written = self.limit(self.api.replace(self.name, &made_by(), &lease)).await?;
        self.seen = Some((written, Instant::now()));
        Ok(())
    }

    async fn look(&mut self) -> Result<(), CallError> {
        let found = self.limit(self.api.get_opt(self.name)).await?;
        self.seen = match (found, self.seen.take()) {
            (None, _) => None,
            (Some(found), Some((before, since))) if before.spec == found.spec => {
                Some((found, since))
            }
            (Some(found), _) => Some((found, Instant::now())),
        };
        Ok(())
    }

    /// A call that takes too long is tried again while there is time.
    async fn limit<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, CallError> {
        match tokio::time::timeout(self.duration / 3, call).await {
            Ok(done) => done.map_err(CallError::from),
            Err(_) => Err(CallError::Silent),
        }
    }
}
