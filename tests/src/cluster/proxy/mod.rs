//! Proxy in front of the API server that injects faults: it forwards every request according to the behaviour that a
//! test sets, and records every request.
//!
//! Callers connect over HTTP on loopback; the proxy connects over TLS to the control plane, with the caller's own
//! credential.

mod response;
mod serve;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::ControlPlane;
use super::keys::Keys;

/// Action of the proxy for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Behaviour {
    /// Forwards requests and responses unchanged.
    Forward,
    /// Answers requests in the proxy with a status code, seconds for `Retry-After`, and a body.
    Respond(u16, Option<u64>, String),
    /// Delays requests for this time before the proxy forwards them.
    Delay(Duration),
    /// Resets the connection after half of a line of the response.
    Truncate,
    /// Replaces each occurrence of the first text by the second text in each line of the response.
    ReplaceText(String, String),
}

/// Requests that a behaviour applies to; the proxy forwards the other requests unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestFilter {
    All,
    /// Requests that change an object.
    Writes,
    /// Requests that only read.
    Reads,
}

/// Request that arrived, and the status code of its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Time of arrival.
    pub arrived_at: Instant,
    /// HTTP method in capitals, or `WATCH` for a watch.
    pub verb: String,
    /// Path without the query.
    pub path: String,
    /// HTTP status; `None` as long as there is no response.
    pub code: Option<u16>,
}

/// Fault-injecting proxy. On drop, the proxy is stopped and all connections are closed.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    _runtime: Runtime,
}

/// State that connections and the test share.
#[derive(Debug)]
struct Shared {
    behaviour: Mutex<(RequestFilter, Behaviour)>,
    requests: Mutex<Vec<Request>>,
    /// Limits that select the open responses which the proxy resets or stalls.
    response_limits: watch::Sender<ResponseLimits>,
}

/// Requests have numbers in the order of their arrival. The proxy resets the connections of the requests with numbers
/// below `reset_before`, and discards the remaining data of the responses to the requests with numbers below
/// `stalled_before`.
#[derive(Debug, Clone, Copy, Default)]
struct ResponseLimits {
    reset_before: usize,
    stalled_before: usize,
}

impl Proxy {
    /// Starts the proxy, which forwards everything unchanged at first.
    ///
    /// # Errors
    /// Fails if the control plane's CA certificate cannot be read, or no port is free.
    pub fn start(plane: &ControlPlane) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let authority = Keys::in_folder(plane.folder.path()).authority;
        let client = serve::create_client(&authority)?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            behaviour: Mutex::new((RequestFilter::All, Behaviour::Forward)),
            requests: Mutex::default(),
            response_limits: watch::Sender::default(),
        });
        runtime.spawn(serve::serve(listener, client, plane.port, Arc::clone(&shared)));
        Ok(Self { shared, address, _runtime: runtime })
    }

    /// Writes a kubeconfig for the holder of a token, with the address of this proxy.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write_kubeconfig(
        &self,
        plane: &ControlPlane,
        name: &str,
        token: &str,
    ) -> Result<PathBuf> {
        let file = plane.folder.path().join(format!("{name}.kubeconfig"));
        let keys = Keys::in_folder(plane.folder.path());
        keys.write_kubeconfig(&file, &format!("http://{}", self.address), token)?;
        Ok(file)
    }

    /// Sets the behaviour for later requests and for later lines of responses that are still open.
    pub fn set_behaviour(&self, filter: RequestFilter, behaviour: Behaviour) {
        *lock(&self.shared.behaviour) = (filter, behaviour);
    }

    /// Resets the connections of all responses that are still open, mainly watches.
    pub fn reset_connections(&self) {
        let request_count = self.request_count();
        self.shared.response_limits.send_modify(|ended| ended.reset_before = request_count);
    }

    /// Discards all later data of the responses that are still open, including the end of each response. Later requests
    /// are not affected.
    pub fn stall_responses(&self) {
        let request_count = self.request_count();
        self.shared.response_limits.send_modify(|ended| ended.stalled_before = request_count);
    }

    /// Returns the number of requests that have arrived so far.
    #[must_use]
    pub fn request_count(&self) -> usize {
        lock(&self.shared.requests).len()
    }

    /// Returns the requests that arrived after the first `mark` requests.
    #[must_use]
    pub fn requests_since(&self, mark: usize) -> Vec<Request> {
        lock(&self.shared.requests).get(mark..).unwrap_or_default().to_vec()
    }
}

impl Shared {
    /// Returns the behaviour for a request.
    fn behaviour_for(&self, verb: &str) -> Behaviour {
        let (which, behaviour) = &*lock(&self.behaviour);
        let reads = verb == "GET" || verb == "WATCH";
        let applies = match which {
            RequestFilter::All => true,
            RequestFilter::Writes => !reads,
            RequestFilter::Reads => reads,
        };
        if applies { behaviour.clone() } else { Behaviour::Forward }
    }

    /// Records a request and returns its number.
    fn record_request(&self, verb: &str, path: &str) -> usize {
        let request = Request {
            arrived_at: Instant::now(),
            verb: verb.to_owned(),
            path: path.to_owned(),
            code: None,
        };
        let mut requests = lock(&self.requests);
        requests.push(request);
        requests.len() - 1
    }

    fn record_response(&self, number: usize, code: u16) {
        if let Some(request) = lock(&self.requests).get_mut(number) {
            request.code = Some(code);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
