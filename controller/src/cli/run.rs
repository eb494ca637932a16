//! `berth-controller run`.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use berth_cli::{Failure, UNREACHABLE};
use berth_kit::log::{self, LogFormat};
use berth_kit::serve::Listen;
use clap::ValueHint;

use crate::run::{self, Settings};

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Keep the cluster as asked: the daemon",
    long_about = "Keeps hosts as their HostProfiles ask, and says in conditions and Events what stands in the way. In a \
        pod it uses the ServiceAccount, elsewhere --kubeconfig or KUBECONFIG.\n\n\
        Of several HostProfiles the one with the highest priority that selects a Node holds: it becomes the spec of the \
        Node's InfraNode, with the networks of the tenants that the host carries. Fields that somebody else writes there \
        are left to them and said. A Node that no profile selects, or several of the same priority, is left as it is.\n\n\
        Several may run: one of them leads, by a Lease. SIGTERM gives the lead to the next one at once.",
    after_help = "It answers over HTTP:\n  \
        /metrics  numbers for Prometheus (OpenMetrics)\n  /healthz  200 while it goes on\n  \
        /readyz   200 once all that it follows is listed; else what it waits for\n\n\
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
    /// Seconds between looks at objects that nothing happened to
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    resync: u64,
    /// Form of the log, which goes to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    log::begin(arguments.log_format);
    let settings = Settings {
        kubeconfig: arguments.kubeconfig,
        lease_namespace: arguments.lease_namespace,
        lease_duration: Duration::from_secs(arguments.lease_duration),
        identity: arguments.identity.filter(|name| !name.is_empty()).unwrap_or_else(identity),
        listen: arguments.listen,
        resync: Duration::from_secs(arguments.resync),
    };
    run::run(&settings).map_err(|error| Failure { code: UNREACHABLE, error })?;
    Ok(ExitCode::SUCCESS)
}

/// One that no other process has, nor this one's next life.
#[expect(clippy::disallowed_methods, reason = "the name of this machine, or of the pod")]
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let random = RandomState::new().hash_one(std::process::id());
    format!("{}_{random:016x}", host.trim())
}
