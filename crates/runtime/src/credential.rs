//! Reads a kubeconfig again when the kubeconfig, or a file that it names, changes while the daemon runs.
//!
//! kube itself reads token files again, but reads a kubeconfig and certificates only once. All users of a
//! [`Credential`] share one client that sends each request over the latest connection; open watches keep the connection
//! on which they were started.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Request;
use kube::Client;
use kube::client::Body;
use kube::config::Kubeconfig;
use tower::BoxError;

use crate::certificate::Validity;
use crate::client::{Connection, connect};
use crate::kubeconfig::{current_user, read_credential_file};

/// Interval between checks of the files for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);

/// The latest client that was created from a kubeconfig.
#[derive(Debug, Clone)]
pub struct Credential {
    path: PathBuf,
    latest_connection: Arc<Mutex<Connection>>,
}

impl Credential {
    /// Reads the kubeconfig. `hint` is appended to the error if no cluster is configured.
    ///
    /// # Errors
    /// Returns an error if the kubeconfig cannot be read.
    pub async fn read(path: &Path, hint: &str) -> anyhow::Result<Self> {
        let connected = connect(Some(path), hint, |_| {}).await?;
        Ok(Self { path: path.to_owned(), latest_connection: Arc::new(Mutex::new(connected)) })
    }

    fn lock_connection(&self) -> MutexGuard<'_, Connection> {
        self.latest_connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the host name or address of the API server in the latest kubeconfig, and its port.
    #[must_use]
    pub fn server(&self) -> (String, u16) {
        self.lock_connection().server.clone()
    }

    /// Returns the validity of the client certificate; `None` if the kubeconfig has no certificate that can be read.
    #[must_use]
    pub fn certificate(&self) -> Option<Validity> {
        self.lock_connection().certificate
    }

    /// Returns a client that sends requests with the latest credential.
    #[must_use]
    pub fn client(&self) -> Client {
        let namespace = self.lock_connection().client.default_namespace().to_owned();
        let latest = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let client = latest.lock_connection().client.clone();
            async move { Ok::<_, BoxError>(client.send(request).await?) }
        });
        Client::new(service, namespace)
    }

    /// Reads the kubeconfig again whenever the kubeconfig or a file that it names has changed. Never returns.
    pub async fn reload_on_change(self) {
        let path = self.path.display().to_string();
        let (mut loaded_files, mut last_error) = (read_files(&self.path), String::new());
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let current_files = read_files(&self.path);
            if current_files == loaded_files {
                continue;
            }
            match connect(Some(&self.path), "", |_| {}).await {
                Ok(connected) => {
                    *self.lock_connection() = connected;
                    (loaded_files, last_error) = (current_files, String::new());
                    tracing::info!(path, "reloaded the changed kubeconfig");
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    if error != last_error {
                        tracing::warn!(
                            path,
                            error,
                            "failed to read the changed kubeconfig; the previous kubeconfig stays in use"
                        );
                        last_error = error;
                    }
                }
            }
        }
    }
}

/// Returns the contents of a kubeconfig, and of the certificates and keys that it names. A file that cannot be read is
/// `None`.
fn read_files(path: &Path) -> Vec<Option<String>> {
    let mut paths = vec![path.to_owned()];
    if let Ok(kubeconfig) = Kubeconfig::read_from(path) {
        let user = current_user(&kubeconfig);
        let named = user.map(|user| [&user.client_certificate, &user.client_key]);
        paths.extend(named.into_iter().flatten().flatten().map(PathBuf::from));
        let clusters = kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
        paths.extend(clusters.filter_map(|one| Some(one.certificate_authority.as_ref()?.into())));
    }
    paths.iter().map(|path| read_credential_file(path).ok()).collect()
}
