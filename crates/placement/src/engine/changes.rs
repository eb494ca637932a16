//! Which hosts have changed, and in which order: so that those who know hosts of earlier look again at few.

use std::collections::VecDeque;

/// Which hosts have changed, in order.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    hosts: VecDeque<Change>,
    /// How many there were before the first in `hosts`.
    gone: u64,
}

/// A change of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    host: u32,
    /// It is not only that a pod has come or gone.
    pub(crate) is_of_host: bool,
}

impl Change {
    pub(crate) const fn host(self) -> usize {
        self.host as usize
    }
}

impl Changes {
    /// A host has changed. As many changes are kept as there are hosts: whoever is further behind looks at all.
    pub(crate) fn add(&mut self, host: usize, is_of_host: bool, hosts: usize) {
        let host = u32::try_from(host).unwrap_or(u32::MAX);
        self.hosts.push_back(Change { host, is_of_host });
        while self.hosts.len() > hosts.max(64) {
            self.hosts.pop_front();
            self.gone += 1;
        }
    }

    /// The host of the newest.
    pub(crate) fn newest(&self) -> Option<usize> {
        self.hosts.back().map(|change| change.host())
    }

    /// The number of the newest.
    pub(crate) fn last(&self) -> u64 {
        self.gone + self.hosts.len() as u64
    }

    /// What has changed since; `None` if that is too long ago.
    pub(crate) fn since(&self, seen: u64) -> Option<impl Iterator<Item = Change> + '_> {
        let skip = usize::try_from(seen.checked_sub(self.gone)?).ok()?;
        Some(self.hosts.range(skip.min(self.hosts.len())..).copied())
    }
}
