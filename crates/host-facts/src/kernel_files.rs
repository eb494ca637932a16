//! Parsers for formats that many files of the kernel have.

use berth_api::CpuSet;

use crate::root::{ReadError, ReadProblem, Root};

/// Reads the `boot_id` of the running kernel.
#[must_use]
pub fn boot_id(root: &Root) -> Option<String> {
    root.read("proc/sys/kernel/random/boot_id").ok().filter(|id| !id.is_empty())
}

/// Reads a file with a CPU list. Kernels write an empty set as an empty string, as `(null)`, or as a NUL byte
/// (`nohz_full` occurs in all three forms). The value of `isolcpus=` may have flags before the list.
///
/// # Errors
/// Returns the errors of [`Root::read`], and an error if the text is not a CPU list.
pub fn read_cpu_list(root: &Root, path: &str) -> Result<CpuSet, ReadError> {
    let text = root.read(path)?;
    if text == "(null)" {
        return Ok(CpuSet::new());
    }
    text.parse().map_err(|error: berth_api::ParseCpuSetError| ReadError {
        path: path.to_owned(),
        problem: ReadProblem::Malformed(error.to_string()),
    })
}

/// Reads a file with a boolean, such as a module parameter: `1`, `Y` or `y` is true; `0`, `N` or `n` is false.
#[must_use]
pub fn read_bool(root: &Root, path: &str) -> Option<bool> {
    match root.read(path).ok()?.as_str() {
        "1" | "Y" | "y" => Some(true),
        "0" | "N" | "n" => Some(false),
        _ => None,
    }
}

/// Converts a count to a 32-bit integer, as the API's fields have; a larger count becomes `u32::MAX`.
#[must_use]
pub fn saturating_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
