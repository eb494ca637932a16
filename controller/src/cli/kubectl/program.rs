//! Name of the program in messages.

/// Name of the program in messages. `kubectl` starts it as `kubectl berth`.
pub(super) const PROGRAM: &str = "kubectl-berth";
