//! What begins a cycle before its time: the manifest's folder and the kubelet's (inotify), and the kernel (uevents).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::filter_events;
use super::kubelet_events;
use super::link_events::{self, Interest};
use crate::root::Root;
use anyhow::Context as _;
use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use netlink_sys::protocols::NETLINK_KOBJECT_UEVENT;
use netlink_sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;

/// Why a cycle is begun; later ones say more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// It was time.
    Timer,
    /// A link that matters changed.
    Links,
    /// The kubelet has handed something out, or taken it back.
    Pods,
    /// CPUs or memory came or went.
    Shape,
    /// Devices came or went.
    Devices,
    /// The manifest may have changed.
    Manifest,
    /// The first.
    Start,
}

/// Ends the watching when dropped.
#[derive(Debug)]
pub(super) struct Watches(Vec<JoinHandle<()>>);

impl Drop for Watches {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// The kernel's own multicast group; udev's is the next.
const KERNEL: u32 = 1;
/// After an error of the kernel the next try waits this long.
const PAUSE: Duration = Duration::from_secs(5);

/// Watches all of them.
///
/// # Errors
/// If inotify cannot watch the manifest's folder. Without uevents the timer alone has to do.
pub(super) fn begin(
    root: &Root,
    manifest: Option<&Path>,
    interest: Arc<Mutex<Interest>>,
    events: Sender<Event>,
) -> anyhow::Result<Watches> {
    let mut watches = Vec::new();
    if let Some(manifest) = manifest {
        watches.push(manifest_changes(manifest, events.clone())?);
    }
    watches.push(tokio::spawn(kubelet_events::watch(root.path().to_owned(), events.clone())));
    if !root.is_live() {
        return Ok(Watches(watches));
    }
    watches.push(tokio::spawn(filter_events::watch(Arc::clone(&interest), events.clone())));
    match link_events::socket() {
        Ok(socket) => {
            watches.push(tokio::spawn(link_events::watch(socket, interest, events.clone())));
        }
        Err(error) => tracing::warn!("no events of links, only the timer: {error}"),
    }
    match uevent_socket() {
        Ok(socket) => watches.push(tokio::spawn(uevents(socket, events))),
        Err(error) => tracing::warn!("no events of the kernel, only the timer: {error}"),
    }
    Ok(Watches(watches))
}

/// Editors and ConfigMaps replace the file, so it is the folder that is watched.
fn manifest_changes(manifest: &Path, events: Sender<Event>) -> anyhow::Result<JoinHandle<()>> {
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
            // A ConfigMap's files are links to `..data`, which is what changes.
            let ours =
                |found: &OsStr| found == name || found.as_encoded_bytes().starts_with(b"..data");
            let is_ours = event.ok().is_none_or(|event| event.name.as_deref().is_none_or(ours));
            if is_ours && events.send(Event::Manifest).await.is_err() {
                return;
            }
        }
    }))
}

/// The manifest's folder and its name there; where the folder is not there yet, the first above that is.
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
    socket.socket_mut().bind(&SocketAddr::new(0, KERNEL))?;
    Ok(socket)
}

async fn uevents(socket: TokioSocket, events: Sender<Event>) {
    loop {
        let event = match socket.recv_from_full().await {
            Ok((message, _)) => judge(&message),
            // ENOBUFS: more came than the socket holds; what they were is not known, so look at all.
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                Some(Event::Devices)
            }
        };
        if let Some(event) = event
            && events.send(event).await.is_err()
        {
            return;
        }
    }
}

/// What a uevent means to us: `add@/devices/...`, then `KEY=value`, each ending in NUL.
pub(crate) fn judge(message: &[u8]) -> Option<Event> {
    let text = String::from_utf8_lossy(message);
    let value =
        |key: &str| text.split('\0').find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let path = value("DEVPATH").unwrap_or_default();
    match value("SUBSYSTEM")? {
        "cpu" | "memory" | "node" => Some(Event::Shape),
        // Every pod brings a virtual link; none of them is hardware.
        "net" if path.starts_with("/devices/virtual/") => None,
        "pci" | "net" | "nvme" | "iommu" => Some(Event::Devices),
        "module" if path.contains("/kvm") || path.contains("/vhost") => Some(Event::Devices),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hardware_that_matters_counts() {
        for (message, event) in [
            (
                "offline@/x\0ACTION=offline\0DEVPATH=/devices/system/cpu/cpu3\0SUBSYSTEM=cpu\0",
                Some(Event::Shape),
            ),
            ("add@/x\0DEVPATH=/devices/pci0/0000:01:00.0\0SUBSYSTEM=pci\0", Some(Event::Devices)),
            ("add@/x\0DEVPATH=/devices/virtual/net/veth1\0SUBSYSTEM=net\0", None),
            ("add@/x\0DEVPATH=/module/kvm_amd\0SUBSYSTEM=module\0", Some(Event::Devices)),
            ("add@/x\0DEVPATH=/module/xfs\0SUBSYSTEM=module\0", None),
            ("", None),
            ("libudev\0\0\u{1}", None),
        ] {
            assert_eq!(judge(message.as_bytes()), event, "{message:?}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_waited_for_above() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("berth/infranode.yaml");
        let (watched, name) = nearest_folder(&manifest);
        assert_eq!((watched.as_path(), name), (folder.path(), OsStr::new("berth")));
    }
}
