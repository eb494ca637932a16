//! Backoff after a fault of the disks of existing machines, because each comparison reads the input of the template.

use std::time::{Duration, Instant};

use crate::tenants::fault::Fault;

/// A fault after which disks are not compared again until a time.
#[derive(Clone, Debug)]
pub(super) struct DiskBackoff {
    /// Generation of the MachineDeployment for which the fault was found.
    pub(super) generation: Option<i64>,
    pub(super) until: Instant,
    pub(super) fault: Fault,
}

impl DiskBackoff {
    /// Returns the remaining time; `None` if the backoff has ended, or if the MachineDeployment has changed.
    pub(super) fn remaining_time(&self, generation: Option<i64>, now: Instant) -> Option<Duration> {
        let remaining = self.until.checked_duration_since(now)?;
        (self.generation == generation).then_some(remaining)
    }
}

#[cfg(test)]
mod tests {
    use berth_api::ConditionReason;

    use super::*;

    #[test]
    fn the_backoff_ends_with_a_change_of_the_object() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let fault = Fault::new(ConditionReason::DiskChangesRefused, "x".to_owned());
        let backoff = DiskBackoff { generation: Some(2), until: now + second, fault };
        assert_eq!(backoff.remaining_time(Some(2), now), Some(second));
        assert_eq!(backoff.remaining_time(Some(3), now), None);
        assert_eq!(backoff.remaining_time(Some(2), now + second * 2), None);
    }
}
