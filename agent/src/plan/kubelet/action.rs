//! Actions on the kubelet's files.

/// Action on the kubelet's files; paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubeletAction {
    /// Writes the drop-in under a name that the kubelet does not read.
    Stage {
        /// Path of the drop-in.
        staged: String,
        /// Content of the drop-in.
        text: String,
    },
    /// Removes the checkpoints, then renames the drop-in to the name that the kubelet reads at its next
    /// start.
    Activate {
        /// Path before the rename.
        staged: String,
        /// Path after the rename.
        active: String,
        /// Paths of the checkpoints.
        checkpoints: Vec<String>,
    },
    /// Renames the drop-in to the name that the kubelet does not read.
    Deactivate {
        /// Path before the rename.
        active: String,
        /// Path after the rename.
        staged: String,
    },
    /// Removes these files, in this order.
    Remove(Vec<String>),
}

impl KubeletAction {
    /// Returns true if the action removes checkpoints, which a running kubelet would write again.
    #[must_use]
    pub fn removes_checkpoints(&self) -> bool {
        match self {
            Self::Activate { .. } => true,
            Self::Remove(files) => files.iter().any(|file| file.ends_with("_manager_state")),
            Self::Stage { .. } | Self::Deactivate { .. } => false,
        }
    }

    /// Returns the files that the action changes.
    #[must_use]
    pub fn files(&self) -> Vec<&str> {
        match self {
            Self::Stage { staged, .. } => vec![staged],
            Self::Activate { staged, active, checkpoints } => {
                checkpoints.iter().chain([staged, active]).map(String::as_str).collect()
            }
            Self::Deactivate { active, staged } => vec![active, staged],
            Self::Remove(files) => files.iter().map(String::as_str).collect(),
        }
    }
}
