//! Source of an image: a web server, a registry, or an existing volume.

use std::fmt;

use serde_json::{Value, json};

/// Source of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    /// A file on a web server.
    Http(HttpSource),
    /// An image in a registry, or an archive of an image.
    Registry(RegistrySource),
    /// An existing PersistentVolumeClaim.
    Volume {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        name: String,
    },
}

/// A file on a web server. `Debug` omits the headers, because they may come from a Secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HttpSource {
    /// URL of the file.
    pub url: String,
    /// Checksum of the file, such as `sha256:` and 64 hexadecimal digits.
    pub checksum: Option<String>,
    /// Headers of the request, such as `authorization: Basic ...`.
    pub headers: Vec<String>,
    /// Name of the Secret with user and password, in the namespace of the DataVolume.
    pub secret: Option<String>,
    /// Name of the ConfigMap with the certificate authority, in the namespace of the DataVolume.
    pub cert_config_map: Option<String>,
}

/// An image in a registry, or an archive of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistrySource {
    /// URL with the scheme `docker` or `oci-archive`.
    pub url: String,
    /// `node` if the container runtime of a host pulls the image, `pod` if the importer downloads it.
    pub pull_method: String,
    /// Name of the Secret with user and password, in the namespace of the DataVolume.
    pub secret: Option<String>,
    /// Name of the ConfigMap with the certificate authority, in the namespace of the DataVolume.
    pub cert_config_map: Option<String>,
}

impl ImageSource {
    /// Returns the image as an entry of InfraConfig's `images.catalog` names it: a URL, or NAMESPACE/NAME of a volume.
    #[must_use]
    pub fn catalog_name(&self) -> String {
        match self {
            Self::Http(HttpSource { url, .. }) | Self::Registry(RegistrySource { url, .. }) => {
                url.clone()
            }
            Self::Volume { namespace, name } => format!("{namespace}/{name}"),
        }
    }

    /// Returns `spec.source` of a DataVolume.
    #[must_use]
    pub fn to_data_volume_source(&self) -> Value {
        let add = |source: &mut Value, field: &str, value: Option<&String>| {
            if let Some(value) = value {
                source[field] = value.as_str().into();
            }
        };
        match self {
            Self::Http(http) => {
                let mut source = json!({"url": http.url});
                if !http.headers.is_empty() {
                    source["extraHeaders"] = http.headers.clone().into();
                }
                add(&mut source, "secretRef", http.secret.as_ref());
                add(&mut source, "certConfigMap", http.cert_config_map.as_ref());
                add(&mut source, "checksum", http.checksum.as_ref());
                json!({"http": source})
            }
            Self::Registry(registry) => {
                let mut source = json!({"url": registry.url, "pullMethod": registry.pull_method});
                add(&mut source, "secretRef", registry.secret.as_ref());
                add(&mut source, "certConfigMap", registry.cert_config_map.as_ref());
                json!({"registry": source})
            }
            Self::Volume { namespace, name } => {
                json!({"pvc": {"namespace": namespace, "name": name}})
            }
        }
    }

    /// Replaces the image in a message of CDI by the image without credentials, and removes the credentials where they
    /// occur alone.
    #[must_use]
    pub fn redact(&self, message: &str) -> String {
        let image = self.catalog_name();
        let mut redacted = message.replace(&image, &self.to_string());
        for secret in credentials(&image) {
            redacted = redacted.replace(secret, "...");
        }
        redacted
    }

    /// Returns the parts of the source that determine the content of the image. Credentials may change while the image
    /// stays the same.
    pub(super) fn identity(&self) -> Value {
        match self {
            Self::Http(HttpSource { url, checksum, .. }) => json!(["http", url, checksum]),
            Self::Registry(RegistrySource { url, .. }) => json!(["registry", url]),
            Self::Volume { namespace, name } => json!(["volume", namespace, name]),
        }
    }
}

/// Writes the image without the parts of a URL that may be credentials: user, password and query.
impl fmt::Display for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_credentials(&self.catalog_name()))
    }
}

impl fmt::Debug for HttpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = without_credentials(&self.url);
        f.debug_struct("HttpSource")
            .field("url", &url)
            .field("checksum", &self.checksum)
            .finish_non_exhaustive()
    }
}

/// Returns the parts of a URL that may be credentials: user and password, and the query. Short parts are left out, because
/// they may be parts of other words.
fn credentials(image: &str) -> impl Iterator<Item = &str> {
    let address = image.split(['?', '#']).next().unwrap_or_default();
    let query = image.split_once('?').map(|(_, query)| query);
    let authority = address.split_once("://").map(|(_, rest)| rest);
    let authority = authority.map(|rest| rest.split('/').next().unwrap_or_default());
    let user = authority.and_then(|authority| authority.rsplit_once('@')).map(|(user, _)| user);
    [user, query].into_iter().flatten().filter(|secret| secret.len() > 3)
}

fn without_credentials(image: &str) -> String {
    let (address, has_query) =
        image.split_once(['?', '#']).map_or((image, false), |(address, _)| (address, true));
    let mut plain = address.to_owned();
    if let Some((scheme, rest)) = address.split_once("://") {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let slash = if rest.contains('/') { "/" } else { "" };
        plain = format!("{scheme}://{host}{slash}{path}");
    }
    if has_query { format!("{plain}?...") } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_those_of_cdi() {
        let http = ImageSource::Http(HttpSource {
            url: "http://images/noble.img".to_owned(),
            checksum: Some("sha256:00".to_owned()),
            headers: vec!["a: b".to_owned()],
            secret: Some("credentials".to_owned()),
            cert_config_map: Some("ca".to_owned()),
        });
        assert_eq!(
            http.to_data_volume_source(),
            json!({"http": {
                "url": "http://images/noble.img", "extraHeaders": ["a: b"], "secretRef": "credentials",
                "certConfigMap": "ca", "checksum": "sha256:00",
            }})
        );
        let registry = ImageSource::Registry(RegistrySource {
            url: "docker://registry/rhel:9".to_owned(),
            pull_method: "node".to_owned(),
            ..RegistrySource::default()
        });
        assert_eq!(
            registry.to_data_volume_source(),
            json!({"registry": {"url": "docker://registry/rhel:9", "pullMethod": "node"}})
        );
        let volume = ImageSource::Volume { namespace: "a".to_owned(), name: "b".to_owned() };
        assert_eq!(volume.to_data_volume_source(), json!({"pvc": {"namespace": "a", "name": "b"}}));
        assert_eq!(volume.to_string(), "a/b");
    }

    #[test]
    fn messages_of_cdi_have_no_credentials() {
        let source = |image: &str| {
            ImageSource::Http(HttpSource { url: image.to_owned(), ..HttpSource::default() })
        };
        let image = "https://user:pw@images/a.img?token=t0k3n";
        let message = format!("Get \"{image}\": EOF; redirected to https://other/b?token=t0k3n");
        assert_eq!(
            source(image).redact(&message),
            "Get \"https://images/a.img?...\": EOF; redirected to https://other/b?..."
        );
        // Go replaces passwords in the URLs of its errors.
        let message = "Get \"https://user:***@images/a.img?token=t0k3n\": EOF";
        assert!(!source(image).redact(message).contains("t0k3n"));
        let plain = "Unable to connect to http data source http://images/a.img";
        assert_eq!(source("http://images/a.img").redact(plain), plain);
        assert_eq!(source("https://images").redact(plain), plain);
    }

    #[test]
    fn credentials_are_not_displayed() {
        for (image, shown) in [
            ("http://images/noble.img", "http://images/noble.img"),
            ("https://user:p@ss@images:8080/a/b.img", "https://images:8080/a/b.img"),
            ("https://images/a.img?token=secret#x", "https://images/a.img?..."),
            ("https://user@images", "https://images"),
            ("docker://registry/rhel:9", "docker://registry/rhel:9"),
            ("oci-archive:/x.tar", "oci-archive:/x.tar"),
        ] {
            let source = HttpSource {
                url: image.to_owned(),
                headers: vec!["authorization: secret".to_owned()],
                ..HttpSource::default()
            };
            let debug = format!("{source:?}");
            assert!(!debug.contains("secret") && debug.contains(shown), "{debug}");
            assert_eq!(ImageSource::Http(source).to_string(), shown);
        }
    }
}
