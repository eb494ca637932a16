//! Comparison of documents with the output of programs. With `BERTH_UPDATE=1` (`make samples`), documents that differ are
//! written.

#![allow(unreachable_pub, reason = "tests of other crates include this file as a module")]

use std::path::{Path, PathBuf};

/// Returns the path of a file of the repository.
pub fn repository_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Compares a document with the wanted text.
///
/// # Panics
/// Panics if they differ, unless the document is written.
pub fn compare_with_file(path: &str, wanted: &str) {
    let path = repository_file(path);
    if std::fs::read_to_string(&path).unwrap_or_default() == wanted {
        return;
    }
    assert!(
        std::env::var_os("BERTH_UPDATE").is_some(),
        "{} is stale: run `make samples` and review the difference",
        path.display()
    );
    std::fs::write(&path, wanted).unwrap();
}

/// Compares `sample` with the code block after `<!-- sample: NAME -->` in a document.
///
/// # Panics
/// Panics if the document has no such block, or like [`compare_with_file`].
pub fn compare_sample(path: &str, name: &str, sample: &str) {
    let document = std::fs::read_to_string(repository_file(path)).unwrap();
    let marker = format!("<!-- sample: {name} -->\n```text\n");
    let start =
        document.find(&marker).unwrap_or_else(|| panic!("{path} has no {marker}")) + marker.len();
    let end = start + document[start..].find("```\n").unwrap();
    compare_with_file(path, &format!("{}{sample}{}", &document[..start], &document[end..]));
}
