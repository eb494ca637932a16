//! Leader election by a Lease, with the rules of client-go's `tools/leaderelection`.
//!
//! A candidate treats the Lease of another holder as expired if it has not changed for its duration. The candidate
//! measures this time by its own clock, so the clocks of the candidates may differ. Each write contains the resource
//! version that was read, so the API server refuses one of two concurrent writes. A leader gives up leadership when two
//! thirds of the duration have passed since its last renewal, even if the API server cannot be reached. All writers
//! check the [`LeaderGuard`], so a process that was suspended and has lost leadership meanwhile sends no writes after
//! it is resumed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::sync::watch;

use crate::backoff::add_jitter;
use crate::call::CallError;

/// Time until which this process is the leader: no other candidate can acquire the Lease before this time. `None` if
/// this process is not the leader.
#[derive(Debug, Clone, Default)]
pub struct LeaderGuard(Arc<Mutex<Option<Instant>>>);

impl LeaderGuard {
    fn set_valid_until(&self, valid_until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = valid_until;
    }

    fn valid_until(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if this process is the leader now.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.valid_until().is_some_and(|until| Instant::now() < until)
    }
}

/// Configuration of the Lease and of this process as a candidate.
#[derive(Debug, Clone)]
pub struct ElectionConfig {
    pub lease_name: &'static str,
    /// Identity by which the Lease names this process as its holder.
    pub identity: String,
    /// Duration after which other candidates acquire the Lease if its holder does not renew it.
    pub lease_duration: Duration,
    /// Field manager with which the Lease is written.
    pub field_manager: &'static str,
}

/// A candidate for leadership.
#[derive(Debug)]
pub struct LeaderElector {
    api: Api<Lease>,
    config: ElectionConfig,
    guard: LeaderGuard,
    /// The Lease as it was last read, and the time at which its current resource version was first read.
    observed_lease: Option<(Lease, Instant)>,
    last_error: String,
}

impl LeaderElector {
    /// Returns a candidate that is not the leader yet. While the candidate runs, it updates `guard`.
    #[must_use]
    pub const fn new(api: Api<Lease>, election: ElectionConfig, guard: LeaderGuard) -> Self {
        Self { api, config: election, guard, observed_lease: None, last_error: String::new() }
    }

    /// Acquires the Lease as soon as possible, and then renews it. Sends true to `leadership` whenever this process
    /// becomes the leader, and false whenever it is no longer the leader. Never returns.
    pub async fn run(&mut self, leadership: &watch::Sender<bool>) {
        let duration = self.config.lease_duration;
        loop {
            let begin = Instant::now();
            let acquired = self.try_acquire_or_renew().await;
            if acquired {
                // No other candidate may acquire the Lease before the whole duration has passed. The leadership ends
                // earlier, after two thirds.
                self.guard.set_valid_until(begin.checked_add(duration * 2 / 3));
            } else if !self.guard.is_leader() {
                self.guard.set_valid_until(None);
            }
            let is_leader = self.guard.is_leader();
            leadership.send_if_modified(|before| std::mem::replace(before, is_leader) != is_leader);
            let delay = if is_leader && !acquired { duration / 15 } else { duration / 4 };
            let delay = add_jitter(delay);
            // The delay ends at the latest when the leadership ends, so that the loss is reported in time.
            let delay = self
                .guard
                .valid_until()
                .map_or(delay, |until| delay.min(until.saturating_duration_since(Instant::now())));
            tokio::time::sleep(delay).await;
        }
    }

    /// Releases the Lease if this process holds it, so that another candidate can acquire it immediately.
    pub async fn release(mut self) {
        let was_leader = self.guard.is_leader();
        self.guard.set_valid_until(None);
        if !was_leader {
            return;
        }
        // The last renewal may have succeeded although its response was lost, so the Lease is read again.
        self.read_lease().await.unwrap_or_default();
        let ours =
            self.observed_lease.take().filter(|(lease, _)| self.is_held_by_this_process(lease));
        let Some((lease, _)) = ours else { return };
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        // As in client-go, the released Lease has an empty holder and a duration of one second.
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(MicroTime(Timestamp::now())),
            acquire_time: Some(MicroTime(Timestamp::now())),
            lease_transitions: transitions,
            ..LeaseSpec::default()
        };
        if let Err(error) = self.replace_lease(Lease { spec: Some(spec), ..lease }).await {
            let lease = self.config.lease_name;
            tracing::warn!(lease, %error, "failed to release the leader lease; it will expire");
        }
    }

    /// Returns true if the Lease was acquired or renewed. After an error, logs the error and returns false.
    async fn try_acquire_or_renew(&mut self) -> bool {
        match self.acquire_or_renew().await {
            Ok(acquired) => {
                self.last_error.clear();
                acquired
            }
            Err(error) => {
                // A conflict: another candidate wrote the Lease first.
                if error.status_code() == Some(409) {
                    self.read_lease().await.unwrap_or_default();
                    return false;
                }
                let error = error.to_string();
                if error != self.last_error {
                    let lease = self.config.lease_name;
                    tracing::warn!(lease, %error, "failed to acquire or renew the leader lease");
                    self.last_error = error;
                }
                false
            }
        }
    }

    async fn acquire_or_renew(&mut self) -> Result<bool, CallError> {
        // The leader renews the Lease without reading it first. If another candidate has written the Lease meanwhile,
        // the renewal fails with a conflict.
        let is_ours = self
            .observed_lease
            .as_ref()
            .is_some_and(|(lease, _)| self.is_held_by_this_process(lease));
        if !(is_ours && self.guard.is_leader()) {
            self.read_lease().await?;
        }
        let Some((lease, since)) = self.observed_lease.clone() else {
            let name = Some(self.config.lease_name.to_owned());
            let metadata = ObjectMeta { name, ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.lease_spec(None)) };
            let created =
                self.with_time_limit(self.api.create(&self.post_params(), &lease)).await?;
            self.observed_lease = Some((created, Instant::now()));
            return Ok(true);
        };
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let is_held_by_other = !holder.is_empty() && holder != self.config.identity;
        if is_held_by_other && since.elapsed() < duration {
            return Ok(false);
        }
        let spec = self.lease_spec(lease.spec.as_ref());
        self.replace_lease(Lease { spec: Some(spec), ..lease }).await?;
        Ok(true)
    }

    fn is_held_by_this_process(&self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder == Some(self.config.identity.as_str())
    }

    /// Returns the spec of a Lease whose holder is this process.
    fn lease_spec(&self, previous: Option<&LeaseSpec>) -> LeaseSpec {
        let ElectionConfig { identity, lease_duration: duration, .. } = &self.config;
        let now = Some(MicroTime(Timestamp::now()));
        let is_ours = previous.is_some_and(|spec| spec.holder_identity.as_ref() == Some(identity));
        let acquired = previous.and_then(|spec| spec.acquire_time.clone()).filter(|_| is_ours);
        let transitions = previous.and_then(|spec| spec.lease_transitions).unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(identity.clone()),
            lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
            acquire_time: acquired.or_else(|| now.clone()),
            renew_time: now,
            lease_transitions: Some(
                transitions.saturating_add((previous.is_some() && !is_ours).into()),
            ),
            ..LeaseSpec::default()
        }
    }

    fn post_params(&self) -> PostParams {
        let field_manager = Some(self.config.field_manager.to_owned());
        PostParams { field_manager, ..PostParams::default() }
    }

    async fn replace_lease(&mut self, lease: Lease) -> Result<(), CallError> {
        let params = self.post_params();
        let replace = self.api.replace(self.config.lease_name, &params, &lease);
        let written = self.with_time_limit(replace).await?;
        self.observed_lease = Some((written, Instant::now()));
        Ok(())
    }

    async fn read_lease(&mut self) -> Result<(), CallError> {
        let read = self.with_time_limit(self.api.get_opt(self.config.lease_name)).await?;
        self.observed_lease = match (read, self.observed_lease.take()) {
            (None, _) => None,
            (Some(read), Some((before, since))) if before.spec == read.spec => Some((read, since)),
            (Some(read), _) => Some((read, Instant::now())),
        };
        Ok(())
    }

    /// Waits for a call, but for at most a third of the Lease's duration, so that there is time for a retry.
    async fn with_time_limit<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, CallError> {
        match tokio::time::timeout(self.config.lease_duration / 3, call).await {
            Ok(done) => done.map_err(CallError::from),
            Err(_) => Err(CallError::Timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use hyper::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;

    use super::*;

    /// A simulated API server that has one Lease.
    #[derive(Clone, Default)]
    struct SimulatedApiServer {
        lease: Arc<Mutex<Option<Lease>>>,
    }

    impl SimulatedApiServer {
        fn client(&self) -> Client {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let server = server.clone();
                async move { Ok::<_, tower::BoxError>(server.respond(request).await) }
            });
            Client::new(service, "berth-system")
        }

        async fn respond(&self, request: Request<Body>) -> Response<Body> {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let mut stored = self.lease.lock().unwrap();
            if head.method != Method::GET {
                let mut lease: Lease = serde_json::from_slice(&body).unwrap();
                let version =
                    stored.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
                if lease.metadata.resource_version != version {
                    return error_response(409, "Conflict");
                }
                let next = version.map_or(1, |version| version.parse::<u32>().unwrap() + 1);
                lease.metadata.resource_version = Some(next.to_string());
                *stored = Some(lease);
            }
            match &*stored {
                Some(lease) => Response::new(Body::from(serde_json::to_vec(lease).unwrap())),
                None => error_response(404, "NotFound"),
            }
        }

        fn elector(&self, identity: &str, seconds: u64) -> (LeaderElector, LeaderGuard) {
            let guard = LeaderGuard::default();
            let election = ElectionConfig {
                lease_name: "test",
                identity: identity.to_owned(),
                lease_duration: Duration::from_secs(seconds),
                field_manager: "test",
            };
            let api = Api::namespaced(self.client(), "berth-system");
            (LeaderElector::new(api, election, guard.clone()), guard)
        }

        fn spec(&self) -> LeaseSpec {
            self.lease.lock().unwrap().clone().unwrap().spec.unwrap()
        }
    }

    fn error_response(code: u16, reason: &str) -> Response<Body> {
        let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": reason, "reason": reason, "code": code});
        let mut response = Response::new(Body::from(serde_json::to_vec(&status).unwrap()));
        *response.status_mut() = code.try_into().unwrap();
        response
    }

    #[tokio::test]
    async fn only_one_candidate_is_leader_until_release() {
        let server = SimulatedApiServer::default();
        let (mut a, a_guard) = server.elector("a", 15);
        let (mut b, b_guard) = server.elector("b", 15);
        assert!(a.try_acquire_or_renew().await);
        assert!(!a_guard.is_leader(), "only run updates the guard");
        a_guard.set_valid_until(Instant::now().checked_add(Duration::from_secs(10)));
        assert!(!b.try_acquire_or_renew().await, "another candidate holds the Lease");
        assert!(a.try_acquire_or_renew().await, "the holder renews the Lease");
        assert_eq!(server.spec().lease_transitions, Some(0));
        a.release().await;
        assert!(!a_guard.is_leader());
        assert_eq!(server.spec().holder_identity.as_deref(), Some(""));
        assert!(b.try_acquire_or_renew().await);
        assert_eq!(server.spec().lease_transitions, Some(1));
        assert!(!b_guard.is_leader());
    }

    #[tokio::test]
    async fn expired_lease_is_acquired_by_another_candidate() {
        let server = SimulatedApiServer::default();
        let (mut a, a_guard) = server.elector("a", 1);
        let (mut b, _) = server.elector("b", 1);
        assert!(a.try_acquire_or_renew().await);
        a_guard.set_valid_until(Instant::now().checked_add(Duration::from_secs(10)));
        assert!(
            !b.try_acquire_or_renew().await,
            "the candidate reads the Lease for the first time"
        );
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert!(b.try_acquire_or_renew().await, "the Lease has not changed for its duration");
        assert!(!a.try_acquire_or_renew().await, "the renewal of an outdated Lease is a conflict");
        assert!(!a.try_acquire_or_renew().await);
        assert_eq!(server.spec().holder_identity.as_deref(), Some("b"));
    }
}
