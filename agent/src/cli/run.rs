//! `berth-agent run`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use berth_runtime::log::{self, LogFormat};
use clap::ValueHint;

use super::apply;
use super::manifest::bad;
use crate::cluster;
use crate::daemon::{self, Listen, Settings, Source};
use crate::ledger;
use crate::root::{LockError, Root};
use berth_runtime::cli::{BAD_INPUT, Failure, UNREACHABLE};
use berth_runtime::client::is_bad_kubeconfig;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Keep the host as asked: the daemon",
    long_about = "Keeps the host as its InfraNode asks: the object of this Node's name in the cluster, or a manifest \
        (--standalone). It looks again when that changes, when the kernel tells of CPUs, memory, links or devices that \
        come or go, on SIGHUP, and on a slow timer; repairs what somebody else changed, or only tells of it \
        (spec.enforce: false).\n\n\
        In a cluster it makes the InfraNode if there is none, and says in it, in the Node's labels host.berth.dev/*, \
        conditions and extended resources what the host is. In a pod it uses the ServiceAccount, elsewhere \
        --kubeconfig or KUBECONFIG. While the cluster is away the host keeps its shape and drift is repaired.\n\n\
        While nothing is asked for, or not for this node, the host stays as it is. SIGTERM leaves the \
        host as it is too; `berth-agent revert` puts it back. Only one agent runs on a host.",
    after_help = "It answers over HTTP, on this host alone:\n  \
        /metrics  numbers for Prometheus (OpenMetrics)\n  /healthz  200 while its loop goes on\n  \
        /readyz   200 once the manifest is carried out as far as it can be\n  \
        /report   the host as an InfraNode with its status\n\n\
        Example: curl -s http://127.0.0.1:9477/report"
)]
pub(super) struct Arguments {
    /// Without a cluster: the InfraNode manifest to carry out
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "namespace"], value_hint = ValueHint::FilePath)]
    standalone: Option<PathBuf>,
    /// How to reach the cluster, where the agent runs in no pod
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kubeconfig: Option<PathBuf>,
    /// Name of this node, if it is neither the host's nor the kubelet's; in a cluster it must be said
    #[arg(long, value_name = "NAME", required_unless_present = "standalone")]
    node_name: Option<String>,
    /// Namespace of the agents' Leases
    #[arg(long, value_name = "NAME", default_value = "berth-system")]
    namespace: String,
    /// Write the NodeResourceTopology of this node too, for the scheduler plugin NodeResourceTopologyMatch
    #[arg(long, conflicts_with = "standalone")]
    node_resource_topology: bool,
    /// Only look and tell: every change counts as blocked
    #[arg(long)]
    observe: bool,
    /// Folder below which the host's own /proc, /sys, /etc, /dev, /run and /var are, for an agent in a container
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    host_root: PathBuf,
    /// Folder with a captured proc/, sys/, etc/ and var/ in place of this host: its files are changed, and no link or
    /// device of this host is looked at. For trying out a cluster without hosts
    #[arg(long, value_name = "DIR", conflicts_with = "host_root", value_hint = ValueHint::DirPath)]
    root: Option<PathBuf>,
    /// Where to answer: a loopback ADDRESS:PORT or unix:/PATH; may be given several times
    #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:9477", value_parser = Listen::on_this_host)]
    listen: Vec<Listen>,
    /// Seconds between looks at the host when nothing happens
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,
    /// Form of the log, which goes to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let source = match &arguments.standalone {
        Some(manifest) => Source::File(
            std::path::absolute(manifest)
                .map_err(|error| bad(&format!("{}: {error}", manifest.display())))?,
        ),
        None => Source::Cluster(cluster::Settings {
            kubeconfig: arguments.kubeconfig.clone(),
            node: arguments.node_name.clone().unwrap_or_default(),
            namespace: arguments.namespace.clone(),
            node_resource_topology: arguments.node_resource_topology,
        }),
    };
    let unreachable = |error: anyhow::Error| {
        let code = if is_bad_kubeconfig(&error) { BAD_INPUT } else { UNREACHABLE };
        Failure { code, error }
    };
    if arguments.root.is_none() && !nix::unistd::geteuid().is_root() {
        return Err(unreachable(anyhow::anyhow!(
            "only root can keep a host as asked; `berth-agent report` needs no root"
        )));
    }
    let root = match &arguments.root {
        Some(tree) => Root::open(tree),
        None => Root::live_below(&arguments.host_root),
    };
    let root = root.map_err(|error| unreachable(error.into()))?;
    let _lock = if arguments.observe {
        // It needs no place for found values, but two that tell of one host would quarrel.
        match root.lock(ledger::LOCK) {
            Err(held @ LockError::Held(_)) => return Err(unreachable(held.into())),
            other => other.ok(),
        }
    } else {
        Some(apply::lock(&root)?)
    };
    log::begin(arguments.log_format);
    let settings = Settings {
        source,
        observe: arguments.observe,
        node_name: arguments.node_name.clone(),
        listen: arguments.listen.clone(),
        interval: Duration::from_secs(arguments.interval),
    };
    daemon::run(root, &settings).map_err(unreachable)?;
    Ok(ExitCode::SUCCESS)
}
