//! Command `berth-controller console`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use berth_console::{Settings, Transport};
use berth_runtime::cli::{EXIT_BAD_INPUT, EXIT_UNREACHABLE, Failure, print};
use berth_runtime::client::is_kubeconfig_error;
use berth_runtime::log::{self, LogFormat};
use berth_runtime::serve::ListenAddress;
use clap::ValueHint;

use super::simulator::ClusterSimulator;

/// Arguments of `console`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Serve the web console",
    long_about = "Serves web pages with hosts, tenants, networks and virtual machines, which follow changes while they are \
        open.\n\n\
        With --kubeconfig the console has one user, you: it listens only on the loopback, and prints the link that opens \
        it once, within ten minutes. SIGUSR1 prints a new link. In a pod, or with --sign-in, users sign in with a token or \
        a client certificate of the API server, and see what the API server permits them to list. The ServiceAccount of \
        the pod, or the kubeconfig, is then used only to watch objects. docs/console.md describes the pages and the security of the console.",
    after_help = "Examples:\n  \
        berth-controller console --kubeconfig ~/.kube/config\n  \
        berth-controller console --kubeconfig FILE --sign-in --listen 0.0.0.0:9480 \\\n      \
        --tls-certificate tls.crt --tls-key tls.key\n\n\
        HTTP endpoints without sign-in:  /healthz, and /readyz (200 once all kinds are listed that can be \
        listed)"
)]
pub(super) struct Arguments {
    /// Kubeconfig; by default KUBECONFIG, or the ServiceAccount in a pod, with which users sign in
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    kubeconfig: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9480")]
    listen: ListenAddress,
    /// Users sign in with their own credentials, also with --kubeconfig
    #[arg(long)]
    sign_in: bool,
    /// PEM file with the TLS certificate of the console, and its issuers
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// A proxy in front of the console terminates TLS, and sets X-Forwarded-For
    #[arg(long, conflicts_with = "tls_certificate")]
    tls_proxy: bool,
    /// Format of the log, which is written to standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

impl Arguments {
    fn settings(self) -> Result<Settings, Failure> {
        let transport = match (self.tls_certificate, self.tls_key) {
            (Some(certificate), Some(key)) => Transport::Tls { certificate, key },
            _ if self.tls_proxy => Transport::TlsProxy,
            _ => Transport::Plain,
        };
        let listen: SocketAddr = match self.listen {
            ListenAddress::Tcp(address) => address,
            ListenAddress::Unix(_) => {
                let error = anyhow::anyhow!("--listen must be ADDRESS:PORT");
                return Err(Failure { exit_code: EXIT_BAD_INPUT, error });
            }
        };
        let settings =
            Settings { kubeconfig: self.kubeconfig, sign_in: self.sign_in, listen, transport };
        settings.check()?;
        Ok(settings)
    }
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let log_format = arguments.log_format;
    let settings = arguments.settings()?;
    log::init_logging(log_format);
    let announce = |url: &str| drop(print(&format!("{url}\n")));
    berth_console::run(&settings, Arc::new(ClusterSimulator::default()), announce).map_err(
        |error| {
            let code = if is_kubeconfig_error(&error) { EXIT_BAD_INPUT } else { EXIT_UNREACHABLE };
            Failure { exit_code: code, error }
        },
    )?;
    Ok(ExitCode::SUCCESS)
}
