//! Reasons why disks of existing machines are not changed.

use berth_api::Quantity;

/// Reason why a disk of an existing machine is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskFault {
    /// KubeVirt and CDI permit no change of the field.
    #[error(
        "{field} of disk {disk} cannot be changed from `{current}` to `{desired}`: remove the disk, and add a disk with another \
         name"
    )]
    Immutable {
        /// Name of the disk.
        disk: String,
        /// Field of the disk in the MachineDeployment.
        field: &'static str,
        /// Value of the existing disk.
        current: String,
        /// Value in the MachineDeployment.
        desired: String,
    },
    /// Kubernetes does not shrink volumes.
    #[error(
        "disk {disk} cannot be shrunk from {current} to {desired}: set its size to {current} or more"
    )]
    Shrunk {
        /// Name of the disk.
        disk: String,
        /// Size of the existing disk.
        current: Quantity,
        /// Size in the MachineDeployment.
        desired: Quantity,
    },
    /// A removed disk with the same name is not deleted yet.
    #[error("disk {disk} waits for the deletion of the removed disk with the same name")]
    NameInUse {
        /// Name of the disk.
        disk: String,
    },
}

impl DiskFault {
    /// Returns true if the fault ends without a change of the MachineDeployment.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::NameInUse { .. })
    }

    /// Returns the message without the values of fields, which may come from Secrets.
    #[must_use]
    pub fn redacted(&self) -> String {
        match self {
            Self::Immutable { disk, field, .. } => format!(
                "{field} of disk {disk} cannot be changed: remove the disk, and add a disk with another name"
            ),
            Self::Shrunk { disk, .. } => {
                format!("disk {disk} cannot be shrunk: set its size to the former size or more")
            }
            Self::NameInUse { .. } => self.to_string(),
        }
    }
}
