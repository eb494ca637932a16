//! Trunk between many emulated hosts: all other hosts receive the frames that a host sends, including the VLAN
//! tags. Like the ports of a switch, the cables can lack VLANs.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::host::{Trunk, control_socket};

/// Buffer size, larger than any frame that QEMU sends.
const MAX_FRAME_BYTES: usize = 70_000;
/// Read timeout of the hub's sockets, after which a thread checks whether the hub is being dropped.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time that a hub of two hosts waits for a host with a full queue.
const FULL_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Hub that runs until it is dropped.
#[derive(Debug)]
pub struct Hub {
    cables: Vec<Cable>,
    is_stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Sockets of the two ends of a cable.
#[derive(Debug, Clone)]
struct Cable {
    host_socket: PathBuf,
    hub_socket: PathBuf,
    missing_vlans: Arc<Mutex<BTreeSet<u16>>>,
}

impl Hub {
    /// Creates a hub for this number of hosts, with its sockets in a folder.
    ///
    /// # Errors
    /// Fails if a socket cannot be created in the folder.
    pub fn new(folder: &Path, host_count: usize) -> Result<Self> {
        let socket_path = |number: usize, side: &str| folder.join(format!("{side}{number}"));
        let cables: Vec<Cable> = (0..host_count)
            .map(|number| Cable {
                host_socket: socket_path(number, "host"),
                hub_socket: socket_path(number, "hub"),
                missing_vlans: Arc::default(),
            })
            .collect();
        let mut this = Self { cables, is_stopping: Arc::default(), threads: Vec::new() };
        for (number, cable) in this.cables.iter().enumerate() {
            let name = || cable.hub_socket.display().to_string();
            let from = UnixDatagram::bind(&cable.hub_socket).with_context(name)?;
            from.set_read_timeout(Some(POLL_INTERVAL))?;
            // The socket does not block: a host with a full queue loses a frame, as on a real cable, and does not delay
            // other hosts. With only two hosts, the hub waits instead and loses no frame, like a direct cable.
            let to = UnixDatagram::unbound()?;
            to.set_nonblocking(host_count > 2)?;
            to.set_write_timeout(Some(FULL_QUEUE_TIMEOUT))?;
            let others = this.cables.iter().enumerate().filter(|(other, _)| *other != number);
            let others: Vec<Cable> = others.map(|(_, cable)| cable.clone()).collect();
            let (cable, is_stopping) = (cable.clone(), Arc::clone(&this.is_stopping));
            this.threads.push(std::thread::spawn(move || {
                forward_frames((&from, &cable), &to, &others, &is_stopping);
            }));
        }
        Ok(this)
    }

    /// Returns the cable of a host, by the host's number from 0.
    #[must_use]
    pub fn cable(&self, number: usize) -> Option<Trunk<'_>> {
        let cable = self.cables.get(number)?;
        Some(Trunk { local_socket: &cable.host_socket, peer_socket: &cable.hub_socket })
    }

    /// Connects the control cables of two hosts with each other, before the hosts boot. Control cables bypass the hub.
    ///
    /// # Errors
    /// Fails if the hub is not for two hosts, or a link cannot be created in the folder.
    pub fn connect_control_cables(&self) -> Result<()> {
        let [first, second] = self.cables.as_slice() else {
            bail!("a control cable connects two hosts, not {}", self.cables.len());
        };
        for (own, peer) in [(first, second), (second, first)] {
            symlink(control_socket(&peer.host_socket), control_socket(&own.hub_socket))?;
        }
        Ok(())
    }

    /// Drops the frames in these VLANs on the cable of a host, in both directions.
    pub fn set_missing_vlans(&self, number: usize, vlans: &[u16]) {
        if let Some(cable) = self.cables.get(number) {
            let mut missing = cable.missing_vlans.lock().unwrap_or_else(PoisonError::into_inner);
            *missing = vlans.iter().copied().collect();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().unwrap_or_default();
        }
    }
}

impl Cable {
    fn carries(&self, frame: &[u8]) -> bool {
        let missing = self.missing_vlans.lock().unwrap_or_else(PoisonError::into_inner);
        vlan_of(frame).is_none_or(|vlan| !missing.contains(&vlan))
    }
}

/// Returns the VLAN id of an Ethernet frame with an 802.1Q tag.
fn vlan_of(frame: &[u8]) -> Option<u16> {
    let &[0x81, 0x00, high, low] = frame.get(12..16)? else { return None };
    Some(u16::from_be_bytes([high, low]) & 0x0FFF)
}

fn forward_frames(
    (from, own): (&UnixDatagram, &Cable),
    to: &UnixDatagram,
    others: &[Cable],
    is_stopping: &AtomicBool,
) {
    let mut frame = vec![0; MAX_FRAME_BYTES];
    while !is_stopping.load(Ordering::SeqCst) {
        let Some(frame) = from.recv(&mut frame).ok().and_then(|length| frame.get(..length)) else {
            continue;
        };
        for other in others.iter().filter(|other| own.carries(frame) && other.carries(frame)) {
            // A host that is off or restarts loses the frame.
            to.send_to(frame, &other.host_socket).map(drop).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_forwarded_to_all_other_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::new(folder.path(), 3).unwrap();
        assert!(hub.cable(3).is_none());
        // The third host is off: it has no socket.
        let hosts: Vec<UnixDatagram> = (0..2)
            .map(|number| UnixDatagram::bind(hub.cable(number).unwrap().local_socket).unwrap())
            .collect();
        for host in &hosts {
            host.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        let mut frame = [0; 64];
        for text in [b"first", b"again"] {
            hosts[0].send_to(text, hub.cable(0).unwrap().peer_socket).unwrap();
            let length = hosts[1].recv(&mut frame).unwrap();
            assert_eq!(&frame[..length], text);
        }
        // A cable without VLAN 200 drops the frames of this VLAN in both directions, and only these frames.
        let tagged = |vlan: u8| [&[2; 12][..], &[0x81, 0x00, 0xE0, vlan, 0x08, 0x00]].concat();
        hub.set_missing_vlans(1, &[200]);
        for vlan in [200, 100] {
            hosts[0].send_to(&tagged(vlan), hub.cable(0).unwrap().peer_socket).unwrap();
        }
        let length = hosts[1].recv(&mut frame).unwrap();
        assert_eq!(frame[..length], tagged(100));
        hosts[1].send_to(&tagged(200), hub.cable(1).unwrap().peer_socket).unwrap();
        hosts[0].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(hosts[0].recv(&mut frame).is_err(), "the hub returns frames to the sender");
    }

    #[test]
    fn two_hosts_lose_no_frame_if_a_queue_is_full() {
        const FRAMES: u16 = 3000;
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::new(folder.path(), 2).unwrap();
        let host = UnixDatagram::bind(hub.cable(1).unwrap().local_socket).unwrap();
        host.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let hub_socket = hub.cable(0).unwrap().peer_socket.to_owned();
        let sender = std::thread::spawn(move || {
            let socket = UnixDatagram::unbound().unwrap();
            for number in 0..FRAMES {
                socket.send_to(&number.to_be_bytes(), &hub_socket).unwrap();
            }
        });
        // Waits until the sender has filled the queues.
        std::thread::sleep(Duration::from_millis(300));
        let mut frame = [0; 2];
        for number in 0..FRAMES {
            host.recv(&mut frame).unwrap();
            assert_eq!(frame, number.to_be_bytes());
        }
        sender.join().unwrap();
    }

    #[test]
    fn control_cables_connect_two_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::new(folder.path(), 2).unwrap();
        hub.connect_control_cables().unwrap();
        let [first, second] = [0, 1].map(|number| hub.cable(number).unwrap());
        let host = UnixDatagram::bind(control_socket(second.local_socket)).unwrap();
        host.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let socket = UnixDatagram::unbound().unwrap();
        socket.send_to(b"frame", control_socket(first.peer_socket)).unwrap();
        let mut frame = [0; 64];
        let length = host.recv(&mut frame).unwrap();
        assert_eq!(&frame[..length], b"frame");
    }
}
