//! Memory of the whole host, swap and transparent huge pages.

use std::collections::BTreeMap;

use berth_api::infra_node::{Memory, TransparentHugepages, UnknownReason};
use berth_api::{Bytes, PageSize};

use super::hugepages;
use super::kernel_files::read_bool;
use crate::notes::Notes;
use crate::root::{ReadError, Root};

/// Values of `/proc/meminfo` or of a node's `meminfo`, by name. The unit is KiB, except for counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemInfo(BTreeMap<String, u64>);

impl MemInfo {
    /// Parses lines of the form `Name: number` or `Node 0 Name: number`; ignores all others.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (name, rest) = line.split_once(':')?;
            let name = name.rsplit(' ').next()?;
            let value = rest.split_whitespace().next()?.parse().ok()?;
            Some((name.to_owned(), value))
        };
        Self(text.lines().take(1000).filter_map(entry).collect())
    }

    /// Converts a value from KiB to bytes and returns it; `None` if there is no value with this name.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<Bytes> {
        self.0.get(name).copied().map(Bytes::from_kib)
    }
}

/// Reads a `meminfo` file.
pub fn meminfo(root: &Root, path: &str) -> Result<MemInfo, ReadError> {
    root.read(path).map(|text| MemInfo::parse(&text))
}

/// Reads the memory of the whole host, except KSM, which the module `ksm` adds.
pub fn observe(root: &Root, notes: &mut Notes) -> Memory {
    let info = notes.fact("capabilities.memory.total", meminfo(root, "proc/meminfo"));
    let total = info.as_ref().and_then(|info| info.bytes("MemTotal"));
    if info.is_some() && total.is_none() {
        let why = "/proc/meminfo has no line MemTotal with a number";
        notes.unknown("capabilities.memory.total", UnknownReason::Malformed, why);
        notes.warn("/proc/meminfo", "no line MemTotal with a number");
    }
    let info = info.unwrap_or_default();
    let swap = info.bytes("SwapTotal");
    if swap.is_none() {
        let why = "/proc/meminfo has no line SwapTotal with a number";
        notes.unknown("capabilities.memory.swap", UnknownReason::NotFound, why);
    }
    Memory {
        total,
        swap,
        zram: root.read("proc/swaps").ok().map(|table| table.contains("/zram")),
        zswap: read_bool(root, "sys/module/zswap/parameters/enabled"),
        transparent_hugepages: transparent_hugepages(root, notes),
        default_hugepage_size: info
            .bytes("Hugepagesize")
            .and_then(|size| PageSize::from_kib(size.0 / 1024)),
        hugepages: hugepages::pools(root, "sys/kernel/mm/hugepages", notes),
        ksm: None,
    }
}

fn transparent_hugepages(root: &Root, notes: &mut Notes) -> Option<TransparentHugepages> {
    let path = "capabilities.memory.transparentHugepages";
    let file = "sys/kernel/mm/transparent_hugepage/enabled";
    let text = notes.fact(path, root.read(file))?;
    match bracketed_word(&text) {
        Some("always") => Some(TransparentHugepages::Always),
        Some("madvise") => Some(TransparentHugepages::Madvise),
        Some("never") => Some(TransparentHugepages::Never),
        _ => {
            let why = format!("/{file}: `{}` selects no known mode", text.escape_debug());
            notes.unknown(path, UnknownReason::Malformed, why);
            None
        }
    }
}

/// Returns the word in brackets in a text such as `always [madvise] never`.
#[must_use]
pub fn bracketed_word(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_host_and_node_lines_and_skips_garbage() {
        let text = "MemTotal:  16 kB\nNode 3 MemFree:\t8 kB\nrubbish\nBad: x kB\nHuge: 99999999999999999999 kB\n";
        let info = MemInfo::parse(text);
        assert_eq!(info.bytes("MemTotal"), Some(Bytes(16384)));
        assert_eq!(info.bytes("MemFree"), Some(Bytes(8192)));
        assert_eq!(info.bytes("Bad"), None);
        assert_eq!(info.bytes("Huge"), None);
    }

    #[test]
    fn the_choice_is_in_brackets() {
        assert_eq!(bracketed_word("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed_word("always madvise"), None);
        assert_eq!(bracketed_word("]["), None);
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*(\n.*){0,5}") {
            drop(MemInfo::parse(&text));
            prop_assert!(bracketed_word(&text).is_none_or(|word| text.contains(word)));
        }
    }
}
