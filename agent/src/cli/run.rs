//! The command `berth-agent run`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use berth_runtime::log::{self, LogFormat};
use clap::ValueHint;

use super::apply;
use super::manifest::bad_input_failure;
use crate::cluster;
use crate::daemon::{self, ListenAddress, Settings, Source};
use crate::host_write::{HostWrite as _, LockError};
use crate::state_folder;
use berth_host_facts::root::Root;
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_UNREACHABLE, Failure};
use berth_runtime::client::is_kubeconfig_error;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Run the daemon, which reconciles the host with its desired state",
    long_about = "Reconciles the host with its desired state: the InfraNode with the name of this Node, or a manifest \
        (--standalone). A cycle starts when the desired state changes, when CPUs, memory, links or devices are added or \
        removed, on SIGHUP, and on a timer. It corrects drift, or only reports it (spec.enforce: false).\n\n\
        In a cluster the agent creates the InfraNode if it does not exist, and publishes the state of the host in it and \
        in the labels host.berth.dev/*, conditions and extended resources of the Node. In a pod it uses the \
        ServiceAccount, otherwise --kubeconfig or KUBECONFIG. While the API server is unreachable the host keeps its \
        state, and drift is corrected.\n\n\
        Without a desired state for this node the host is not changed. SIGTERM also leaves the host unchanged; \
        `berth-agent revert` restores the original values. Only one agent can run on a host.",
    after_help = "HTTP endpoints, on this host only:\n  \
        /metrics  metrics for Prometheus (OpenMetrics)\n  /healthz  200 while the daemon makes progress\n  \
        /readyz   200 once the desired state is applied as far as possible\n  \
        /report   the host as an InfraNode with its status\n\n\
        Example: curl -s http://127.0.0.1:9477/report"
)]
pub(super) struct Arguments {
    /// InfraNode manifest to apply, without a cluster; a second document may be a HostLeases
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "namespace"], value_hint = ValueHint::FilePath)]
    standalone: Option<PathBuf>,
    /// Kubeconfig, if the agent does not run in a pod
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kubeconfig: Option<PathBuf>,
    /// Name of this node, if it differs from the names of the host and the kubelet; required in a cluster
    #[arg(long, value_name = "NAME", required_unless_present = "standalone")]
    node_name: Option<String>,
    /// Namespace of the agents' Leases
    #[arg(long, value_name = "NAME", default_value = "berth-system")]
    namespace: String,
    /// Also write the NodeResourceTopology of this node, for the scheduler plugin NodeResourceTopologyMatch
    #[arg(long, conflicts_with = "standalone")]
    node_resource_topology: bool,
    /// Only report: every change is blocked
    #[arg(long)]
    observe: bool,
    /// Folder that contains /proc, /sys, /etc, /dev, /run and /var of the host, for an agent in a container
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    host_root: PathBuf,
    /// Folder with a captured proc/, sys/, etc/ and var/ instead of this host: its files are changed, and no link or
    /// device of this host is read. For tests of a cluster without hosts
    #[arg(long, value_name = "DIR", conflicts_with = "host_root", value_hint = ValueHint::DirPath)]
    root: Option<PathBuf>,
    /// Address of the HTTP server: a loopback ADDRESS:PORT or unix:/PATH; may be repeated
    #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:9477", value_parser = ListenAddress::parse_loopback)]
    listen: Vec<ListenAddress>,
    /// Seconds between reconcile cycles while no event starts a cycle
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,
    /// File with the key that all hosts on the same switches share: with it, agents verify that the switches carry
    /// the VLANs of tenants (docs/trunks.md)
    #[arg(long, value_name = "FILE", default_value = "/etc/berth/trunk.key", value_hint = ValueHint::FilePath)]
    trunk_key: PathBuf,
    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let source = match &arguments.standalone {
        Some(manifest) => Source::File(
            std::path::absolute(manifest)
                .map_err(|error| bad_input_failure(&format!("{}: {error}", manifest.display())))?,
        ),
        None => Source::Cluster(cluster::Settings {
            kubeconfig: arguments.kubeconfig.clone(),
            node: arguments.node_name.clone().unwrap_or_default(),
            namespace: arguments.namespace.clone(),
            node_resource_topology: arguments.node_resource_topology,
        }),
    };
    let unreachable = |error: anyhow::Error| {
        let code = if is_kubeconfig_error(&error) { EXIT_BAD_INPUT } else { EXIT_UNREACHABLE };
        Failure { exit_code: code, error }
    };
    if arguments.root.is_none() && !nix::unistd::geteuid().is_root() {
        return Err(unreachable(anyhow::anyhow!(
            "only root can change a host; `berth-agent report` needs no root"
        )));
    }
    let root = match &arguments.root {
        Some(tree) => Root::open(tree),
        None => Root::open_live_mounted_at(&arguments.host_root),
    };
    let root = root.map_err(|error| unreachable(error.into()))?;
    let _lock = if arguments.observe {
        // With `--observe` the agent saves no original values, so that it runs even if the lock cannot be created. But
        // if another agent holds the lock, this agent does not start: each would overwrite the status of the other.
        match root.lock(state_folder::LOCK_FILE) {
            Err(held @ LockError::HeldByProcess(_)) => return Err(unreachable(held.into())),
            other => other.ok(),
        }
    } else {
        Some(apply::acquire_lock(&root)?)
    };
    log::init_logging(arguments.log_format);
    let settings = Settings {
        source,
        observe: arguments.observe,
        node_name: arguments.node_name.clone(),
        listen: arguments.listen.clone(),
        interval: Duration::from_secs(arguments.interval),
        trunk_key: arguments.trunk_key.clone(),
    };
    daemon::run(root, &settings).map_err(unreachable)?;
    Ok(ExitCode::SUCCESS)
}
