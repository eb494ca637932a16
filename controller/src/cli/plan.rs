//! Command `berth-controller plan`.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::cli::style::Style;
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_PROBLEMS, Failure, print, print_error};
use clap::{ValueEnum, ValueHint};
use k8s_openapi::jiff::Timestamp;

use super::{input, live};
use crate::fleet::{Fleet, FleetItem};
use crate::plan::{self, AddRequest, PlanOptions};

/// Predict the host of each VM, and explain why a VM fits on no host
///
/// VMs are placed one at a time, in the order of the files; running VMs stay on their hosts. The command is a dry
/// run. Its input may be incomplete: InfraNodes alone show the free resources.
///
/// The input consists of InfraNodes (as `kubectl get inode -o yaml` and `berth-agent report -o yaml` print them),
/// Nodes, HostProfiles, the InfraConfig, VirtualMachines and their instances, instance types and preferences, pods,
/// namespaces, NetworkAttachmentDefinitions, the KubeVirt object, and the storage objects on which the hosts of volumes
/// depend (StorageClasses, CSIDrivers, CSIStorageCapacities, PersistentVolumeClaims, PersistentVolumes); in files also
/// MachineDeployments, TenantClusters and VlanClaims. Other objects are counted and ignored.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A VM with dedicated CPUs has the class Performance, a VM that requests less memory than its guest sees \
    has the class Density, and any other VM has the class Standard. The annotation \
    berth.dev/class on the VM's \
    template overrides the class."
)]
pub(super) struct Arguments {
    /// File or folder with objects, YAML or JSON; `-` reads standard input; may be given several times
    #[arg(long, short, value_name = "DIR|FILE", value_hint = ValueHint::AnyPath)]
    filename: Vec<PathBuf>,
    /// Also read the objects of a live cluster, with this kubeconfig; no object is written
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kubeconfig: Option<PathBuf>,
    /// Check that this host can be drained, and if not, show which rule prevents it
    #[arg(long, value_name = "HOST")]
    drain: Option<String>,
    /// Add hosts to the plan, as in `2xrack1-a`: copies of that host, or of the largest host of a HostProfile. With a
    /// name only, as in `rack1-a`: compute how many more hosts are needed to place all VMs
    #[arg(long, value_name = "[COUNTx]NAME", num_args = 1..=3)]
    add: Vec<String>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Show every host and VM, regardless of their number
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Output {
    /// Tables for people
    #[default]
    Table,
    /// JSON for programs
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut problems = Vec::new();
    let mut items = Vec::new();
    if arguments.filename.is_empty() && arguments.kubeconfig.is_none() {
        let error = anyhow::anyhow!("no input: specify -f DIR|FILE|-, or --kubeconfig FILE");
        return Err(Failure { exit_code: EXIT_BAD_INPUT, error });
    }
    let add = arguments.add.join(" ");
    let add = (!add.is_empty()).then(|| add.parse::<AddRequest>()).transpose();
    let add = add.map_err(|error| Failure {
        exit_code: EXIT_BAD_INPUT,
        error: anyhow::anyhow!("--add: {error}"),
    })?;
    if let Some(kubeconfig) = &arguments.kubeconfig {
        items.extend(live::list_items(kubeconfig, arguments.drain.is_some(), &mut problems)?);
    }
    for path in &arguments.filename {
        items.extend(input::for_each_input_object(path, &mut problems, FleetItem::from_input)?);
    }
    let fleet = Fleet::from_items(items, problems);
    let options = PlanOptions { drain: arguments.drain.clone(), now: Timestamp::now(), add };
    let plan = plan::plan(&fleet, &options);
    match arguments.output {
        Output::Table => print(&plan::render(&plan, Style::for_stdout(), arguments.all))?,
        Output::Json => print(&format!("{}\n", serde_json::to_string_pretty(&plan)?))?,
    };
    if plan.hosts.is_empty() && fleet.infra_nodes.is_empty() {
        print_error(
            "berth-controller: the input has no InfraNode, so there is no host to place VMs on",
        );
        return Ok(ExitCode::from(EXIT_BAD_INPUT));
    }
    Ok(ExitCode::from(if plan.has_no_problems() { 0 } else { EXIT_PROBLEMS }))
}
