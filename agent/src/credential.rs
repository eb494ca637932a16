//! The client certificate of an agent that runs as a systemd service.

use std::path::Path;
use std::time::SystemTime;

use berth_runtime::certificate::{CertificateError, CertificateSource, ExpiryState, Validity};
use berth_runtime::cli::text::error_chain;
use jiff::Timestamp;

use berth_host_facts::root::Root;

/// Path of the kubeconfig, as in deploy/README.md.
pub const KUBECONFIG: &str = "etc/berth/kubeconfig";

/// A client certificate that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Time at which the certificate expires, as text.
    pub expiration_time: String,
    /// Expiry state of the certificate by the clock; `None` in a captured tree, which has no clock.
    pub expiry: Option<ExpiryState>,
}

/// Error of a client certificate that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnreadableCertificate(String);

impl From<String> for UnreadableCertificate {
    fn from(problem: String) -> Self {
        Self(problem)
    }
}

/// Reads the client certificate of the kubeconfig; `None` if the kubeconfig cannot be read, or if it has no
/// certificate.
pub fn observe(root: &Root) -> Option<Result<ClientCertificate, UnreadableCertificate>> {
    let text = root.read(KUBECONFIG).ok()?;
    let validity = CertificateSource::from_kubeconfig(&text).and_then(|source| {
        source.validity(|path| {
            // A relative path is relative to the folder of the kubeconfig.
            let path = Path::new("/etc/berth").join(path).to_string_lossy().into_owned();
            root.read(&path).map_err(|error| error.to_string())
        })
    });
    let validity =
        validity.map_err(|error: CertificateError| UnreadableCertificate(error_chain(&error)));
    let certificate = |validity: Validity| ClientCertificate {
        expiration_time: Timestamp::try_from(validity.not_after)
            .map_or_else(|error| error.to_string(), |end| end.to_string()),
        expiry: root.is_live().then(|| validity.expiry_at(SystemTime::now())),
    };
    Some(validity.transpose()?.map(certificate))
}
