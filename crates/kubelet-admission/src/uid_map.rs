//! Map with the UIDs of pods as keys, for the few pods of a host. The entries are in a single sorted vector, because
//! lookups in it are faster than in a tree, whose entries are scattered in memory.

/// Map with UIDs as keys, sorted by [`SortKey`].
#[derive(Clone, Debug)]
pub(super) struct UidMap<T> {
    entries: Vec<(SortKey, T)>,
}

/// Sort key of a UID. `prefix`, the first bytes as a number, distinguishes nearly all UIDs, and is compared before the
/// whole UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    prefix: u64,
    uid: Box<str>,
}

/// Returns the first 8 bytes of a UID as a number. Missing bytes of a shorter UID are 0, so that the numbers have the
/// same order as the UIDs.
fn leading_bytes(uid: &str) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(uid.bytes()).for_each(|(to, from)| *to = from);
    u64::from_be_bytes(bytes)
}

impl<T> Default for UidMap<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<T> UidMap<T> {
    fn find_index(&self, uid: &str) -> Result<usize, usize> {
        let prefix = leading_bytes(uid);
        self.entries
            .binary_search_by(|(key, _)| key.prefix.cmp(&prefix).then_with(|| (*key.uid).cmp(uid)))
    }

    pub(super) fn get(&self, uid: &str) -> Option<&T> {
        self.entries.get(self.find_index(uid).ok()?).map(|(_, thing)| thing)
    }

    pub(super) fn get_mut(&mut self, uid: &str) -> Option<&mut T> {
        let index = self.find_index(uid).ok()?;
        self.entries.get_mut(index).map(|(_, thing)| thing)
    }

    pub(super) fn contains(&self, uid: &str) -> bool {
        self.find_index(uid).is_ok()
    }

    /// Inserts a value, and replaces an earlier value of the same UID.
    pub(super) fn insert(&mut self, uid: &str, value: T) {
        match self.find_index(uid) {
            Ok(index) => {
                if let Some((_, existing)) = self.entries.get_mut(index) {
                    *existing = value;
                }
            }
            Err(index) => self
                .entries
                .insert(index, (SortKey { prefix: leading_bytes(uid), uid: uid.into() }, value)),
        }
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<T> {
        let index = self.find_index(uid).ok()?;
        Some(self.entries.remove(index).1)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the values in ascending order of their UIDs.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, thing)| thing)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The generated UIDs are short, long with a common prefix, or repeated.
        #[test]
        fn uid_map_agrees_with_btree_map(steps in prop::collection::vec(("(abcdefg)?[h-j\u{0}é]{0,3}", any::<bool>()), 0..60)) {
            let (mut plain, mut map) = (BTreeMap::new(), UidMap::default());
            for (at, (uid, comes)) in steps.iter().enumerate() {
                if *comes {
                    plain.insert(uid.as_str(), at);
                    map.insert(uid, at);
                } else {
                    prop_assert_eq!(map.remove(uid), plain.remove(uid.as_str()));
                }
                prop_assert_eq!(map.len(), plain.len());
            }
            for (uid, _) in &steps {
                prop_assert_eq!(map.get(uid), plain.get(uid.as_str()));
                prop_assert_eq!(map.get_mut(uid).copied(), plain.get(uid.as_str()).copied());
                prop_assert_eq!(map.contains(uid), plain.contains_key(uid.as_str()));
            }
        }

        #[test]
        fn values_are_in_the_order_of_their_uids(uids in prop::collection::btree_set("(abcdefg)?[h-j]{0,3}", 0..30)) {
            let mut map = UidMap::default();
            uids.iter().rev().for_each(|uid| map.insert(uid, uid.clone()));
            prop_assert!(map.values().eq(uids.iter()));
        }
    }
}
