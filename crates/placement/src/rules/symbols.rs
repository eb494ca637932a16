//! Interned strings. Every string that rules compare is stored once, so that two strings are compared by comparing
//! two integers.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

/// Number of a string in a [`Symbols`] table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Symbol(u32);

/// The empty string. No label has an empty key, so [`index_pairs`] uses this symbol as the key of a pod's namespace.
pub(super) const EMPTY_SYMBOL: Symbol = Symbol(0);

/// Table of all interned strings.
pub(super) struct Symbols {
    symbols_by_name: HashMap<Arc<str>, Symbol>,
    /// Each string. If it is an integer, its value is also stored, for the operators `Gt` and `Lt`.
    strings: Vec<(Arc<str>, Option<i64>)>,
}

impl Symbols {
    pub(super) fn new() -> Self {
        let mut symbols = Self { symbols_by_name: HashMap::new(), strings: Vec::new() };
        symbols.intern("");
        symbols
    }

    pub(super) fn intern(&mut self, text: &str) -> Symbol {
        if let Some(known) = self.symbols_by_name.get(text) {
            return *known;
        }
        // A process has too little memory for four billion names, so the number cannot overflow.
        let new = Symbol(u32::try_from(self.strings.len()).unwrap_or(u32::MAX));
        let name: Arc<str> = text.into();
        // Rust's parser accepts the same strings as strconv.ParseInt(s, 10, 64) of Go: an optional sign and digits.
        self.strings.push((Arc::clone(&name), text.parse().ok()));
        self.symbols_by_name.insert(name, new);
        new
    }

    /// Returns the symbol of a string; `None` if the string is not interned.
    pub(super) fn find(&self, text: &str) -> Option<Symbol> {
        self.symbols_by_name.get(text).copied()
    }

    pub(super) fn name(&self, symbol: Symbol) -> &str {
        self.strings.get(to_index(symbol.0)).map_or("", |(name, _)| name)
    }

    /// Returns the integer value of a string; `None` if the string is not an integer.
    pub(super) fn integer_value(&self, symbol: Symbol) -> Option<i64> {
        self.strings.get(to_index(symbol.0)).and_then(|(_, number)| *number)
    }
}

impl fmt::Debug for Symbols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Symbols({})", self.strings.len())
    }
}

/// Converts a number to an index.
pub(super) const fn to_index(number: u32) -> usize {
    // Both target architectures of Berth have 64-bit addresses.
    number as usize
}

/// A label key and its value.
pub(super) type LabelPair = (Symbol, Symbol);

/// The labels of a pod, a host or a namespace, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Labels(Box<[LabelPair]>);

impl Labels {
    pub(super) fn intern<'a>(
        symbols: &mut Symbols,
        labels: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Self {
        let mut all: Vec<LabelPair> = labels
            .into_iter()
            .map(|(key, value)| (symbols.intern(key), symbols.intern(value)))
            .collect();
        all.sort_unstable();
        Self(all.into())
    }

    pub(super) fn get(&self, key: Symbol) -> Option<Symbol> {
        let at = self.0.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        self.0.get(at).map(|(_, value)| *value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = LabelPair> + '_ {
        self.0.iter().copied()
    }
}

/// Returns all pairs by which a pod is indexed: [`EMPTY_SYMBOL`] with the pod's namespace, and the pod's labels.
pub(super) fn index_pairs(
    namespace: Symbol,
    labels: &Labels,
) -> impl Iterator<Item = LabelPair> + '_ {
    std::iter::once((EMPTY_SYMBOL, namespace)).chain(labels.iter())
}

/// A hash function for small numbers that the engine assigns, so an attacker cannot choose them. It is several times as
/// fast as the standard hash function.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        // The multiplication mixes the upper bits best, but hash tables use upper and lower bits.
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// A map whose keys are numbers that the engine assigns.
pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Interned values: each value is stored once, with a number and with data that were derived from the value.
#[derive(Debug)]
pub(super) struct Interner<K, V> {
    numbers_by_value: NumberMap<Arc<K>, u32>,
    entries: Vec<(Arc<K>, V)>,
}

impl<K: Hash + Eq, V> Interner<K, V> {
    pub(super) fn new() -> Self {
        Self { numbers_by_value: NumberMap::default(), entries: Vec::new() }
    }

    /// Returns the number of a value, and true if the value is new. `derive` computes the data of a new value.
    pub(super) fn intern(&mut self, value: K, derive: impl FnOnce(&K) -> V) -> (u32, bool) {
        if let Some(known) = self.numbers_by_value.get(&value) {
            return (*known, false);
        }
        let number = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        let derived = derive(&value);
        let value = Arc::new(value);
        self.numbers_by_value.insert(Arc::clone(&value), number);
        self.entries.push((value, derived));
        (number, true)
    }

    pub(super) fn contains(&self, value: &K) -> bool {
        self.numbers_by_value.contains_key(value)
    }

    pub(super) fn get(&self, number: u32) -> Option<(&K, &V)> {
        self.entries.get(to_index(number)).map(|(thing, derived)| (&**thing, derived))
    }

    pub(super) fn derived_mut(&mut self, number: u32) -> Option<&mut V> {
        self.entries.get_mut(to_index(number)).map(|(_, derived)| derived)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().map(|(thing, derived)| (&**thing, derived))
    }
}
