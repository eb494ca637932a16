//! Command `berth-controller run`.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use berth_api::names::{NAMESPACE, SCHEDULER_LEASE};
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_UNREACHABLE, Failure};
use berth_runtime::client::is_kubeconfig_error;
use berth_runtime::log::{self, LogFormat};
use berth_runtime::serve::ListenAddress;
use clap::ValueHint;

use crate::run::{self, Settings};

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Run the daemon, which reconciles hosts, tenants and machines",
    long_about = "Reconciles the InfraNodes of hosts with their HostProfiles, and reports problems in conditions and \
        Events. In a pod it uses the ServiceAccount, otherwise --kubeconfig or KUBECONFIG.\n\n\
        Of several HostProfiles that select a Node, the profile with the highest priority applies: it becomes the spec of \
        the Node's InfraNode, together with the networks of the tenants that the host carries. Fields that another client \
        owns there are not overwritten, and a condition names them. A Node that no profile \
        selects, or that several profiles \
        of the same priority select, is left unchanged.\n\n\
        Several replicas may run: one of them is elected leader by a Lease. On SIGTERM the leader releases the Lease, so \
        that another replica takes over at once.\n\n\
        With --extender-listen each replica is also the extender of a kube-scheduler named berth-scheduler in the same \
        pod: it answers the scheduler's HTTP requests, selects a host for a pod, reserves resources there, and binds the \
        pod. Only the extender of the scheduler that holds the scheduler's own Lease makes decisions.",
    after_help = "HTTP endpoints:\n  \
        /metrics  metrics for Prometheus (OpenMetrics)\n  /healthz  200 while the daemon makes progress\n  \
        /readyz   200 once all watched kinds, including those of the extender, are listed; \
        otherwise the missing kinds\n\n\
        Example: curl -s http://127.0.0.1:9478/readyz"
)]
pub(super) struct Arguments {
    /// Kubeconfig, if the controller does not run in a pod
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease for leader election, and of the agents' Leases
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    lease_namespace: String,
    /// Seconds after which another replica takes over the Lease of an unresponsive leader
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=3600))]
    lease_duration: u64,
    /// Identity in the Lease; the host name and a random suffix by default
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// Address to listen on: ADDRESS:PORT or unix:/PATH; may be given several times
    #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:9478")]
    listen: Vec<ListenAddress>,
    /// Address of the extender for the kube-scheduler of this pod: ADDRESS:PORT on loopback or unix:/PATH; `none`
    /// disables the extender. A process that can connect to it can bind pods: use it only where no program except
    /// that scheduler shares the loopback, as in a pod
    #[arg(long, value_name = "WHERE", default_value = "none")]
    extender_listen: ExtenderAddress,
    /// NAMESPACE/NAME of the Lease of that kube-scheduler: the extender makes decisions only while the scheduler in its
    /// own pod holds the Lease, that is, while the holder's identity begins with the host name of this pod. Empty if
    /// only one scheduler runs, without a Lease
    #[arg(long, value_name = "LEASE", default_value = SCHEDULER_LEASE)]
    scheduler_lease: SchedulerLease,
    /// Seconds between reconciles of unchanged objects
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    resync: u64,
    /// Format of the log, which is written to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Address on which the extender listens; `None` if the extender is disabled.
#[derive(Debug, Clone)]
struct ExtenderAddress(Option<ListenAddress>);

impl FromStr for ExtenderAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let listen = (text != "none").then(|| ListenAddress::parse_loopback(text)).transpose();
        listen.map(Self).map_err(|error| format!("{error}; `none` disables the extender"))
    }
}

/// Namespace and name of a Lease; `None` without a Lease.
#[derive(Debug, Clone)]
struct SchedulerLease(Option<(String, String)>);

impl FromStr for SchedulerLease {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            _ if text.is_empty() => Ok(Self(None)),
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self(Some((namespace.to_owned(), name.to_owned()))))
            }
            _ => {
                Err("specify NAMESPACE/NAME, or nothing if there is only one scheduler".to_owned())
            }
        }
    }
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    log::init_logging(arguments.log_format);
    let extender = arguments.extender_listen.0.map(|listen| run::extender::Settings {
        listen,
        lease: arguments.scheduler_lease.0,
        hostname: read_hostname(),
    });
    let settings = Settings {
        extender,
        kubeconfig: arguments.kubeconfig,
        lease_namespace: arguments.lease_namespace,
        lease_duration: Duration::from_secs(arguments.lease_duration),
        identity: arguments
            .identity
            .filter(|name| !name.is_empty())
            .unwrap_or_else(default_identity),
        listen: arguments.listen,
        resync: Duration::from_secs(arguments.resync),
    };
    run::run(&settings).map_err(|error| {
        let code = if is_kubeconfig_error(&error) { EXIT_BAD_INPUT } else { EXIT_UNREACHABLE };
        Failure { exit_code: code, error }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Returns an identity for the leader lease that is unique among processes and restarts.
fn default_identity() -> String {
    let random = RandomState::new().hash_one(std::process::id());
    format!("{}_{random:016x}", read_hostname())
}

/// Returns the host name of this machine or pod.
#[expect(
    clippy::disallowed_methods,
    reason = "reads a file of this machine, not of a captured tree"
)]
fn read_hostname() -> String {
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    hostname.trim().to_owned()
}
