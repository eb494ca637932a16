//! Validity of the client certificates of kubeconfigs, and of the certificates in webhook configurations.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

/// Upper bound for the time before expiry in which a certificate is reported as expiring soon. Without it, a client
/// certificate that is valid for a year would be reported four months before it expires.
const MAX_EXPIRY_WARNING_TIME: Duration = Duration::from_secs(14 * 86_400);

/// Label of a certificate in PEM text.
const CERTIFICATE_TAG: &str = "CERTIFICATE";

/// Validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Start of the validity.
    pub not_before: SystemTime,
    /// End of the validity.
    pub not_after: SystemTime,
}

/// Remaining validity of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryState {
    /// The certificate does not expire soon.
    NotSoon,
    /// Less than two weeks remain, and less than the share of the lifetime that [`ExpiryWarning`] defines.
    Soon,
    /// The certificate has expired.
    Expired,
}

/// Share of a certificate's lifetime: if less than this share remains, and less than two weeks, the certificate is
/// reported as expiring soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryWarning {
    /// A third, for client certificates: kubelets renew their client certificates when a third of the lifetime remains.
    Third,
    /// A tenth, for certificates of operators: KubeVirt renews its CA when a fifth remains, so a larger share would
    /// cause warnings about healthy clusters.
    Tenth,
}

impl ExpiryWarning {
    const fn divisor(self) -> u32 {
        match self {
            Self::Third => 3,
            Self::Tenth => 10,
        }
    }
}

impl Validity {
    /// Returns the remaining validity of a client certificate at the time `now`.
    #[must_use]
    pub fn expiry_at(&self, now: SystemTime) -> ExpiryState {
        self.expiry_with(ExpiryWarning::Third, now)
    }

    /// Returns the remaining validity at the time `now`. `warning` determines when the certificate counts as expiring
    /// soon.
    #[must_use]
    pub fn expiry_with(&self, warning: ExpiryWarning, now: SystemTime) -> ExpiryState {
        let lifetime = self.not_after.duration_since(self.not_before).unwrap_or_default();
        let limit = (lifetime / warning.divisor()).min(MAX_EXPIRY_WARNING_TIME);
        match self.not_after.duration_since(now) {
            Err(_) => ExpiryState::Expired,
            Ok(remaining) if remaining < limit => ExpiryState::Soon,
            Ok(_) => ExpiryState::NotSoon,
        }
    }
}

/// Reason why a certificate cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The text is not a valid kubeconfig.
    #[error("not a kubeconfig: invalid YAML, or a field has the wrong type")]
    InvalidKubeconfig,
    /// The file that the kubeconfig names cannot be read.
    #[error("failed to read the client certificate")]
    UnreadableFile(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The data of the certificate are not base64.
    #[error("the certificate data are not base64")]
    InvalidBase64(#[source] base64::DecodeError),
    /// The text is not PEM.
    #[error("the certificate is not PEM")]
    InvalidPem(#[source] pem::PemError),
    /// The PEM text has no certificate, but only entries of other types.
    #[error("the PEM text contains no certificate")]
    NoCertificate,
    /// The certificate cannot be decoded.
    #[error("the certificate is not X.509: {0}")]
    InvalidX509(x509_cert::der::Error),
}

/// Client certificate of a kubeconfig's user.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CertificateSource {
    /// The certificate as base64-encoded PEM; it takes precedence over the file.
    pub client_certificate_data: Option<String>,
    /// Path of a PEM file with the certificate.
    pub client_certificate: Option<String>,
}

/// The fields of a kubeconfig that select the client certificate.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct KubeconfigUsers {
    current_context: Option<String>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default)]
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Deserialize)]
struct Context {
    user: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<CertificateSource>,
}

impl std::fmt::Debug for CertificateSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateSource")
            .field("path", &self.client_certificate)
            .finish_non_exhaustive()
    }
}

impl CertificateSource {
    /// Returns the client certificate of the user in a kubeconfig's current context.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a kubeconfig.
    pub fn from_kubeconfig(text: &str) -> Result<Self, CertificateError> {
        // The error of the parser is not returned, because it quotes the text, which contains credentials.
        let kubeconfig: KubeconfigUsers =
            serde_saphyr::from_str(text).map_err(|_| CertificateError::InvalidKubeconfig)?;
        let current = kubeconfig.current_context;
        let context =
            kubeconfig.contexts.into_iter().find(|one| Some(&one.name) == current.as_ref());
        let name = context.and_then(|one| one.context?.user);
        let user = kubeconfig.users.into_iter().find(|one| Some(&one.name) == name.as_ref());
        Ok(user.and_then(|one| one.user).unwrap_or_default())
    }

    /// Returns the validity of the certificate; `None` if the user has no certificate. `read` returns the content of a
    /// file.
    ///
    /// # Errors
    ///
    /// Returns an error if the certificate cannot be read.
    pub fn validity<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        &self,
        read: impl FnOnce(&Path) -> Result<String, E>,
    ) -> Result<Option<Validity>, CertificateError> {
        let text = match (&self.client_certificate_data, &self.client_certificate) {
            (Some(data), _) => {
                let bytes =
                    STANDARD.decode(data.trim()).map_err(CertificateError::InvalidBase64)?;
                String::from_utf8_lossy(&bytes).into_owned()
            }
            (None, Some(path)) => read(Path::new(path))
                .map_err(|error| CertificateError::UnreadableFile(error.into()))?,
            (None, None) => return Ok(None),
        };
        parse_validity(&text).map(Some)
    }
}

/// Returns the validity of the first certificate in the content of a PEM file. The first certificate is that of the
/// client; intermediate certificates may follow.
///
/// # Errors
///
/// Returns an error if the text contains no certificate that can be decoded.
pub fn parse_validity(text: &str) -> Result<Validity, CertificateError> {
    let all = pem::parse_many(text).map_err(CertificateError::InvalidPem)?;
    let first = all.iter().find(|one| one.tag() == CERTIFICATE_TAG);
    validity_of(first.ok_or(CertificateError::NoCertificate)?)
}

/// Returns the validity of the certificate that expires last in a base64-encoded PEM bundle. During the rotation of a
/// CA, the bundle contains the certificates of the old CA and of the new CA.
///
/// # Errors
///
/// Returns an error if the data contain no certificate, or a certificate that cannot be decoded.
pub fn parse_bundle(data: &str) -> Result<Validity, CertificateError> {
    let bytes = STANDARD.decode(data.trim()).map_err(CertificateError::InvalidBase64)?;
    let all = pem::parse_many(&bytes).map_err(CertificateError::InvalidPem)?;
    let certificates = all.iter().filter(|one| one.tag() == CERTIFICATE_TAG);
    let all: Result<Vec<Validity>, CertificateError> = certificates.map(validity_of).collect();
    let last = all?.into_iter().max_by_key(|validity| validity.not_after);
    last.ok_or(CertificateError::NoCertificate)
}

fn validity_of(certificate: &pem::Pem) -> Result<Validity, CertificateError> {
    let certificate =
        Certificate::from_der(certificate.contents()).map_err(CertificateError::InvalidX509)?;
    let validity = certificate.tbs_certificate.validity;
    Ok(Validity {
        not_before: UNIX_EPOCH + validity.not_before.to_unix_duration(),
        not_after: UNIX_EPOCH + validity.not_after.to_unix_duration(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::text::error_chain;

    /// Self-signed certificate of the user berth:agent:rack1-a, valid from 2026-01-01 to 2026-01-31, created by
    /// `openssl ca -selfsign -startdate 20260101000000Z -enddate 20260131000000Z`.
    const TEST_CERTIFICATE: &str = include_str!("../tests/agent.crt");
    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn expiry_is_reported_before_the_end_of_validity() {
        let validity =
            parse_validity(&format!("Certificate of an agent\n{TEST_CERTIFICATE}")).unwrap();
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        assert_eq!(validity, Validity { not_before: begin, not_after: begin + DAY * 30 });
        for (day, expiry) in [
            (0, ExpiryState::NotSoon),
            (19, ExpiryState::NotSoon),
            (21, ExpiryState::Soon),
            (29, ExpiryState::Soon),
            (31, ExpiryState::Expired),
        ] {
            assert_eq!(validity.expiry_at(begin + DAY * day), expiry, "day {day}");
        }
        let year = Validity { not_after: begin + DAY * 365, ..validity };
        assert_eq!(year.expiry_at(begin + DAY * 350), ExpiryState::NotSoon);
        assert_eq!(year.expiry_at(begin + DAY * 352), ExpiryState::Soon);
    }

    /// KubeVirt's CA certificate is valid for a week (168 hours), and KubeVirt renews it when a fifth (33.6 hours)
    /// remains. With [`ExpiryWarning::Tenth`], the certificate is reported only if KubeVirt has not renewed it.
    #[test]
    fn authority_of_an_operator_is_renewed_before_it_expires_soon() {
        let hour = Duration::from_secs(3600);
        let begin = SystemTime::UNIX_EPOCH + DAY * 20_000;
        let authority = Validity { not_before: begin, not_after: begin + DAY * 7 };
        let at = |hours: u32| authority.expiry_with(ExpiryWarning::Tenth, begin + hour * hours);
        assert_eq!(at(168 - 33), ExpiryState::NotSoon);
        assert_eq!(at(168 - 17), ExpiryState::NotSoon);
        assert_eq!(at(168 - 16), ExpiryState::Soon);
        assert_eq!(at(169), ExpiryState::Expired);
        assert_eq!(authority.expiry_at(begin + hour * 135), ExpiryState::Soon);
        let decade = Validity { not_after: begin + DAY * 3650, ..authority };
        let state = decade.expiry_with(ExpiryWarning::Tenth, begin + DAY * 3630);
        assert_eq!(
            state,
            ExpiryState::NotSoon,
            "a warning is given at most two weeks before expiry"
        );
    }

    #[test]
    fn bundle_is_valid_until_its_last_certificate_expires() {
        let known = parse_validity(TEST_CERTIFICATE).unwrap();
        let bundle = STANDARD.encode(format!("{TEST_CERTIFICATE}\n{TEST_CERTIFICATE}"));
        assert_eq!(parse_bundle(&bundle).unwrap(), known);
        for (data, error) in [
            (STANDARD.encode("no"), "contains no certificate"),
            ("?".to_owned(), "not base64"),
            (
                STANDARD.encode("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
                "not X.509",
            ),
        ] {
            let message = parse_bundle(&data).unwrap_err().to_string();
            assert!(message.contains(error), "{message}");
        }
    }

    #[test]
    fn certificate_of_the_current_user_is_read() {
        let read_validity = |user: &str| {
            let text = format!(
                "{{apiVersion: v1, kind: Config, current-context: a, clusters: [],
                contexts: [{{name: b, context: {{cluster: c, user: other}}}}, {{name: a, context: {{cluster: c, user: u}}}}],
                users: [{{name: other, user: {{token: x}}}}, {{name: u, user: {user}}}]}}"
            );
            CertificateSource::from_kubeconfig(&text)
                .and_then(|source| {
                    source.validity(|path| {
                        let exists = path == Path::new("/pki/agent.crt");
                        exists.then(|| TEST_CERTIFICATE.to_owned()).ok_or("no such file")
                    })
                })
                .map_err(|error| error_chain(&error))
        };
        let known = parse_validity(TEST_CERTIFICATE).unwrap();
        assert_eq!(read_validity("{client-certificate: /pki/agent.crt}"), Ok(Some(known)));
        let data = STANDARD.encode(TEST_CERTIFICATE);
        assert_eq!(read_validity(&format!("{{client-certificate-data: {data}}}")), Ok(Some(known)));
        assert_eq!(read_validity("{token: x}"), Ok(None));
        assert_eq!(
            read_validity("{client-certificate: /pki/other.crt}"),
            Err("failed to read the client certificate: no such file".to_owned())
        );
        assert!(
            read_validity("{client-certificate-data: bm8=}")
                .unwrap_err()
                .contains("contains no certificate")
        );
        assert!(read_validity("[SECRET").unwrap_err().starts_with("not a kubeconfig"));
        assert!(!read_validity("[SECRET").unwrap_err().contains("SECRET"));
    }
}
