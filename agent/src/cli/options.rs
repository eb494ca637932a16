//! Options of several commands that select the host to read.

use std::path::PathBuf;

use berth_runtime::cli::{EXIT_BAD_INPUT, Failure, print_error};
use clap::ValueHint;

use crate::observe;
use berth_host_facts::root::Root;
use berth_host_facts::{HostFacts, ObserveOptions, direct_io};

/// Selects the host.
#[derive(Debug, clap::Args)]
pub(super) struct RootArguments {
    /// Folder with a captured proc/, sys/, etc/, dev/ and var/ to read instead of this host
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    root: PathBuf,
}

/// Selects the host, and how to read it.
#[derive(Debug, clap::Args)]
pub(super) struct HostArguments {
    #[command(flatten)]
    root: RootArguments,
    /// Folder whose file system is tested for O_DIRECT; may be repeated
    #[arg(
        long,
        value_name = "DIR",
        default_values = direct_io::DEFAULT_PATHS,
        value_parser = parse_absolute_path
    )]
    direct_io_path: Vec<String>,
}

/// An argument that is not an absolute path.
#[derive(Debug, thiserror::Error)]
#[error("must be an absolute path")]
struct NotAbsolute;

/// Parses a folder for the O_DIRECT test.
fn parse_absolute_path(path: &str) -> Result<String, NotAbsolute> {
    path.starts_with('/').then(|| path.to_owned()).ok_or(NotAbsolute)
}

impl RootArguments {
    pub(super) fn open(&self) -> Result<Root, Failure> {
        let root = Root::open(&self.root)
            .map_err(|error| Failure { exit_code: EXIT_BAD_INPUT, error: error.into() })?;
        if !root.exists("proc") && !root.exists("sys") {
            let inner = root.list(".").unwrap_or_default();
            let inner = inner.iter().find(|name| root.exists(&format!("{name}/sys")));
            let path = self.root.display();
            let hint =
                inner.map(|name| format!("; did you mean {path}/{name}?")).unwrap_or_default();
            print_error(&format!(
                "warning: --root {path}: it contains neither proc/ nor sys/{hint}"
            ));
        }
        Ok(root)
    }
}

impl HostArguments {
    /// Reads the host, and prints warnings to standard error.
    pub(super) fn observe(&self) -> Result<(Root, HostFacts), Failure> {
        let root = self.root.open()?;
        let options = ObserveOptions {
            direct_io_paths: self.direct_io_path.clone(),
            ..ObserveOptions::default()
        };
        let facts = observe_with_warnings(&root, &options);
        Ok((root, facts))
    }
}

/// Reads the facts of the host, and prints warnings to standard error.
pub(super) fn observe_with_warnings(root: &Root, options: &ObserveOptions) -> HostFacts {
    let facts = observe::observe(root, options);
    for warning in &facts.notes.warnings {
        print_error(&format!("warning: {warning}"));
    }
    facts
}
