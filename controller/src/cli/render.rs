//! Command `berth-controller render`.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_runtime::cli::{EXIT_BAD_INPUT, Failure, print, print_error};
use clap::{ValueEnum, ValueHint};
use serde::Serialize;
use serde_json::Value;

use super::input;
use super::migrate::format_migration;
use crate::fleet::RenderInput;
use crate::selector_migration::{Migration, MigrationInput};
use crate::tenant_nodes::rbac::{storage_class_rbac, tenant_rbac};
use berth_kubevirt_render::images::desired_objects;
use berth_kubevirt_render::machines::{
    RenderContext, RenderOptions, RenderedMachine, preloaded_images, render_machine,
};

/// Print the VirtualMachine that the controller would create for a MachineDeployment
///
/// Prints one VirtualMachine for each MachineDeployment, regardless of its replicas, which differ only in their names.
/// The command needs no cluster, and prints what the controller creates in a cluster. Options set the names that a
/// cluster would generate; TenantCluster, InfraConfig, Secrets, ConfigMaps, StorageClasses, StorageProfiles, CSIDrivers,
/// VolumeSnapshotClasses, DataVolumes and instance types are read from the same files.
///
/// For disks that are clones of golden images, standard error shows how CDI clones them, if the StorageClass is in the
/// input.
///
/// Problems are printed on standard error with the path of the field, and no VirtualMachine is printed for that
/// MachineDeployment.
///
/// With --migrate, the command prints the patches for load balancer Services that select machines by a label
/// cloud.kubevirt.io/<id> of earlier releases, and for machines that lack the current label. The command is a dry
/// run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  berth-controller render -f machinedeployment.yaml
  berth-controller render -f tenant.yaml -f machinedeployment.yaml --machine web-1 | kubectl apply --dry-run=server -f -
  kubectl get machinedeployment web -o yaml | berth-controller render -f -
  berth-controller render --golden-images -f DIR
  kubectl get tcluster,machinedeployment,svc,vm -A -o yaml | berth-controller render --migrate -f -
  berth-controller render --tenant-rbac | kubectl --kubeconfig tenant.kubeconfig apply -f -

Exit codes:
  0  success
  2  a file or an object is invalid")]
pub(super) struct Arguments {
    /// Files, folders or - for standard input
    #[arg(short, long, required_unless_present = "tenant_rbac", value_name = "DIR|FILE|-", value_hint = ValueHint::AnyPath)]
    filename: Vec<PathBuf>,
    /// The machine's name [default: DEPLOYMENT-HASH-xxxxx; HASH is the hash of the template]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// The namespace [default: the namespace of the tenant, otherwise of the MachineDeployment]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The Secret with the machine's user data [default: userdata- and the machine's name]
    #[arg(long, value_name = "NAME")]
    user_data_secret: Option<String>,
    /// Print patches that migrate the selectors of load balancer Services and the labels of machines from earlier
    /// releases, as commands or, with -o, as merge patches
    #[arg(long, conflicts_with_all = ["machine", "namespace", "user_data_secret"])]
    migrate: bool,
    /// Print the ServiceAccount and the permissions that Berth needs in a tenant's cluster, and nothing else
    #[arg(long, conflicts_with_all = ["filename", "machine", "migrate", "namespace", "user_data_secret"])]
    tenant_rbac: bool,
    /// With --tenant-rbac, also print the permissions to create StorageClasses in the tenant's cluster
    #[arg(long, requires = "tenant_rbac")]
    storage_classes: bool,
    /// Print the objects that import golden images, and the permissions to clone them, instead of VirtualMachines
    #[arg(long, conflicts_with_all = ["machine", "migrate", "tenant_rbac", "user_data_secret"])]
    golden_images: bool,
    /// Output format [default: yaml]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Yaml,
    Json,
}

impl Output {
    fn append(self, text: &mut String, object: &impl Serialize) -> Result<(), Failure> {
        match self {
            Self::Yaml => {
                text.push_str("---\n");
                text.push_str(&serde_saphyr::to_string(object)?);
            }
            Self::Json => {
                text.push_str(&serde_json::to_string_pretty(object)?);
                text.push('\n');
            }
        }
        Ok(())
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let output = arguments.output.unwrap_or(Output::Yaml);
    if arguments.tenant_rbac {
        let mut text = String::new();
        let mut objects = tenant_rbac();
        if arguments.storage_classes {
            objects.extend(storage_class_rbac());
        }
        for object in objects {
            output.append(&mut text, &object)?;
        }
        return print(&text);
    }
    let (mut problems, mut found) = (Vec::new(), Vec::new());
    for path in &arguments.filename {
        found.extend(input::for_each_input_object(path, &mut problems, |found| found)?);
    }
    let RenderInput { deployments, render_context, services, machines, mut problems } =
        RenderInput::new(found, problems);
    let fail = |error: anyhow::Error| Err(Failure { exit_code: EXIT_BAD_INPUT, error });
    if arguments.migrate && services.is_empty() && problems.is_empty() {
        return fail(anyhow::anyhow!("the input has no Service (v1)"));
    }
    let needs_deployments = !arguments.migrate && !arguments.golden_images;
    if needs_deployments && deployments.is_empty() && problems.is_empty() {
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
    let mut rendered: Vec<RenderedMachine> = Vec::new();
    for deployment in &deployments {
        match render_machine(deployment, &render_context, &options) {
            Err(render_problems) => problems.extend(render_problems),
            Ok(machine) => {
                // Warnings about other fields of the template do not concern the migration.
                if !arguments.migrate {
                    problems.extend(machine.warnings.clone());
                }
                rendered.push(machine);
            }
        }
    }
    let mut text = String::new();
    if arguments.migrate {
        let (services, machines, tenants) = (&services, &machines, &render_context.tenants);
        let migration =
            Migration::plan(MigrationInput { tenants, services, machines, rendered: &rendered });
        if arguments.output.is_none() {
            text = format_migration(&migration);
        } else {
            for patch in migration.patches() {
                output.append(&mut text, &patch)?;
            }
        }
        problems.extend(migration.problems);
    } else if arguments.golden_images {
        for object in golden_image_objects(&render_context, &rendered) {
            output.append(&mut text, &object)?;
        }
    } else {
        for machine in &rendered {
            output.append(&mut text, &machine.machine)?;
        }
    }
    print(&text)?;
    if !arguments.migrate {
        for clone in rendered.iter().flat_map(|machine| &machine.clones) {
            print_error(&format!("berth-controller: {clone}"));
        }
    }
    for problem in &problems {
        print_error(&format!("berth-controller: {problem}"));
    }
    let has_fatal_problem = problems.iter().any(|problem| problem.is_fatal);
    Ok(ExitCode::from(if has_fatal_problem { EXIT_BAD_INPUT } else { 0 }))
}

/// Returns the objects that the golden images of machines and of the catalog need.
fn golden_image_objects(context: &RenderContext, rendered: &[RenderedMachine]) -> Vec<Value> {
    let preloaded = preloaded_images(context);
    let of_machines = rendered.iter().flat_map(|machine| {
        machine.golden_images.iter().map(move |one| (machine.namespace.as_str(), one))
    });
    let of_catalog = preloaded.iter().map(|one| (one.image.namespace.as_str(), one));
    let images = context.config.images.clone().unwrap_or_default();
    desired_objects(of_machines.chain(of_catalog), &images)
}
