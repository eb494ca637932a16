//! `kubectl berth`: shows the state of an infra cluster, explains placements, and connects to machines. It has the
//! permissions of its user: a list that the user may not read is named, and the rest is shown. It changes no object.

mod arguments;
mod complete;
mod console;
mod drain_check;
mod exchange;
mod host;
mod hosts;
mod machine_events;
mod machines;
mod networks;
mod output;
mod program;
mod read;
mod route;
mod show;
mod ssh;
mod state;
mod storage_classes;
mod target;
mod tenants;
mod terminal;
mod vnc;
mod watch;
mod what_if;
mod why;

use std::process::ExitCode;

use berth_runtime::cli::{Failure, pages, print};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use super::check;

const EXAMPLES: &str = "  \
  kubectl berth hosts                        state, VMs, exclusive CPUs, huge pages
  kubectl berth host rack1-a                 zones, conditions, networks, VMs, what to do
  kubectl berth tenants                      networks, machines and addresses of tenants
  kubectl berth machines --tenant bank       machines of a tenant
  kubectl berth why cluster-bank/web-1       where a machine is and why, or why not
  kubectl berth drain-check rack1-a          can the host be drained?
  kubectl berth what-if -f machines.yaml     do these machines fit?
  kubectl berth networks                     VLANs, trunks, faults with switch ports
  kubectl berth storageclasses               classes that tenants may use
  kubectl berth check                        problems of the cluster, with remedies
  kubectl berth ssh cluster-bank/web-1       ssh, by the way that works
  kubectl berth console cluster-bank/web-1   serial console; Ctrl-] ends it
  kubectl berth vnc cluster-bank/web-1       graphical console
";

const EXIT_CODES: &str = "  \
  0  success
  1  a machine has no host, a host cannot be drained, a VM does not fit, or a check failed
  2  invalid usage or input, or the object does not exist
  3  the cluster could not be reached, or nothing may be read
";

/// Shows hosts, tenants and machines of an infra cluster.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-berth",
    bin_name = "kubectl berth",
    version,
    about = "Shows hosts, tenants and machines of an infra cluster, and explains placements",
    long_about = "Shows hosts, tenants and machines of an infra cluster, explains where a machine is and why, and connects to \
        machines. The commands change no object.\n\nThe commands have the permissions of the kubeconfig's user. A kind that the \
        user may not list is named on standard error; everything else is shown.",
    after_help = format!("Examples:\n{EXAMPLES}\nExit codes:\n{EXIT_CODES}"),
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: ProgramCommand,
}

#[derive(Debug, Subcommand)]
enum ProgramCommand {
    #[command(flatten)]
    View(Command),
    #[command(after_help = "Examples:\n  \
        kubectl berth check                 all checks\n  \
        kubectl berth check kubevirt        one group\n  \
        kubectl berth check --tenant bank   also the objects and the API server of a tenant\n  \
        kubectl berth check --list          explain each check\n\n\
        Exit code 1 if a check failed. docs/preflight.md describes the checks.")]
    Check(check::Arguments),
    Console(console::Arguments),
    /// Print a completion script for a shell
    #[command(
        after_help = "Bash:  kubectl-berth completion bash > /etc/bash_completion.d/kubectl-berth\n\n\
        kubectl completes `kubectl berth` if an executable kubectl_complete-berth in PATH runs `kubectl-berth __complete \"$@\"`."
    )]
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(hide = true)]
    Man {
        /// Print Markdown, with a section for each command
        #[arg(long)]
        markdown: bool,
    },
    /// Print completions of the last argument, as kubectl expects them from a plugin
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// Commands that `berth-controller` has too.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Hosts(hosts::Arguments),
    Host(host::Arguments),
    Tenants(tenants::Arguments),
    Machines(machines::Arguments),
    Why(Box<why::Arguments>),
    #[command(name = "drain-check")]
    DrainCheck(drain_check::Arguments),
    #[command(name = "what-if")]
    WhatIf(what_if::Arguments),
    Networks(networks::Arguments),
    #[command(name = "storageclasses", alias = "storage-classes")]
    StorageClasses(storage_classes::Arguments),
    Ssh(Box<ssh::Arguments>),
    Vnc(vnc::Arguments),
}

impl Command {
    /// Runs the command.
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        match self {
            Self::Hosts(arguments) => hosts::run(arguments),
            Self::Host(arguments) => host::run(arguments),
            Self::Tenants(arguments) => tenants::run(arguments),
            Self::Machines(arguments) => machines::run(arguments),
            Self::Why(arguments) => why::run(arguments),
            Self::DrainCheck(arguments) => drain_check::run(arguments),
            Self::WhatIf(arguments) => what_if::run(arguments),
            Self::Networks(arguments) => networks::run(arguments),
            Self::StorageClasses(arguments) => storage_classes::run(arguments),
            Self::Ssh(arguments) => ssh::run(arguments),
            Self::Vnc(arguments) => vnc::run(arguments),
        }
    }
}

/// Runs `kubectl-berth` with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        ProgramCommand::View(command) => command.run(),
        ProgramCommand::Check(arguments) => check::run(&arguments),
        ProgramCommand::Console(arguments) => console::run(&arguments),
        ProgramCommand::Completion { shell } => {
            print(&pages::completion_script(Cli::command().bin_name("kubectl-berth"), shell))
        }
        ProgramCommand::Man { markdown: true } => print(&pages::markdown_reference(Cli::command())),
        ProgramCommand::Man { markdown: false } => {
            let sections = [("EXAMPLES", EXAMPLES), ("EXIT STATUS", EXIT_CODES)];
            let page = pages::manual_page(Cli::command(), &sections);
            page.map_err(Failure::from).and_then(|page| print(&page))
        }
        ProgramCommand::Complete { words } => {
            print(&complete::completions(&Cli::command(), &words))
        }
    };
    berth_runtime::cli::report_result(program::PROGRAM, result)
}
