//! Errors of requests to untrusted servers. The errors contain no text from the server, because its responses and its
//! certificate may contain anything, and no address of the server, because the address is a part of a Secret.
//! [`super::Explanation`] is the only exception.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::CertificateError;

use super::address::RefusedAddress;
use crate::call::NotLeader;

/// Reason why a request to an untrusted server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UntrustedError {
    /// The server answered with an error.
    #[error("the API server answered with HTTP status {0}")]
    Status(u16),
    /// The server is overloaded. The first value is the HTTP status. The second value is the time in the server's
    /// `Retry-After`; zero without this header.
    #[error("the API server is busy (HTTP status {0})")]
    Busy(u16, Duration),
    /// The server did not answer in time.
    #[error("the API server did not answer in time")]
    Timeout,
    /// The name of the server could not be resolved.
    #[error("the host name of the API server cannot be resolved")]
    NameNotResolved,
    /// The server's address is refused.
    #[error("the API server has {0}, which is refused")]
    AddressRefused(RefusedAddress),
    /// The client could not connect to the server, or the connection broke.
    #[error("no connection to the API server: {0}")]
    NotConnected(io::ErrorKind),
    /// The certificate of the server was not accepted.
    #[error("the certificate of the API server {0}")]
    Certificate(CertificateFault),
    /// The server closed the connection, or violated the HTTP protocol.
    #[error("the API server closed the connection")]
    Closed,
    /// The answer exceeds the size limit.
    #[error("the answer of the API server exceeds the size limit")]
    TooLong,
    /// The answer cannot be parsed.
    #[error("the answer of the API server cannot be parsed")]
    Malformed,
    /// The request was not sent, because this process is not the leader.
    #[error("the request was not sent: this process is not the leader")]
    NotSent,
}

/// Reason why a server's certificate is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// The certificate is not signed by a CA in the kubeconfig.
    #[error("is not signed by the authority in certificate-authority-data")]
    UnknownIssuer,
    /// According to this machine's clock, the certificate has expired or is not valid yet.
    #[error("has expired, or is not valid yet")]
    NotValidNow,
    /// The certificate is valid only for other host names.
    #[error("is not valid for the host name of the server in the kubeconfig")]
    OtherName,
    /// Any other reason.
    #[error("is not valid")]
    Other,
}

impl UntrustedError {
    /// Returns the remaining time of the server's `Retry-After`; zero if there was none.
    #[must_use]
    pub const fn retry_after(self) -> Duration {
        match self {
            Self::Busy(_, retry_after) => retry_after,
            _ => Duration::ZERO,
        }
    }

    /// Converts an error of the HTTP client to the kind that the error's sources indicate.
    pub(super) fn from_source(error: &(dyn Error + 'static)) -> Self {
        let mut source = Some(error);
        while let Some(one) = source {
            if let Some(known) = one.downcast_ref::<Self>() {
                return *known;
            }
            if one.is::<NotLeader>() {
                return Self::NotSent;
            }
            if one.is::<http_body_util::LengthLimitError>() {
                return Self::TooLong;
            }
            if let Some(error) = one.downcast_ref::<rustls::Error>() {
                return Self::from_tls(error);
            }
            if let Some(error) = one.downcast_ref::<io::Error>() {
                // `io::Error::source` would skip the inner error, and return the source of the inner error.
                match error.get_ref() {
                    Some(inner) => {
                        source = Some(inner);
                        continue;
                    }
                    None => return Self::NotConnected(error.kind()),
                }
            }
            source = one.source();
        }
        Self::Closed
    }

    const fn from_tls(error: &rustls::Error) -> Self {
        let rustls::Error::InvalidCertificate(fault) = error else { return Self::Closed };
        Self::Certificate(match fault {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                CertificateFault::UnknownIssuer
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => CertificateFault::NotValidNow,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                CertificateFault::OtherName
            }
            _ => CertificateFault::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Box<dyn Error + Send + Sync>);

    fn classify(source: impl Into<Box<dyn Error + Send + Sync>>) -> UntrustedError {
        UntrustedError::from_source(&Outer(Box::new(Outer(source.into()))))
    }

    #[test]
    fn errors_are_classified_by_their_sources() {
        let refused = UntrustedError::AddressRefused(RefusedAddress::Loopback);
        assert_eq!(classify(refused), refused);
        assert_eq!(classify(NotLeader), UntrustedError::NotSent);
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(classify(reset), UntrustedError::NotConnected(io::ErrorKind::ConnectionReset));
        // hyper-rustls wraps TLS errors in I/O errors.
        let name = rustls::Error::InvalidCertificate(CertificateError::NotValidForName);
        let expected = UntrustedError::Certificate(CertificateFault::OtherName);
        assert_eq!(classify(io::Error::other(name)), expected);
        assert_eq!(classify("SECRET of a tenant"), UntrustedError::Closed);
    }
}
