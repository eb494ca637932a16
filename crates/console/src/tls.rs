//! TLS of the console, with a certificate that is read again when its files change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Interval between checks of the files for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Certificate and key of the console.
pub(crate) struct ServerCertificate {
    certificate: PathBuf,
    key: PathBuf,
    current: Mutex<(Vec<u8>, TlsAcceptor)>,
}

impl ServerCertificate {
    /// Reads the files.
    pub(crate) fn read(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let current = Mutex::new(load(&certificate, &key)?);
        Ok(Self { certificate, key, current })
    }

    /// Returns the acceptor with the latest certificate.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Reads the files again whenever they have changed. Never returns.
    pub(crate) async fn reload_on_change(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let path = self.certificate.display();
            match load(&self.certificate, &self.key) {
                Ok(loaded) => {
                    let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
                    if current.0 != loaded.0 {
                        *current = loaded;
                        tracing::info!(%path, "reloaded the changed certificate");
                    }
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(%path, error, "failed to read the certificate; the previous one stays in use");
                }
            }
        }
    }
}

/// Returns the content of the file of the certificate, and the acceptor.
fn load(certificate: &Path, key: &Path) -> anyhow::Result<(Vec<u8>, TlsAcceptor)> {
    let content = read_file(certificate).with_context(|| certificate.display().to_string())?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    let chain = chain.with_context(|| certificate.display().to_string())?;
    let secret = read_file(key).with_context(|| key.display().to_string())?;
    // The error of the parser is not returned, because the file is secret.
    let secret = PrivateKeyDer::from_pem_slice(&secret);
    let secret = secret.ok().with_context(|| format!("{}: no private key", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)?;
    Ok((content, TlsAcceptor::from(Arc::new(config))))
}

#[expect(clippy::disallowed_methods, reason = "a certificate is not a file of the observed host")]
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
}
