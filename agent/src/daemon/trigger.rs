//! Triggers of reconcile cycles.

/// Trigger of a cycle. The cycle of a later variant does all that the cycle of an earlier variant does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trigger {
    Timer,
    /// A link of a tenant network changed.
    Links,
    /// The kubelet allocated or released resources.
    Pods,
    /// CPUs or memory were added or removed.
    Capacity,
    /// Devices were added or removed.
    Devices,
    /// The manifest may have changed.
    Manifest,
    /// Start of the daemon.
    Start,
}
