//! The repository's files, and Rust files as tokens.

use proc_macro2::{TokenStream, TokenTree};

use berth_tests::repository;

/// Folders with Rust code of the workspace.
pub(crate) const CODE: [&str; 5] = ["agent", "benches", "controller", "crates", "tests"];

/// One file: its path from the top of the repository, and its text.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Returns the files below a folder whose names end in `ending`, sorted by path. Build output and test data are left out.
pub(crate) fn files(folder: &str, ending: &str) -> Vec<File> {
    let mut found = Vec::new();
    let mut open = vec![repository().join(folder)];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(name.as_str(), "target" | "data" | ".git") {
                    open.push(path);
                }
            } else if name.ends_with(ending) {
                let text = std::fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(repository()).unwrap().to_string_lossy().into_owned();
                found.push(File { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns all Rust files of the workspace that people write.
pub(crate) fn rust() -> Vec<File> {
    let all = CODE.iter().flat_map(|folder| files(folder, ".rs"));
    let all: Vec<File> =
        all.filter(|file| !file.text.starts_with("// This file is @generated")).collect();
    assert!(all.len() > 400, "only {} files", all.len());
    all
}

impl File {
    /// Returns the file's tokens. `//` comments are not among them, doc comments are.
    pub(crate) fn tokens(&self) -> TokenStream {
        self.text.parse().unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    /// Returns true for files that hold tests only.
    pub(crate) fn is_test(&self) -> bool {
        self.path.contains("/tests/")
            || self.path.starts_with("tests/")
            || self.path.ends_with("tests.rs")
            || self.path.contains("/tests_")
    }
}

/// Calls `visit` for every token tree, groups before their content.
pub(crate) fn walk(tokens: TokenStream, visit: &mut impl FnMut(&[TokenTree], usize)) {
    let level: Vec<TokenTree> = tokens.into_iter().collect();
    for at in 0..level.len() {
        visit(&level, at);
        if let Some(TokenTree::Group(group)) = level.get(at) {
            walk(group.stream(), visit);
        }
    }
}
