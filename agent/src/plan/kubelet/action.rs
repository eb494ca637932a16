//! Work on the kubelet's files.

/// Work on the kubelet's files; paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubeletAction {
    /// Writes the drop-in under a name that the kubelet does not read.
    Stage {
        /// Where to.
        staged: String,
        /// What.
        text: String,
    },
    /// Removes the checkpoints, then gives the drop-in the name that the kubelet reads at its next start.
    Activate {
        /// Its name until then.
        staged: String,
        /// Its name from then on.
        active: String,
        /// The checkpoints.
        checkpoints: Vec<String>,
    },
    /// Gives the drop-in the name that the kubelet does not read.
    Deactivate {
        /// Its name until then.
        active: String,
        /// Its name from then on.
        staged: String,
    },
    /// Removes files, in this order.
    Remove(Vec<String>),
}

impl KubeletAction {
    /// Returns true if it removes checkpoints, which a running kubelet would write again.
    #[must_use]
    pub fn takes_checkpoints(&self) -> bool {
        match self {
            Self::Activate { .. } => true,
            Self::Remove(files) => files.iter().any(|file| file.ends_with("_manager_state")),
            Self::Stage { .. } | Self::Deactivate { .. } => false,
        }
    }

    /// The files it works on.
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
