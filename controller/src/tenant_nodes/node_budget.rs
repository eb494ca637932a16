//! Limits the memory for the stored Nodes of all tenants together. A tenant determines how many Nodes its API server
//! returns; therefore, the tenants with the largest lists are the first for which no more bytes are permitted:
//!
//! | total bytes of all lists | a single list of Nodes may have |
//! |---|---|
//! | up to 96 MiB | up to 16 MiB |
//! | up to 192 MiB | its share: 96 MiB divided by the number of lists |
//! | more | 512 KiB (more than 100 usual Nodes), which are guaranteed |
//!
//! A tenant has two lists: the Nodes that are in use, and the new Nodes of a list request that is not complete yet. So
//! all Nodes need at most 192 MiB, plus 1 MiB per tenant. When a Node in use is listed again, it is replaced in its
//! list. This needs no further memory, so other tenants cannot displace the Nodes in use during a relist.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum size of a list, in bytes.
pub(super) const MAX_BYTES: usize = 1 << 24;
/// Size up to which a list is always permitted, in bytes.
const GUARANTEED_BYTES: usize = 1 << 19;
/// Number of bytes that all lists share equally. As long as all lists together have fewer bytes, a single list may
/// exceed its share.
const SHARED_BYTES: usize = 96 << 20;
/// Total number of bytes of all lists up to which a list is permitted its share. It is larger than [`SHARED_BYTES`],
/// because lists that were filled earlier may have used the shares of other lists.
const MAX_SHARED_BYTES: usize = 2 * SHARED_BYTES;

/// Counts the bytes of the Nodes of all tenants.
#[derive(Clone, Debug, Default)]
pub struct NodeBudget(Arc<Mutex<Usage>>);

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    list_count: usize,
    byte_count: usize,
}

/// Number of bytes that a list of Nodes has reserved. Dropping this value releases the bytes.
#[derive(Debug)]
pub(super) struct ListBytes {
    budget: NodeBudget,
    byte_count: usize,
}

impl NodeBudget {
    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the byte counter of a new, empty list.
    pub(super) fn add_list(&self) -> ListBytes {
        let mut usage = self.lock();
        usage.list_count = usage.list_count.saturating_add(1);
        drop(usage);
        ListBytes { budget: self.clone(), byte_count: 0 }
    }
}

impl Usage {
    /// Returns true if a list may have `list_bytes` bytes, so that all lists together have `total` bytes.
    fn permits(self, list_bytes: usize, total: usize) -> bool {
        let share = SHARED_BYTES.checked_div(self.list_count).unwrap_or(SHARED_BYTES);
        list_bytes <= GUARANTEED_BYTES
            || (list_bytes <= MAX_BYTES && total <= SHARED_BYTES)
            || (list_bytes <= MAX_BYTES.min(share) && total <= MAX_SHARED_BYTES)
    }
}

impl ListBytes {
    /// Reserves bytes for the list. Returns false, and reserves none, if the limits do not permit it.
    pub(super) fn reserve(&mut self, count: usize) -> bool {
        let mut usage = self.budget.lock();
        let list_bytes = self.byte_count.saturating_add(count);
        let total = usage.byte_count.saturating_add(count);
        let is_permitted = usage.permits(list_bytes, total);
        if is_permitted {
            usage.byte_count = total;
            self.byte_count = list_bytes;
        }
        is_permitted
    }

    /// Changes the reserved bytes of one Node from `before` to `after`. Returns false if the limits do not permit it. A
    /// Node that does not grow is always permitted: otherwise the Nodes of other tenants could displace it.
    pub(super) fn resize(&mut self, before: usize, after: usize) -> bool {
        match after.checked_sub(before) {
            Some(growth) if growth > 0 => self.reserve(growth),
            _ => {
                self.release(before.saturating_sub(after));
                true
            }
        }
    }

    /// Releases reserved bytes.
    pub(super) fn release(&mut self, count: usize) {
        let count = count.min(self.byte_count);
        self.byte_count = self.byte_count.saturating_sub(count);
        let mut usage = self.budget.lock();
        usage.byte_count = usage.byte_count.saturating_sub(count);
    }

    /// Moves reserved bytes from another list to this list. Returns false if the limits do not permit it. A list of at
    /// most `held` bytes is always permitted.
    pub(super) fn move_from(&mut self, other: &mut Self, count: usize, held: usize) -> bool {
        let usage = self.budget.lock();
        let count = count.min(other.byte_count);
        let list_bytes = self.byte_count.saturating_add(count);
        let is_permitted = list_bytes <= held || usage.permits(list_bytes, usage.byte_count);
        if is_permitted {
            other.byte_count = other.byte_count.saturating_sub(count);
            self.byte_count = list_bytes;
        }
        is_permitted
    }

    /// Returns the number of reserved bytes.
    pub(super) const fn byte_count(&self) -> usize {
        self.byte_count
    }
}

impl Drop for ListBytes {
    fn drop(&mut self) {
        let mut usage = self.budget.lock();
        usage.byte_count = usage.byte_count.saturating_sub(self.byte_count);
        usage.list_count = usage.list_count.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: usize = 1 << 12;

    /// Reserves bytes for one Node after the other until this is refused. Returns the number of bytes of the list.
    fn fill(list: &mut ListBytes) -> usize {
        while list.reserve(NODE) {}
        list.byte_count()
    }

    #[test]
    fn one_list_has_its_own_limit() {
        let budget = NodeBudget::default();
        let mut list = budget.add_list();
        assert_eq!(fill(&mut list), MAX_BYTES);
        list.release(NODE);
        assert!(list.reserve(NODE) && !list.reserve(1));
        drop(list);
        let usage = *budget.lock();
        assert_eq!((usage.byte_count, usage.list_count), (0, 0));
    }

    #[test]
    fn hostile_tenants_take_no_share_of_other_tenants() {
        let budget = NodeBudget::default();
        let mut hostile: Vec<ListBytes> = (0..80).map(|_| budget.add_list()).collect();
        let mut late: Vec<ListBytes> = (0..20).map(|_| budget.add_list()).collect();
        hostile.iter_mut().for_each(|list| assert!(fill(list) >= GUARANTEED_BYTES));
        let share = SHARED_BYTES / 100;
        assert!(hostile[0].byte_count() > share, "the first ones had more than their share");
        for list in &mut late {
            assert!(fill(list) > share - NODE, "a list gets its share");
        }
        hostile[0].release(NODE);
        assert!(!hostile[0].reserve(NODE), "a list with more than its share is refused first");
    }

    #[test]
    fn a_node_that_does_not_grow_stays() {
        let budget = NodeBudget::default();
        let mut list = budget.add_list();
        while list.byte_count() < 2 * GUARANTEED_BYTES {
            assert!(list.reserve(NODE));
        }
        let mut others: Vec<ListBytes> = (0..400).map(|_| budget.add_list()).collect();
        others.iter_mut().for_each(|other| assert!(fill(other) >= GUARANTEED_BYTES));
        assert!(!list.reserve(1) && !list.resize(NODE, NODE + 1));
        assert!(list.resize(NODE, NODE) && list.resize(NODE, NODE - 1));
        assert_eq!(list.byte_count(), 2 * GUARANTEED_BYTES - 1);
    }

    #[test]
    fn all_lists_have_a_limit() {
        let budget = NodeBudget::default();
        // Each list is filled before the next list exists, so each list gets a larger share than the next one.
        let mut lists = Vec::new();
        for _ in 0..400 {
            let mut list = budget.add_list();
            assert!(fill(&mut list) >= GUARANTEED_BYTES, "100 usual Nodes are never refused");
            lists.push(list);
        }
        let total = budget.lock().byte_count;
        assert!(total <= MAX_SHARED_BYTES + lists.len() * GUARANTEED_BYTES, "{total}");
        lists.drain(..399);
        assert_eq!(fill(&mut lists[0]), MAX_BYTES, "the bytes of the others are released");
    }
}
