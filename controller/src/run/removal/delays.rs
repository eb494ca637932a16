//! Delays between two reconciles of a machine with a removal mark.

use std::time::Duration;

/// Shortest and longest delay between two reconciles of a machine that waits. Such a machine is polled, because the
/// tenant's pods and VolumeAttachments are not watched.
pub(super) const DELAY_RANGE: (Duration, Duration) = (Duration::from_secs(5), MAX_DELAY);
/// Longest delay between two reconciles of a machine that waits.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(30);
/// Delay before the reconcile is repeated because an object changed meanwhile, or because the maximum number of steps
/// was reached.
pub(super) const SHORT_DELAY: Duration = Duration::from_secs(1);
