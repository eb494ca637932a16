//! `berth-agent run`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ValueEnum, ValueHint};

use super::manifest::bad;
use super::{Failure, UNREACHABLE, apply};
use crate::daemon::{self, Listen, Settings};
use crate::root::Root;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Keep the host as asked: the daemon",
    long_about = "Keeps the host as an InfraNode manifest asks. It looks again when the manifest changes, when the \
        kernel tells of CPUs, memory or devices that come or go, on SIGHUP, and on a slow timer; repairs what \
        somebody else changed, or only tells of it (spec.enforce: false).\n\n\
        While the manifest is not there, or is not for this node, the host stays as it is. SIGTERM leaves the \
        host as it is too; `berth-agent revert` puts it back. Only one agent runs on a host.",
    after_help = "It answers over HTTP, on this host alone:\n  \
        /metrics  numbers for Prometheus (OpenMetrics)\n  /healthz  200 while its loop goes on\n  \
        /readyz   200 once the manifest is carried out as far as it can be\n  \
        /report   the host as an InfraNode with its status\n\n\
        Example: curl -s http://127.0.0.1:9477/report"
)]
pub(super) struct Arguments {
    /// Without a cluster: the InfraNode manifest to carry out
    #[arg(long, value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    standalone: PathBuf,
    /// Name of this node, if it is neither the host's nor the kubelet's
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Where to answer: a loopback ADDRESS:PORT or unix:/PATH; may be given several times
    #[arg(long, value_name = "WHERE", default_value = "127.0.0.1:9477")]
    listen: Vec<Listen>,
    /// Seconds between looks at the host when nothing happens
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,
    /// Form of the log, which goes to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    /// A line for people; without a time under systemd, whose journal has it
    Text,
    /// JSON
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let manifest = std::path::absolute(&arguments.standalone)
        .map_err(|error| bad(&format!("{}: {error}", arguments.standalone.display())))?;
    let unreachable = |error: anyhow::Error| Failure { code: UNREACHABLE, error };
    if !nix::unistd::geteuid().is_root() {
        return Err(unreachable(anyhow::anyhow!(
            "only root can keep a host as asked; `berth-agent report` needs no root"
        )));
    }
    let root = Root::live().map_err(|error| unreachable(error.into()))?;
    let _lock = apply::lock(&root)?;
    let log =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    match arguments.log_format {
        LogFormat::Json => log.json().init(),
        LogFormat::Text if std::env::var_os("JOURNAL_STREAM").is_some() => {
            log.without_time().init()
        }
        LogFormat::Text => log.init(),
    }
    let settings = Settings {
        manifest,
        node_name: arguments.node_name.clone(),
        listen: arguments.listen.clone(),
        interval: Duration::from_secs(arguments.interval),
    };
    daemon::run(root, &settings).map_err(unreachable)?;
    Ok(ExitCode::SUCCESS)
}
