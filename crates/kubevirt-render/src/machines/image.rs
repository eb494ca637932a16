//! Image of a machine's disks: its source, and the golden image of which a disk is a clone.

use berth_api::{CatalogImage, Images};

use super::disks::{DEFAULT_PULL_METHOD, PrimaryDisk};
use super::machine_disk::{MachineDisk, PRIMARY_DISK_PATH};
use super::renderer::MachineRenderer;
use crate::images::{GoldenImage, HttpSource, ImageSource, RegistrySource};

/// Image of a machine's disks.
pub(super) struct DiskImage<'a> {
    /// Source of the image, with the properties that InfraConfig specifies.
    pub(super) source: ImageSource,
    /// Entry of the image in InfraConfig's `images.catalog`.
    pub(super) entry: Option<&'a CatalogImage>,
    /// True if disks are clones of a golden image.
    pub(super) is_golden: bool,
    /// True if InfraConfig specifies everything that determines the content of the golden image.
    is_shareable: bool,
}

impl<'a> DiskImage<'a> {
    pub(super) fn of_machine(machine: &MachineRenderer<'a>) -> Self {
        let disk = &machine.provider.primary_disk;
        let images = machine.context.config.images.as_ref();
        let mut source = image_source(machine);
        let entry = images.and_then(|images| images.catalog_entry(&source.catalog_name()));
        add_properties(&mut source, disk, entry);
        if !disk.checksum.is_empty() && !matches!(source, ImageSource::Http(_)) {
            let message = "is ignored: only images that are downloaded by HTTP have a checksum";
            let path = format!("{PRIMARY_DISK_PATH}.checksum");
            machine.reporter.report_warning(&path, &disk.checksum, message);
        }
        // The content of an existing volume may change. An administrator who lists a volume states that it does not. An
        // image that comes from a Secret would be readable in the objects of its golden image.
        let is_fixed = !matches!(source, ImageSource::Volume { .. }) || entry.is_some();
        let is_golden =
            images.is_some_and(Images::has_golden_images) && is_fixed && !disk.image.is_secret();
        let is_shareable = is_specified_by_config(disk, entry);
        Self { source, entry, is_golden, is_shareable }
    }

    /// Returns the golden image of which a disk is a clone; `None` if the machine imports or clones the image itself.
    ///
    /// The golden image is in the shared namespace only if tenants cannot influence its content or size. In their own
    /// namespaces, NetworkPolicies restrict the addresses from which they import, and their Secrets are readable. The
    /// source of a shared golden image is that of the catalog: the providerSpec of the first tenant must not determine
    /// how all tenants import the image, for example by the fields `source` and `pullMethod`.
    pub(super) fn golden_image(
        &self,
        machine: &MachineRenderer<'_>,
        disk: &MachineDisk<'_>,
    ) -> Option<GoldenImage> {
        if !self.is_golden || disk.is_blank {
            return None;
        }
        let shared = machine.context.config.images.as_ref()?.namespace.as_ref();
        let shared = shared.filter(|_| self.is_shareable && machine.tenant.is_some());
        let source = match (shared, self.entry) {
            (Some(_), Some(entry)) => catalog_source(entry),
            _ => self.source.clone(),
        };
        let schedule = self.entry.and_then(|entry| schedule(&source, entry));
        Some(GoldenImage {
            namespace: shared.unwrap_or(&machine.namespace).clone(),
            source,
            storage_class: disk.storage_class.clone().into_plain_string(),
            volume_mode: disk.volume_mode,
            is_preallocated: disk.is_preallocated,
            size: self.entry.and_then(|entry| entry.size),
            schedule,
        })
    }
}

/// Returns the source of an image in InfraConfig's `images.catalog`.
pub(super) fn catalog_source(entry: &CatalogImage) -> ImageSource {
    let (url, secret) = (entry.image.clone(), entry.secret_ref.clone());
    let cert_config_map = entry.cert_config_map.clone();
    match parse_scheme(&entry.image) {
        Some("docker" | "oci-archive") => {
            let pull_method = DEFAULT_PULL_METHOD.to_owned();
            ImageSource::Registry(RegistrySource { url, pull_method, secret, cert_config_map })
        }
        Some(_) => {
            let (checksum, headers) = (entry.checksum.clone(), Vec::new());
            ImageSource::Http(HttpSource { url, checksum, headers, secret, cert_config_map })
        }
        None => {
            let (namespace, name) =
                entry.image.split_once('/').unwrap_or(("", entry.image.as_str()));
            ImageSource::Volume { namespace: namespace.to_owned(), name: name.to_owned() }
        }
    }
}

/// Returns the schedule on which an image is imported again. Only an image with the scheme `docker` has a digest that CDI
/// can compare (`isURLSource` of its DataImportCron controller).
pub(super) fn schedule(source: &ImageSource, entry: &CatalogImage) -> Option<String> {
    match source {
        ImageSource::Registry(registry) if registry.url.starts_with("docker://") => {
            entry.schedule.clone()
        }
        _ => None,
    }
}

/// Adds the checksum, and the properties that InfraConfig specifies for the image. Those of the providerSpec take
/// precedence.
fn add_properties(source: &mut ImageSource, disk: &PrimaryDisk, entry: Option<&CatalogImage>) {
    let secret = || entry.and_then(|entry| entry.secret_ref.clone());
    let cert_config_map = entry.and_then(|entry| entry.cert_config_map.clone());
    match source {
        ImageSource::Http(http) => {
            let checksum = disk.checksum.clone().into_plain_string();
            http.checksum = Some(checksum)
                .filter(|checksum| !checksum.is_empty())
                .or_else(|| entry.and_then(|entry| entry.checksum.clone()));
            http.secret = http.secret.take().or_else(secret);
            http.cert_config_map = cert_config_map;
        }
        ImageSource::Registry(registry) => {
            registry.secret = secret();
            registry.cert_config_map = cert_config_map;
        }
        ImageSource::Volume { .. } => {}
    }
}

/// Returns true if the providerSpec only names an image that InfraConfig describes. Without a size in InfraConfig, the
/// smallest disk would determine the size of the golden image for all tenants.
fn is_specified_by_config(disk: &PrimaryDisk, entry: Option<&CatalogImage>) -> bool {
    let Some(entry) = entry else { return false };
    let has_credentials = !disk.data_volume_secret.is_empty()
        || !disk.extra_headers.is_empty()
        || !disk.extra_headers_secret.is_empty();
    let has_same_checksum =
        disk.checksum.is_empty() || entry.checksum.as_deref() == Some(&*disk.checksum);
    entry.size.is_some() && has_same_checksum && !has_credentials
}

/// Returns the source of the image of a machine.
fn image_source(machine: &MachineRenderer<'_>) -> ImageSource {
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
