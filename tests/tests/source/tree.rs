//! The repository's files, and Rust files as tokens.

use proc_macro2::{TokenStream, TokenTree};

pub(crate) use berth_tests::sources::{SourceFile, source_files};

/// Folders with Rust code of the workspace.
pub(crate) const CODE_FOLDERS: [&str; 5] = ["agent", "benches", "controller", "crates", "tests"];

/// Returns all Rust files of the workspace except generated files.
pub(crate) fn rust_files() -> Vec<SourceFile> {
    let all = CODE_FOLDERS.iter().flat_map(|folder| source_files(folder, ".rs"));
    let all: Vec<SourceFile> =
        all.filter(|file| !file.text.starts_with("// This file is @generated")).collect();
    assert!(all.len() > 400, "only {} files", all.len());
    all
}

/// Views of a Rust file.
pub(crate) trait RustSource {
    /// Returns the file's tokens, which include doc comments, but no `//` comments.
    fn tokens(&self) -> TokenStream;
    /// Returns true for files that hold tests only.
    fn is_test(&self) -> bool;
}

impl RustSource for SourceFile {
    fn tokens(&self) -> TokenStream {
        self.text.parse().unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    fn is_test(&self) -> bool {
        self.path.contains("/tests/")
            || self.path.starts_with("tests/")
            || self.path.ends_with("tests.rs")
            || self.path.ends_with("/test_helpers.rs")
    }
}

/// Calls `visit` for every token tree, with the sequence that contains it and its index there. A group comes before its
/// content.
pub(crate) fn visit_tokens(tokens: TokenStream, visit: &mut impl FnMut(&[TokenTree], usize)) {
    let level: Vec<TokenTree> = tokens.into_iter().collect();
    for at in 0..level.len() {
        visit(&level, at);
        if let Some(TokenTree::Group(group)) = level.get(at) {
            visit_tokens(group.stream(), visit);
        }
    }
}
