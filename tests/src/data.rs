//! Files of `tests/data/` that tests compare with: recorded answers, captures and schemas.
//!
//! `BERTH_PEERS` names a folder with more files in the same subfolders. They add cases, and no test depends on them.

#![allow(unreachable_pub, reason = "tests of other crates include this file as a module")]
#![expect(clippy::disallowed_methods, reason = "tests list their own files")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns the files in the subfolder `kind` whose names end with `suffix`, sorted by name. A file of `tests/data/`
/// takes precedence over a file of the same name in `BERTH_PEERS`.
#[must_use]
pub fn files(kind: &str, suffix: &str) -> Vec<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(kind);
    let more = std::env::var_os("BERTH_PEERS").map(|peers| PathBuf::from(peers).join(kind));
    let mut found = BTreeMap::new();
    for folder in more.into_iter().chain([ours]) {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(suffix) {
                found.insert(name, path);
            }
        }
    }
    found.into_values().collect()
}
