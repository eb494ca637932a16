//! Limit for the number of permits of each key, for example for the connections of an address.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limit for the number of permits of each key.
#[derive(Debug)]
pub(crate) struct KeyedLimit<K> {
    maximum: usize,
    counts: Mutex<HashMap<K, usize>>,
}

/// A permit, which is returned when it is dropped.
#[derive(Debug)]
pub(crate) struct KeyedPermit<K: Eq + Hash> {
    limit: Arc<KeyedLimit<K>>,
    key: K,
}

impl<K> KeyedLimit<K> {
    pub(crate) fn new(maximum: usize) -> Arc<Self> {
        Arc::new(Self { maximum, counts: Mutex::new(HashMap::new()) })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> KeyedLimit<K> {
    /// Returns a permit; `None` if the key has the maximum number of permits.
    pub(crate) fn try_acquire(self: &Arc<Self>, key: K) -> Option<KeyedPermit<K>> {
        let mut counts = self.lock();
        let count = counts.get(&key).copied().unwrap_or_default();
        if count >= self.maximum {
            return None;
        }
        counts.insert(key.clone(), count + 1);
        drop(counts);
        Some(KeyedPermit { limit: Arc::clone(self), key })
    }
}

impl<K: Eq + Hash> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        let mut counts = self.limit.lock();
        match counts.get_mut(&self.key) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_separate_limits_and_permits_are_returned() {
        let limit = KeyedLimit::new(2);
        let first = limit.try_acquire("a").unwrap();
        let second = limit.try_acquire("a").unwrap();
        assert!(limit.try_acquire("a").is_none());
        assert!(limit.try_acquire("b").is_some());
        drop(first);
        assert!(limit.try_acquire("a").is_some());
        drop(second);
        assert!(limit.lock().is_empty(), "keys without permits are forgotten");
    }
}
