//! Objects that pages of a session have read with the credential of the user. Refreshes of open pages use them for a while, so
//! that open pages do not load the API server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_views::ObjectName;

use crate::pages::reads::Read;

/// Time for which refreshes use what was read.
const MAX_AGE: Duration = Duration::from_secs(20);

/// Maximum number of results. A user has few open pages.
const MAX_ENTRIES: usize = 32;

/// Results of reads of a page, by namespace and name of its object.
#[derive(Debug)]
pub(crate) struct ReadCache<T>(Mutex<HashMap<ObjectName, Entry<T>>>);

#[derive(Debug)]
struct Entry<T> {
    read: Arc<Read<T>>,
    at: Instant,
}

impl<T> Default for ReadCache<T> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<T> ReadCache<T> {
    /// Returns what was read; `None` if it is too old.
    pub(crate) fn get(&self, key: &ObjectName, now: Instant) -> Option<Arc<Read<T>>> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let current = entries.get(key).filter(|entry| entry.is_current(now))?;
        Some(Arc::clone(&current.read))
    }

    pub(crate) fn put(&self, key: ObjectName, read: Read<T>, now: Instant) -> Arc<Read<T>> {
        let read = Arc::new(read);
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|_, entry| entry.is_current(now));
        if entries.len() >= MAX_ENTRIES {
            entries.clear();
        }
        entries.insert(key, Entry { read: Arc::clone(&read), at: now });
        read
    }
}

impl<T> Entry<T> {
    fn is_current(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < MAX_AGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::reads::Rows;

    #[test]
    fn old_reads_are_not_used_and_not_kept() {
        let (cache, now) = (ReadCache::default(), Instant::now());
        let name = |name: &str| ObjectName::new("", name);
        let read = |rows: Vec<u32>| Ok(Rows { rows, is_partial: false });
        cache.put(name("a"), read(vec![1]), now);
        assert_eq!(*cache.get(&name("a"), now).unwrap(), read(vec![1]));
        assert!(cache.get(&name("b"), now).is_none());
        assert!(cache.get(&name("a"), now + MAX_AGE).is_none());
        cache.put(name("b"), read(Vec::new()), now + MAX_AGE);
        assert_eq!(cache.0.lock().unwrap().len(), 1);
        for number in 0..100 {
            let last = name(&number.to_string());
            cache.put(last.clone(), read(Vec::new()), now + MAX_AGE);
            assert!(cache.get(&last, now + MAX_AGE).is_some());
            assert!(cache.0.lock().unwrap().len() <= MAX_ENTRIES);
        }
    }
}
