//! Golden images that machines or the catalog of the InfraConfig need.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::Quantity;
use berth_api::names::TENANT_PREFIX;
use berth_kubevirt_render::images::{GoldenImage, GoldenImageUse};

use super::key::ImageKey;

/// A golden image that machines or the catalog need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DesiredImage {
    pub(crate) image: GoldenImage,
    /// Size of the smallest disk that is a clone of the image.
    pub(crate) smallest_disk: Quantity,
    /// Size of the largest disk that is a clone of the image.
    pub(crate) largest_disk: Quantity,
    /// Tenants whose machines are in another namespace than the image.
    pub(crate) tenants: BTreeSet<String>,
    /// Reason why the image must not be imported now.
    pub(crate) obstacle: Option<String>,
}

/// Golden images that machines or the catalog need.
pub(crate) type DesiredImages = BTreeMap<ImageKey, DesiredImage>;

/// Permission of a tenant to clone from a namespace: the namespace of golden images, and the name of the tenant.
pub(crate) type Grant = (String, String);

/// Returns the golden images of all uses, each once. Each use comes with the namespace of its machines.
pub(crate) fn desired_images<'u>(
    uses: impl IntoIterator<Item = (&'u str, &'u GoldenImageUse)>,
) -> DesiredImages {
    let mut desired = DesiredImages::new();
    for (namespace, GoldenImageUse { image, smallest_disk, largest_disk }) in uses {
        let one = desired.entry(ImageKey::of_image(image)).or_insert_with(|| DesiredImage {
            image: image.clone(),
            smallest_disk: *smallest_disk,
            largest_disk: *largest_disk,
            tenants: BTreeSet::new(),
            obstacle: None,
        });
        one.smallest_disk = one.smallest_disk.min(*smallest_disk);
        one.largest_disk = one.largest_disk.max(*largest_disk);
        one.tenants.extend(cloning_tenant(namespace, image).map(str::to_owned));
    }
    desired
}

/// Returns the tenant that needs a permission to clone an image to a namespace; `None` if the image is in this namespace.
pub(crate) fn cloning_tenant<'n>(namespace: &'n str, image: &GoldenImage) -> Option<&'n str> {
    namespace.strip_prefix(TENANT_PREFIX).filter(|_| namespace != image.namespace)
}

/// Returns the permissions that tenants need.
pub(crate) fn desired_grants(desired: &DesiredImages) -> BTreeSet<Grant> {
    let grants = desired.iter().flat_map(|(key, one)| {
        one.tenants.iter().map(|tenant| (key.namespace.clone(), tenant.clone()))
    });
    grants.collect()
}

#[cfg(test)]
pub(super) mod tests {
    use berth_kubevirt_render::images::{HttpSource, ImageSource};

    use super::*;

    /// Returns a golden image of an image on a web server.
    pub(in crate::images) fn golden_image(namespace: &str, file: &str) -> GoldenImage {
        let url = format!("http://images/{file}");
        GoldenImage {
            namespace: namespace.to_owned(),
            source: ImageSource::Http(HttpSource { url, ..HttpSource::default() }),
            storage_class: "fast".to_owned(),
            volume_mode: None,
            is_preallocated: false,
            size: None,
            schedule: None,
        }
    }

    /// Returns a use of an image by a disk.
    pub(in crate::images) fn image_use(image: &GoldenImage, disk: &str) -> GoldenImageUse {
        let mut uses = Vec::new();
        GoldenImageUse::add(&mut uses, image.clone(), disk.parse().unwrap());
        uses.remove(0)
    }

    #[test]
    fn machines_of_all_tenants_share_an_image() {
        let image = golden_image("images", "a.img");
        let (large, small) = (image_use(&image, "50Gi"), image_use(&image, "20Gi"));
        let uses = [
            ("cluster-a", &large),
            ("cluster-b", &small),
            ("cluster-a", &small),
            ("images", &small),
        ];
        let desired = desired_images(uses);
        assert_eq!(desired.len(), 1);
        let one = &desired[&ImageKey::of_image(&image)];
        assert_eq!(one.smallest_disk, "20Gi".parse().unwrap());
        assert_eq!(one.largest_disk, "50Gi".parse().unwrap());
        let grant = |tenant: &str| ("images".to_owned(), tenant.to_owned());
        assert_eq!(desired_grants(&desired), BTreeSet::from([grant("a"), grant("b")]));
    }

    #[test]
    fn an_image_in_the_namespace_of_its_machines_needs_no_permission() {
        let image = golden_image("cluster-a", "a.img");
        let desired = desired_images([("cluster-a", &image_use(&image, "20Gi"))]);
        assert_eq!(desired_grants(&desired), BTreeSet::new());
    }
}
