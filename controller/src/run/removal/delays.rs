//! Delays between two reconciles of a machine with a removal mark.

use std::time::Duration;

/// Shortest and longest delay between two reconciles of a machine that waits. Such a machine is reconciled
/// periodically, because the tenant's pods and VolumeAttachments are not watched.
pub(super) const DELAY_RANGE: (Duration, Duration) = (Duration::from_secs(5), MAX_DELAY);
/// Longest delay between two reconciles of a machine that waits.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(30);
/// Delay after an object has changed during the reconcile, or after the last step of a reconcile.
pub(super) const SHORT_DELAY: Duration = Duration::from_secs(1);
