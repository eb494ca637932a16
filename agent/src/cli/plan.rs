//! The command `berth-agent plan`.

use std::process::ExitCode;

use clap::ValueEnum;

use super::manifest::{ManifestArguments, leased_networks, print_faults};
use super::options::{RootArguments, observe_with_warnings};
use crate::observe;
use crate::plan;
use berth_host_facts::ObserveOptions;
use berth_runtime::cli::style::Style;
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_PROBLEMS, Failure, print};

/// A manifest with every field of the spec.
pub(super) const SAMPLE: &str = "  \
  apiVersion: berth.dev/v1alpha1
  kind: InfraNode
  metadata: {name: rack1-a}
  spec:
    enforce: true                         # false: report drift, do not correct it
    cpu:
      reserved: {coresPerZone: 1}         # or {cpus: \"0-1,48-49\"}: whole cores
      housekeeping: true                  # move services and IRQs to these CPUs
      kubelet: Advise                     # Advise | Stage | Ignore
    hugepages:
    - {size: 2Mi, zone: 0, count: 1024}   # without zone: spread over zones
    ksm: {mode: Auto}                     # Observe | Off | On | Auto
    transparentHugepages: Madvise         # Always | Madvise | Never
    devices:
      vfio:                               # PCI functions for VMs
      - {pciAddress: \"0000:81:00.0\"}
      - {id: \"144d:a80a\", count: 2}       # vendor and device
    networks:                             # host networks of tenants
    - name: tenant-trunk
      scenario: VlanAwareBridge           # BridgePerTenant | Vxlan | SriovVf
      uplink: {name: bond0}               # or mac, or pciAddress
      bridge: br-tenant
      mtu: 9000                           # default: the MTU of the uplink
    tenantNetworks:
    - {name: cluster-abc, network: tenant-trunk, vlan: 120}
";

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Show the changes that would be applied (dry run)",
    long_about = "Shows the changes that would apply the desired state of an InfraNode manifest: for each \
        change the current and the desired value, its cost, and the reason if it is blocked. This is a dry run, and needs no root.\n\n\
        ~  a change    <  an original value that is restored    x  blocked\n\n\
        A field that is absent is not managed; when a field is removed, its original value is restored.",
    after_help = format!("A manifest:\n{SAMPLE}\nExit code 0 if all changes are possible or none is necessary, \
        1 if a change is blocked, 2 if the manifest has a fault.")
)]
pub(super) struct Arguments {
    #[command(flatten)]
    manifest: ManifestArguments,
    #[command(flatten)]
    root: RootArguments,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Output {
    /// Text for a terminal of 80 columns
    Table,
    /// JSON
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let manifest = arguments.manifest.read()?;
    let root = arguments.root.open()?;
    let facts = observe_with_warnings(&root, &ObserveOptions::for_spec(&manifest.spec));
    let settings = observe::settings(&root, &facts);
    let node = arguments.manifest.node_name.as_deref().or_else(|| facts.node_name());
    let leases = leased_networks(&manifest);
    let input = plan::Input {
        spec: &manifest.spec,
        unparsed: &manifest.unparsed,
        facts: &facts,
        settings: &settings,
        leases: leases.as_ref(),
    };
    let mut plan = plan::plan(input);
    plan.node = node.unwrap_or_default().to_owned();
    let all = manifest.faults.iter().cloned().chain(manifest.node_mismatch(node));
    plan.faults = all.chain(plan.faults).collect();
    print_faults(&plan.faults);
    print(&match arguments.output {
        Output::Table => plan::table::render_plan(&plan, Style::for_stdout()),
        Output::Json => serde_json::to_string_pretty(&plan)? + "\n",
    })?;
    Ok(ExitCode::from(match (plan.faults.is_empty(), plan.blocked_changes()) {
        (false, _) => EXIT_BAD_INPUT,
        (true, 0) => 0,
        (true, _) => EXIT_PROBLEMS,
    }))
}
