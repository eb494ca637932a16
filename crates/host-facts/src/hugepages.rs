//! Huge page pools, of the host and of each zone.
//!
//! Always from sysfs: `/proc/meminfo` shows the default size alone and so hides 2Mi pages on a host
//! booted with `default_hugepagesz=1G`.

use berth_api::PageSize;
use berth_api::infra_node::HugepagePool;

use crate::notes::Notes;
use crate::root::Root;

/// The pools below a folder (`/sys/kernel/mm/hugepages` or a node's `hugepages`), smallest first.
pub fn pools(root: &Root, folder: &str, notes: &mut Notes) -> Vec<HugepagePool> {
    let mut pools: Vec<HugepagePool> = root
        .list(folder)
        .unwrap_or_default()
        .iter()
        .filter_map(|name| pool(root, &format!("{folder}/{name}"), name, notes))
        .collect();
    pools.sort_by_key(|pool| pool.size);
    pools
}

fn pool(root: &Root, folder: &str, name: &str, notes: &mut Notes) -> Option<HugepagePool> {
    let size = page_size(name)?;
    let mut number = |file: &str| notes.optional(root.parse::<u64>(&format!("{folder}/{file}")));
    Some(HugepagePool {
        size,
        total: number("nr_hugepages")?,
        free: number("free_hugepages"),
        surplus: number("surplus_hugepages"),
        // Reservations are made before a zone is chosen, so nodes have no such file.
        reserved: number("resv_hugepages"),
    })
}

/// `hugepages-2048kB` to its size.
#[must_use]
pub fn page_size(name: &str) -> Option<PageSize> {
    PageSize::from_kib(name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names_are_sizes() {
        assert_eq!(page_size("hugepages-2048kB"), Some(PageSize::MIB_2));
        for name in ["hugepages-kB", "hugepages-3kB", "2048kB", "hugepages-99999999999999999999kB"]
        {
            assert_eq!(page_size(name), None, "{name}");
        }
    }
}
