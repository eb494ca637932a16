//! Task that sends and receives the probes of one host network.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::infra_node::{TrunkState, TrunkStatus, TrunkUnknownReason};
use berth_trunk_probe::{DESTINATION, ETHERTYPE, ProbeKeys, TrunkProbe, Verdict};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::watch;

use super::results::{NetworkResult, Results, unknown_status};
use super::targets::{NetworkTarget, Targets};
use super::vlan_socket::{BATCH_SIZE, ReceiveOptions, VlanSocket};
use super::wake_timer::WakeTimer;

/// Options of the socket that receives probes.
const PROBE_RECEIVE_OPTIONS: ReceiveOptions = ReceiveOptions {
    ethertype: ETHERTYPE,
    group: DESTINATION,
    before_bridge: true,
    // 4 MiB: agents that start at the same time also send their probes at the same time.
    buffer_bytes: 4 << 20,
    // A probe with the longest names and a bitmap of VLANs has about 900 bytes.
    max_frame_bytes: 1024,
};
/// Time after the start in which missing probes of other agents are not reported, because the agents may not have
/// sent any yet.
const STARTUP_TIME: Duration = Duration::from_secs(30);
/// Delay after an error of the socket.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time between two evaluations of the received probes, unless the first VLAN is missing or the last missing VLAN
/// has returned.
const VERDICT_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of system calls that receive frames before the task sends frames again. It is permitted only if the last
/// read was at least [`RECEIVE_CALLS_INTERVAL`] ago; otherwise the maximum is one.
const MAX_RECEIVE_CALLS: usize = 2;
/// Delay before the next read if more frames are waiting, and the shortest time between two wake-ups of the probe. With
/// at most one system call of [`BATCH_SIZE`] frames in this time, an agent reads at most 16,000 frames per second, so that
/// a flood costs at most a few per cent of a core. Fast rounds of all agents of a segment need about half of this rate.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);
/// Time since the last read that permits [`MAX_RECEIVE_CALLS`]: one [`BUSY_INTERVAL`] for each call.
const RECEIVE_CALLS_INTERVAL: Duration = Duration::from_millis(20);
/// Number of consecutive reads that leave frames waiting after which the agent counts as overloaded: the kernel
/// then drops probes, which must not be reported as missing.
const OVERLOAD_ROUNDS: u32 = 50;
/// Time after an overload for which the status reports it.
const OVERLOAD_REPORT_TIME: Duration = Duration::from_secs(60);

/// Probes a network until the targets no longer contain the network.
pub(super) async fn run(
    network: String,
    mut targets: watch::Receiver<Arc<Targets>>,
    results: Arc<Results>,
) {
    let mut last_error = None;
    // `has_changed` returns an error if the sender was dropped, that is, the daemon is stopping.
    while targets.has_changed().is_ok() {
        let current = Arc::clone(&targets.borrow_and_update());
        let Some(target) = current.networks.get(&network) else { break };
        let status = match &current.keys {
            Err(no_keys) => unknown_status(TrunkUnknownReason::NoKey, no_keys.to_string()),
            Ok(keys) => {
                let probed =
                    match ProbeTask::new(&network, &current, target, keys.clone(), &results) {
                        Ok(mut task) => task.probe(&mut targets).await,
                        Err(error) => Err(error),
                    };
                match probed {
                    Ok(()) => {
                        last_error = None;
                        continue;
                    }
                    Err(error) => {
                        let uplink = &target.uplink.name;
                        // A link that is down causes the same error at each attempt, which is logged only once.
                        if last_error.replace(error.kind()) != Some(error.kind()) {
                            tracing::warn!(%network, %uplink, %error, "failed to probe a trunk");
                        }
                        let remedy = match error.kind() {
                            io::ErrorKind::PermissionDenied => "; probes require CAP_NET_RAW",
                            _ => "",
                        };
                        let message =
                            format!("failed to probe the VLANs of {uplink}: {error}{remedy}");
                        unknown_status(TrunkUnknownReason::ProbeFailed, message)
                    }
                }
            }
        };
        results.set_network(&network, NetworkResult { status: Some(status), host_count: 0 });
        tokio::select! {
            changed = targets.changed() => if changed.is_err() { break },
            () = tokio::time::sleep(RETRY_INTERVAL), if current.keys.is_ok() => {}
        }
    }
    results.remove_network(&network);
}

struct ProbeTask<'a> {
    network: &'a str,
    targets: &'a Targets,
    target: &'a NetworkTarget,
    probe: TrunkProbe,
    begin: Instant,
    results: &'a Results,
    /// Number of consecutive reads after which frames were still waiting.
    busy_rounds: u32,
    /// Time of the last read; `None` if there was none.
    last_read: Option<Duration>,
    last_overload: Option<Duration>,
}

impl<'a> ProbeTask<'a> {
    fn new(
        network: &'a str,
        targets: &'a Targets,
        target: &'a NetworkTarget,
        keys: ProbeKeys,
        results: &'a Results,
    ) -> io::Result<Self> {
        let probe =
            TrunkProbe::new(&targets.node, network, keys, random_session()?, Duration::ZERO);
        let begin = Instant::now();
        Ok(Self {
            network,
            targets,
            target,
            probe,
            begin,
            results,
            busy_rounds: 0,
            last_read: None,
            last_overload: None,
        })
    }

    /// Sends and receives probes until a part of the target other than its VLANs changes.
    async fn probe(&mut self, targets: &mut watch::Receiver<Arc<Targets>>) -> io::Result<()> {
        let uplink = &self.target.uplink;
        let mut socket = VlanSocket::open(uplink.index, PROBE_RECEIVE_OPTIONS)?;
        let timer = WakeTimer::new()?;
        self.probe.set_vlans(&self.target.vlans, Duration::ZERO);
        let mut next_verdict = Duration::ZERO;
        let mut had_missing_vlans = false;
        loop {
            let now = self.begin.elapsed();
            let is_behind = self.receive(&mut socket, now)?;
            let (frames, mut wake) = self.probe.poll(now);
            let frames: Vec<Vec<u8>> =
                frames.into_iter().map(|frame| frame.into_tagged_frame(uplink.mac)).collect();
            socket.send(&frames)?;
            if is_behind {
                wake = wake.min(now + BUSY_INTERVAL);
            }
            let has_missing_vlans = self.probe.has_missing_vlans();
            if now >= next_verdict || has_missing_vlans != had_missing_vlans {
                self.publish_verdict(now);
                had_missing_vlans = has_missing_vlans;
                next_verdict = now + VERDICT_INTERVAL;
            }
            tokio::select! {
                changed = targets.changed() => {
                    let current = Arc::clone(&targets.borrow());
                    if changed.is_err() || !self.update_vlans(&current) {
                        // Marks the targets as changed, so that the caller reads them.
                        targets.mark_changed();
                        return Ok(());
                    }
                }
                waited = timer.wait(wake.saturating_sub(self.begin.elapsed())) => waited?,
            }
        }
    }

    /// Updates the VLANs. Returns `false` if other parts of the target have changed, so that the task must be
    /// restarted.
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

    /// Receives waiting frames, with at most [`MAX_RECEIVE_CALLS`] system calls. Returns true if more frames may be
    /// waiting. The time since the last read determines the number of calls: if it were the number of waiting frames,
    /// a flood of almost twice the maximum rate would be read without being counted as an overload.
    fn receive(&mut self, socket: &mut VlanSocket, now: Duration) -> io::Result<bool> {
        let (probe, network) = (&mut self.probe, self.network);
        let is_due = |last: Duration| now.saturating_sub(last) >= RECEIVE_CALLS_INTERVAL;
        let max_calls = if self.last_read.is_none_or(is_due) { MAX_RECEIVE_CALLS } else { 1 };
        self.last_read = Some(now);
        let mut calls = 0;
        while calls < max_calls {
            let count = socket.receive(|vlan, payload| {
                if let Err(ignored) = probe.receive(now, vlan, payload) {
                    tracing::trace!(network, reason = %ignored, "ignored a probe");
                }
            })?;
            if count < BATCH_SIZE {
                self.busy_rounds = 0;
                return Ok(false);
            }
            calls += 1;
        }
        self.busy_rounds = self.busy_rounds.saturating_add(1);
        if self.busy_rounds >= OVERLOAD_ROUNDS {
            self.probe.ignore_past_losses();
            self.last_overload = Some(now);
        }
        Ok(true)
    }

    /// Returns the message for the status if the agent is overloaded, or if frames of one VLAN arrive in another
    /// VLAN; `None` otherwise.
    fn observation(&self, now: Duration) -> Option<String> {
        let is_recent = |at: Duration| now.saturating_sub(at) < OVERLOAD_REPORT_TIME;
        if self.last_overload.is_some_and(is_recent) {
            let network = self.network;
            return Some(format!(
                "more probe frames arrive than the agent can read, so missing VLANs are not detected; find the sender: \
                 tcpdump -e -i {} ether proto {ETHERTYPE:#06x} or vlan and ether proto {ETHERTYPE:#06x} ({network})",
                self.target.uplink.name
            ));
        }
        self.probe.leak(now).map(ToString::to_string)
    }

    fn publish_verdict(&mut self, now: Duration) {
        let message = self.observation(now);
        let host_count = self.probe.witness_count();
        let status = match self.probe.verdict() {
            Verdict::Unknown if now < STARTUP_TIME => None,
            Verdict::Unknown => {
                let incomplete = match host_count {
                    0 => "no probe of another host has arrived in a VLAN of this network",
                    _ => {
                        "probes of other hosts have arrived, but not yet in all VLANs of this host"
                    }
                };
                let message = message.unwrap_or_else(|| incomplete.to_owned());
                Some(unknown_status(TrunkUnknownReason::NoPeers, message))
            }
            Verdict::Verified => {
                Some(TrunkStatus { state: TrunkState::Verified, message, ..TrunkStatus::default() })
            }
            Verdict::Unverified { vlans } => {
                let unverified = || {
                    format!(
                        "no probe of another host arrives in VLAN {vlans}, although probes arrive in other VLANs"
                    )
                };
                let message = message.unwrap_or_else(unverified);
                Some(unknown_status(TrunkUnknownReason::VlansWithoutPeers, message))
            }
            Verdict::Missing { vlans, from } => Some(TrunkStatus {
                state: TrunkState::Missing,
                vlans: Some(vlans.into()),
                from,
                message,
                ..TrunkStatus::default()
            }),
        };
        let unverified = self.probe.unverified_vlans();
        let unverified = (!unverified.is_empty()).then(|| unverified.into());
        let status = status.map(|status| TrunkStatus { unverified, ..status });
        self.results.set_network(self.network, NetworkResult { status, host_count });
    }
}

/// Returns a random session number, which identifies this process on this network. If the system provides no
/// randomness, no probes are sent: two processes with the same session number would encrypt different messages with
/// the same key and counter.
fn random_session() -> io::Result<u64> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("getrandom failed"))?;
    Ok(u64::from_ne_bytes(bytes))
}
