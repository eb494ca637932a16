//! Credentials that users paste into the form of the sign-in page.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::AuthInfo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::{ExposeSecret as _, SecretString};

use crate::random::IdHash;

/// Maximum length of a token, in bytes. API servers refuse requests with longer headers.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Credential of a user.
#[derive(Clone, Debug)]
pub(crate) enum Credential {
    /// Bearer token.
    Token(SecretString),
    /// Client certificate with its private key, in PEM.
    Certificate { certificate: String, key: SecretString },
}

/// Reason why the content of the form is not a credential. No message contains a part of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CredentialError {
    #[error("Paste a token, or a client certificate with its key.")]
    Missing,
    #[error("Paste either a token or a client certificate, not both.")]
    Both,
    #[error("The token is too long, or has characters that a token cannot have.")]
    InvalidToken,
    #[error("The certificate is not a certificate in PEM format.")]
    InvalidCertificate,
    #[error("The key is not a private key in PEM format.")]
    InvalidKey,
}

impl Credential {
    /// Parses the fields of the form.
    ///
    /// # Errors
    /// Returns the reason if they contain no credential.
    pub(crate) fn parse(
        token: &str,
        certificate: &str,
        key: &str,
    ) -> Result<Self, CredentialError> {
        let [token, certificate, key] = [token, certificate, key].map(str::trim);
        let has_certificate = !certificate.is_empty() || !key.is_empty();
        match (token.is_empty(), has_certificate) {
            (true, false) => Err(CredentialError::Missing),
            (false, true) => Err(CredentialError::Both),
            (false, false) => parse_token(token),
            (true, true) => parse_certificate(certificate, key),
        }
    }

    /// Returns the hash of the token or of the certificate, which identifies users without a known name.
    pub(crate) fn fingerprint(&self) -> IdHash {
        match self {
            Self::Token(token) => IdHash::new(token.expose_secret()),
            Self::Certificate { certificate, .. } => IdHash::new(certificate),
        }
    }

    /// Returns the credential for a client of the API server.
    pub(crate) fn to_auth_info(&self) -> AuthInfo {
        let encode = |text: &str| STANDARD.encode(text);
        match self {
            Self::Token(token) => AuthInfo { token: Some(token.clone()), ..AuthInfo::default() },
            Self::Certificate { certificate, key } => AuthInfo {
                client_certificate_data: Some(encode(certificate)),
                client_key_data: Some(encode(key.expose_secret()).into()),
                ..AuthInfo::default()
            },
        }
    }
}

fn parse_token(text: &str) -> Result<Credential, CredentialError> {
    // Users may copy the whole value of an Authorization header.
    let token = text.strip_prefix("Bearer ").map_or(text, str::trim);
    let is_valid =
        token.len() <= MAX_TOKEN_BYTES && token.bytes().all(|byte| byte.is_ascii_graphic());
    if is_valid { Ok(Credential::Token(token.into())) } else { Err(CredentialError::InvalidToken) }
}

fn parse_certificate(certificate: &str, key: &str) -> Result<Credential, CredentialError> {
    CertificateDer::from_pem_slice(certificate.as_bytes())
        .map_err(|_| CredentialError::InvalidCertificate)?;
    PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| CredentialError::InvalidKey)?;
    Ok(Credential::Certificate { certificate: certificate.to_owned(), key: key.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";

    fn parse(token: &str, certificate: &str, key: &str) -> Result<AuthInfo, CredentialError> {
        Credential::parse(token, certificate, key).map(|credential| credential.to_auth_info())
    }

    #[test]
    fn tokens_and_certificates_are_accepted() {
        for token in ["abc.def", " abc.def\n", "Bearer abc.def", "Bearer  abc.def "] {
            let parsed = parse(token, "", " \n").unwrap().token.unwrap();
            assert_eq!(parsed.expose_secret(), "abc.def");
        }
        let parsed = parse("", CERTIFICATE, KEY).unwrap();
        assert!(parsed.token.is_none());
        let data = STANDARD.decode(parsed.client_certificate_data.unwrap()).unwrap();
        assert_eq!(String::from_utf8(data).unwrap(), CERTIFICATE.trim());
        assert!(parsed.client_key_data.is_some());
    }

    #[test]
    fn other_content_is_refused_without_quoting_it() {
        let long = "a".repeat(MAX_TOKEN_BYTES + 1);
        for (token, certificate, key, error) in [
            ("", "", "", CredentialError::Missing),
            (" \n", "", "\t", CredentialError::Missing),
            ("a", CERTIFICATE, KEY, CredentialError::Both),
            ("a", "", KEY, CredentialError::Both),
            ("a\nX-Header: b", "", "", CredentialError::InvalidToken),
            ("a b", "", "", CredentialError::InvalidToken),
            ("ä", "", "", CredentialError::InvalidToken),
            (&long, "", "", CredentialError::InvalidToken),
            ("", "SECRET", KEY, CredentialError::InvalidCertificate),
            ("", KEY, CERTIFICATE, CredentialError::InvalidCertificate),
            ("", CERTIFICATE, "SECRET", CredentialError::InvalidKey),
            ("", CERTIFICATE, "", CredentialError::InvalidKey),
        ] {
            let refused = parse(token, certificate, key).unwrap_err();
            assert_eq!(refused, error);
            assert!(!refused.to_string().contains("SECRET"));
        }
        let debug = format!("{:?}", Credential::parse("SECRET", "", ""));
        assert!(!debug.contains("SECRET"), "{debug}");
    }
}
