//! The repository's own files, for tests that read them.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "tests read the repository's files, and fail by panicking"
)]

use crate::repository;

/// Crates below `crates/` that compute results from their input only: their Cargo.toml has no dependency that allows
/// input or output. The name of each package has the prefix `berth-`.
pub const PURE_CRATES: [&str; 7] = [
    "dhcp-responder",
    "extender",
    "kubelet-admission",
    "kubevirt-render",
    "placement",
    "trunk-probe",
    "views",
];

/// One file: its path from the top of the repository, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Path from the top of the repository.
    pub path: String,
    /// Content.
    pub text: String,
}

/// Returns the files below a folder whose names end in `ending`, sorted by path, without build output and test data.
///
/// # Panics
/// Panics if a file cannot be read.
#[must_use]
pub fn source_files(folder: &str, ending: &str) -> Vec<SourceFile> {
    let mut found = Vec::new();
    let mut pending = vec![repository().join(folder)];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the folder entry can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(name.as_str(), "target" | "data" | ".git") {
                    pending.push(path);
                }
            } else if name.ends_with(ending) {
                let text = std::fs::read_to_string(&path).expect("the file can be read");
                let path =
                    path.strip_prefix(repository()).expect("the path is below the repository");
                found.push(SourceFile { path: path.to_string_lossy().into_owned(), text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}
