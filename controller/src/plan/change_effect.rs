//! Changes of the spec of a host, and their effects.

/// Time at which a change becomes effective, and what it interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeEffect {
    /// The agent applies the change while VMs run.
    Immediate,
    /// The kubelet uses the new value after the host was drained and the kubelet was started again.
    AfterDrain,
    /// The agent applies the change when the last VM has left the host.
    AfterLastVm,
    /// VMs lose their network while their links are removed and created again.
    InterruptsNetwork,
    /// The report does not show the effect, and so the simulation leaves the host as it is.
    Unknown,
}

impl ChangeEffect {
    /// Returns true if the VMs must leave the host.
    #[must_use]
    pub const fn needs_empty_host(self) -> bool {
        matches!(self, Self::AfterDrain | Self::AfterLastVm)
    }
}

/// A part of the spec of a host that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Name of the field in the spec.
    pub field: &'static str,
    /// Value before the change, as JSON; empty if the field is absent.
    pub before: String,
    /// Value after the change, as JSON; empty if the field is absent.
    pub after: String,
    pub effect: ChangeEffect,
    /// Consequence or obstacle, for users; empty if there is none.
    pub note: String,
}

/// Effect of a change, and a note for users.
pub(super) type Effect = (ChangeEffect, String);
