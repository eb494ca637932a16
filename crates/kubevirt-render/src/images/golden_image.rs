//! A golden image: its identity, its name, and the objects of CDI that import it.

use berth_api::names::{GOLDEN_IMAGE_LABEL, IMAGE_SOURCE_ANNOTATION, MANAGED_BY_LABEL};
use berth_api::{GarbageCollect, Images, Quantity};
use ring::digest::SHA256;
use serde_json::{Value, json};

use super::source::ImageSource;
use super::volume_mode::VolumeMode;
use crate::hex_digest::hex_digest;

/// API group and version of CDI.
const CDI_VERSION: &str = "cdi.kubevirt.io/v1beta1";
/// Annotation with which CDI binds a volume immediately, although its storage class waits for the first consumer. A
/// golden image has no consumer. On a disk of a machine, the annotation would select the host before the scheduler does.
const IMMEDIATE_BINDING_ANNOTATION: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
/// Annotation with which releases of CDI before 1.62 keep a DataVolume after its import.
const DELETION_ANNOTATION: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
/// Number of hexadecimal digits of a SHA-256 in a name. CDI appends a hyphen and 12 digits to the name of a
/// DataSource that a DataImportCron manages, and permits 63 characters.
const DIGEST_LENGTH: usize = 32;

/// An image that is imported once into a volume, from which disks of one storage class are cloned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoldenImage {
    /// Namespace of the volume.
    pub namespace: String,
    /// Source of the image.
    pub source: ImageSource,
    /// Storage class of the volume; empty for the default class of the cluster.
    pub storage_class: String,
    /// Volume mode of the volume; `None` if the StorageProfile of the storage class is unknown or has none.
    pub volume_mode: Option<VolumeMode>,
    /// True if the volume is fully allocated. A clone in the storage is then fully allocated too.
    pub is_preallocated: bool,
    /// Size that InfraConfig specifies for the image.
    pub size: Option<Quantity>,
    /// Schedule on which a registry image is imported again.
    pub schedule: Option<String>,
}

impl GoldenImage {
    /// Returns the name of the DataVolume and of the DataSource, a DNS label. It has a digest of all
    /// properties that determine whether a disk can be a clone of this volume.
    ///
    /// Tenants choose URLs, so the digest must resist collisions: with a weaker hash, a tenant could find a URL whose
    /// image other tenants would get in place of their own.
    #[must_use]
    pub fn name(&self) -> String {
        let identity = json!([
            self.source.identity(),
            self.storage_class,
            self.namespace,
            self.volume_mode.map(VolumeMode::as_str),
            self.is_preallocated,
            self.size.map(|size| size.to_string()),
        ]);
        format!("image-{}", hex_digest(&SHA256, &identity.to_string(), DIGEST_LENGTH))
    }

    /// Returns `spec.sourceRef` of a disk that is cloned from the image.
    #[must_use]
    pub fn source_ref(&self) -> Value {
        json!({"kind": "DataSource", "namespace": self.namespace, "name": self.name()})
    }

    /// Returns the size of the volume: the size that InfraConfig specifies, otherwise that of the smallest disk, because
    /// CDI does not clone a volume to a smaller one. `None` if there is neither.
    #[must_use]
    pub fn volume_size(&self, disks: impl IntoIterator<Item = Quantity>) -> Option<Quantity> {
        self.size.or_else(|| disks.into_iter().min())
    }

    /// Returns the objects that import the image into a volume of this size: a DataImportCron if the image has a
    /// schedule, otherwise a DataVolume and a DataSource. CDI creates the DataSource of a DataImportCron.
    #[must_use]
    pub fn objects(&self, size: Quantity, images: &Images) -> Vec<Value> {
        match &self.schedule {
            Some(schedule) => vec![self.data_import_cron(size, schedule, images)],
            None => vec![self.data_volume(size), self.data_source()],
        }
    }

    fn data_volume(&self, size: Quantity) -> Value {
        let mut volume = self.object("DataVolume", self.data_volume_spec(size));
        let annotations = &mut volume["metadata"]["annotations"];
        annotations[IMMEDIATE_BINDING_ANNOTATION] = "true".into();
        annotations[DELETION_ANNOTATION] = "false".into();
        volume
    }

    /// Returns the spec of a DataVolume. The size is in `spec.storage`, so that CDI adds the overhead of a file system.
    /// CDI chooses the access mode from the StorageProfile; without a StorageProfile, CDI needs an access mode.
    fn data_volume_spec(&self, size: Quantity) -> Value {
        let mut storage = json!({"resources": {"requests": {"storage": size.to_string()}}});
        match self.volume_mode {
            Some(mode) => storage["volumeMode"] = mode.as_str().into(),
            None => storage["accessModes"] = json!(["ReadWriteOnce"]),
        }
        if !self.storage_class.is_empty() {
            storage["storageClassName"] = self.storage_class.as_str().into();
        }
        let mut spec = json!({"source": self.source.to_data_volume_source(), "storage": storage});
        if self.is_preallocated {
            spec["preallocation"] = true.into();
        }
        spec
    }

    fn data_source(&self) -> Value {
        let source = json!({"pvc": {"namespace": self.namespace, "name": self.name()}});
        self.object("DataSource", json!({"source": source}))
    }

    /// Returns a DataImportCron. CDI permits no change of its spec. When it is deleted, its imports stay, because disks
    /// may depend on them.
    fn data_import_cron(&self, size: Quantity, schedule: &str, images: &Images) -> Value {
        let garbage_collect = match images.garbage_collect.unwrap_or_default() {
            GarbageCollect::Unused => "Outdated",
            GarbageCollect::Never => "Never",
        };
        // The most recent import is in use, so it is not one of the unused imports.
        let imports_to_keep = images.keep_last().saturating_add(1);
        let spec = json!({
            "template": {"spec": self.data_volume_spec(size)},
            "schedule": schedule,
            "garbageCollect": garbage_collect,
            "importsToKeep": imports_to_keep,
            "managedDataSource": self.name(),
            "retentionPolicy": "All",
        });
        self.object("DataImportCron", spec)
    }

    fn object(&self, kind: &str, spec: Value) -> Value {
        let name = self.name();
        json!({
            "apiVersion": CDI_VERSION,
            "kind": kind,
            "metadata": {
                "namespace": self.namespace,
                "name": name,
                "labels": {MANAGED_BY_LABEL.0: MANAGED_BY_LABEL.1, GOLDEN_IMAGE_LABEL: name},
                "annotations": {IMAGE_SOURCE_ANNOTATION: self.source.to_string()},
            },
            "spec": spec,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::images::source::{HttpSource, RegistrySource};

    fn http(url: &str, checksum: Option<&str>) -> ImageSource {
        let checksum = checksum.map(str::to_owned);
        ImageSource::Http(HttpSource { url: url.to_owned(), checksum, ..HttpSource::default() })
    }

    fn image(source: ImageSource) -> GoldenImage {
        GoldenImage {
            namespace: "images".to_owned(),
            source,
            storage_class: "fast".to_owned(),
            volume_mode: Some(VolumeMode::Block),
            is_preallocated: false,
            size: None,
            schedule: None,
        }
    }

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn each_part_of_the_identity_changes_the_name() {
        let base = image(http("http://images/a.img", None));
        let volume = |namespace: &str, name: &str| ImageSource::Volume {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let all = [
            base.clone(),
            image(http("http://images/b.img", None)),
            image(http("http://images/a.img", Some("sha256:00"))),
            image(http("http://images/a.img", Some("sha256:01"))),
            image(volume("a", "b-c")),
            image(volume("a-b", "c")),
            GoldenImage { namespace: "cluster-a".to_owned(), ..base.clone() },
            GoldenImage { storage_class: String::new(), ..base.clone() },
            GoldenImage { volume_mode: None, ..base.clone() },
            GoldenImage { volume_mode: Some(VolumeMode::Filesystem), ..base.clone() },
            GoldenImage { is_preallocated: true, ..base.clone() },
            GoldenImage { size: Some(quantity("4Gi")), ..base.clone() },
            GoldenImage { size: Some(quantity("5Gi")), ..base.clone() },
        ];
        let names: BTreeSet<String> = all.iter().map(GoldenImage::name).collect();
        assert_eq!(names.len(), all.len());
        for name in names {
            let digits = name.strip_prefix("image-").unwrap();
            assert!(digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
    }

    /// Another name would import every image again after an upgrade.
    #[test]
    fn the_name_is_the_same_in_every_release() {
        // SHA-256 of `[["http","http://images/a.img",null],"fast","images","Block",false,null]`.
        let expected = "image-9c63cc458f9bc57450d2a81a3cda05f8";
        assert_eq!(image(http("http://images/a.img", None)).name(), expected);
    }

    #[test]
    fn credentials_do_not_change_the_name() {
        let ImageSource::Http(plain) = http("http://images/a.img", None) else {
            panic!("the source should be that of a web server")
        };
        let secret = HttpSource { secret: Some("s".to_owned()), ..plain.clone() };
        let headers = HttpSource { headers: vec!["a: b".to_owned()], ..plain.clone() };
        let name = image(ImageSource::Http(plain)).name();
        for source in [secret, headers] {
            assert_eq!(image(ImageSource::Http(source)).name(), name);
        }
    }

    #[test]
    fn an_image_is_imported_into_a_volume_that_is_bound_immediately() {
        let mut golden = image(http("http://user:pw@images/a.img", Some("sha256:00")));
        golden.is_preallocated = true;
        let objects = golden.objects(quantity("10Gi"), &Images::default());
        let [volume, source] = objects.as_slice() else {
            panic!("there should be a DataVolume and a DataSource: {objects:?}")
        };
        assert_eq!(volume["kind"], "DataVolume");
        assert_eq!(
            volume["metadata"],
            json!({
                "namespace": "images", "name": golden.name(),
                "labels": {
                    "app.kubernetes.io/managed-by": "berth", "berth.dev/golden-image": golden.name(),
                },
                "annotations": {
                    "berth.dev/image-source": "http://images/a.img",
                    "cdi.kubevirt.io/storage.bind.immediate.requested": "true",
                    "cdi.kubevirt.io/storage.deleteAfterCompletion": "false",
                },
            })
        );
        assert_eq!(
            volume["spec"],
            json!({
                "source": {"http": {"url": "http://user:pw@images/a.img", "checksum": "sha256:00"}},
                "storage": {
                    "storageClassName": "fast", "volumeMode": "Block",
                    "resources": {"requests": {"storage": "10Gi"}},
                },
                "preallocation": true,
            })
        );
        assert_eq!(source["kind"], "DataSource");
        assert_eq!(
            source["spec"],
            json!({"source": {"pvc": {"namespace": "images", "name": golden.name()}}})
        );
        assert_eq!(source["metadata"]["annotations"].as_object().unwrap().len(), 1);
        assert_eq!(
            golden.source_ref(),
            json!({"kind": "DataSource", "namespace": "images", "name": golden.name()})
        );
    }

    #[test]
    fn without_a_storage_profile_the_volume_has_an_access_mode() {
        let mut golden = image(http("http://images/a.img", None));
        (golden.volume_mode, golden.storage_class) = (None, String::new());
        let objects = golden.objects(quantity("1Gi"), &Images::default());
        assert_eq!(
            objects[0]["spec"]["storage"],
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
        );
    }

    #[test]
    fn an_image_with_a_schedule_has_a_data_import_cron() {
        let source = RegistrySource {
            url: "docker://registry/rhel:9".to_owned(),
            pull_method: "pod".to_owned(),
            ..RegistrySource::default()
        };
        let mut golden = image(ImageSource::Registry(source));
        golden.schedule = Some("30 1 * * 1".to_owned());
        for (images, garbage_collect, keep) in [
            (json!({}), "Outdated", 2),
            (json!({"garbageCollect": "Never", "keepLast": 4}), "Never", 5),
        ] {
            let images: Images = serde_json::from_value(images).unwrap();
            let objects = golden.objects(quantity("4Gi"), &images);
            let [cron] = objects.as_slice() else {
                panic!("there should be only a DataImportCron: {objects:?}")
            };
            let spec = &cron["spec"];
            assert_eq!(
                (&cron["kind"], &spec["schedule"]),
                (&json!("DataImportCron"), &json!("30 1 * * 1"))
            );
            assert_eq!(spec["managedDataSource"], golden.name());
            assert_eq!(spec["garbageCollect"], garbage_collect);
            assert_eq!(spec["importsToKeep"], keep);
            assert!(spec["template"]["spec"]["source"]["registry"].is_object());
        }
    }

    #[test]
    fn the_volume_is_as_small_as_the_smallest_disk() {
        let mut golden = image(http("http://images/a.img", None));
        let disks = || ["50Gi", "20Gi"].map(quantity);
        assert_eq!(golden.volume_size(disks()), Some(quantity("20Gi")));
        assert_eq!(golden.volume_size([]), None);
        golden.size = Some(quantity("4Gi"));
        assert_eq!(golden.volume_size(disks()), Some(quantity("4Gi")));
    }
}
