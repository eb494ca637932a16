//! The command line: parses arguments, calls the library, prints results, and sets the exit code.

mod apply;
mod check;
mod manifest;
mod plan;
mod report;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::cli::{BAD_INPUT, Failure, complain, pages, print};
use clap::{CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::apply::links;
use crate::observe;
use berth_host_facts::root::Root;
use berth_host_facts::{HostFacts, ObserveOptions, direct_io};

const EXAMPLES: &str = "  \
  berth-agent report                     what this host can do, as text
  berth-agent report -o yaml             the same as an InfraNode manifest
  berth-agent report --root ./captured   a captured tree instead of this host
  berth-agent check                      problems that affect VMs, with remedies
  berth-agent check --list               explain each check
  berth-agent plan -f infranode.yaml     show pending changes (dry run)
  berth-agent apply -f infranode.yaml    apply the changes once
  berth-agent revert                     restore all original values
  berth-agent run --standalone infranode.yaml   run the daemon
";

const EXIT_CODES: &str = "  \
  0  success
  1  a check failed, or a change is blocked or applied only partially
  2  invalid usage or input
  3  the host could not be reached or changed
";

/// Prepares bare-metal hosts for the virtual machines of many tenant clusters.
#[derive(Debug, Parser)]
#[command(
    name = "berth-agent",
    version,
    about = "Reports what this host can do for virtual machines, and applies its desired state",
    long_about = "Reports what this host can do for virtual machines, and problems that affect them; applies the desired \
        state of an InfraNode manifest, and restores the original values.\n\n\
        `report`, `check` and `plan` need neither root nor a cluster, and are read-only. Without root some facts \
        are unknown; they are listed with the reason.",
    after_help = format!("Examples:\n{EXAMPLES}\nExit codes:\n{EXIT_CODES}"),
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Report(report::Arguments),
    Check(check::Arguments),
    Plan(plan::Arguments),
    Apply(apply::Arguments),
    Revert(apply::RevertArguments),
    Run(run::Arguments),
    /// Print a completion script for a shell
    #[command(
        after_help = "Bash:  berth-agent completion bash > /etc/bash_completion.d/berth-agent"
    )]
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man {
        /// As Markdown, command by command
        #[arg(long)]
        markdown: bool,
    },
    /// Undo a change on trial if the process that tries it does not say how it ended
    #[command(hide = true, name = links::trial::GUARD)]
    TrialGuard {
        /// Where the host's files are
        root: PathBuf,
    },
}

/// Selects the host.
#[derive(Debug, clap::Args)]
struct RootArguments {
    /// Folder with a captured proc/, sys/, etc/, dev/ and var/ to read instead of this host
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    root: PathBuf,
}

/// Selects the host, and how to read it.
#[derive(Debug, clap::Args)]
struct HostArguments {
    #[command(flatten)]
    root: RootArguments,
    /// Folder whose file system is tested for O_DIRECT; may be repeated
    #[arg(
        long,
        value_name = "DIR",
        default_values = direct_io::DEFAULT_PATHS,
        value_parser = absolute
    )]
    direct_io_path: Vec<String>,
}

/// An argument that is not an absolute path.
#[derive(Debug, thiserror::Error)]
#[error("give an absolute path")]
struct NotAbsolute;

/// Parses a folder for the O_DIRECT test.
fn absolute(path: &str) -> Result<String, NotAbsolute> {
    path.starts_with('/').then(|| path.to_owned()).ok_or(NotAbsolute)
}

impl RootArguments {
    fn open(&self) -> Result<Root, Failure> {
        let root = Root::open(&self.root)
            .map_err(|error| Failure { code: BAD_INPUT, error: error.into() })?;
        if !root.exists("proc") && !root.exists("sys") {
            let inner = root.list(".").unwrap_or_default();
            let inner = inner.iter().find(|name| root.exists(&format!("{name}/sys")));
            let path = self.root.display();
            let hint =
                inner.map(|name| format!("; did you mean {path}/{name}?")).unwrap_or_default();
            complain(&format!("warning: --root {path}: it contains neither proc/ nor sys/{hint}"));
        }
        Ok(root)
    }
}

impl HostArguments {
    /// Reads the host, and prints warnings to standard error.
    fn observe(&self) -> Result<(Root, HostFacts), Failure> {
        let root = self.root.open()?;
        let wanted = ObserveOptions {
            direct_io_paths: self.direct_io_path.clone(),
            ..ObserveOptions::default()
        };
        let facts = look(&root, &wanted);
        Ok((root, facts))
    }
}

/// Reads the host, and prints warnings to standard error.
fn look(root: &Root, wanted: &ObserveOptions) -> HostFacts {
    let facts = observe::observe(root, wanted);
    for warning in &facts.notes.warnings {
        complain(&format!("warning: {warning}"));
    }
    facts
}

/// Runs the program with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = Cli::parse();
    let result = match arguments.command {
        Command::Report(arguments) => report::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Apply(arguments) => apply::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Revert(arguments) => apply::revert(&arguments),
        Command::Completion { shell } => print(&pages::completion(Cli::command(), shell)),
        Command::Man { markdown: true } => print(&pages::reference(Cli::command())),
        Command::Man { markdown: false } => {
            manual_page().map_err(Failure::from).and_then(|page| print(&page))
        }
        Command::TrialGuard { root } => Root::live_below(&root)
            .map(|root| links::trial::guard_main(&root))
            .map_err(Failure::from)
            .map(|()| ExitCode::SUCCESS),
    };
    berth_runtime::cli::end("berth-agent", result)
}

/// Returns the manual page in troff, generated from the texts of `--help`.
///
/// # Errors
/// If clap cannot render it, which would be a bug.
pub fn manual_page() -> std::io::Result<String> {
    pages::manual(Cli::command(), &[("EXAMPLES", EXAMPLES), ("EXIT STATUS", EXIT_CODES)])
}
