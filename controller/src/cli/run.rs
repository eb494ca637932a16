//! `berth-controller run`.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use berth_runtime::cli::{BAD_INPUT, Failure, UNREACHABLE};
use berth_runtime::client::is_bad_kubeconfig;
use berth_runtime::log::{self, LogFormat};
use berth_runtime::serve::Listen;
use clap::ValueHint;

use crate::run::{self, Settings, sidecar};

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Keep the cluster as asked: the daemon",
    long_about = "Keeps hosts as their HostProfiles ask, and says in conditions and Events what stands in the way. In a \
        pod it uses the ServiceAccount, elsewhere --kubeconfig or KUBECONFIG.\n\n\
        Of several HostProfiles the one with the highest priority that selects a Node holds: it becomes the spec of the \
        Node's InfraNode, with the networks of the tenants that the host carries. Fields that somebody else writes there \
        are left to them and said. A Node that no profile selects, or several of the same priority, is left as it is.\n\n\
        Several may run: one of them leads, by a Lease. SIGTERM gives the lead to the next one at once.\n\n\
        With --extender-listen each is also the extender of a kube-scheduler that is named berth-scheduler and runs in the \
        same pod: asked over HTTP it names one host for a pod, reserves it, and binds the pod there. The scheduler that \
        holds its own Lease is the one whose extender decides.",
    after_help = "It answers over HTTP:\n  \
        /metrics  numbers for Prometheus (OpenMetrics)\n  /healthz  200 while it goes on\n  \
        /readyz   200 once all that it follows, for the extender too, is listed; else what it waits for\n\n\
        Example: curl -s http://127.0.0.1:9478/readyz"
)]
pub(super) struct Arguments {
    /// How to reach the cluster, where the controller runs in no pod
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease of the one that leads, and of the agents' Leases
    #[arg(long, value_name = "NAME", default_value = "berth-system")]
    lease_namespace: String,
    /// Seconds for which the others wait for one that leads and gives no sign of life
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=3600))]
    lease_duration: u64,
    /// Who this one is, among several; the host's name and a random part if it is not said
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// Where to answer: ADDRESS:PORT or unix:/PATH; may be given several times
    #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:9478")]
    listen: Vec<Listen>,
    /// Where the kube-scheduler of this pod asks, as its extender: ADDRESS:PORT on loopback or unix:/PATH; `none` for no
    /// extender. A process that reaches it can bind pods: ask for it only where nothing but that scheduler
    /// shares the loopback, as in a pod
    #[arg(long, value_name = "WHERE", default_value = "none", value_parser = extender)]
    extender_listen: Extender,
    /// NAMESPACE/NAME of the Lease of that kube-scheduler: the sidecar decides while its own host name is on it. Empty
    /// where only one scheduler runs, without a Lease
    #[arg(long, value_name = "LEASE", default_value = "kube-system/berth-scheduler", value_parser = lease)]
    scheduler_lease: SchedulerLease,
    /// Seconds between looks at objects that nothing happened to
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    resync: u64,
    /// Form of the log, which goes to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Where to answer, if at all.
#[derive(Debug, Clone)]
struct Extender(Option<Listen>);

fn extender(text: &str) -> Result<Extender, String> {
    let listen = (text != "none").then(|| Listen::on_this_host(text)).transpose();
    listen.map(Extender).map_err(|why| format!("{why}; or none"))
}

/// Namespace and name, if there is one.
#[derive(Debug, Clone)]
struct SchedulerLease(Option<(String, String)>);

fn lease(text: &str) -> Result<SchedulerLease, String> {
    match text.split_once('/') {
        _ if text.is_empty() => Ok(SchedulerLease(None)),
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(SchedulerLease(Some((namespace.to_owned(), name.to_owned()))))
        }
        _ => Err("give NAMESPACE/NAME, or nothing where there is only one scheduler".to_owned()),
    }
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    log::begin(arguments.log_format);
    let sidecar = arguments.extender_listen.0.map(|listen| sidecar::Settings {
        listen,
        lease: arguments.scheduler_lease.0,
        host: host(),
    });
    let settings = Settings {
        sidecar,
        kubeconfig: arguments.kubeconfig,
        lease_namespace: arguments.lease_namespace,
        lease_duration: Duration::from_secs(arguments.lease_duration),
        identity: arguments.identity.filter(|name| !name.is_empty()).unwrap_or_else(identity),
        listen: arguments.listen,
        resync: Duration::from_secs(arguments.resync),
    };
    run::run(&settings).map_err(|error| {
        let code = if is_bad_kubeconfig(&error) { BAD_INPUT } else { UNREACHABLE };
        Failure { code, error }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// One that no other process has, nor this one's next life.
fn identity() -> String {
    let random = RandomState::new().hash_one(std::process::id());
    format!("{}_{random:016x}", host())
}

/// The name of this machine, or of the pod.
#[expect(clippy::disallowed_methods, reason = "a file of this machine, not of a captured one")]
fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}
