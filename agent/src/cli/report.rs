//! `berth-agent report`.

use std::process::ExitCode;

use clap::ValueEnum;

use super::HostArguments;
use crate::report;
use berth_runtime::cli::style::Style;
use berth_runtime::cli::{Failure, print};

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Say what this host can do: an InfraNode with its status",
    long_about = "Says what this host can do for virtual machines: processors, NUMA zones, huge pages, KVM, \
        IOMMU, network links, drives and the kubelet's policies.\n\n\
        Needs no root and no cluster, and changes nothing. A fact that cannot be found out is not guessed: \
        it is left out and listed under `unknown` with the reason. What looks wrong goes to standard error.",
    after_help = "The json and yaml forms are an InfraNode manifest and are the same bytes every time while the \
        host is idle, so `diff` of two reports shows what changed on a host or between two."
)]
pub(super) struct Arguments {
    #[command(flatten)]
    host: HostArguments,
    /// Form of the report
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    /// For people, on 80 columns
    Table,
    /// An InfraNode as JSON
    Json,
    /// An InfraNode as YAML
    Yaml,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (_, facts) = arguments.host.observe()?;
    let node = report::infra_node(&facts);
    print(&match arguments.output {
        Output::Table => report::table::render(&node, &facts.links, Style::for_stdout()),
        Output::Json => serde_json::to_string_pretty(&node)? + "\n",
        Output::Yaml => serde_saphyr::to_string(&node)?,
    })
}
