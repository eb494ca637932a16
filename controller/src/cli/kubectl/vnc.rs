//! Command `vnc`.

#![expect(
    clippy::disallowed_methods,
    reason = "the user starts a viewer; the command does not observe a host"
)]

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use berth_runtime::cli::{EXIT_BAD_INPUT, Failure, print, print_error};
use berth_runtime::vm_stream::{StreamError, Subresource};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::arguments::ScopeArguments;
use super::exchange::attach_connection;
use super::read::Session;

/// Viewers that are searched in PATH, in this order.
const VIEWERS: [&str; 3] = ["remote-viewer", "vncviewer", "gvncviewer"];

/// Open the graphical console of a machine
///
/// The command listens on the loopback, starts a viewer (remote-viewer, vncviewer or gvncviewer in PATH), and connects it with
/// the VNC server of the VM, through the API server and KubeVirt. It needs the permission for the subresource
/// `virtualmachineinstances/vnc` of `subresources.kubevirt.io`. While the command waits for the viewer, every user of this
/// computer can connect.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    kubectl berth vnc web-1 -n cluster-bank\n  \
    kubectl berth vnc cluster-bank/web-1 --proxy-only    print the address, for a viewer of your own\n  \
    kubectl berth vnc cluster-bank/web-1 --viewer /opt/vnc/bin/vncviewer")]
pub(in crate::cli) struct Arguments {
    /// Machine: NAME or NAMESPACE/NAME
    #[arg(value_name = "[NAMESPACE/]NAME")]
    name: String,
    /// Print the address on which the command listens, and start no viewer
    #[arg(long, conflicts_with = "viewer")]
    proxy_only: bool,
    /// Program to start, with the address as argument
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::ExecutablePath)]
    viewer: Option<PathBuf>,
    /// Port on the loopback; by default a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    scope: ScopeArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let viewer = match (&arguments.viewer, arguments.proxy_only) {
        (_, true) => None,
        (Some(viewer), false) => Some(viewer.clone()),
        (None, false) => Some(find_viewer(std::env::var_os("PATH")).ok_or_else(|| {
            let error = anyhow::anyhow!(
                "no viewer is in PATH ({}): install one, or specify --viewer FILE or --proxy-only",
                VIEWERS.join(", ")
            );
            Failure { exit_code: EXIT_BAD_INPUT, error }
        })?),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (session, machine) = Session::open_with_machine(&arguments.scope, &arguments.name).await?;
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), arguments.port);
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let connection = match &viewer {
            Some(viewer) => {
                let exited = exit_of(start_viewer(viewer, address)?);
                tokio::select! {
                    accepted = listener.accept() => accepted?.0,
                    _ = exited => {
                        let error = anyhow::anyhow!("the viewer ended before it connected to {address}");
                        return Err(Failure { exit_code: EXIT_BAD_INPUT, error });
                    }
                }
            }
            None => {
                print(&format!("{address}\n"))?;
                listener.accept().await?.0
            }
        };
        // Only one viewer can connect.
        drop(listener);
        // KubeVirt disconnects another user of the display, so the display is opened when the viewer is there.
        let stream = session.open_stream(&machine, Subresource::Vnc).await;
        let stream = stream.map_err(StreamError::into_failure)?;
        print_error(&format!("connected to the display of {machine}"));
        attach_connection(stream, connection).await.map_err(StreamError::into_failure)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns a channel on which the end of the viewer is sent.
fn exit_of(mut viewer: Child) -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    // The thread ends with the viewer, or with this process.
    std::thread::spawn(move || {
        drop(viewer.wait());
        sender.send(()).unwrap_or_default();
    });
    receiver
}

fn find_viewer(path: Option<OsString>) -> Option<PathBuf> {
    let path = path?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let in_folders =
        |name: &&str| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
    VIEWERS.iter().find_map(in_folders)
}

fn start_viewer(viewer: &Path, address: SocketAddr) -> Result<Child, Failure> {
    let name = viewer.file_name().unwrap_or_default().to_string_lossy();
    let target = match &*name {
        "remote-viewer" => format!("vnc://{address}"),
        // Two colons are followed by a port; one colon by the number of a display.
        _ => format!("{}::{}", address.ip(), address.port()),
    };
    let started = Command::new(viewer).arg(target).spawn();
    started.map_err(|error| {
        let error = anyhow::Error::from(error).context(viewer.display().to_string());
        Failure { exit_code: EXIT_BAD_INPUT, error }
    })
}
