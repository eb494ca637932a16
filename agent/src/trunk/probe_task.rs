//! Task that probes one network.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::MacAddress;
use berth_api::infra_node::{TrunkState, TrunkStatus, TrunkUnknownReason};
use berth_trunk_probe::{DESTINATION, ETHERTYPE, ProbeKeys, TrunkProbe, Verdict, tagged_frame};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::watch;

use super::results::{NetworkResult, Results, unknown};
use super::targets::{NetworkTarget, Targets};
use super::vlan_socket::{Reception, VlanSocket};

/// Frames that the task receives.
const PROBES: Reception =
    Reception { ethertype: ETHERTYPE, group: DESTINATION, before_bridge: true };
/// Time after the start in which the absence of other agents proves nothing.
const START: Duration = Duration::from_secs(30);
/// Pause after an error of the socket.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest time between two evaluations of the evidence.
const VERDICT_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of frames that are received before frames are sent again.
const MAX_BATCH: usize = 256;

/// Probes a network until the targets no longer contain it.
pub(super) async fn run(
    network: String,
    mut targets: watch::Receiver<Arc<Targets>>,
    results: Arc<Results>,
) {
    // An error means that the daemon stops.
    while targets.has_changed().is_ok() {
        let current = Arc::clone(&targets.borrow_and_update());
        let Some(target) = current.networks.get(&network) else { break };
        let status = match &current.keys {
            Err(no_keys) => unknown(TrunkUnknownReason::NoKey, no_keys.to_string()),
            Ok(keys) => {
                let mut task = Task::new(&network, &current, target, keys.clone(), &results);
                match task.probe(&mut targets).await {
                    Ok(()) => continue,
                    Err(error) => {
                        let uplink = &target.uplink.name;
                        tracing::warn!(%network, %uplink, %error, "failed to probe a trunk");
                        let remedy = match error.kind() {
                            io::ErrorKind::PermissionDenied => "; probes require CAP_NET_RAW",
                            _ => "",
                        };
                        let message = format!("failed to probe {uplink}: {error}{remedy}");
                        unknown(TrunkUnknownReason::ProbeFailed, message)
                    }
                }
            }
        };
        results.set_network(&network, NetworkResult { status: Some(status), hosts: 0 });
        tokio::select! {
            changed = targets.changed() => if changed.is_err() { break },
            () = tokio::time::sleep(RETRY_INTERVAL), if current.keys.is_ok() => {}
        }
    }
    results.remove_network(&network);
}

struct Task<'a> {
    network: &'a str,
    targets: &'a Targets,
    target: &'a NetworkTarget,
    probe: TrunkProbe,
    begin: Instant,
    results: &'a Results,
}

impl<'a> Task<'a> {
    fn new(
        network: &'a str,
        targets: &'a Targets,
        target: &'a NetworkTarget,
        keys: ProbeKeys,
        results: &'a Results,
    ) -> Self {
        let session = random_session();
        let probe = TrunkProbe::new(&targets.node, network, keys, session, Duration::ZERO);
        Self { network, targets, target, probe, begin: Instant::now(), results }
    }

    /// Probes until the target changes in more than its VLANs.
    async fn probe(&mut self, targets: &mut watch::Receiver<Arc<Targets>>) -> io::Result<()> {
        let uplink = &self.target.uplink;
        let mut socket = VlanSocket::open(uplink.index, PROBES)?;
        self.probe.set_vlans(&self.target.vlans, Duration::ZERO);
        let (mut wake, mut next_verdict) = (Duration::ZERO, Duration::ZERO);
        loop {
            let now = self.begin.elapsed();
            if now >= wake || self.probe.has_queued_frames() {
                let (frames, next) = self.probe.poll(now);
                for frame in frames {
                    send(&socket, uplink.mac, frame.vlan, &frame.payload)?;
                }
                wake = next;
            }
            if now >= next_verdict {
                self.publish_verdict(now);
                next_verdict = now + VERDICT_INTERVAL;
            }
            tokio::select! {
                changed = targets.changed() => {
                    let current = Arc::clone(&targets.borrow());
                    if changed.is_err() || !self.update_vlans(&current) {
                        // The caller reads the new targets.
                        targets.mark_changed();
                        return Ok(());
                    }
                    wake = Duration::ZERO;
                }
                ready = socket.readable() => {
                    ready?;
                    self.receive(&mut socket)?;
                }
                () = tokio::time::sleep(wake.saturating_sub(now)) => {}
            }
        }
    }

    /// Updates the VLANs; returns `false` if other parts of the target changed.
    fn update_vlans(&mut self, current: &Targets) -> bool {
        let Some(target) = current.networks.get(self.network) else { return false };
        let is_same = target.uplink == self.target.uplink
            && current.node == self.targets.node
            && current.keys == self.targets.keys;
        if is_same {
            self.probe.set_vlans(&target.vlans, self.begin.elapsed());
        }
        is_same
    }

    fn receive(&mut self, socket: &mut VlanSocket) -> io::Result<()> {
        for _ in 0..MAX_BATCH {
            let Some((vlan, payload)) = socket.receive()? else { break };
            if let Err(ignored) = self.probe.receive(self.begin.elapsed(), vlan, payload) {
                tracing::trace!(network = self.network, reason = %ignored, "ignored a probe");
            }
        }
        Ok(())
    }

    fn publish_verdict(&mut self, now: Duration) {
        let leak = self.probe.leak(now).map(ToString::to_string);
        let status = match self.probe.verdict() {
            Verdict::Unknown if now < START => None,
            Verdict::Unknown => {
                let silent = "no other host was received in a VLAN of this network";
                let message = leak.unwrap_or_else(|| silent.to_owned());
                Some(unknown(TrunkUnknownReason::NoPeers, message))
            }
            Verdict::Verified => Some(TrunkStatus {
                state: TrunkState::Verified,
                message: leak,
                ..TrunkStatus::default()
            }),
            Verdict::Missing { vlans, from } => Some(TrunkStatus {
                state: TrunkState::Missing,
                vlans: Some(vlans.into()),
                from,
                message: leak,
                ..TrunkStatus::default()
            }),
        };
        let result = NetworkResult { status, hosts: self.probe.witness_count() };
        self.results.set_network(self.network, result);
    }
}

/// Sends a probe. A frame that the link's full queue drops is lost, as on the wire.
fn send(
    socket: &VlanSocket,
    source: MacAddress,
    vlan: berth_api::VlanId,
    payload: &[u8],
) -> io::Result<()> {
    use nix::libc::{EAGAIN, ENOBUFS};
    match socket.send(&tagged_frame(source, vlan, payload)) {
        Err(error) if matches!(error.raw_os_error(), Some(EAGAIN | ENOBUFS)) => Ok(()),
        other => other,
    }
}

/// Returns a random number that identifies this process on this network.
fn random_session() -> u64 {
    let mut bytes = [0; 8];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        tracing::warn!(source = "getrandom", "failed to read random bytes");
    }
    u64::from_ne_bytes(bytes)
}
