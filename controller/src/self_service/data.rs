//! Objects in a tenant's namespace that have data of the tenant, or that may create such objects.

use std::collections::BTreeSet;

/// Object in a tenant's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceObject {
    pub kind: String,
    pub name: String,
    pub uid: String,
    /// UIDs of the owners of the object.
    pub owners: Vec<String>,
    /// True if the object is a copy of an image, which can be imported again.
    pub is_image: bool,
}

/// Kinds of objects that may be copies of images, or parts of other objects.
const VOLUME_KINDS: [&str; 3] = ["DataVolume", "PersistentVolumeClaim", "VolumeSnapshot"];

/// Returns the objects in use, as `Kind name`, sorted. `all` are all objects of the namespace of the kinds that count. An owner
/// that is one of them decides about its volumes; a volume of another owner counts itself.
#[must_use]
pub fn objects_in_use(all: &[NamespaceObject]) -> Vec<String> {
    let listed: BTreeSet<&str> = all.iter().map(|object| object.uid.as_str()).collect();
    let is_part = |object: &NamespaceObject| {
        VOLUME_KINDS.contains(&object.kind.as_str())
            && (object.is_image || object.owners.iter().any(|uid| listed.contains(uid.as_str())))
    };
    let in_use = all.iter().filter(|object| !is_part(object));
    let names: BTreeSet<String> =
        in_use.map(|object| format!("{} {}", object.kind, object.name)).collect();
    names.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, name: &str, owners: &[&str]) -> NamespaceObject {
        NamespaceObject {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: format!("{kind}/{name}"),
            owners: owners.iter().map(|uid| (*uid).to_owned()).collect(),
            is_image: false,
        }
    }

    #[test]
    fn volumes_of_listed_owners_do_not_count() {
        let all = [
            object("VirtualMachine", "web", &["MachineDeployment/deleted"]),
            object("DataVolume", "web", &["VirtualMachine/web"]),
            object("PersistentVolumeClaim", "web", &["DataVolume/web"]),
            object("PersistentVolumeClaim", "of-another-owner", &["Database/main"]),
            object("VolumeSnapshot", "backup", &[]),
            object("VirtualMachineSnapshot", "nightly", &["VirtualMachine/web"]),
        ];
        assert_eq!(
            objects_in_use(&all),
            [
                "PersistentVolumeClaim of-another-owner",
                "VirtualMachine web",
                "VirtualMachineSnapshot nightly",
                "VolumeSnapshot backup",
            ]
        );
    }

    #[test]
    fn images_do_not_count() {
        let image = NamespaceObject { is_image: true, ..object("DataVolume", "image", &[]) };
        let claim = object("PersistentVolumeClaim", "image", &["DataVolume/image"]);
        assert_eq!(objects_in_use(&[image, claim]), Vec::<String>::new());
        let machine = NamespaceObject { is_image: true, ..object("VirtualMachine", "web", &[]) };
        assert_eq!(objects_in_use(&[machine]), ["VirtualMachine web"]);
    }
}
