//! Log of changes to hosts, oldest first. A reader that has computed results from an earlier state of the engine checks
//! only the hosts that have changed since.

use std::collections::VecDeque;

/// The most recent changes to hosts, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    entries: VecDeque<Change>,
    /// Number of changes that were dropped from the front of `entries`.
    dropped_count: u64,
}

/// A change of one host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    host: u32,
    /// False if only a pod was added to or removed from the host, true for any other change.
    pub(crate) is_host_change: bool,
}

impl Change {
    pub(crate) const fn host(self) -> usize {
        self.host as usize
    }
}

impl ChangeLog {
    /// Adds a change of a host. The log retains as many changes as there are hosts (`host_count`), but at least 64. If
    /// the log no longer contains all changes that a reader has not seen, the reader must check all hosts.
    pub(crate) fn add(&mut self, host: usize, is_host_change: bool, host_count: usize) {
        let host = u32::try_from(host).unwrap_or(u32::MAX);
        self.entries.push_back(Change { host, is_host_change });
        while self.entries.len() > host_count.max(64) {
            self.entries.pop_front();
            self.dropped_count += 1;
        }
    }

    /// Returns the host of the newest change.
    pub(crate) fn newest_host(&self) -> Option<usize> {
        self.entries.back().map(|change| change.host())
    }

    /// Returns the number of the newest change. Changes are numbered from 1; 0 means that there was no change.
    pub(crate) fn last_number(&self) -> u64 {
        self.dropped_count + self.entries.len() as u64
    }

    /// Returns the changes after change number `seen`; `None` if some of these changes have been dropped.
    pub(crate) fn changes_after(
        &self,
        seen: u64,
    ) -> Option<impl ExactSizeIterator<Item = Change> + Clone + '_> {
        let skip = usize::try_from(seen.checked_sub(self.dropped_count)?).ok()?;
        Some(self.entries.range(skip.min(self.entries.len())..).copied())
    }
}
