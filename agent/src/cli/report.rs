//! The command `berth-agent report`.

use std::process::ExitCode;

use clap::ValueEnum;

use super::options::HostArguments;
use crate::report;
use berth_runtime::cli::style::Style;
use berth_runtime::cli::{Failure, print};

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Report the capabilities of this host, as an InfraNode with its status",
    long_about = "Reports the capabilities of this host for virtual machines: processors, NUMA zones, huge pages, KVM, \
        IOMMU, network links, drives and the kubelet's policies.\n\n\
        Needs neither root nor a cluster, and is read-only. A fact that cannot be determined is not guessed: \
        it is left out and listed under `unknown` with the reason. Warnings go to standard error.",
    after_help = "The json and yaml formats are an InfraNode manifest, and are byte for byte the same while the \
        host is idle, so `diff` of two reports shows the differences over time or between hosts."
)]
pub(super) struct Arguments {
    #[command(flatten)]
    host: HostArguments,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    /// Text for a terminal of 80 columns
    Table,
    /// An InfraNode as JSON
    Json,
    /// An InfraNode as YAML
    Yaml,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (_, facts) = arguments.host.observe()?;
    let node = report::report(&facts);
    print(&match arguments.output {
        Output::Table => report::table::render(&node, &facts.links, Style::for_stdout()),
        Output::Json => serde_json::to_string_pretty(&node)? + "\n",
        Output::Yaml => serde_saphyr::to_string(&node)?,
    })
}
