//! The command `berth-agent check`.

use std::process::ExitCode;

use super::options::HostArguments;
use crate::check::{self, Input};
use crate::report;
use berth_runtime::check::{OutputFormat, Status, name_parser};
use berth_runtime::cli::style::Style;
use berth_runtime::cli::{Failure, print};

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Check the host for problems that affect virtual machines",
    long_about = "Checks the host for problems that affect virtual machines. Each check has a stable id, a status, \
        the evidence (files and their values) and, if there is a problem, the remedy.\n\n\
        PASS  no problem\nWARN  VMs run, but with a disadvantage\nFAIL  VMs do not run, or the kubelet will not start\n\
        SKIP  could not be checked on this host, or does not apply; the message gives the reason",
    after_help = "Examples:\n  \
        berth-agent check                    all checks\n  \
        berth-agent check kvm kubelet        two groups\n  \
        berth-agent check kvm.nested         one check\n  \
        berth-agent check --list             explain each check\n\n\
        Exit code 1 if a check failed; warnings do not change the exit code."
)]
pub(super) struct Arguments {
    /// Checks or groups of checks to run (default: all)
    #[arg(value_name = "ID", value_parser = name_parser(&check::all_checks()), hide_possible_values = true)]
    ids: Vec<String>,
    #[command(flatten)]
    host: HostArguments,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    /// Explain the checks instead of running them
    #[arg(long)]
    list: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let checks = check::select(&arguments.ids);
    if arguments.list {
        return print(&arguments.output.render_list(&checks)?);
    }
    let (root, facts) = arguments.host.observe()?;
    let findings = check::run(&checks, &Input::observe(&root, &facts));
    let links = |style: Style| {
        let show_links = findings.checks.iter().any(|finding| {
            finding.id.starts_with("network.") && finding.outcome.status != Status::Skip
        });
        let tree =
            if show_links { report::tree::render(&facts.links, style) } else { String::new() };
        if tree.is_empty() { tree } else { format!("{}\n", tree.trim_start()) }
    };
    print(&arguments.output.render(&findings, links)?)?;
    Ok(findings.exit_code())
}
