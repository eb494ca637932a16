//! Command `drain-check`.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::cli::style::Style;
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_PROBLEMS, Failure, print};
use clap::ValueHint;
use k8s_openapi::jiff::Timestamp;

use super::arguments::{ClusterArguments, Output};
use super::output::{to_json, to_yaml};
use super::state::StateSources;
use crate::plan::{PlanOptions, plan, render_drain};

/// Check that a host can be drained: where each of its VMs goes, and which VM prevents it
///
/// The check moves the VMs of the host to the other hosts in a simulation, one VM at a time, by the rules of kube-scheduler
/// and of the kubelets, with the reasons that the controller reports during a drain. It changes no object, and needs the
/// permission to list Nodes, InfraNodes and Pods of the whole cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth drain-check rack1-a      before: kubectl drain rack1-a\n  \
    kubectl berth drain-check rack1-a -o json | jq .stuck\n\n\
    Exit code 1 if the host cannot be drained.")]
pub(in crate::cli) struct Arguments {
    /// Name of the host
    host: String,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Read the objects from a file or folder instead of a cluster; `-` reads standard input
    #[arg(long, value_name = "DIR|FILE", value_hint = ValueHint::AnyPath)]
    from: Vec<PathBuf>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (cluster, from) = (&arguments.cluster, &arguments.from);
    let fleet = StateSources { cluster, from, added: &[], is_drain: true }.read()?;
    let host = &arguments.host;
    let options =
        PlanOptions { drain: Some(host.clone()), now: Timestamp::now(), ..PlanOptions::default() };
    let plan = plan(&fleet, &options);
    let drain = plan.drain.unwrap_or_default();
    if !drain.is_known {
        let error = anyhow::anyhow!(
            "host {host} does not exist, or its agent does not report: `kubectl berth hosts` shows all"
        );
        return Err(Failure { exit_code: EXIT_BAD_INPUT, error });
    }
    let text = match arguments.output {
        Output::Table | Output::Wide => render_drain(&drain, &plan.problems, Style::for_stdout()),
        Output::Json => to_json(&drain)?,
        Output::Yaml => to_yaml(&drain)?,
    };
    print(&text)?;
    Ok(ExitCode::from(if drain.is_possible() { 0 } else { EXIT_PROBLEMS }))
}
