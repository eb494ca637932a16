//! Open streams to VMs: their limits, and the latest one of each VM.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_views::ObjectName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::kind::StreamKind;
use crate::keyed_limit::{KeyedLimit, KeyedPermit};
use crate::random::IdHash;

/// Maximum number of streams to VMs.
pub(crate) const MAX_VIEWERS: usize = 100;
/// Maximum number of streams to VMs of a user.
pub(crate) const MAX_USER_VIEWERS: usize = 8;

/// Open streams to VMs.
#[derive(Debug)]
pub(crate) struct Viewers {
    permits: Arc<Semaphore>,
    by_user: Arc<KeyedLimit<IdHash>>,
    latest: Mutex<Latest>,
}

/// Numbers of the latest streams. KubeVirt ends the stream of a VM when another one is opened, without a reason.
#[derive(Debug, Default)]
struct Latest {
    count: u64,
    numbers: HashMap<(StreamKind, ObjectName), u64>,
}

/// Permit of a stream, which is returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Viewer {
    viewers: Arc<Viewers>,
    key: (StreamKind, ObjectName),
    /// Number of the stream, after it was opened.
    number: Option<u64>,
    _permits: (OwnedSemaphorePermit, KeyedPermit<IdHash>),
}

impl Viewers {
    pub(crate) fn new(total: usize, of_user: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(total)),
            by_user: KeyedLimit::new(of_user),
            latest: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a permit for a stream; `None` if the user, or all users, have the maximum number.
    pub(crate) fn admit(
        self: &Arc<Self>,
        user: IdHash,
        kind: StreamKind,
        machine: &ObjectName,
    ) -> Option<Viewer> {
        let of_user = self.by_user.try_acquire(user)?;
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(Viewer {
            viewers: Arc::clone(self),
            key: (kind, machine.clone()),
            number: None,
            _permits: (permit, of_user),
        })
    }
}

impl Viewer {
    /// Records that the stream was opened, which ends earlier streams of the same kind to the VM.
    pub(crate) fn record_open(&mut self) {
        let mut latest = self.viewers.lock();
        latest.count += 1;
        let number = latest.count;
        latest.numbers.insert(self.key.clone(), number);
        drop(latest);
        self.number = Some(number);
    }

    /// Returns true if a later stream of the same kind to the VM was opened.
    pub(crate) fn is_replaced(&self) -> bool {
        self.number.is_some() && self.viewers.lock().numbers.get(&self.key).copied() != self.number
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut latest = self.viewers.lock();
        if self.number.is_some() && latest.numbers.get(&self.key).copied() == self.number {
            latest.numbers.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_stream_replaces_an_earlier_one_of_the_same_kind() {
        let viewers = Viewers::new(9, 9);
        let machine = ObjectName::new("a", "vm");
        let admit = |kind| viewers.admit(IdHash::new("alice"), kind, &machine).unwrap();
        let mut first = admit(StreamKind::Console);
        let mut screen = admit(StreamKind::Screen);
        let mut second = admit(StreamKind::Console);
        first.record_open();
        screen.record_open();
        // A refused stream does not replace another one.
        assert!(!first.is_replaced() && !second.is_replaced());
        second.record_open();
        assert!(first.is_replaced() && !second.is_replaced() && !screen.is_replaced());
        drop(second);
        assert!(first.is_replaced());
        drop((first, screen));
        assert!(viewers.lock().numbers.is_empty());
    }

    #[test]
    fn users_and_the_console_have_limits() {
        let viewers = Viewers::new(3, 2);
        let machine = ObjectName::new("a", "vm");
        let admit = |user: &str| viewers.admit(IdHash::new(user), StreamKind::Console, &machine);
        let first = admit("alice").unwrap();
        let second = admit("alice").unwrap();
        assert!(admit("alice").is_none());
        let third = admit("bob").unwrap();
        assert!(admit("bob").is_none(), "the limit of all users");
        drop(first);
        assert!(admit("bob").is_some());
        drop((second, third));
        assert!(admit("alice").is_some());
    }
}
