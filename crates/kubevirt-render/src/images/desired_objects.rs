//! The objects that the golden images of machines need.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names::TENANT_PREFIX;
use berth_api::{Images, Quantity};
use serde_json::Value;

use super::clone_grant::{clone_cluster_role, clone_role_binding};
use super::golden_image::GoldenImage;

/// A golden image that machines or the catalog need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoldenImageUse {
    /// The golden image.
    pub image: GoldenImage,
    /// Size of the smallest disk that is a clone of the image.
    pub smallest_disk: Quantity,
    /// Size of the largest disk that is a clone of the image.
    pub largest_disk: Quantity,
}

impl GoldenImageUse {
    /// Adds a disk to a list of golden images, each of which is in the list once.
    pub fn add(uses: &mut Vec<Self>, image: GoldenImage, disk_size: Quantity) {
        match uses.iter_mut().find(|one| one.image == image) {
            Some(known) => {
                known.smallest_disk = known.smallest_disk.min(disk_size);
                known.largest_disk = known.largest_disk.max(disk_size);
            }
            None => uses.push(Self { image, smallest_disk: disk_size, largest_disk: disk_size }),
        }
    }
}

/// Returns the objects that import golden images, and the permissions to clone them: each object once. `uses` has the
/// golden images with the namespaces of the machines that need them.
#[must_use]
pub fn desired_objects<'u>(
    uses: impl IntoIterator<Item = (&'u str, &'u GoldenImageUse)>,
    images: &Images,
) -> Vec<Value> {
    let mut by_name: BTreeMap<(&str, String), (&GoldenImage, Quantity)> = BTreeMap::new();
    let mut grants: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (machine_namespace, GoldenImageUse { image, smallest_disk, .. }) in uses {
        let known = by_name
            .entry((image.namespace.as_str(), image.name()))
            .or_insert_with(|| (image, *smallest_disk));
        known.1 = known.1.min(*smallest_disk);
        if let Some(tenant) = machine_namespace.strip_prefix(TENANT_PREFIX)
            && machine_namespace != image.namespace
        {
            grants.insert((image.namespace.as_str(), tenant));
        }
    }
    let mut objects: Vec<Value> = Vec::new();
    for (image, smallest_disk) in by_name.into_values() {
        let size = image.volume_size([smallest_disk]).unwrap_or(smallest_disk);
        objects.extend(image.objects(size, images));
    }
    if !grants.is_empty() {
        objects.push(clone_cluster_role());
    }
    objects.extend(grants.into_iter().map(|(image, tenant)| clone_role_binding(image, tenant)));
    objects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::source::{HttpSource, ImageSource};

    fn golden_use(namespace: &str, disk: &str) -> GoldenImageUse {
        let source = HttpSource { url: "http://images/a.img".to_owned(), ..HttpSource::default() };
        let image = GoldenImage {
            namespace: namespace.to_owned(),
            source: ImageSource::Http(source),
            storage_class: "fast".to_owned(),
            volume_mode: None,
            is_preallocated: false,
            size: None,
            schedule: None,
        };
        let size = disk.parse().unwrap();
        GoldenImageUse { image, smallest_disk: size, largest_disk: size }
    }

    #[test]
    fn machines_share_an_import_as_large_as_the_smallest_disk() {
        let uses = [golden_use("images", "50Gi"), golden_use("images", "20Gi")];
        let all = desired_objects(
            [("cluster-a", &uses[0]), ("cluster-b", &uses[1]), ("cluster-a", &uses[1])],
            &Images::default(),
        );
        let kinds: Vec<&str> = all.iter().filter_map(|object| object["kind"].as_str()).collect();
        let expected = ["DataVolume", "DataSource", "ClusterRole", "RoleBinding", "RoleBinding"];
        assert_eq!(kinds, expected);
        assert_eq!(all[0]["spec"]["storage"]["resources"]["requests"]["storage"], "20Gi");
        let subjects: Vec<&Value> =
            all[3..].iter().map(|binding| &binding["subjects"][0]["namespace"]).collect();
        assert_eq!(subjects, ["cluster-a", "cluster-b"]);
    }

    #[test]
    fn an_image_in_the_namespace_of_its_machines_needs_no_permission() {
        let own = golden_use("cluster-a", "20Gi");
        let all = desired_objects([("cluster-a", &own)], &Images::default());
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn each_golden_image_is_listed_once() {
        let (large, small) = (golden_use("images", "50Gi"), golden_use("images", "20Gi"));
        let mut uses = Vec::new();
        for one in [&large, &small, &large] {
            GoldenImageUse::add(&mut uses, one.image.clone(), one.smallest_disk);
        }
        assert_eq!(uses, [GoldenImageUse { largest_disk: large.largest_disk, ..small }]);
    }
}
