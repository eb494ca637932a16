//! Memory of the whole host, swap and transparent huge pages.

use std::collections::BTreeMap;

use berth_api::infra_node::{Memory, TransparentHugepages, UnknownReason};
use berth_api::{Bytes, PageSize};

use super::hugepages;
use super::kernel_files::read_bool;
use crate::notes::Notes;
use crate::root::{ReadError, Root};

/// File with the mode of transparent huge pages. Its content is, for example, `always [madvise] never`.
pub const TRANSPARENT_HUGEPAGES_FILE: &str = "sys/kernel/mm/transparent_hugepage/enabled";

/// Values of `/proc/meminfo` or of a NUMA node's `meminfo`, by name. Amounts of memory are in KiB; other values are
/// counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemInfo(BTreeMap<String, u64>);

impl MemInfo {
    /// Parses lines of the form `Name: number` or `Node 0 Name: number`, and ignores all other lines.
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

    /// Returns the amount with this name, converted from KiB to bytes; `None` if the name is missing.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<Bytes> {
        self.0.get(name).copied().map(Bytes::from_kib)
    }
}

/// Reads a `meminfo` file.
pub fn read_meminfo(root: &Root, path: &str) -> Result<MemInfo, ReadError> {
    root.read(path).map(|text| MemInfo::parse(&text))
}

/// Reads the memory of the whole host. The field `ksm` is not set, because [`crate::ksm::observe`] reads it.
pub fn observe(root: &Root, notes: &mut Notes) -> Memory {
    let info =
        notes.value_or_unknown("capabilities.memory.total", read_meminfo(root, "proc/meminfo"));
    let total = info.as_ref().and_then(|info| info.bytes("MemTotal"));
    if info.is_some() && total.is_none() {
        let message = "/proc/meminfo has no valid MemTotal line";
        notes.add_unknown("capabilities.memory.total", UnknownReason::Malformed, message);
        notes.warn("/proc/meminfo", "the file has no valid MemTotal line");
    }
    let info = info.unwrap_or_default();
    let swap = info.bytes("SwapTotal");
    if swap.is_none() {
        let message = "/proc/meminfo has no valid SwapTotal line";
        notes.add_unknown("capabilities.memory.swap", UnknownReason::NotFound, message);
    }
    Memory {
        total,
        swap,
        zram: notes
            .value_or_unknown("capabilities.memory.zram", root.read("proc/swaps"))
            .map(|table| has_zram(&table)),
        zswap: read_bool(root, "sys/module/zswap/parameters/enabled"),
        transparent_hugepages: read_transparent_hugepages(root, notes),
        default_hugepage_size: info
            .bytes("Hugepagesize")
            .and_then(|size| PageSize::from_kib(size.0 / 1024)),
        hugepages: hugepages::read_pools(
            root,
            "sys/kernel/mm/hugepages",
            "capabilities.memory.hugepages",
            notes,
        ),
        ksm: None,
    }
}

/// Returns true if `/proc/swaps` lists a device of the kernel's zram module, such as `/dev/zram0`. A swap file whose
/// name merely contains `zram` is not such a device.
fn has_zram(table: &str) -> bool {
    table.lines().filter_map(|line| line.strip_prefix("/dev/zram")).any(|rest| {
        let number = rest.split_whitespace().next().unwrap_or_default();
        !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
    })
}

fn read_transparent_hugepages(root: &Root, notes: &mut Notes) -> Option<TransparentHugepages> {
    let path = "capabilities.memory.transparentHugepages";
    let file = TRANSPARENT_HUGEPAGES_FILE;
    let text = notes.value_or_unknown(path, root.read(file))?;
    let selected = bracketed_word(&text);
    let mode =
        TransparentHugepages::ALL.into_iter().find(|mode| selected == Some(mode.kernel_name()));
    if mode.is_none() {
        let message = format!("/{file}: `{}` has no known mode in brackets", text.escape_debug());
        notes.add_unknown(path, UnknownReason::Malformed, message);
    }
    mode
}

/// Returns the word in brackets in a string such as `always [madvise] never`.
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
    fn zram_is_recognized_by_device_and_not_by_file_name() {
        let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(has_zram(&format!(
            "{head}/dev/sda2  partition\t8\t0\t-2\n/dev/zram0  partition\t8\t0\t100\n"
        )));
        assert!(!has_zram(&format!(
            "{head}/zram.img  file\t8\t0\t-2\n/dev/zram.img  file\t8\t0\t-2\n"
        )));
        assert!(!has_zram(head));
    }

    #[test]
    fn meminfo_parses_lines_of_host_and_node() {
        let text = "MemTotal:  16 kB\nNode 3 MemFree:\t8 kB\nrubbish\nBad: x kB\nHuge: 99999999999999999999 kB\n";
        let info = MemInfo::parse(text);
        assert_eq!(info.bytes("MemTotal"), Some(Bytes(16384)));
        assert_eq!(info.bytes("MemFree"), Some(Bytes(8192)));
        assert_eq!(info.bytes("Bad"), None);
        assert_eq!(info.bytes("Huge"), None);
    }

    #[test]
    fn selected_word_is_in_brackets() {
        assert_eq!(bracketed_word("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed_word("always madvise"), None);
        assert_eq!(bracketed_word("]["), None);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".*(\n.*){0,5}") {
            drop(MemInfo::parse(&text));
            prop_assert!(bracketed_word(&text).is_none_or(|word| text.contains(word)));
        }
    }
}
