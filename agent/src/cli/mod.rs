//! The command line: reads arguments, calls the library, prints, and chooses the exit code.

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
use crate::observe::{self, HostFacts, Wanted, direct_io};
use crate::root::Root;

const EXAMPLES: &str = "  \
  berth-agent report                     what this host can do, for people
  berth-agent report -o yaml             the same as an InfraNode manifest
  berth-agent report --root ./captured   a captured tree in place of this host
  berth-agent check                      what stands in the way, and what to do
  berth-agent check --list               what each check is for
  berth-agent plan -f infranode.yaml     what would change; changes nothing
  berth-agent apply -f infranode.yaml    make the host so
  berth-agent revert                     put back every value found
  berth-agent run --standalone infranode.yaml   keep the host so
";

const EXIT_CODES: &str = "  \
  0  fine
  1  a check failed, or a change is blocked or only partly made
  2  bad usage or input
  3  the host could not be reached or changed
";

/// Makes bare-metal hosts ready for the virtual machines of many tenant clusters.
#[derive(Debug, Parser)]
#[command(
    name = "berth-agent",
    version,
    about = "Finds out what this host can do for virtual machines, and makes it so",
    long_about = "Finds out what this host can do for virtual machines, and what stands in the way; shapes the host \
        as an InfraNode manifest asks, and puts back what it changed.\n\n\
        `report`, `check` and `plan` need no root and no cluster, and change nothing. Without root some facts \
        stay unknown; they are listed with the reason.",
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

/// Which host to look at.
#[derive(Debug, clap::Args)]
struct RootArguments {
    /// Folder with a captured proc/, sys/, etc/, dev/ and var/ to read in place of this host
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    root: PathBuf,
}

/// Which host to look at, and how.
#[derive(Debug, clap::Args)]
struct HostArguments {
    #[command(flatten)]
    root: RootArguments,
    /// Folder whose file system is tried for O_DIRECT; may be given several times
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
            complain(&format!("warning: --root {path}: neither proc/ nor sys/ is in it{hint}"));
        }
        Ok(root)
    }
}

impl HostArguments {
    /// Reads the host, and says on standard error what looks wrong with it.
    fn observe(&self) -> Result<(Root, HostFacts), Failure> {
        let root = self.root.open()?;
        let wanted = Wanted { direct_io_paths: self.direct_io_path.clone(), ..Wanted::default() };
        let facts = look(&root, &wanted);
        Ok((root, facts))
    }
}

/// Reads the host, and says on standard error what looks wrong with it.
fn look(root: &Root, wanted: &Wanted) -> HostFacts {
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

/// The manual page in troff, made from the same words as `--help`.
///
/// # Errors
/// If clap cannot render it, which would be a bug.
pub fn manual_page() -> std::io::Result<String> {
    pages::manual(Cli::command(), &[("EXAMPLES", EXAMPLES), ("EXIT STATUS", EXIT_CODES)])
}
