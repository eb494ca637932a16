//! Command `berth-controller render`.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::cli::{EXIT_BAD_INPUT, Failure, print, print_error};
use clap::{ValueEnum, ValueHint};
use serde::Serialize;

use super::input;
use crate::fleet::RenderInput;
use crate::tenant_nodes::rbac::tenant_rbac;
use berth_kubevirt_render::machines::{RenderOptions, render_machine};

/// Print the VirtualMachine that the controller would create for a MachineDeployment
///
/// Prints one VirtualMachine for each MachineDeployment, regardless of its replicas, which differ only in their names.
/// It needs no cluster, and gives the same result as the controller in a cluster. Options set the names that a cluster
/// would generate; TenantCluster, InfraConfig, Secrets, ConfigMaps, StorageClasses, StorageProfiles and instance types
/// are read from the same files.
///
/// Problems are printed on standard error with the path of the field, and no VirtualMachine is printed for that
/// MachineDeployment.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  berth-controller render -f machinedeployment.yaml
  berth-controller render -f tenant.yaml -f machinedeployment.yaml --machine web-1 | kubectl apply --dry-run=server -f -
  kubectl get machinedeployment web -o yaml | berth-controller render -f -
  berth-controller render --tenant-rbac | kubectl --kubeconfig tenant.kubeconfig apply -f -

Exit codes:
  0  success
  2  a file or an object is invalid")]
pub(super) struct Arguments {
    /// Files, folders or - for standard input
    #[arg(short, long, required_unless_present = "tenant_rbac", value_name = "DIR|FILE|-", value_hint = ValueHint::AnyPath)]
    filename: Vec<PathBuf>,
    /// The machine's name [default: the name of the MachineDeployment, a hash of its template, and xxxxx]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// The namespace [default: the namespace of the tenant, otherwise of the MachineDeployment]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The Secret with the machine's user data [default: userdata- and the machine's name]
    #[arg(long, value_name = "NAME")]
    user_data_secret: Option<String>,
    /// Print the ServiceAccount and the permissions that Berth needs in a tenant's cluster, and nothing else
    #[arg(long, conflicts_with_all = ["filename", "machine", "namespace", "user_data_secret"])]
    tenant_rbac: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Yaml,
    Json,
}

impl Output {
    fn render(self, object: &impl Serialize) -> anyhow::Result<String> {
        Ok(match self {
            Self::Yaml => format!("---\n{}", serde_saphyr::to_string(object)?),
            Self::Json => format!("{}\n", serde_json::to_string_pretty(object)?),
        })
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.tenant_rbac {
        let mut text = String::new();
        for object in tenant_rbac() {
            text.push_str(&arguments.output.render(&object)?);
        }
        return print(&text);
    }
    let (mut problems, mut found) = (Vec::new(), Vec::new());
    for path in &arguments.filename {
        found.extend(input::for_each_input_object(path, &mut problems, |found| found)?);
    }
    let RenderInput { deployments, render_context, mut problems } =
        RenderInput::new(found, problems);
    let fail = |error: anyhow::Error| Err(Failure { exit_code: EXIT_BAD_INPUT, error });
    if deployments.is_empty() && problems.is_empty() {
        return fail(anyhow::anyhow!(
            "the input has no MachineDeployment (cluster.k8s.io/v1alpha1)"
        ));
    }
    if let (Some(name), true) = (&arguments.machine, deployments.len() > 1) {
        let count = deployments.len();
        return fail(anyhow::anyhow!(
            "--machine {name} needs a single MachineDeployment, and the input has {count}"
        ));
    }
    let options = RenderOptions {
        machine_name: arguments.machine.clone(),
        namespace: arguments.namespace.clone(),
        user_data_secret: arguments.user_data_secret.clone(),
        user_data: None,
        interfaces: Vec::new(),
    };
    let mut text = String::new();
    for deployment in &deployments {
        match render_machine(deployment, &render_context, &options) {
            Err(render_problems) => problems.extend(render_problems),
            Ok(rendered) => {
                text.push_str(&arguments.output.render(&rendered.machine)?);
                problems.extend(rendered.warnings);
            }
        }
    }
    print(&text)?;
    for problem in &problems {
        print_error(&format!("berth-controller: {problem}"));
    }
    let has_fatal_problem = problems.iter().any(|problem| problem.is_fatal);
    Ok(ExitCode::from(if has_fatal_problem { EXIT_BAD_INPUT } else { 0 }))
}
