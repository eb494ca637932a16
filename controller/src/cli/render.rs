//! `berth-controller render`.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::cli::{BAD_INPUT, Failure, complain, print};
use clap::{ValueEnum, ValueHint};

use super::input;
use crate::fleet::RenderInput;
use berth_kubevirt_render::machines::{RenderOptions, render};

/// Print the VirtualMachine that a MachineDeployment's machines would be
///
/// One VirtualMachine for each MachineDeployment, whatever its replicas: they differ in their names only. It needs no
/// cluster, and is what the controller does in one. What a cluster would choose or know can be given: names by options,
/// TenantCluster, InfraConfig, Secrets, ConfigMaps, StorageClasses, StorageProfiles and instance types in the same files.
///
/// What is wrong is said on standard error with the path of the field, and no VirtualMachine is printed for that
/// MachineDeployment.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  berth-controller render -f machinedeployment.yaml
  berth-controller render -f tenant.yaml -f machinedeployment.yaml --machine web-1 | kubectl apply --dry-run=server -f -
  kubectl get machinedeployment web -o yaml | berth-controller render -f -

Exit codes:
  0  fine
  2  something is wrong with a file or an object")]
pub(super) struct Arguments {
    /// Files, folders or - for standard input
    #[arg(short, long, required = true, value_name = "DIR|FILE|-", value_hint = ValueHint::AnyPath)]
    filename: Vec<PathBuf>,
    /// The machine's name [default: that of the MachineDeployment, a hash of its template, and xxxxx]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// The namespace [default: that of the tenant, else of the MachineDeployment]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The Secret with the machine's user data [default: userdata- and the machine's name]
    #[arg(long, value_name = "NAME")]
    user_data_secret: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Yaml,
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (mut problems, mut found) = (Vec::new(), Vec::new());
    for path in &arguments.filename {
        found.extend(input::each(path, &mut problems, |found| found)?);
    }
    let RenderInput { deployments, around, mut problems } = RenderInput::new(found, problems);
    let fail = |error: anyhow::Error| Err(Failure { code: BAD_INPUT, error });
    if deployments.is_empty() && problems.is_empty() {
        return fail(anyhow::anyhow!(
            "there is no MachineDeployment (cluster.k8s.io/v1alpha1) in what was given"
        ));
    }
    if let (Some(name), true) = (&arguments.machine, deployments.len() > 1) {
        let count = deployments.len();
        return fail(anyhow::anyhow!(
            "--machine {name} names one machine, and there are {count} MachineDeployments"
        ));
    }
    let options = RenderOptions {
        machine: arguments.machine.clone(),
        namespace: arguments.namespace.clone(),
        user_data_secret: arguments.user_data_secret.clone(),
        user_data: None,
    };
    let mut text = String::new();
    for deployment in &deployments {
        match render(deployment, &around, &options) {
            Err(wrong) => problems.extend(wrong),
            Ok(rendered) => {
                match arguments.output {
                    Output::Yaml => {
                        text.push_str("---\n");
                        text.push_str(&serde_saphyr::to_string(&rendered.machine)?);
                    }
                    Output::Json => {
                        text.push_str(&serde_json::to_string_pretty(&rendered.machine)?);
                        text.push('\n');
                    }
                }
                problems.extend(rendered.notes);
            }
        }
    }
    print(&text)?;
    for problem in &problems {
        complain(&format!("berth-controller: {problem}"));
    }
    let is_wrong = problems.iter().any(|problem| problem.is_fatal);
    Ok(ExitCode::from(if is_wrong { BAD_INPUT } else { 0 }))
}
