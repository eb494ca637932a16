//! Command line: reads arguments, calls the library, prints the result, and chooses the exit code.

mod check;
mod console;
mod input;
pub mod kubectl;
mod live;
mod migrate;
mod plan;
mod render;
mod run;
mod simulator;

use std::process::ExitCode;

use berth_runtime::cli::{Failure, pages, print};
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

const EXAMPLES: &str = "  \
  berth-controller plan -f examples/fleet/            the placement of all VMs
  berth-controller plan -f fleet/ --drain rack1-a     check that a host can be drained
  berth-controller plan -f fleet/ --add rack1-a       compute how many more hosts are needed
  berth-controller plan --kubeconfig ~/.kube/config   the same for a live cluster; read-only
  berth-agent report -o yaml | berth-controller plan -f - -f machines.yaml
  berth-controller render -f machines.yaml            the VirtualMachine of a MachineDeployment
  berth-controller render --migrate -f cluster.yaml   patches for old load balancer Services
  berth-controller check --kubeconfig ~/.kube/config  problems of the infra cluster, with remedies
  berth-controller hosts                              hosts, as kubectl berth shows them
  berth-controller console --kubeconfig ~/.kube/config    hosts, tenants and VMs in the browser
  berth-controller crds | kubectl apply -f -
  berth-controller run --kubeconfig ~/.kube/config    the daemon
";

const EXIT_CODES: &str = "  \
  0  success
  1  a VM does not fit, a host cannot be drained, an object was left out, or a check failed
  2  invalid usage or input
  3  the cluster could not be reached
";

/// Turns tenants' machines into virtual machines, and assigns them to hosts.
#[derive(Debug, Parser)]
#[command(
    name = "berth-controller",
    version,
    about = "Reconciles tenants' machines and hosts; also predicts the placement of virtual machines",
    long_about = "Reconciles tenants' machines and hosts. Also predicts the placement of virtual machines, and \
        explains why a VM fits on no host, by the rules of kube-scheduler and of the hosts' kubelets.",
    after_help = format!("Examples:\n{EXAMPLES}\nExit codes:\n{EXIT_CODES}"),
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plan(Box<plan::Arguments>),
    Render(render::Arguments),
    Run(run::Arguments),
    Check(check::Arguments),
    #[command(flatten)]
    View(kubectl::Command),
    Console(console::Arguments),
    /// Print Berth's CustomResourceDefinitions as YAML
    #[command(after_help = "To install them:  berth-controller crds | kubectl apply -f -")]
    Crds,
    /// Print a completion script for a shell
    #[command(
        after_help = "Bash:  berth-controller completion bash > /etc/bash_completion.d/berth-controller"
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
}

/// Runs the program with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Render(arguments) => render::run(&arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::View(command) => command.run(),
        Command::Console(arguments) => console::run(arguments),
        Command::Crds => print_crds(),
        Command::Completion { shell } => print(&pages::completion_script(Cli::command(), shell)),
        Command::Man { markdown: true } => print(&pages::markdown_reference(Cli::command())),
        Command::Man { markdown: false } => {
            manual_page().map_err(Failure::from).and_then(|page| print(&page))
        }
    };
    berth_runtime::cli::report_result("berth-controller", result)
}

fn print_crds() -> Result<ExitCode, Failure> {
    let mut all = String::new();
    for crd in berth_api::all_crds() {
        all.push_str("---\n");
        all.push_str(&berth_api::crd_yaml(&crd)?);
    }
    print(&all)
}

/// Returns the manual page in troff, generated from the texts of `--help`.
///
/// # Errors
/// Returns an error if clap cannot render the page, which would be a bug.
pub fn manual_page() -> std::io::Result<String> {
    pages::manual_page(Cli::command(), &[("EXAMPLES", EXAMPLES), ("EXIT STATUS", EXIT_CODES)])
}
