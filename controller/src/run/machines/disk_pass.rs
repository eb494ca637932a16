//! Order and end of a pass over the machines whose disks are updated.
//!
//! The next pass begins after the last machine of an incomplete one, so that machines whose requests fail do not prevent the
//! update of the others.

use std::time::Duration;

use berth_kubevirt_render::machines::reconcile_steps::ExistingVm;

/// Number of consecutive machines with a failed request after which a pass ends.
const MAX_FAILURES: u32 = 5;
/// Time after which a pass begins no further machine. A webhook that does not answer delays each request by up to 30 s, and
/// the reconcile does nothing else meanwhile.
const MAX_DURATION: Duration = Duration::from_secs(60);
/// Time for which disks are not compared again after an incomplete pass with failed requests.
pub(super) const INCOMPLETE_PASS_DELAY: Duration = Duration::from_secs(30);

/// State of a pass.
#[derive(Debug, Default)]
pub(super) struct DiskPass {
    consecutive_failures: u32,
    /// Name of the last machine of the pass.
    last: Option<String>,
}

impl DiskPass {
    /// Records a machine of the pass. `has_failed` is true if one of its requests has failed.
    pub(super) fn record(&mut self, machine: &str, has_failed: bool) {
        self.consecutive_failures =
            if has_failed { self.consecutive_failures.saturating_add(1) } else { 0 };
        self.last = Some(machine.to_owned());
    }

    /// Returns true if the pass ends before the next machine. `elapsed` is the time since its begin.
    pub(super) fn has_ended(&self, elapsed: Duration) -> bool {
        self.last.is_some()
            && (self.consecutive_failures >= MAX_FAILURES || elapsed >= MAX_DURATION)
    }

    /// Returns the name of the last machine; `None` if the pass has had no machine.
    pub(super) fn into_last(self) -> Option<String> {
        self.last
    }
}

/// Sorts machines by name, beginning with the machine after `last`.
pub(super) fn sort_after(machines: &mut [&ExistingVm], last: Option<&str>) {
    machines.sort_by(|one, other| one.name.as_str().cmp(other.name.as_str()));
    let Some(last) = last else { return };
    let first = machines.partition_point(|vm| vm.name.as_str() <= last);
    machines.rotate_left(first);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_ends_after_consecutive_failures_or_a_time() {
        let mut pass = DiskPass::default();
        assert!(!pass.has_ended(MAX_DURATION), "each pass has a machine");
        for has_failed in [true, true, true, true, false, true, true, true, true] {
            pass.record("web-1", has_failed);
            assert!(!pass.has_ended(Duration::ZERO));
        }
        assert!(pass.has_ended(MAX_DURATION));
        pass.record("web-2", true);
        assert!(pass.has_ended(Duration::ZERO));
        assert_eq!(pass.into_last().as_deref(), Some("web-2"));
    }

    #[test]
    fn the_next_pass_begins_after_the_last_machine() {
        let vms = ["c", "a", "d", "b"]
            .map(|name| ExistingVm { name: name.to_owned(), ..ExistingVm::default() });
        let sorted = |last: Option<&str>| {
            let mut machines: Vec<&ExistingVm> = vms.iter().collect();
            sort_after(&mut machines, last);
            machines.iter().map(|vm| vm.name.as_str()).collect::<String>()
        };
        assert_eq!(sorted(None), "abcd");
        assert_eq!(sorted(Some("b")), "cdab");
        assert_eq!(sorted(Some("d")), "abcd");
        // The last machine was deleted meanwhile.
        assert_eq!(sorted(Some("bb")), "cdab");
    }
}
