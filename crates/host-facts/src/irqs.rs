//! Interrupts and their affinity. They are read only for `check` and for plans of changes, because a host has hundreds
//! of interrupts.

use std::collections::BTreeSet;

use berth_api::CpuSet;

use super::kernel_files::read_cpu_list;
use crate::root::{ReadError, Root};

/// One interrupt line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irq {
    /// Number of the interrupt.
    pub number: u32,
    /// CPUs that may handle the interrupt (`smp_affinity_list`).
    pub affinity: CpuSet,
    /// CPUs that actually handle the interrupt (`effective_affinity_list`), if the kernel has the file.
    pub effective_affinity: Option<CpuSet>,
    /// Names under which drivers have requested the interrupt; empty if no driver has requested it.
    pub driver_names: String,
}

/// Interrupts that may exist, although they could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnreadIrqs {
    /// The interrupts could not be listed.
    All,
    /// The numbers of the listed interrupts that could not be read.
    Numbers(BTreeSet<u32>),
}

impl Default for UnreadIrqs {
    fn default() -> Self {
        Self::Numbers(BTreeSet::new())
    }
}

impl UnreadIrqs {
    /// Returns true if the interrupt with this number may exist, although it could not be read.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        match self {
            Self::All => true,
            Self::Numbers(numbers) => numbers.contains(&number),
        }
    }
}

/// Reads all interrupts whose affinity can be read.
pub fn observe(root: &Root) -> Vec<Irq> {
    let irq = |(number, folder): (u32, String)| {
        let file = |name: &str| format!("proc/irq/{folder}/{name}");
        Some(Irq {
            number,
            affinity: read_cpu_list(root, &file("smp_affinity_list")).ok()?,
            effective_affinity: read_cpu_list(root, &file("effective_affinity_list")).ok(),
            driver_names: read_driver_names(root, number),
        })
    };
    let listed = root.list_numbered("proc/irq", "").unwrap_or_default();
    listed.into_iter().filter_map(irq).collect()
}

/// Reads the interrupts that a driver has requested, without their effective affinity, and returns the interrupts that
/// could not be read separately. Plans are made often, so they read only the files that they need.
pub fn observe_requested(root: &Root) -> (Vec<Irq>, UnreadIrqs) {
    let Ok(listed) = root.list_numbered("proc/irq", "") else {
        return (Vec::new(), UnreadIrqs::All);
    };
    let (mut irqs, mut unread) = (Vec::new(), BTreeSet::new());
    for (number, folder) in listed {
        match read_requested(root, number, &folder) {
            Ok(irq) => irqs.extend(irq),
            // The device was removed since the list was read.
            Err(error) if error.is_not_found() => {}
            Err(_) => {
                unread.insert(number);
            }
        }
    }
    (irqs, UnreadIrqs::Numbers(unread))
}

/// Reads an interrupt; returns `None` if no driver has requested it.
fn read_requested(root: &Root, number: u32, folder: &str) -> Result<Option<Irq>, ReadError> {
    let driver_names = try_read_driver_names(root, number)?;
    if driver_names.is_empty() {
        return Ok(None);
    }
    let affinity = read_cpu_list(root, &format!("proc/irq/{folder}/smp_affinity_list"))?;
    Ok(Some(Irq { number, affinity, effective_affinity: None, driver_names }))
}

/// Returns the names under which drivers have requested an interrupt, separated by commas. The names are in a file of
/// sysfs. For a capture without this file, the names of the folders that procfs creates for the interrupt's handlers
/// are returned.
pub fn read_driver_names(root: &Root, number: u32) -> String {
    try_read_driver_names(root, number).unwrap_or_default()
}

fn try_read_driver_names(root: &Root, number: u32) -> Result<String, ReadError> {
    let error = match root.read(&format!("sys/kernel/irq/{number}/actions")) {
        Ok(names) => return Ok(names),
        Err(error) => error,
    };
    let folder = format!("proc/irq/{number}");
    let is_handler = |name: &String| root.list(&format!("{folder}/{name}")).is_ok();
    let names: Vec<String> = root.list(&folder)?.into_iter().filter(is_handler).collect();
    if names.is_empty() && !error.is_not_found() {
        return Err(error);
    }
    Ok(names.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_that_cannot_be_read_are_not_removed_ones() {
        let tree = tempfile::tempdir().unwrap();
        let root = Root::open(tree.path()).unwrap();
        let write = |path: &str, text: &str| {
            let path = tree.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let observed = || {
            let (irqs, unread) = observe_requested(&root);
            let numbers: Vec<u32> = irqs.iter().map(|irq| irq.number).collect();
            (numbers, unread)
        };
        let unread = |numbers: &[u32]| UnreadIrqs::Numbers(numbers.iter().copied().collect());
        for number in [40, 41, 42] {
            write(&format!("sys/kernel/irq/{number}/actions"), "eth0\n");
            write(&format!("proc/irq/{number}/smp_affinity_list"), "0-3\n");
        }
        assert_eq!(observed(), (vec![40, 41, 42], unread(&[])));
        write("proc/irq/40/smp_affinity_list", "a\n");
        std::fs::remove_file(tree.path().join("proc/irq/41/smp_affinity_list")).unwrap();
        assert_eq!(observed(), (vec![42], unread(&[40])));
        let actions = tree.path().join("sys/kernel/irq/42/actions");
        std::fs::remove_file(&actions).unwrap();
        assert_eq!(observed(), (vec![], unread(&[40])), "no driver has requested 42");
        std::os::unix::fs::symlink("actions", &actions).unwrap();
        assert_eq!(observed(), (vec![], unread(&[40, 42])), "link to itself");
        std::fs::remove_dir_all(tree.path().join("proc/irq")).unwrap();
        std::os::unix::fs::symlink("irq", tree.path().join("proc/irq")).unwrap();
        assert_eq!(observed(), (vec![], UnreadIrqs::All));
        assert!(
            UnreadIrqs::All.contains(7) && unread(&[7]).contains(7) && !unread(&[7]).contains(8)
        );
    }
}
