//! Pools of huge pages, of the whole host and of each NUMA zone.
//!
//! The numbers come from sysfs. `/proc/meminfo` shows only the default page size, so it does not show the 2Mi pages of
//! a host that was booted with `default_hugepagesz=1G`.

use berth_api::PageSize;
use berth_api::infra_node::HugepagePool;

use crate::notes::Notes;
use crate::root::Root;

/// Reads the pools below a folder (`/sys/kernel/mm/hugepages`, or the folder `hugepages` of a NUMA node). The pool with
/// the smallest page size comes first. `path` is the path of the pools in the status. A kernel without huge pages does
/// not have the folder; if the folder cannot be read for another reason, the pools are unknown.
pub fn read_pools(root: &Root, folder: &str, path: &str, notes: &mut Notes) -> Vec<HugepagePool> {
    let names = match root.list(folder) {
        Err(error) if error.is_not_found() => Vec::new(),
        listed => notes.value_or_unknown(path, listed).unwrap_or_default(),
    };
    let mut pools: Vec<HugepagePool> = names
        .iter()
        .filter_map(|name| read_pool(root, &format!("{folder}/{name}"), name, notes))
        .collect();
    pools.sort_by_key(|pool| pool.size);
    pools
}

fn read_pool(root: &Root, folder: &str, name: &str, notes: &mut Notes) -> Option<HugepagePool> {
    let size = parse_folder_name(name)?;
    let mut number =
        |file: &str| notes.value_or_warning(root.read_value::<u64>(&format!("{folder}/{file}")));
    Some(HugepagePool {
        size,
        total: number("nr_hugepages")?,
        free: number("free_hugepages"),
        surplus: number("surplus_hugepages"),
        // A NUMA zone's pool lacks this file, because the kernel reserves pages before it selects a zone.
        reserved: number("resv_hugepages"),
    })
}

/// Returns the page size in a folder name such as `hugepages-2048kB`; `None` if the name has no valid size.
#[must_use]
pub fn parse_folder_name(name: &str) -> Option<PageSize> {
    PageSize::from_kib(name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_name_contains_page_size() {
        assert_eq!(parse_folder_name("hugepages-2048kB"), Some(PageSize::MIB_2));
        for name in ["hugepages-kB", "hugepages-3kB", "2048kB", "hugepages-99999999999999999999kB"]
        {
            assert_eq!(parse_folder_name(name), None, "{name}");
        }
    }

    #[test]
    fn pools_are_unknown_if_their_folder_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let is_unknown = || {
            let mut notes = Notes::default();
            assert_eq!(read_pools(&root, "hugepages", "zones[0].hugepages", &mut notes), []);
            notes.is_unknown("zones[0].hugepages")
        };
        assert!(!is_unknown(), "a kernel without huge pages");
        std::os::unix::fs::symlink("hugepages", folder.path().join("hugepages")).unwrap();
        assert!(is_unknown(), "link to itself");
    }
}
