//! A way to the API server that can be made to fail: it passes everything on, in the mood that a test puts it in, and
//! remembers what was asked.
//!
//! In front it is HTTP on loopback; behind, TLS to the control plane, with the caller's own credential.

mod answer;
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

/// What becomes of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mood {
    /// They are passed on, and their answers passed back.
    Well,
    /// They are answered here, with a code, seconds for `Retry-After`, and a body.
    Answer(u16, Option<u64>, String),
    /// They are held up for so long before they are passed on.
    Slow(Duration),
    /// The connection is reset after half of a line of the answer.
    Cut,
    /// Each text of that kind becomes another in each line of the answer.
    Garble(String, String),
}

/// Which requests a mood is for; for the others the proxy is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Those that change something.
    Writes,
    /// Those that read.
    Reads,
}

/// A request that came, and what the caller was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// When it came.
    pub at: Instant,
    /// `GET`, `PATCH`, `WATCH`, and so on.
    pub verb: String,
    /// Without the query.
    pub path: String,
    /// The HTTP status; `None` as long as there is no answer.
    pub code: Option<u16>,
}

/// Ends when dropped, with all connections.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    _runtime: Runtime,
}

/// What connections and the test have in common.
#[derive(Debug)]
struct Shared {
    mood: Mutex<(Which, Mood)>,
    requests: Mutex<Vec<Request>>,
    /// Answers of requests before these numbers of requests are reset, and are silent.
    ended: watch::Sender<Ended>,
}

/// Numbers of requests.
#[derive(Debug, Clone, Copy, Default)]
struct Ended {
    reset_before: usize,
    silent_before: usize,
}

impl Proxy {
    /// Begins; it is well.
    ///
    /// # Errors
    /// If the control plane's authority cannot be read, or there is no port.
    pub fn start(plane: &ControlPlane) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let authority = Keys::of(plane.folder.path()).authority;
        let client = serve::client(&authority)?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            mood: Mutex::new((Which::All, Mood::Well)),
            requests: Mutex::default(),
            ended: watch::Sender::default(),
        });
        runtime.spawn(serve::serve(listener, client, plane.port, Arc::clone(&shared)));
        Ok(Self { shared, address, _runtime: runtime })
    }

    /// A kubeconfig for the holder of a token, with the address of this proxy.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn kubeconfig(&self, plane: &ControlPlane, name: &str, token: &str) -> Result<PathBuf> {
        let file = plane.folder.path().join(format!("{name}.kubeconfig"));
        let keys = Keys::of(plane.folder.path());
        keys.kubeconfig(&file, &format!("http://{}", self.address), token)?;
        Ok(file)
    }

    /// From now on, for requests and for lines of answers that are under way.
    pub fn mood(&self, which: Which, mood: Mood) {
        *lock(&self.shared.mood) = (which, mood);
    }

    /// Resets the connections of all answers that are under way: watches above all.
    pub fn reset(&self) {
        let now = self.mark();
        self.shared.ended.send_modify(|ended| ended.reset_before = now);
    }

    /// Nothing passes any more of answers that are under way, not even their end; requests that come later are answered.
    pub fn silence(&self) {
        let now = self.mark();
        self.shared.ended.send_modify(|ended| ended.silent_before = now);
    }

    /// How many requests came until now.
    #[must_use]
    pub fn mark(&self) -> usize {
        lock(&self.shared.requests).len()
    }

    /// The requests that came after a mark.
    #[must_use]
    pub fn since(&self, mark: usize) -> Vec<Request> {
        lock(&self.shared.requests).get(mark..).unwrap_or_default().to_vec()
    }
}

impl Shared {
    /// The mood for a request.
    fn mood_for(&self, verb: &str) -> Mood {
        let (which, mood) = &*lock(&self.mood);
        let reads = verb == "GET" || verb == "WATCH";
        let meant = match which {
            Which::All => true,
            Which::Writes => !reads,
            Which::Reads => reads,
        };
        if meant { mood.clone() } else { Mood::Well }
    }

    /// Takes note of a request; gives its number.
    fn came(&self, verb: &str, path: &str) -> usize {
        let request = Request {
            at: Instant::now(),
            verb: verb.to_owned(),
            path: path.to_owned(),
            code: None,
        };
        let mut requests = lock(&self.requests);
        requests.push(request);
        requests.len() - 1
    }

    fn answered(&self, number: usize, code: u16) {
        if let Some(request) = lock(&self.requests).get_mut(number) {
            request.code = Some(code);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
