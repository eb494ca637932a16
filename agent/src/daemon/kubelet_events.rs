//! Changes of the kubelet's checkpoints: what it hands out and takes back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use tokio::sync::mpsc::Sender;

use super::watch::Event;

/// Its usual folder. One elsewhere (`--root-dir`) is looked at by the timer.
const FOLDER: &str = "var/lib/kubelet";
/// Checkpoints of the CPU, memory and device managers.
const CHECKPOINTS: [&str; 3] =
    ["cpu_manager_state", "memory_manager_state", "kubelet_internal_checkpoint"];
/// A kubelet that is not installed yet is looked for so often.
const AGAIN: Duration = Duration::from_secs(60);

/// Watches for ever. `root` is where the host's files are.
pub(super) async fn watch(root: PathBuf, events: Sender<Event>) {
    loop {
        let folder = root.join(FOLDER);
        match follow(&folder, &events).await {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!("{}: not watched: {error}", folder.display());
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Until the folder goes away, or nobody listens any longer.
async fn follow(folder: &Path, events: &Sender<Event>) -> std::io::Result<()> {
    let inotify = Inotify::init()?;
    // The kubelet writes beside the file and renames, or writes into it, by version.
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::DELETE;
    inotify.watches().add(folder, mask | WatchMask::ONLYDIR | WatchMask::DELETE_SELF)?;
    let devices = folder.join("device-plugins");
    if devices.is_dir() {
        inotify.watches().add(&devices, mask | WatchMask::ONLYDIR)?;
    }
    let mut stream = inotify.into_event_stream([0; 4096])?;
    while let Some(event) = stream.next().await {
        let event = event?;
        let Some(name) = event.name else {
            // The folder itself: begin anew.
            return Err(std::io::ErrorKind::NotFound.into());
        };
        let ours = CHECKPOINTS.iter().any(|checkpoint| name == *checkpoint);
        if ours && events.send(Event::Pods).await.is_err() {
            return Ok(());
        }
    }
    Err(std::io::ErrorKind::UnexpectedEof.into())
}
