//! Changes of the kubelet's checkpoints, and control groups of pods that come and go: what it hands out and takes
//! back. A pod's group outlives its entries by some seconds, and pages have no entry but the group. And the kubelet's own
//! group: what waits until it is stopped is done then, and not a timer's interval later.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventMask, Inotify, WatchMask, Watches};
use tokio::sync::mpsc::Sender;

use super::watch::Event;
use crate::observe::handed_out::{self, LOGS};
use crate::observe::kubelet::process;
use crate::observe::pods::{FOLDERS, pod_uid};

/// Its usual folder. One elsewhere (`--root-dir`) is looked at by the timer.
const FOLDER: &str = "var/lib/kubelet";
/// Checkpoints of the CPU, memory and device managers.
const CHECKPOINTS: [&str; 3] =
    ["cpu_manager_state", "memory_manager_state", "kubelet_internal_checkpoint"];
/// Where the kubelet makes its first group.
const TOPS: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/hugetlb"];
/// Where systemd has the groups of services.
const SERVICES: [&str; 2] = ["sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice"];
/// A kubelet that is not installed yet is looked for so often.
const AGAIN: Duration = Duration::from_secs(60);

/// Watches for ever. `root` is where the host's files are.
pub(super) async fn watch(root: PathBuf, events: Sender<Event>) {
    loop {
        let folder = root.join(FOLDER);
        match follow(&root, &folder, &events).await {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!("{}: not watched: {error}", folder.display());
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Until the folder goes away, or nobody listens any longer.
async fn follow(root: &Path, folder: &Path, events: &Sender<Event>) -> std::io::Result<()> {
    let inotify = Inotify::init()?;
    // The kubelet writes beside the file and renames, or writes into it, by version.
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::DELETE;
    let own = inotify.watches().add(folder, mask | WatchMask::ONLYDIR | WatchMask::DELETE_SELF)?;
    let mut lasting = vec![own];
    let devices = folder.join("device-plugins");
    if devices.is_dir() {
        lasting.push(inotify.watches().add(&devices, mask | WatchMask::ONLYDIR)?);
    }
    let mut watches = inotify.watches();
    watch_groups(root, &mut watches);
    let mut stream = inotify.into_event_stream([0; 4096])?;
    while let Some(event) = stream.next().await {
        let event = event?;
        if event.mask.contains(EventMask::IGNORED) && !lasting.contains(&event.wd) {
            // A class's group is gone; it is watched anew when it comes back.
            continue;
        }
        let Some(name) = event.name else {
            // The folder itself, or more events than the kernel keeps: begin anew, with a look at all.
            events.send(Event::Pods).await.unwrap_or_default();
            return Err(std::io::ErrorKind::NotFound.into());
        };
        let name = name.to_string_lossy();
        let is_class =
            name.starts_with("kubepods") || ["burstable", "besteffort"].contains(&&*name);
        if event.mask.contains(EventMask::CREATE | EventMask::ISDIR) && is_class {
            watch_groups(root, &mut watches);
        }
        let is_service = name.ends_with(".service") && name.contains(process::NAME);
        let ours = CHECKPOINTS.iter().any(|checkpoint| name == *checkpoint)
            || (event.mask.contains(EventMask::ISDIR)
                && (is_service || pod_uid(&name).is_some() || handed_out::pod(&name).is_some()));
        if ours && events.send(Event::Pods).await.is_err() {
            return Ok(());
        }
    }
    Err(std::io::ErrorKind::UnexpectedEof.into())
}

/// Watches the groups that are there, or for the first of them; those of services; and the folders of logs, which tell pods' names.
fn watch_groups(root: &Path, watches: &mut Watches) {
    let mask = WatchMask::CREATE | WatchMask::DELETE | WatchMask::ONLYDIR;
    for folder in TOPS.iter().chain(&FOLDERS).chain(&SERVICES).chain([&LOGS]) {
        let folder = root.join(folder);
        // Of a dozen only some are there, by the kernel's and the kubelet's way.
        if folder.is_dir()
            && let Err(error) = watches.add(&folder, mask)
        {
            tracing::debug!("{}: not watched: {error}", folder.display());
        }
    }
}
