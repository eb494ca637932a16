//! Delay between two reconciles of a MachineDeployment.

use std::time::Duration;

/// Delay of the next reconcile after a temporary fault.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(30);
