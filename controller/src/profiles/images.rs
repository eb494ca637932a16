//! Static validation of the images in the InfraConfig.

use berth_api::names::TENANT_PREFIX;
use berth_api::{CatalogImage, Images, Quantity};

/// Returns the problems of `images`, each as a message with field and value.
pub(super) fn image_problems(images: &Images) -> Vec<String> {
    let mut problems = Vec::new();
    for (system, versions) in images.http.iter().flat_map(|http| &http.operating_systems) {
        for (version, url) in versions {
            if !is_http(url) {
                let field = format!("images.http.operatingSystems.{system}.{version}");
                problems.push(format!("{field}: `{url}` must be an http or https URL"));
            }
        }
    }
    if let Some(namespace) = images.namespace.as_ref().filter(|one| one.starts_with(TENANT_PREFIX))
    {
        problems.push(format!(
            "images.namespace: `{namespace}` is the namespace of a tenant; set another one, because all tenants may clone \
             its volumes"
        ));
    }
    for (at, entry) in images.catalog.iter().enumerate() {
        let found = entry_problems(entry, images.has_golden_images());
        problems.extend(found.into_iter().map(|problem| format!("images.catalog[{at}].{problem}")));
    }
    problems
}

/// Returns the problems of an entry of the catalog. The URL of an image is not quoted, because it may have credentials.
fn entry_problems(entry: &CatalogImage, has_golden_images: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let is_registry = is_docker(&entry.image) || entry.image.starts_with("oci-archive:");
    if !is_http(&entry.image) && !is_registry && !is_volume(&entry.image) {
        problems.push(
            "image: is not an http, https, docker or oci-archive URL, and not NAMESPACE/NAME of a volume"
                .to_owned(),
        );
    }
    if let Some(checksum) = entry.checksum.as_ref().filter(|_| !is_http(&entry.image)) {
        problems.push(format!(
            "checksum: `{checksum}` is ignored: only images that are downloaded by HTTP have a checksum"
        ));
    }
    if let Some(schedule) = &entry.schedule {
        let is_cron = schedule.starts_with('@') || schedule.split_whitespace().count() == 5;
        if !is_docker(&entry.image) {
            problems.push(format!(
                "schedule: `{schedule}` is ignored: only images with the scheme docker are imported again"
            ));
        } else if !is_cron {
            problems.push(format!("schedule: `{schedule}` is not a schedule such as `30 1 * * 1`"));
        }
    }
    if let Some(size) = entry.size.filter(|size| *size <= Quantity::ZERO) {
        problems.push(format!("size: `{size}` must be greater than 0"));
    }
    if entry.preload == Some(true) {
        if !has_golden_images {
            problems.push(
                "preload: `true` is ignored without golden images: set images.golden".to_owned(),
            );
        } else if entry.size.is_none() {
            problems.push(
                "size: is missing: an image with preload is imported before a disk determines its size".to_owned(),
            );
        }
    }
    problems
}

fn is_http(image: &str) -> bool {
    image.starts_with("http://") || image.starts_with("https://")
}

fn is_docker(image: &str) -> bool {
    image.starts_with("docker://")
}

fn is_volume(image: &str) -> bool {
    let parts: Vec<&str> = image.split('/').collect();
    let is_name = |part: &&str| {
        let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
        !part.is_empty() && part.bytes().all(fits)
    };
    parts.len() == 2 && parts.iter().all(is_name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(images: Value) -> Vec<String> {
        image_problems(&serde_json::from_value(images).unwrap())
    }

    #[test]
    fn valid_images_have_no_problems() {
        let valid = json!({
            "namespace": "images",
            "http": {"operatingSystems": {"ubuntu": {"24.04": "https://images/noble.img"}}},
            "catalog": [
                {"image": "https://images/noble.img", "checksum": "sha256:00", "size": "4Gi", "preload": true},
                {"image": "docker://registry/rhel:9", "schedule": "30 1 * * 1"},
                {"image": "docker://registry/fedora", "schedule": "@daily"},
                {"image": "oci-archive:/rhel.tar"},
                {"image": "templates/windows.2025"},
            ],
        });
        assert_eq!(problems(valid), Vec::<String>::new());
        assert_eq!(problems(json!({})), Vec::<String>::new());
    }

    #[test]
    fn each_problem_has_its_field_and_value() {
        let entry = |fields: Value| json!({"golden": true, "catalog": [{"image": "a/b"}, fields]});
        for (images, words) in [
            (json!({"namespace": "cluster-abc"}), "images.namespace: `cluster-abc`"),
            (entry(json!({"image": "noble"})), "images.catalog[1].image: is not an http"),
            (entry(json!({"image": "ftp://a/b"})), "images.catalog[1].image: is not an http"),
            (entry(json!({"image": "a/c", "checksum": "sha256:00"})), "[1].checksum: `sha256:00`"),
            (
                entry(json!({"image": "http://a/b", "schedule": "0 3 * * *"})),
                "[1].schedule: `0 3 * * *` is ignored",
            ),
            (
                entry(json!({"image": "docker://a/b", "schedule": "every day"})),
                "[1].schedule: `every day` is not a schedule",
            ),
            (entry(json!({"image": "a/c", "size": "-1Gi"})), "[1].size: `-1Gi` must be"),
            (entry(json!({"image": "a/c", "preload": true})), "[1].size: is missing"),
            (
                json!({"catalog": [{"image": "a/c", "preload": true, "size": "1Gi"}]}),
                "images.catalog[0].preload: `true` is ignored",
            ),
        ] {
            let found = problems(images.clone());
            assert!(found.len() == 1 && found[0].contains(words), "{images}: {found:?}");
        }
    }
}
