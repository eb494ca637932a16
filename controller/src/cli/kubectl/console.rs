//! Command `console`.

use std::process::ExitCode;

use berth_runtime::cli::{Failure, print_error};
use berth_runtime::vm_stream::{StreamError, Subresource};
use tokio::signal::unix::{SignalKind, signal};

use super::arguments::ScopeArguments;
use super::exchange::attach_terminal;
use super::read::Session;
use super::terminal::RawMode;

/// Ctrl-], which ends the console.
const ESCAPE: u8 = 0x1d;

/// Open the serial console of a machine; Ctrl-] ends it
///
/// The console is a WebSocket through the API server to KubeVirt. It needs the permission for the subresource
/// `virtualmachineinstances/console` of `subresources.kubevirt.io`. KubeVirt ends the console of another user.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth console web-1 -n cluster-bank\n  \
    kubectl berth console cluster-bank/web-1")]
pub(super) struct Arguments {
    /// Machine: NAME or NAMESPACE/NAME
    #[arg(value_name = "[NAMESPACE/]NAME")]
    name: String,
    #[command(flatten)]
    scope: ScopeArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (session, machine) =
            Session::open_with_machine(&arguments.scope, &arguments.name).await?;
        let stream = session.open_stream(&machine, Subresource::Console).await;
        let stream = stream.map_err(StreamError::into_failure)?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut quit = signal(SignalKind::quit())?;
        print_error(&format!("connected to the console of {machine}; Ctrl-] ends it"));
        let raw_mode = RawMode::enable()?;
        let ended = tokio::select! {
            ended = attach_terminal(stream, Some(ESCAPE)) => ended,
            _ = terminate.recv() => Ok(()),
            _ = hang_up.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            _ = quit.recv() => Ok(()),
        };
        drop(raw_mode);
        print_error("");
        ended.map_err(StreamError::into_failure)?;
        Ok(ExitCode::SUCCESS)
    })
}
