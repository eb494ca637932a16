//! Command `what-if`.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::cli::style::Style;
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_PROBLEMS, Failure, print};
use clap::ValueHint;
use k8s_openapi::jiff::Timestamp;

use super::arguments::{ClusterArguments, Output};
use super::output::{to_json, to_yaml};
use super::state::StateSources;
use crate::plan::{AddRequest, PlanOptions, plan, render};

/// Predict the placement after a change: more machines, other profiles, or additional hosts
///
/// The command adds the objects of the files to the objects of the cluster, in a simulation, and shows where each pending VM
/// would be placed. An object with the name of an existing object replaces it: a HostProfile or the InfraConfig with other
/// values, a MachineDeployment with more replicas. An InfraNode is an additional host. It changes no object, and needs the
/// permission to list Nodes, InfraNodes and Pods of the whole cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth what-if -f machines.yaml           do these machines fit?\n  \
    kubectl berth what-if -f profile.yaml            which VMs fit with this HostProfile?\n  \
    kubectl berth what-if --add 2xrack1-a            two more hosts like rack1-a\n  \
    kubectl berth what-if -f machines.yaml --add rack1-a   how many more hosts are needed?\n\n\
    Exit code 1 if a VM does not fit.")]
pub(in crate::cli) struct Arguments {
    /// File or folder with objects, YAML or JSON; `-` reads standard input; may be given several times
    #[arg(long, short, value_name = "DIR|FILE", value_hint = ValueHint::AnyPath, required_unless_present = "add")]
    filename: Vec<PathBuf>,
    /// Add hosts: `2xrack1-a` for copies of that host; a name only, to compute how many are needed
    #[arg(long, value_name = "[COUNTx]NAME")]
    add: Option<String>,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// Read the existing objects from a file or folder instead of a cluster
    #[arg(long, value_name = "DIR|FILE", value_hint = ValueHint::AnyPath)]
    from: Vec<PathBuf>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let add = arguments.add.as_deref().map(str::parse::<AddRequest>).transpose();
    let add = add.map_err(|error| Failure {
        exit_code: EXIT_BAD_INPUT,
        error: anyhow::anyhow!("--add: {error}"),
    })?;
    let Arguments { filename, cluster, from, .. } = arguments;
    let fleet = StateSources { cluster, from, added: filename, is_drain: false }.read()?;
    let options = PlanOptions { add, now: Timestamp::now(), ..PlanOptions::default() };
    let plan = plan(&fleet, &options);
    let text = match arguments.output {
        Output::Table => render(&plan, Style::for_stdout(), false),
        Output::Wide => render(&plan, Style::for_stdout(), true),
        Output::Json => to_json(&plan)?,
        Output::Yaml => to_yaml(&plan)?,
    };
    print(&text)?;
    Ok(ExitCode::from(if plan.has_no_problems() { 0 } else { EXIT_PROBLEMS }))
}
