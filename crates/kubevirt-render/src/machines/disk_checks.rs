//! Checks of a machine's disks, before any object is created: storage class, size, and access mode.

use berth_api::{EvictionStrategy, Quantity};

use super::image::DiskImage;
use super::machine_disk::{DiskField, MachineDisk};
use super::renderer::MachineRenderer;
use crate::images::{GoldenImage, ImageSource, READ_WRITE_MANY};

/// Reason why a disk cannot be created.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum DiskError {
    /// The InfraConfig lists storage classes, but not that of the disk.
    #[error(
        "is not in InfraConfig's spec.infraStorageClasses, so machines of tenants must not use it: use {permitted}"
    )]
    StorageClassNotPermitted {
        /// Names of the storage classes for machines.
        permitted: String,
    },
    /// CDI does not clone a volume to a smaller one, and an image must fit into its volume.
    #[error("is smaller than the image, which needs {minimum}: enlarge the disk")]
    SmallerThanImage {
        /// Size of the image.
        minimum: Quantity,
    },
    /// The golden image was imported into a larger volume, because its first users had larger disks.
    #[error(
        "is smaller than the golden image {namespace}/{name} of {size}: enlarge the disk, or set the size of the image in \
         InfraConfig's spec.images.catalog"
    )]
    SmallerThanGoldenImage {
        /// Namespace of the golden image.
        namespace: String,
        /// Name of the golden image.
        name: String,
        /// Size of the volume.
        size: Quantity,
    },
}

/// Reports the problems of a disk. `golden` is the golden image of which the disk is a clone.
pub(super) fn check_disk(
    machine: &MachineRenderer<'_>,
    disk: &MachineDisk<'_>,
    image: &DiskImage<'_>,
    golden: Option<&GoldenImage>,
) {
    let reporter = machine.reporter;
    if let Err(error) = check_storage_class(machine, disk) {
        let path = disk.path(DiskField::StorageClass);
        reporter.report_error(&path, disk.storage_class, error.to_string());
    }
    if let Err(error) = check_size(machine, disk, image, golden) {
        reporter.report_error(&disk.path(DiskField::Size), disk.size, error.to_string());
    }
    let is_migrated =
        machine.provider.eviction_strategy == Some(EvictionStrategy::LiveMigrate.as_str());
    if is_migrated && &*disk.access_mode != READ_WRITE_MANY {
        let message = "prevents the live migration that evictionStrategy LiveMigrate requests, which needs ReadWriteMany: \
            a drain of the host does not complete while the VM runs";
        reporter.report_warning(&disk.path(DiskField::AccessMode), &disk.access_mode, message);
    }
}

/// Checks that a tenant may use the storage class. If InfraConfig lists no storage class for machines, tenants may use all
/// of them. A disk without a storage class gets the default class of the cluster.
fn check_storage_class(
    machine: &MachineRenderer<'_>,
    disk: &MachineDisk<'_>,
) -> Result<(), DiskError> {
    let class = &**disk.storage_class;
    if machine.tenant.is_none() || class.is_empty() {
        return Ok(());
    }
    let listed = machine.context.config.infra_storage_classes.iter();
    let permitted: Vec<&str> = listed
        .filter(|listed| listed.is_for_machines())
        .map(|listed| listed.name.as_str())
        .collect();
    let known = machine.context.storage_classes.get(class);
    let is_initialized = known.is_some_and(|known| known.is_initialized);
    if permitted.is_empty() || permitted.contains(&class) || is_initialized {
        return Ok(());
    }
    Err(DiskError::StorageClassNotPermitted { permitted: permitted.join(", ") })
}

/// Checks that the image fits into the disk. A size that is not a quantity is reported elsewhere.
fn check_size(
    machine: &MachineRenderer<'_>,
    disk: &MachineDisk<'_>,
    image: &DiskImage<'_>,
    golden: Option<&GoldenImage>,
) -> Result<(), DiskError> {
    let Ok(size) = disk.size.parse_quantity() else { return Ok(()) };
    if disk.is_blank {
        return Ok(());
    }
    let size_of_volume = |namespace: &str, name: &str| {
        let key = (namespace.to_owned(), name.to_owned());
        machine.context.data_volumes.get(&key).and_then(|volume| volume.size)
    };
    let of_entry = image.entry.and_then(|entry| entry.size);
    let minimum = match (&image.source, golden) {
        (ImageSource::Volume { namespace, name }, None) => {
            of_entry.max(size_of_volume(namespace, name))
        }
        _ => of_entry,
    };
    if let Some(minimum) = minimum.filter(|minimum| size < *minimum) {
        return Err(DiskError::SmallerThanImage { minimum });
    }
    let Some(golden) = golden else { return Ok(()) };
    let (namespace, name) = (golden.namespace.clone(), golden.name());
    match size_of_volume(&namespace, &name) {
        Some(of_volume) if size < of_volume => {
            Err(DiskError::SmallerThanGoldenImage { namespace, name, size: of_volume })
        }
        _ => Ok(()),
    }
}
