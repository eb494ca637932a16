//! Triggers of reconcile cycles.

/// Trigger of a cycle; later variants include the work of earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trigger {
    /// The timer.
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
