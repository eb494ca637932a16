//! Lists and maps in untrusted objects that store a limited number of elements, because an element of three bytes, such
//! as `{},`, may need a hundred times as much memory.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A list that stores at most `MAX` elements.
#[derive(Clone, Debug)]
pub struct BoundedVec<T, const MAX: usize> {
    /// The first `MAX` elements of the list.
    pub items: Vec<T>,
    /// True if the list has more elements.
    pub is_truncated: bool,
}

impl<T, const MAX: usize> Default for BoundedVec<T, MAX> {
    fn default() -> Self {
        Self { items: Vec::new(), is_truncated: false }
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedVec<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedVisitor::<Self>(PhantomData))
    }
}

/// A map that stores at most `MAX` entries.
#[derive(Clone, Debug)]
pub struct BoundedMap<V, const MAX: usize> {
    /// The first `MAX` entries of the map.
    pub entries: BTreeMap<String, V>,
    /// True if the map has more entries.
    pub is_truncated: bool,
}

impl<V, const MAX: usize> Default for BoundedMap<V, MAX> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), is_truncated: false }
    }
}

impl<'de, V: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedMap<V, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BoundedVisitor::<Self>(PhantomData))
    }
}

struct BoundedVisitor<C>(PhantomData<C>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de>
    for BoundedVisitor<BoundedVec<T, MAX>>
{
    type Value = BoundedVec<T, MAX>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut all = BoundedVec::default();
        while all.items.len() < MAX {
            let Some(element) = elements.next_element()? else { return Ok(all) };
            all.items.push(element);
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {
            all.is_truncated = true;
        }
        Ok(all)
    }
}

impl<'de, V: Deserialize<'de>, const MAX: usize> Visitor<'de>
    for BoundedVisitor<BoundedMap<V, MAX>>
{
    type Value = BoundedMap<V, MAX>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut all = BoundedMap::default();
        while all.entries.len() < MAX {
            let Some((key, value)) = entries.next_entry()? else { return Ok(all) };
            all.entries.insert(key, value);
        }
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            all.is_truncated = true;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_is_stored() {
        let list = |text: &str| {
            let list: BoundedVec<u8, 2> = serde_json::from_str(text).unwrap();
            (list.items, list.is_truncated)
        };
        assert_eq!(list("[]"), (vec![], false));
        assert_eq!(list("[1, 2]"), (vec![1, 2], false));
        assert_eq!(list("[1, 2, {\"a\": []}, 4]"), (vec![1, 2], true));
        let map = |text: &str| {
            let map: BoundedMap<u8, 2> = serde_json::from_str(text).unwrap();
            (map.entries.into_values().collect::<Vec<_>>(), map.is_truncated)
        };
        assert_eq!(map("{\"a\": 1, \"b\": 2}"), (vec![1, 2], false));
        assert_eq!(map("{\"a\": 1, \"b\": 2, \"c\": []}"), (vec![1, 2], true));
        assert!(serde_json::from_str::<BoundedVec<u8, 2>>("{}").is_err());
    }
}
