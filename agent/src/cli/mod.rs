//! The command line: reads arguments, calls the library, prints, and chooses the exit code.

mod apply;
mod check;
mod manifest;
mod plan;
mod report;
mod run;
pub mod style;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::apply::links;
use crate::observe::{self, HostFacts, Wanted, direct_io};
use crate::root::Root;

/// Exit code for a check or plan that found problems.
pub const PROBLEMS: u8 = 1;
/// Exit code for a host (or an output) that could not be reached or changed.
pub const UNREACHABLE: u8 = 3;
/// Exit code for bad usage or input.
pub const BAD_INPUT: u8 = 2;

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
    Man,
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

/// A folder to try for O_DIRECT.
fn absolute(path: &str) -> Result<String, String> {
    if path.starts_with('/') {
        Ok(path.to_owned())
    } else {
        Err("give an absolute path".to_owned())
    }
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

/// Why the program ends without doing what it was asked to.
struct Failure {
    code: u8,
    error: anyhow::Error,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: BAD_INPUT, error: error.into() }
    }
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
        Command::Completion { shell } => completion(shell),
        Command::Man => manual(),
        Command::TrialGuard { root } => Root::live_below(&root)
            .map(|root| links::trial::guard_main(&root))
            .map_err(Failure::from)
            .map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|failure| {
        complain(&format!("berth-agent: {:#}", failure.error));
        ExitCode::from(failure.code)
    })
}

fn completion(shell: Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "berth-agent", &mut script);
    // clap_complete 4.6 names a command with a hyphen in two ways in its Bash script, and then completes
    // nothing after the subcommand (clap-rs/clap#6421).
    let script = String::from_utf8_lossy(&script).replace("berth__subcmd__agent", "berth__agent");
    print(&script)
}

fn manual() -> Result<ExitCode, Failure> {
    print(&manual_page()?)
}

/// The manual page in troff, made from the same words as `--help`.
///
/// # Errors
/// If clap cannot render it, which would be a bug.
pub fn manual_page() -> std::io::Result<String> {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    for subcommand in
        command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        let mut section = Vec::new();
        let man = clap_mangen::Man::new(subcommand.clone());
        man.render_description_section(&mut section)?;
        man.render_options_section(&mut section)?;
        let title = format!("COMMAND {}", subcommand.get_name().to_uppercase());
        let section = String::from_utf8_lossy(&section);
        let section = section.replace(".SH DESCRIPTION", &format!(".SH \"{title}\""));
        page.extend_from_slice(section.replace(".SH OPTIONS", ".SS Options").as_bytes());
    }
    // As typed: a filled paragraph would run the examples into one another.
    for (title, text) in [("EXAMPLES", EXAMPLES), ("EXIT STATUS", EXIT_CODES)] {
        let text = text.replace('-', "\\-");
        page.extend_from_slice(format!(".SH \"{title}\"\n.nf\n{text}.fi\n").as_bytes());
    }
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Prints to standard output. A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> Result<ExitCode, Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let error = anyhow::Error::from(error).context("standard output");
            Err(Failure { code: UNREACHABLE, error })
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Prints one line to standard error; there is nobody to tell if that fails.
fn complain(text: &str) {
    writeln!(std::io::stderr(), "{}", crate::text::printable(text)).unwrap_or_default();
}
