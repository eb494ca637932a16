//! Volume modes of PersistentVolumeClaims.

/// Volume mode of a PersistentVolumeClaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VolumeMode {
    /// The volume is a block device.
    Block,
    /// The volume has a file system, which contains the disk as a file.
    Filesystem,
}

impl VolumeMode {
    /// Returns the value of `volumeMode`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Block => "Block",
            Self::Filesystem => "Filesystem",
        }
    }

    /// Returns the volume mode with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Block, Self::Filesystem].into_iter().find(|mode| mode.as_str() == name)
    }
}
