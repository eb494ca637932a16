//! Client of the API server that runs in the process of the test. A request needs much less CPU time than a start of
//! kubectl.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context as _, Result};
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use kube::{Client, Config};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Name of this client in the audit log, in which tests recognize their own requests by the word `kubectl`.
const CLIENT_NAME: &str = "berth-tests (kubectl)";

/// Client with the permissions of a kubeconfig. The client stops when its last clone is dropped.
#[derive(Clone, Debug)]
pub struct ApiClient {
    jobs: UnboundedSender<Job>,
}

/// Request, and the channel for its response.
#[derive(Debug)]
struct Job {
    request: Request<Vec<u8>>,
    response: Sender<kube::Result<String>>,
}

/// Error that the API server returns, in the format in which kubectl prints it.
#[derive(Debug, thiserror::Error)]
#[error("Error from server ({}): {}", .0.reason, .0.message)]
pub struct Refusal(Box<Status>);

impl Refusal {
    /// Returns the HTTP status code.
    pub(super) fn code(&self) -> u16 {
        self.0.code
    }
}

/// Text of a response, or the error that the API server returns. `None` if there is no response.
pub type Response = Option<Result<String, Refusal>>;

impl ApiClient {
    /// Starts the client. The API server need not run yet.
    ///
    /// # Errors
    /// Fails if the file is no kubeconfig.
    pub(super) fn start(kubeconfig: PathBuf) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (jobs, queue) = unbounded_channel::<Job>();
        let (started, start) = channel::<Result<()>>();
        // Callers may run in an asynchronous runtime, in which blocking on a second runtime panics.
        std::thread::spawn(move || {
            runtime.block_on(async move {
                match create_client(&kubeconfig).await {
                    Ok(client) => {
                        started.send(Ok(())).unwrap_or_default();
                        send_requests(client, queue).await;
                    }
                    Err(error) => started.send(Err(error)).unwrap_or_default(),
                }
            });
        });
        start.recv().context("the thread of the client has ended")??;
        Ok(Self { jobs })
    }

    /// Reads a path.
    pub fn get(&self, path: &str) -> Response {
        self.send(Request::get(path).body(Vec::new()).ok()?)
    }

    pub fn send_body(&self, method: &str, path: &str, content_type: &str, body: &str) -> Response {
        let request =
            Request::builder().method(method).uri(path).header(CONTENT_TYPE, content_type);
        self.send(request.body(body.as_bytes().to_vec()).ok()?)
    }

    /// Sends a request, and waits for the response.
    pub(super) fn send(&self, mut request: Request<Vec<u8>>) -> Response {
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(CLIENT_NAME));
        let (response, responses) = channel();
        self.jobs.send(Job { request, response }).ok()?;
        match responses.recv().ok()? {
            Ok(text) => Some(Ok(text)),
            Err(kube::Error::Api(status)) => Some(Err(Refusal(status))),
            Err(_) => None,
        }
    }
}

async fn create_client(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    // The API server is on this machine, so requests must not use an HTTP proxy.
    config.proxy_url = None;
    // The tests repeat failed requests themselves.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

async fn send_requests(client: Client, mut queue: UnboundedReceiver<Job>) {
    while let Some(Job { request, response }) = queue.recv().await {
        let client = client.clone();
        tokio::spawn(async move {
            // The receiver has been dropped if the test has ended.
            response.send(client.request_text(request).await).unwrap_or_default();
        });
    }
}
