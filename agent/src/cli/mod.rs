//! The command line: parses arguments, calls the library, prints results, and sets the exit code.

mod apply;
mod check;
mod manifest;
mod options;
mod plan;
mod report;
#[cfg(feature = "daemon")]
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::cli::{Failure, pages, print};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::apply::links;
use berth_host_facts::root::Root;

const EXAMPLES: &str = "  \
  berth-agent report                     report the capabilities of this host, as text
  berth-agent report -o yaml             report them as an InfraNode manifest
  berth-agent report --root ./captured   report a captured tree instead of this host
  berth-agent check                      find problems that affect VMs, with remedies
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
    about = "Reports the capabilities of this host for virtual machines, and applies its desired state",
    long_about = "Reports the capabilities of this host for virtual machines, and problems that affect them; applies the desired \
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
    #[cfg(feature = "daemon")]
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
    /// Roll back a trial that the agent does not finish before the deadline
    #[command(hide = true, name = links::trial::GUARD)]
    TrialGuard {
        /// Root folder of the host's files
        root: PathBuf,
    },
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
        #[cfg(feature = "daemon")]
        Command::Run(arguments) => run::run(&arguments),
        Command::Revert(arguments) => apply::revert(&arguments),
        Command::Completion { shell } => print(&pages::completion_script(Cli::command(), shell)),
        Command::Man { markdown: true } => print(&pages::markdown_reference(Cli::command())),
        Command::Man { markdown: false } => {
            manual_page().map_err(Failure::from).and_then(|page| print(&page))
        }
        Command::TrialGuard { root } => Root::open_live_mounted_at(&root)
            .map(|root| links::trial::run_guard(&root))
            .map_err(Failure::from)
            .map(|()| ExitCode::SUCCESS),
    };
    berth_runtime::cli::report_result("berth-agent", result)
}

/// Returns the manual page in troff, generated from the texts of `--help`.
///
/// # Errors
/// If clap cannot render it, which would be a bug.
pub fn manual_page() -> std::io::Result<String> {
    pages::manual_page(Cli::command(), &[("EXAMPLES", EXAMPLES), ("EXIT STATUS", EXIT_CODES)])
}
