//! Watches for events that start a cycle before the timer: changes of the manifest and of the kubelet's files
//! (inotify), and uevents and netlink messages of the kernel.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::kubelet_events;
use super::link_events::{self, WatchedLinks};
use super::nftables_events;
use super::trigger::Trigger;
use crate::dhcp::DhcpHandle;
use anyhow::Context as _;
use berth_host_facts::root::Root;
use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use netlink_sys::protocols::NETLINK_KOBJECT_UEVENT;
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;

/// Tasks that watch for events; they are aborted when this value is dropped.
#[derive(Debug)]
pub(super) struct WatchTasks(Vec<JoinHandle<()>>);

impl Drop for WatchTasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Multicast group of the kernel's own uevents; the next group contains those of udev.
const KERNEL_UEVENT_GROUP: u32 = 1;
/// Delay after an error of the socket.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(5);

/// Starts all watches. If netlink sockets are unavailable, the kernel's events start no cycles, and only the timer
/// does.
///
/// # Errors
/// If inotify cannot watch the manifest's folder.
pub(super) fn start_watches(
    root: &Root,
    manifest: Option<&Path>,
    watched_links: Arc<Mutex<WatchedLinks>>,
    dhcp: DhcpHandle,
    events: Sender<Trigger>,
) -> anyhow::Result<WatchTasks> {
    let mut watches = Vec::new();
    if let Some(manifest) = manifest {
        watches.push(watch_manifest(manifest, events.clone())?);
    }
    watches.push(tokio::spawn(kubelet_events::watch(root.path().to_owned(), events.clone())));
    if !root.is_live() {
        return Ok(WatchTasks(watches));
    }
    watches.push(tokio::spawn(nftables_events::watch(Arc::clone(&watched_links), events.clone())));
    match link_events::open_socket() {
        Ok(socket) => {
            let watch = link_events::watch(socket, watched_links, dhcp, events.clone());
            watches.push(tokio::spawn(watch));
        }
        Err(error) => {
            tracing::warn!(%error, "failed to listen for link events, relying on the timer")
        }
    }
    match uevent_socket() {
        Ok(socket) => watches.push(tokio::spawn(watch_uevents(socket, events))),
        Err(error) => tracing::warn!(%error, "failed to listen for uevents, relying on the timer"),
    }
    Ok(WatchTasks(watches))
}

/// Watches the folder of the manifest, because editors and ConfigMaps replace the file.
fn watch_manifest(manifest: &Path, events: Sender<Trigger>) -> anyhow::Result<JoinHandle<()>> {
    let (folder, name) = nearest_folder(manifest);
    let inotify = Inotify::init().context("inotify")?;
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::CREATE | WatchMask::DELETE;
    inotify
        .watches()
        .add(&folder, mask)
        .with_context(|| format!("{}: cannot be watched", folder.display()))?;
    let mut stream = inotify.into_event_stream([0; 4096])?;
    let name = name.to_owned();
    Ok(tokio::spawn(async move {
        while let Some(event) = stream.next().await {
            // Files of a ConfigMap are symbolic links into `..data`, which is replaced.
            let is_manifest =
                |found: &OsStr| found == name || found.as_encoded_bytes().starts_with(b"..data");
            let is_relevant =
                event.ok().is_none_or(|event| event.name.as_deref().is_none_or(is_manifest));
            if is_relevant && events.send(Trigger::Manifest).await.is_err() {
                return;
            }
        }
    }))
}

/// Returns the folder and file name of the manifest; if the folder does not exist, the nearest parent that exists.
fn nearest_folder(manifest: &Path) -> (PathBuf, &OsStr) {
    let mut folder = manifest.parent().unwrap_or_else(|| Path::new("/"));
    let mut name = manifest.file_name().unwrap_or_default();
    while !folder.is_dir() {
        name = folder.file_name().unwrap_or_default();
        folder = folder.parent().unwrap_or_else(|| Path::new("/"));
    }
    (folder.to_owned(), name)
}

fn uevent_socket() -> std::io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(NETLINK_KOBJECT_UEVENT)?;
    socket.socket_mut().bind(&SocketAddr::new(0, KERNEL_UEVENT_GROUP))?;
    Ok(socket)
}

async fn watch_uevents(socket: TokioSocket, events: Sender<Trigger>) {
    loop {
        let event = match socket.recv_from_full().await {
            Ok((message, _)) => uevent_trigger(&message),
            // The socket overflowed (ENOBUFS) and events were lost, so all devices are read.
            Err(_) => {
                tokio::time::sleep(RECONNECT_INTERVAL).await;
                Some(Trigger::Devices)
            }
        };
        if let Some(event) = event
            && events.send(event).await.is_err()
        {
            return;
        }
    }
}

/// Returns the trigger of a uevent, which consists of `add@/devices/...` and `KEY=value` strings, each terminated by
/// NUL.
pub(crate) fn uevent_trigger(message: &[u8]) -> Option<Trigger> {
    let text = String::from_utf8_lossy(message);
    let value =
        |key: &str| text.split('\0').find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let path = value("DEVPATH").unwrap_or_default();
    match value("SUBSYSTEM")? {
        "cpu" | "memory" | "node" => Some(Trigger::Capacity),
        // Every pod has a virtual link, which is not hardware.
        "net" if path.starts_with("/devices/virtual/") => None,
        "pci" | "net" | "nvme" | "iommu" => Some(Trigger::Devices),
        "module" if path.contains("/kvm") || path.contains("/vhost") => Some(Trigger::Devices),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relevant_hardware_triggers_a_cycle() {
        for (message, event) in [
            (
                "offline@/x\0ACTION=offline\0DEVPATH=/devices/system/cpu/cpu3\0SUBSYSTEM=cpu\0",
                Some(Trigger::Capacity),
            ),
            ("add@/x\0DEVPATH=/devices/pci0/0000:01:00.0\0SUBSYSTEM=pci\0", Some(Trigger::Devices)),
            ("add@/x\0DEVPATH=/devices/virtual/net/veth1\0SUBSYSTEM=net\0", None),
            ("add@/x\0DEVPATH=/module/kvm_amd\0SUBSYSTEM=module\0", Some(Trigger::Devices)),
            ("add@/x\0DEVPATH=/module/xfs\0SUBSYSTEM=module\0", None),
            ("", None),
            ("libudev\0\0\u{1}", None),
        ] {
            assert_eq!(uevent_trigger(message.as_bytes()), event, "{message:?}");
        }
    }

    #[test]
    fn the_nearest_parent_of_a_missing_folder_is_watched() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("berth/infranode.yaml");
        let (watched, name) = nearest_folder(&manifest);
        assert_eq!((watched.as_path(), name), (folder.path(), OsStr::new("berth")));
    }
}
