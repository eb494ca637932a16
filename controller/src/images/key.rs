//! Identity of a golden image in the cluster.

use std::fmt;

use berth_kubevirt_render::images::GoldenImage;
use kube::ResourceExt as _;
use kube::api::DynamicObject;

/// Prefix of the names of golden images.
const NAME_PREFIX: &str = "image-";
/// Number of hexadecimal digits after [`NAME_PREFIX`].
const DIGEST_LENGTH: usize = 32;

/// Namespace and name of a golden image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ImageKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl ImageKey {
    pub(crate) fn of_image(image: &GoldenImage) -> Self {
        Self { namespace: image.namespace.clone(), name: image.name() }
    }

    pub(crate) fn of_object(object: &DynamicObject) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl fmt::Display for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns the name of the golden image to which an object with this name belongs; `None` if the name is not that of a
/// golden image or of an import of a DataImportCron. CDI appends a hyphen and a part of the digest to the names of such
/// imports.
pub(crate) fn image_of_name(name: &str) -> Option<&str> {
    let length = NAME_PREFIX.len().saturating_add(DIGEST_LENGTH);
    let (image, rest) = name.split_at_checked(length)?;
    let is_digest = image
        .strip_prefix(NAME_PREFIX)
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    (is_digest && (rest.is_empty() || rest.starts_with('-'))).then_some(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_imports_begin_with_that_of_the_image() {
        let image = format!("image-{}", "0a".repeat(16));
        for (name, expected) in [
            (image.clone(), Some(image.as_str())),
            (format!("{image}-123456789abc"), Some(image.as_str())),
            (format!("{image}0"), None),
            ("image-0a".to_owned(), None),
            (format!("image-{}", "xy".repeat(16)), None),
            (format!("other-{}", "0a".repeat(16)), None),
            (String::new(), None),
        ] {
            assert_eq!(image_of_name(&name), expected, "{name}");
        }
    }
}
