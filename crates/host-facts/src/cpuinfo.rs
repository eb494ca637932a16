//! Vendor, model and flags of the processors, from `/proc/cpuinfo`.

use std::collections::BTreeSet;
use std::io::{BufRead, Read};

use crate::notes::Notes;
use crate::root::Root;

/// Fields of `/proc/cpuinfo`. The package and core ids are used only if sysfs has no CPU topology.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuInfo {
    /// Vendor (`vendor_id` on x86, `CPU implementer` on Arm), as in the file.
    pub vendor: Option<String>,
    /// Model (`model name` on x86, `cpu` on Power), with white space collapsed.
    pub model: Option<String>,
    /// Feature flags of the first CPU (`flags` on x86, `Features` on Arm).
    pub flags: BTreeSet<String>,
    /// True if the file has a line of flags.
    pub has_flags: bool,
    /// Microcode revisions of all CPUs.
    pub microcode: BTreeSet<String>,
    /// Logical CPUs, each with its `physical id` and `core id` if the file has these fields.
    pub processors: Vec<Processor>,
}

/// A logical CPU, which is a block of lines in `/proc/cpuinfo`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processor {
    /// The kernel's number of the logical CPU.
    pub id: u32,
    /// Number of the CPU's package (`physical id`).
    pub package: Option<u32>,
    /// Number of the CPU's core (`core id`), which is unique only within one die of a package.
    pub core: Option<u32>,
}

/// Maximum number of bytes that are read from one line. The line with the feature flags has about 2 kB, so no kernel
/// writes a longer line.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// Maximum number of CPU blocks that are read. No kernel supports more CPUs.
const MAX_PROCESSORS: usize = berth_api::CpuSet::MAX_CPU as usize + 1;

impl CpuInfo {
    /// Returns true if the first CPU has the flag.
    #[must_use]
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.contains(flag)
    }

    /// Returns true if the CPU's vendor makes x86 CPUs, so that the feature flags have their x86 names.
    #[must_use]
    pub fn is_x86(&self) -> bool {
        let x86_vendors =
            ["GenuineIntel", "AuthenticAMD", "HygonGenuine", "CentaurHauls", "Shanghai"];
        self.vendor.as_deref().is_some_and(|vendor| x86_vendors.contains(&vendor))
    }

    /// Reads `/proc/cpuinfo` line by line, because the file has many megabytes on hosts with hundreds of CPUs.
    pub fn observe(root: &Root, notes: &mut Notes) -> Self {
        match root.open_lines("proc/cpuinfo") {
            Ok(mut lines) => Self::parse(&mut lines),
            Err(error) => {
                if !error.is_not_found() {
                    notes.warn("/proc/cpuinfo", error.problem.to_string());
                }
                Self::default()
            }
        }
    }

    /// Parses the known fields and ignores all others.
    pub fn parse(input: &mut impl BufRead) -> Self {
        let mut info = Self::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            match input.take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return info,
                Ok(_) => info.parse_line(&line),
            }
        }
    }

    fn parse_line(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|&b| b == b':') else { return };
        let (key, value) = line.split_at(colon);
        let key = key.trim_ascii();
        let text =
            || String::from_utf8_lossy(&value[1..]).trim_matches(is_white_space_or_nul).to_owned();
        match key {
            b"processor" => self.add_processor(&text()),
            // s390 writes the whole block of a CPU in one line: `processor 3: version = FF, ...`
            _ if key.starts_with(b"processor ") => {
                let id = String::from_utf8_lossy(&key[b"processor ".len()..]).into_owned();
                self.add_processor(&id);
            }
            b"vendor_id" | b"CPU implementer" => _ = self.vendor.get_or_insert_with(text),
            b"model name" | b"cpu" => {
                _ = self.model.get_or_insert_with(|| collapse_whitespace(&text()))
            }
            b"flags" | b"Features" | b"features" if !self.has_flags => {
                self.has_flags = true;
                self.flags = text().split_whitespace().map(str::to_owned).collect();
            }
            b"microcode" if self.microcode.len() < 16 => _ = self.microcode.insert(text()),
            b"physical id" => {
                let id = text().parse().ok();
                self.processors.last_mut().into_iter().for_each(|p| p.package = id);
            }
            b"core id" => {
                let id = text().parse().ok();
                self.processors.last_mut().into_iter().for_each(|p| p.core = id);
            }
            _ => {}
        }
    }

    fn add_processor(&mut self, id: &str) {
        // Old Arm kernels write both `Processor` (a model name) and `processor`; only a number is the id of a logical
        // CPU.
        if let Ok(id) = id.trim().parse()
            && self.processors.len() < MAX_PROCESSORS
        {
            self.processors.push(Processor { id, ..Processor::default() });
        }
    }
}

const fn is_white_space_or_nul(c: char) -> bool {
    c.is_whitespace() || c == '\0'
}

/// Replaces each run of white space by one space and trims the text: vendors pad model names with spaces.
fn collapse_whitespace(text: &str) -> String {
    crate::sanitize::sanitize_to_one_line(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpuinfo_has_texts_of_first_cpu_and_ids_of_all() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t:   Intel(R)  Xeon(R)\n\
            microcode\t: 0x1\nphysical id\t: 1\ncore id\t\t: 5\nflags\t\t: fpu vmx\n\n\
            processor\t: 7\nvendor_id\t: Other\nmicrocode\t: 0x2\nflags\t: svm\n";
        let info = CpuInfo::parse(&mut text.as_bytes());
        assert_eq!(info.vendor.as_deref(), Some("GenuineIntel"));
        assert_eq!(info.model.as_deref(), Some("Intel(R) Xeon(R)"));
        assert!(info.has_flag("vmx") && !info.has_flag("svm"));
        assert_eq!(info.microcode.len(), 2);
        assert_eq!(info.processors[0], Processor { id: 0, package: Some(1), core: Some(5) });
        assert_eq!(info.processors[1], Processor { id: 7, package: None, core: None });
    }

    #[test]
    fn long_line_of_flags_is_read_completely() {
        let text = format!("flags : {} svm\n", "x".repeat(2000));
        assert!(CpuInfo::parse(&mut text.as_bytes()).has_flag("svm"));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes: Vec<u8>) {
            CpuInfo::parse(&mut bytes.as_slice());
        }
    }
}
