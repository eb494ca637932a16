//! Log of changed hosts, in order. A reader of an earlier state uses the log to check only the changed hosts.

use std::collections::VecDeque;

/// Changed hosts, in the order of the changes.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    hosts: VecDeque<Change>,
    /// Number of changes that were dropped before the first change in `hosts`.
    gone: u64,
}

/// A change of one host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    host: u32,
    /// False if only a pod was added or removed, true for any other change.
    pub(crate) is_host_change: bool,
}

impl Change {
    pub(crate) const fn host(self) -> usize {
        self.host as usize
    }
}

impl Changes {
    /// Adds a change of a host. The log stores as many changes as there are hosts; a reader that lags further behind
    /// must check all hosts.
    pub(crate) fn add(&mut self, host: usize, is_host_change: bool, hosts: usize) {
        let host = u32::try_from(host).unwrap_or(u32::MAX);
        self.hosts.push_back(Change { host, is_host_change });
        while self.hosts.len() > hosts.max(64) {
            self.hosts.pop_front();
            self.gone += 1;
        }
    }

    /// Returns the host of the newest change.
    pub(crate) fn newest(&self) -> Option<usize> {
        self.hosts.back().map(|change| change.host())
    }

    /// Returns the number of the newest change.
    pub(crate) fn last(&self) -> u64 {
        self.gone + self.hosts.len() as u64
    }

    /// Returns the changes since a number; `None` if they are no longer stored.
    pub(crate) fn since(&self, seen: u64) -> Option<impl Iterator<Item = Change> + '_> {
        let skip = usize::try_from(seen.checked_sub(self.gone)?).ok()?;
        Some(self.hosts.range(skip.min(self.hosts.len())..).copied())
    }
}
