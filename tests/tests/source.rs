//! Checks of the repository's own source, parsed as Rust: errors, logs, modules, crates and vocabulary.

#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests read the repository's files, and fail by panicking"
)]

#[path = "source/crate_dependencies.rs"]
mod crate_dependencies;
#[path = "source/errors.rs"]
mod errors;
#[path = "source/harness.rs"]
mod harness;
#[path = "source/logs.rs"]
mod logs;
#[path = "source/modules.rs"]
mod modules;
#[path = "source/syntax.rs"]
mod syntax;
#[path = "source/test_code.rs"]
mod test_code;
#[path = "source/text_comparisons.rs"]
mod text_comparisons;
#[path = "source/tree.rs"]
mod tree;
#[path = "source/vocabulary.rs"]
mod vocabulary;
