//! Source of the image of a machine's disks.

use super::renderer::MachineRenderer;
use crate::images::{HttpSource, ImageSource, RegistrySource};

/// Returns the source of the image of a machine.
pub(super) fn image_source(machine: &MachineRenderer<'_>) -> ImageSource {
    let disk = &machine.provider.primary_disk;
    let image = &*disk.image;
    let kind = match &*disk.source {
        known @ ("http" | "registry" | "pvc") => known,
        _ => match parse_scheme(image) {
            Some("docker" | "oci-archive") => "registry",
            Some(_) => "http",
            None => "pvc",
        },
    };
    match kind {
        "registry" => ImageSource::Registry(RegistrySource {
            url: image.to_owned(),
            pull_method: disk.pull_method.clone().into_plain_string(),
            ..RegistrySource::default()
        }),
        "http" => {
            let secret = disk.data_volume_secret.clone().into_plain_string();
            ImageSource::Http(HttpSource {
                url: image.to_owned(),
                headers: render_headers(machine),
                secret: Some(secret).filter(|secret| !secret.is_empty()),
                ..HttpSource::default()
            })
        }
        _ => {
            let mut parts = image.split('/');
            let (namespace, name) = match (parts.next(), parts.next()) {
                (Some(namespace), Some(name)) => (namespace, name),
                _ => (machine.namespace.as_str(), image),
            };
            ImageSource::Volume { namespace: namespace.to_owned(), name: name.to_owned() }
        }
    }
}

/// Returns the HTTP headers for the download of the image. Headers from a Secret are sorted by name.
fn render_headers(machine: &MachineRenderer<'_>) -> Vec<String> {
    let disk = &machine.provider.primary_disk;
    if disk.extra_headers_secret.is_empty() {
        return disk.extra_headers.clone();
    }
    machine.reporter.has_secrets.set(true);
    let (namespace, name) = (machine.namespace.clone(), &*disk.extra_headers_secret);
    let entries = machine.context.secret_entries(&namespace, name);
    let path = "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.template.primaryDisk.\
        extraHeadersSecretRef";
    let forbidden = machine.context.forbidden_objects.get(&("Secret", namespace, name.to_owned()));
    if let Some(message) = forbidden {
        machine.reporter.report_error(path, &disk.extra_headers_secret, message.clone());
    } else if entries.is_empty() {
        let message = format!("Secret not found in namespace {}", machine.namespace);
        machine.reporter.report_error(path, &disk.extra_headers_secret, message);
    }
    let header = |(key, value): (&str, &str)| {
        format!("{key}: {}", value.strip_suffix('\n').unwrap_or(value))
    };
    entries.into_iter().map(header).collect()
}

/// Returns the scheme of a string if Go's `url.ParseRequestURI` accepts the string: a URL with a scheme, or a path that
/// begins with `/`, for which the returned scheme is empty.
fn parse_scheme(text: &str) -> Option<&str> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return None;
    }
    if text.starts_with('/') || text == "*" {
        return Some("");
    }
    let (scheme, rest) = text.split_once(':')?;
    let mut letters = scheme.bytes();
    let is_scheme = letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let authority =
        rest.strip_prefix("//").map(|rest| rest.split(['/', '?']).next().unwrap_or_default());
    let is_host = authority
        .is_none_or(|host| !host.contains([' ', '<', '>', '"', '^', '`', '{', '}', '|', '\\']));
    (is_scheme && is_host).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are results of url.ParseRequestURI in Go 1.24.
    #[test]
    fn image_schemes_equal_go_results() {
        for (text, expected) in [
            ("http://x.y.z.t/ubuntu.img", Some("http")),
            ("docker://x.y.z.t/ubuntu.img:latest", Some("docker")),
            ("oci-archive:/x", Some("oci-archive")),
            ("/a/path", Some("")),
            ("name:tag", Some("name")),
            ("ns/dvname", None),
            ("dvname", None),
            ("", None),
            (":x", None),
            ("1http://x", None),
            ("<< YOUR_IMAGE_SOURCE >>", None),
            ("http://a b/", None),
        ] {
            assert_eq!(parse_scheme(text), expected, "{text}");
        }
    }
}
