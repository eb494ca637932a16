//! Watches the kubelet's checkpoints and the control groups of pods, which change when resources are allocated or
//! released. The checkpoints alone are not enough: the control group of a pod exists some seconds longer than its
//! checkpoint entries, and huge pages of pods appear only in the control groups. This module also watches the control
//! group of the kubelet, so that changes that wait for a stopped kubelet are applied at once and not at the next timer
//! cycle.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventMask, Inotify, WatchMask, Watches};
use tokio::sync::mpsc::Sender;

use super::trigger::Trigger;
use berth_host_facts::pod_names::{
    POD_CGROUP_FOLDERS, POD_LOGS_FOLDER, parse_log_folder_name, pod_uid_of_cgroup,
};
use berth_host_facts::processes::KUBELET_PROCESS_NAME;

/// Default folder of the kubelet. Another folder (`--root-dir`) is not watched, and is read in
/// timer cycles only.
const KUBELET_FOLDER: &str = "var/lib/kubelet";
/// Names of the checkpoint files of the CPU, memory and device managers.
const CHECKPOINT_FILES: [&str; 3] =
    ["cpu_manager_state", "memory_manager_state", "kubelet_internal_checkpoint"];
/// Parents of the control group that contains all pods.
const KUBEPODS_PARENTS: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/hugetlb"];
/// Parents of the control groups of systemd services.
const SERVICE_PARENTS: [&str; 2] =
    ["sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice"];
/// Retry interval while no kubelet is installed.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Watches until the receiver of the triggers is dropped. `root` is the folder of the host's files.
pub(super) async fn watch(root: PathBuf, events: Sender<Trigger>) {
    loop {
        let folder = root.join(KUBELET_FOLDER);
        match watch_folder(&root, &folder, &events).await {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!(folder = %folder.display(), %error, "failed to watch the kubelet's folder");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// Watches until the receiver of the triggers is dropped. Returns an error if the folder does not exist or is removed.
async fn watch_folder(root: &Path, folder: &Path, events: &Sender<Trigger>) -> std::io::Result<()> {
    let inotify = Inotify::init()?;
    // Depending on its version, the kubelet writes the file in place, or writes a temporary file
    // and renames it.
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::DELETE;
    let folder_watch =
        inotify.watches().add(folder, mask | WatchMask::ONLYDIR | WatchMask::DELETE_SELF)?;
    let mut permanent_watches = vec![folder_watch];
    let device_plugins = folder.join("device-plugins");
    if device_plugins.is_dir() {
        permanent_watches.push(inotify.watches().add(&device_plugins, mask | WatchMask::ONLYDIR)?);
    }
    let mut watches = inotify.watches();
    watch_cgroups(root, &mut watches);
    let mut stream = inotify.into_event_stream([0; 4096])?;
    while let Some(event) = stream.next().await {
        let event = event?;
        if event.mask.contains(EventMask::IGNORED) && !permanent_watches.contains(&event.wd) {
            // The control group of a QoS class was removed; it is watched again when it is created.
            continue;
        }
        let Some(name) = event.name else {
            // The folder itself was removed, or the queue of the kernel overflowed: the watch starts again, with a
            // full cycle.
            events.send(Trigger::Pods).await.unwrap_or_default();
            return Err(std::io::ErrorKind::NotFound.into());
        };
        let name = name.to_string_lossy();
        let is_kubepods_group =
            name.starts_with("kubepods") || ["burstable", "besteffort"].contains(&&*name);
        if event.mask.contains(EventMask::CREATE | EventMask::ISDIR) && is_kubepods_group {
            watch_cgroups(root, &mut watches);
        }
        let is_service = name.ends_with(".service") && name.contains(KUBELET_PROCESS_NAME);
        let is_relevant = CHECKPOINT_FILES.iter().any(|checkpoint| name == *checkpoint)
            || (event.mask.contains(EventMask::ISDIR)
                && (is_service
                    || pod_uid_of_cgroup(&name).is_some()
                    || parse_log_folder_name(&name).is_some()));
        if is_relevant && events.send(Trigger::Pods).await.is_err() {
            return Ok(());
        }
    }
    Err(std::io::ErrorKind::UnexpectedEof.into())
}

/// Watches the control groups of pods and services that exist, or their parents, and the log folders, whose names
/// contain the names of pods.
fn watch_cgroups(root: &Path, watches: &mut Watches) {
    let mask = WatchMask::CREATE | WatchMask::DELETE | WatchMask::ONLYDIR;
    for folder in KUBEPODS_PARENTS
        .iter()
        .chain(&POD_CGROUP_FOLDERS)
        .chain(&SERVICE_PARENTS)
        .chain([&POD_LOGS_FOLDER])
    {
        let folder = root.join(folder);
        // Only some of these folders exist, depending on the cgroup version and the cgroup driver.
        if folder.is_dir()
            && let Err(error) = watches.add(&folder, mask)
        {
            tracing::debug!(folder = %folder.display(), %error, "failed to watch a folder");
        }
    }
}
