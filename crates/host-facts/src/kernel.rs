//! The kernel's command line and modules.

use std::collections::BTreeSet;

use crate::notes::Notes;
use crate::root::Root;

/// Command line and modules of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Words of `/proc/cmdline`; empty if the file could not be read.
    pub cmdline: Vec<String>,
    /// Names of the modules that are loaded, or that are built in and have parameters (`/sys/module`).
    pub modules: BTreeSet<String>,
}

impl Kernel {
    /// Returns the values of a parameter in the order of the command line. For example, the value of
    /// `isolcpus=managed_irq,1-3` is `managed_irq,1-3`.
    pub fn parameter_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.cmdline.iter().filter_map(move |word| word.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Reads `/proc/cmdline` and `/sys/module`.
pub fn observe(root: &Root, notes: &mut Notes) -> Kernel {
    let cmdline = notes.value_or_warning(root.read("proc/cmdline")).unwrap_or_default();
    let modules = notes.value_or_warning(root.list("sys/module")).unwrap_or_default();
    Kernel {
        cmdline: cmdline.split_whitespace().map(str::to_owned).collect(),
        modules: modules.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_name_must_match_completely() {
        let cmdline = "isolcpus=1 xisolcpus=2 isolcpus=3 isolcpusx=4".split(' ');
        let kernel = Kernel { cmdline: cmdline.map(str::to_owned).collect(), ..Kernel::default() };
        assert_eq!(kernel.parameter_values("isolcpus").collect::<Vec<_>>(), ["1", "3"]);
    }
}
