//! Simulates agents on a switch that loses, duplicates and reorders frames, and whose ports lack VLANs.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "simulation/day.rs"]
mod day;
#[path = "simulation/many_hosts.rs"]
mod many_hosts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::{VlanId, VlanSet};
use berth_trunk_probe::{IgnoredFrame, ProbeKeys, TrunkProbe, Verdict};

const TICK: Duration = Duration::from_millis(10);

fn vlans(ids: impl IntoIterator<Item = u16>) -> VlanSet {
    ids.into_iter().map(|id| VlanId::try_from(id).unwrap()).collect()
}

fn keys() -> ProbeKeys {
    ProbeKeys::parse(&"k".repeat(32)).unwrap()
}

struct Agent {
    probe: TrunkProbe,
    next_wake_up: Duration,
    /// Frames that arrived since the last wake-up.
    inbox: Vec<(VlanId, Vec<u8>)>,
    /// Time of the last frame of a session that had proven nothing.
    last_unproven: Duration,
    is_running: bool,
    /// VLANs that the agent probes, also after a restart.
    vlans: VlanSet,
    /// Difference between the agent's clock and the simulation's.
    clock_offset: Duration,
}

/// A frame on its way to a port.
struct Frame {
    to: usize,
    vlan: VlanId,
    payload: Vec<u8>,
}

/// Agents on a switch with one port each.
struct Switch {
    now: Duration,
    agents: Vec<Agent>,
    /// VLANs that the switch does not carry, by port.
    removed_vlans: Vec<BTreeSet<u16>>,
    /// Sender, receiver and VLAN of the frames that the switch drops.
    dropped_paths: BTreeSet<(usize, usize, u16)>,
    in_flight: BTreeMap<(Duration, u64), Frame>,
    /// Number of frames that the agents sent.
    sent_frames: u64,
    /// Number of copies of the agents' frames that the switch sent to ports.
    forwarded_copies: u64,
    lost_per_million: u64,
    duplicated_per_million: u64,
    max_delay_micros: u64,
    random_state: u64,
    session_count: u64,
}

impl Switch {
    fn new(count: usize, carried: &VlanSet) -> Self {
        let mut switch = Self {
            now: Duration::from_secs(1000),
            agents: Vec::new(),
            removed_vlans: vec![BTreeSet::new(); count],
            dropped_paths: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            sent_frames: 0,
            forwarded_copies: 0,
            lost_per_million: 0,
            duplicated_per_million: 0,
            max_delay_micros: 1,
            random_state: 88_172_645_463_325_252,
            session_count: 0,
        };
        for index in 0..count {
            let agent = switch.started_agent(index, carried, Duration::from_secs(index as u64 * 7));
            switch.agents.push(agent);
        }
        switch
    }

    fn started_agent(&mut self, index: usize, carried: &VlanSet, clock_offset: Duration) -> Agent {
        self.session_count += 1;
        let session = self.random(u64::MAX) ^ self.session_count;
        let now = self.now + clock_offset;
        let mut probe = TrunkProbe::new(&format!("host-{index}"), "tenants", keys(), session, now);
        probe.set_vlans(carried, now);
        Agent {
            probe,
            next_wake_up: now,
            inbox: Vec::new(),
            last_unproven: Duration::ZERO,
            is_running: true,
            vlans: carried.clone(),
            clock_offset,
        }
    }

    fn random(&mut self, end: u64) -> u64 {
        self.random_state ^= self.random_state << 13;
        self.random_state ^= self.random_state >> 7;
        self.random_state ^= self.random_state << 17;
        self.random_state % end
    }

    fn send(&mut self, from: usize, vlan: VlanId, payload: &[u8]) {
        self.sent_frames += 1;
        for to in 0..self.agents.len() {
            let is_removed = |port: usize| self.removed_vlans[port].contains(&vlan.into());
            let is_dropped = self.dropped_paths.contains(&(from, to, vlan.into()));
            if to == from || is_removed(from) || is_removed(to) || is_dropped {
                continue;
            }
            let copies = 1 + u64::from(self.random(1_000_000) < self.duplicated_per_million);
            for _ in 0..copies {
                if self.random(1_000_000) < self.lost_per_million {
                    continue;
                }
                let delay = Duration::from_micros(self.random(self.max_delay_micros));
                let frame = Frame { to, vlan, payload: payload.to_vec() };
                // The number in the key preserves the order of frames that arrive at the same time.
                self.forwarded_copies += 1;
                self.in_flight.insert((self.now + delay, self.forwarded_copies), frame);
            }
        }
    }

    /// Runs the simulation for `time`, and calls `inspect` in each tick.
    fn run(&mut self, time: Duration, mut inspect: impl FnMut(&mut Self)) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            while let Some(entry) = self.in_flight.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let frame = entry.remove();
                let agent = &mut self.agents[frame.to];
                if agent.is_running {
                    agent.inbox.push((frame.vlan, frame.payload));
                }
            }
            for index in 0..self.agents.len() {
                let agent = &mut self.agents[index];
                let now = self.now + agent.clock_offset;
                if !agent.is_running || agent.next_wake_up > now {
                    continue;
                }
                for (vlan, payload) in std::mem::take(&mut agent.inbox) {
                    let result = agent.probe.receive(now, Some(vlan), &payload);
                    if result == Err(IgnoredFrame::NotProven) {
                        agent.last_unproven = self.now;
                    }
                }
                let (frames, next_wake_up) = agent.probe.poll(now);
                agent.next_wake_up = next_wake_up;
                for frame in frames {
                    self.send(index, frame.vlan, frame.payload());
                }
            }
            inspect(self);
        }
    }

    fn verdicts(&mut self) -> Vec<Verdict> {
        self.agents.iter_mut().map(|agent| agent.probe.verdict()).collect()
    }

    fn restart(&mut self, index: usize) {
        let (carried, offset) = (self.agents[index].vlans.clone(), self.agents[index].clock_offset);
        self.agents[index] = self.started_agent(index, &carried, offset);
    }

    fn set_vlans(&mut self, index: usize, carried: VlanSet) {
        let now = self.now + self.agents[index].clock_offset;
        self.agents[index].probe.set_vlans(&carried, now);
        self.agents[index].vlans = carried;
    }

    /// Runs the simulation for some seconds, and returns the times after which each agent reported a missing VLAN.
    fn times_until_missing(&mut self, seconds: u64) -> Vec<Duration> {
        let begin = self.now;
        let mut named = vec![Duration::MAX; self.agents.len()];
        self.run(Duration::from_secs(seconds), |switch| {
            for (verdict, named) in switch.verdicts().into_iter().zip(&mut named) {
                if matches!(verdict, Verdict::Missing { .. }) {
                    *named = (*named).min(switch.now - begin);
                }
            }
        });
        named
    }
}

fn missing(ids: &[u16], from: &[usize]) -> Verdict {
    Verdict::Missing {
        vlans: vlans(ids.iter().copied()),
        from: from.iter().map(|index| format!("host-{index}")).collect(),
    }
}

#[test]
fn one_removed_vlan_is_named_by_both_sides_and_cleared() {
    let mut switch = Switch::new(2, &vlans(100..120));
    switch.lost_per_million = 10_000;
    switch.run(Duration::from_secs(20), |_| {});
    assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
    for repeat in 0..20 {
        switch.removed_vlans[0].insert(107);
        let named = switch.times_until_missing(10);
        assert_eq!(
            switch.verdicts(),
            [missing(&[107], &[1]), missing(&[107], &[0])],
            "{repeat}: {named:?}"
        );
        switch.removed_vlans[0].clear();
        switch.run(Duration::from_secs(6), |_| {});
        assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
    }
}

#[test]
fn one_missing_vlan_of_4000_is_found_within_ten_seconds() {
    let mut switch = Switch::new(2, &vlans(2..4002));
    switch.removed_vlans[1].insert(3000);
    switch.run(Duration::from_secs(10), |_| {});
    assert_eq!(switch.verdicts(), [missing(&[3000], &[1]), missing(&[3000], &[0])]);
    switch.removed_vlans[1].clear();
    switch.run(Duration::from_secs(100), |_| {});
    assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
}

/// Removes a VLAN that is in no fast round. The agents first get time to adjust their probe rates until they take turns
/// in each VLAN: the agent that misses a probe reports this to the sender, so each probe then tests the VLAN for both
/// agents.
#[test]
fn one_vlan_removed_from_an_idle_trunk_is_found_within_ten_seconds() {
    for end in [2002, 4002] {
        let mut switch = Switch::new(2, &vlans(2..end));
        switch.run(Duration::from_secs(160), |_| {});
        assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
        for (id, phase) in [(2, 0), (1777, 1300), (end - 1, 2600), (1000, 3900), (1128, 5200)] {
            // The VLAN is removed at another time of the round in each repetition.
            switch.run(Duration::from_millis(phase), |_| {});
            let port = usize::from(id % 2);
            switch.removed_vlans[port].insert(id);
            let named = switch.times_until_missing(10);
            let verdicts = switch.verdicts();
            assert_eq!(verdicts, [missing(&[id], &[1]), missing(&[id], &[0])], "{named:?}");
            switch.removed_vlans[port].clear();
            switch.run(Duration::from_secs(4), |_| {});
            assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
        }
        // All agents together send about 512 frames per second.
        switch.sent_frames = 0;
        switch.run(Duration::from_secs(100), |_| {});
        assert!((48_000..55_000).contains(&switch.sent_frames), "{}", switch.sent_frames);
    }
}

#[test]
fn all_hosts_name_the_host_whose_port_lacks_a_vlan() {
    let mut switch = Switch::new(4, &vlans(100..600));
    switch.run(Duration::from_secs(60), |_| {});
    switch.removed_vlans[2].insert(333);
    let named = switch.times_until_missing(10);
    let missing_from_host_2 = missing(&[333], &[2]);
    let expected = [
        missing_from_host_2.clone(),
        missing_from_host_2.clone(),
        missing(&[333], &[0, 1, 3]),
        missing_from_host_2,
    ];
    assert_eq!(switch.verdicts(), expected, "{named:?}");
    let cut_off = switch.agents.iter().map(|agent| agent.probe.unverified_vlans());
    let (none, only) = (VlanSet::default(), vlans([333]));
    assert_eq!(cut_off.collect::<Vec<_>>(), [none.clone(), none.clone(), only, none]);
    switch.removed_vlans[2].clear();
    switch.run(Duration::from_secs(4), |_| {});
    assert_eq!(switch.verdicts(), vec![Verdict::Verified; 4]);
}

/// The sender of the dropped frames reports no VLAN as missing, and the hosts do not solicit each other endlessly.
#[test]
fn a_fault_in_one_direction_is_reported_by_the_receiver() {
    let mut switch = Switch::new(2, &vlans(100..120));
    switch.run(Duration::from_secs(20), |_| {});
    switch.dropped_paths.insert((0, 1, 105));
    switch.run(Duration::from_secs(10), |_| {});
    assert_eq!(switch.verdicts(), [Verdict::Verified, missing(&[105], &[0])]);
    switch.sent_frames = 0;
    switch.run(Duration::from_secs(100), |_| {});
    // The agents send 20 probes per second, and recheck the missing VLAN.
    assert!(switch.sent_frames < 3000, "{}", switch.sent_frames);
}

/// A link that is down for a while loses the frames of all VLANs, including solicitations.
#[test]
fn a_flapping_link_causes_no_alarm() {
    let all = vlans(100..140);
    let mut switch = Switch::new(3, &all);
    switch.run(Duration::from_secs(20), |_| {});
    for flap in 0..200 {
        switch.removed_vlans[1] = all.iter().map(u16::from).collect();
        let down = Duration::from_millis(50 * (1 + flap % 60));
        switch.run(down, |_| {});
        switch.removed_vlans[1].clear();
        switch.run(Duration::from_millis(1000 + 37 * flap), |switch| {
            for verdict in switch.verdicts() {
                assert_eq!(
                    verdict,
                    Verdict::Verified,
                    "the trunk should stay verified after flap {flap}"
                );
            }
        });
    }
}

/// An agent that cannot read all frames must not conclude anything from the lost frames.
#[test]
fn lost_frames_of_an_overloaded_agent_cause_no_alarm() {
    let mut switch = Switch::new(2, &vlans(100..140));
    switch.run(Duration::from_secs(20), |_| {});
    switch.lost_per_million = 900_000;
    switch.run(Duration::from_secs(120), |switch| {
        switch.agents.iter_mut().for_each(|agent| agent.probe.ignore_past_losses());
        let verdicts = switch.verdicts();
        let is_alarm = |verdict: &Verdict| matches!(verdict, Verdict::Missing { .. });
        assert!(!verdicts.iter().any(is_alarm), "{verdicts:?}");
    });
    switch.lost_per_million = 0;
    switch.run(Duration::from_secs(20), |_| {});
    assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
}

#[test]
fn a_single_host_or_a_dead_peer_proves_nothing() {
    let mut switch = Switch::new(1, &vlans(100..105));
    switch.run(Duration::from_secs(60), |_| {});
    assert_eq!(switch.verdicts(), [Verdict::Unknown]);
    let mut switch = Switch::new(2, &vlans(100..105));
    switch.run(Duration::from_secs(10), |_| {});
    switch.agents[1].is_running = false;
    let mut verdicts = Vec::new();
    switch.run(Duration::from_secs(60), |switch| {
        verdicts.push(switch.agents[0].probe.verdict());
    });
    verdicts.dedup();
    assert_eq!(verdicts, [Verdict::Verified, Verdict::Unknown]);
}

fn unverified(ids: &[u16]) -> Verdict {
    Verdict::Unverified { vlans: vlans(ids.iter().copied()) }
}

/// Returns a switch with three agents. The second and the third agent each have one VLAN in common with the first
/// agent.
fn switch_with_one_common_vlan_each() -> Switch {
    let mut switch = Switch::new(3, &vlans([100, 101]));
    for (index, own, other) in [(1, 101, 100), (2, 100, 101)] {
        switch.set_vlans(index, vlans([own]));
        switch.removed_vlans[index].insert(other);
    }
    switch
}

/// The switch never carried the only VLAN of a host, so no other host knows that this host exists.
#[test]
fn a_vlan_without_any_peer_is_not_verified() {
    let mut switch = switch_with_one_common_vlan_each();
    switch.removed_vlans[0].insert(101);
    switch.run(Duration::from_secs(300), |switch| {
        assert_ne!(switch.agents[0].probe.verdict(), Verdict::Verified);
    });
    assert_eq!(switch.verdicts(), [unverified(&[101]), Verdict::Unknown, Verdict::Verified]);
    switch.removed_vlans[0].clear();
    switch.run(Duration::from_secs(20), |_| {});
    assert_eq!(switch.verdicts(), vec![Verdict::Verified; 3]);
}

#[test]
fn a_peer_that_vanishes_in_its_last_common_vlan_verifies_nothing() {
    let mut switch = switch_with_one_common_vlan_each();
    switch.run(Duration::from_secs(30), |_| {});
    assert_eq!(switch.verdicts(), vec![Verdict::Verified; 3]);
    switch.removed_vlans[0].insert(101);
    // An unresponsive peer is removed after 30 seconds.
    switch.run(Duration::from_secs(40), |_| {});
    assert_eq!(switch.verdicts(), [unverified(&[101]), Verdict::Unknown, Verdict::Verified]);
    switch.removed_vlans[0].clear();
    switch.run(Duration::from_secs(20), |_| {});
    assert_eq!(switch.verdicts(), vec![Verdict::Verified; 3]);
}

/// The VLAN of a new tenant is not reported while the other hosts configure it.
#[test]
fn a_new_vlan_is_unverified_only_if_no_other_host_carries_it_for_minutes() {
    let mut switch = Switch::new(2, &vlans(100..103));
    switch.run(Duration::from_secs(200), |_| {});
    assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
    let run_verified = |switch: &mut Switch, seconds| {
        switch.run(Duration::from_secs(seconds), |switch| {
            assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
        });
    };
    switch.set_vlans(0, vlans(100..104));
    run_verified(&mut switch, 60);
    switch.set_vlans(1, vlans(100..104));
    run_verified(&mut switch, 300);
    switch.set_vlans(1, vlans(100..103));
    switch.run(Duration::from_secs(300), |_| {});
    assert_eq!(switch.verdicts(), [unverified(&[103]), Verdict::Verified]);
}

/// A guest that records frames and sends them again cannot hide that a VLAN is missing, and cannot cause an alarm.
#[test]
fn replayed_frames_are_no_evidence() {
    let mut switch = Switch::new(2, &vlans(100..110));
    switch.run(Duration::from_secs(10), |_| {});
    // Frames that host-1 sends in its current session, and after its restart in the next session.
    let mut recorded = Vec::new();
    for _ in 0..2 {
        for _ in 0..500 {
            switch.run(TICK, |switch| {
                recorded.extend(
                    switch
                        .in_flight
                        .values()
                        .filter(|frame| frame.to == 0)
                        .map(|frame| (frame.vlan, frame.payload.clone())),
                );
            });
        }
        switch.restart(1);
    }
    switch.run(Duration::from_secs(10), |_| {});
    assert!(recorded.len() > 50, "{}", recorded.len());
    switch.removed_vlans[0].insert(103);
    let mut replayed = BTreeSet::new();
    switch.run(Duration::from_secs(15), |switch| {
        let now = switch.now + switch.agents[0].clock_offset;
        let at = switch.random(recorded.len() as u64);
        let (vlan, payload) = &recorded[usize::try_from(at).unwrap()];
        let result = switch.agents[0].probe.receive(now, Some(*vlan), payload);
        replayed.insert(result.unwrap_err().to_string());
    });
    assert!(replayed.contains(&IgnoredFrame::NotProven.to_string()), "{replayed:?}");
    assert_eq!(switch.verdicts(), [missing(&[103], &[1]), missing(&[103], &[0])]);
    // Replayed frames of a stopped peer do not make the peer count as running.
    switch.removed_vlans[0].clear();
    switch.run(Duration::from_secs(10), |_| {});
    switch.agents[1].is_running = false;
    switch.run(Duration::from_secs(60), |switch| {
        let now = switch.now + switch.agents[0].clock_offset;
        let at = switch.random(recorded.len() as u64);
        let (vlan, payload) = &recorded[usize::try_from(at).unwrap()];
        switch.agents[0].probe.receive(now, Some(*vlan), payload).unwrap_or_default();
        assert!(!matches!(switch.agents[0].probe.verdict(), Verdict::Missing { .. }));
    });
    assert_eq!(switch.agents[0].probe.verdict(), Verdict::Unknown);
}

#[test]
fn a_frame_in_another_vlan_is_a_leak() {
    let mut switch = Switch::new(2, &vlans(100..102));
    switch.run(Duration::from_secs(10), |_| {});
    let now = switch.now + switch.agents[1].clock_offset + Duration::from_secs(3);
    let (frames, _) = switch.agents[1].probe.poll(now);
    let frame = &frames[0];
    let other = VlanId::try_from(55).unwrap();
    let now = switch.now + switch.agents[0].clock_offset;
    let agent = &mut switch.agents[0];
    assert_eq!(agent.probe.receive(now, Some(other), frame.payload()), Err(IgnoredFrame::Leaked));
    let leak = agent.probe.leak(now).unwrap().to_string();
    let sent = frame.vlan;
    assert_eq!(leak, format!("frames that host-1 sends in VLAN {sent} arrive in VLAN 55"));
}
