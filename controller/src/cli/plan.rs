//! `berth-controller plan`.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::cli::style::Style;
use berth_runtime::cli::{BAD_INPUT, Failure, PROBLEMS, complain, print};
use clap::{ValueEnum, ValueHint};

use super::{input, live};
use crate::fleet::{Fleet, Item};
use crate::plan::{self, Add, Options};

/// Say where each VM would land, and for each that would not, why on no host
///
/// VMs are placed one after the other, in the order in which they stand in the files; those that run already stay where
/// they are. It changes nothing, and what it reads may be as incomplete as it is: InfraNodes alone say what is free.
///
/// Read are InfraNodes (as `kubectl get inode -o yaml` and `berth-agent report -o yaml` print them), Nodes,
/// HostProfiles, VirtualMachines and their instances, instance types and preferences, pods, namespaces,
/// NetworkAttachmentDefinitions and the KubeVirt object; of files also MachineDeployments, TenantClusters, VlanClaims and
/// the InfraConfig. Others are counted and not looked at.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A VM with CPUs of its own is of the class Performance, one with less memory than its guest sees \
    of the class Density, others Standard; the annotation berth.dev/class on its template says otherwise."
)]
pub(super) struct Arguments {
    /// File or folder with objects, YAML or JSON; `-` reads standard input; may be given several times
    #[arg(long, short, value_name = "DIR|FILE", value_hint = ValueHint::AnyPath)]
    filename: Vec<PathBuf>,
    /// Also read a live cluster, with this kubeconfig; nothing is written
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kubeconfig: Option<PathBuf>,
    /// Whether this host can be emptied, and if not, which rule stops it
    #[arg(long, value_name = "HOST")]
    drain: Option<String>,
    /// What it would be like with more hosts, as in `2xrack1-a`: like that host, or like the largest of a HostProfile.
    /// Without a number: how many it would take
    #[arg(long, value_name = "[COUNTx]NAME", num_args = 1..=3)]
    add: Vec<String>,
    /// How to print it
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Show every host and VM, however many there are
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Table,
    /// For machines
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut problems = Vec::new();
    let mut items = Vec::new();
    if arguments.filename.is_empty() && arguments.kubeconfig.is_none() {
        let error = anyhow::anyhow!("nothing to read: give -f DIR|FILE|-, or --kubeconfig FILE");
        return Err(Failure { code: BAD_INPUT, error });
    }
    let add = arguments.add.join(" ");
    let add = (!add.is_empty()).then(|| add.parse::<Add>()).transpose();
    let add =
        add.map_err(|error| Failure { code: BAD_INPUT, error: anyhow::anyhow!("--add: {error}") })?;
    if let Some(kubeconfig) = &arguments.kubeconfig {
        items.extend(live::items(kubeconfig, &mut problems)?);
    }
    for path in &arguments.filename {
        items.extend(input::each(path, &mut problems, Item::of)?);
    }
    let fleet = Fleet::of(items, problems);
    let plan = plan::plan(&fleet, &Options { drain: arguments.drain.clone(), add });
    match arguments.output {
        Output::Table => print(&plan::render(&plan, Style::for_stdout(), arguments.all))?,
        Output::Json => print(&format!("{}\n", serde_json::to_string_pretty(&plan)?))?,
    };
    if plan.hosts.is_empty() && fleet.infra_nodes.is_empty() {
        complain(
            "berth-controller: no InfraNode was given, so there is no host to place anything on",
        );
        return Ok(ExitCode::from(BAD_INPUT));
    }
    Ok(ExitCode::from(if plan.is_fine() { 0 } else { PROBLEMS }))
}
