//! Control groups: the version of the hierarchy, and the available controllers.

use berth_api::infra_node::{Cgroup, UnknownReason};

use crate::notes::Notes;
use crate::root::Root;

/// Reads `/sys/fs/cgroup` and `/proc/cgroups`.
pub fn observe(root: &Root, notes: &mut Notes) -> Cgroup {
    if let Ok(controllers) = root.read("sys/fs/cgroup/cgroup.controllers") {
        let mut controllers: Vec<String> =
            controllers.split_whitespace().map(str::to_owned).collect();
        controllers.sort_unstable();
        return Cgroup { version: Some(2), controllers };
    }
    match root.read("proc/cgroups") {
        Ok(table) => Cgroup { version: Some(1), controllers: legacy_controllers(&table) },
        Err(error) => {
            notes.add_unknown(
                "capabilities.cgroup.version",
                if error.is_not_found() { UnknownReason::NotFound } else { error.reason() },
                "neither /sys/fs/cgroup/cgroup.controllers nor /proc/cgroups exists",
            );
            Cgroup::default()
        }
    }
}

/// Returns the names of the enabled controllers of version 1. `table` is the content of `/proc/cgroups`, with the
/// columns `name hierarchy cgroups enabled`.
#[must_use]
pub fn legacy_controllers(table: &str) -> Vec<String> {
    let enabled = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [name, _, _, "1"] if !name.starts_with('#') => Some((*name).to_owned()),
            _ => None,
        }
    };
    let mut names: Vec<String> = table.lines().filter_map(enabled).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_enabled_controllers_are_returned() {
        let table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t1\t2\t1\ncpuset 3 4 0\ncpu 1 1 1\n";
        assert_eq!(legacy_controllers(table), ["cpu", "memory"]);
    }
}
