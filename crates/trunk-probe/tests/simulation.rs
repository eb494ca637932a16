//! Simulates agents on a switch that loses, duplicates and reorders frames, and whose ports lack VLANs.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

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
    wake: Duration,
    is_running: bool,
    /// VLANs that the agent probes, for a restart.
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
    removed: Vec<BTreeSet<u16>>,
    in_flight: BTreeMap<(Duration, u64), Frame>,
    /// Lost and duplicated frames, in a million.
    loss: u64,
    duplicates: u64,
    max_delay: u64,
    random: u64,
    sessions: u64,
}

impl Switch {
    fn new(count: usize, carried: &VlanSet) -> Self {
        let mut switch = Self {
            now: Duration::from_secs(1000),
            agents: Vec::new(),
            removed: vec![BTreeSet::new(); count],
            in_flight: BTreeMap::new(),
            loss: 0,
            duplicates: 0,
            max_delay: 1,
            random: 88_172_645_463_325_252,
            sessions: 0,
        };
        for index in 0..count {
            let agent = switch.started_agent(index, carried, Duration::from_secs(index as u64 * 7));
            switch.agents.push(agent);
        }
        switch
    }

    fn started_agent(&mut self, index: usize, carried: &VlanSet, clock_offset: Duration) -> Agent {
        self.sessions += 1;
        let session = self.random(u64::MAX) ^ self.sessions;
        let now = self.now + clock_offset;
        let mut probe = TrunkProbe::new(&format!("host-{index}"), "tenants", keys(), session, now);
        probe.set_vlans(carried, now);
        Agent { probe, wake: now, is_running: true, vlans: carried.clone(), clock_offset }
    }

    fn random(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    fn send(&mut self, from: usize, vlan: VlanId, payload: &[u8]) {
        for to in 0..self.agents.len() {
            let is_removed = |port: usize| self.removed[port].contains(&vlan.into());
            if to == from || is_removed(from) || is_removed(to) {
                continue;
            }
            let copies = 1 + u64::from(self.random(1_000_000) < self.duplicates);
            for _ in 0..copies {
                if self.random(1_000_000) < self.loss {
                    continue;
                }
                let delay = Duration::from_micros(self.random(self.max_delay));
                let frame = Frame { to, vlan, payload: payload.to_vec() };
                let tie = self.random(u64::MAX);
                self.in_flight.insert((self.now + delay, tie), frame);
            }
        }
    }

    /// Runs for some time, and calls `inspect` in each tick.
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
                    let now = self.now + agent.clock_offset;
                    agent.probe.receive(now, Some(frame.vlan), &frame.payload).unwrap_or_default();
                }
            }
            for index in 0..self.agents.len() {
                let agent = &mut self.agents[index];
                let now = self.now + agent.clock_offset;
                let is_due = agent.wake <= now || agent.probe.has_queued_frames();
                if !agent.is_running || !is_due {
                    continue;
                }
                let (frames, wake) = agent.probe.poll(now);
                agent.wake = wake;
                for frame in frames {
                    self.send(index, frame.vlan, &frame.payload);
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
    switch.loss = 10_000;
    switch.run(Duration::from_secs(20), |_| {});
    assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
    for repeat in 0..20 {
        switch.removed[0].insert(107);
        let begin = switch.now;
        let mut named = [Duration::MAX; 2];
        switch.run(Duration::from_secs(10), |switch| {
            for (verdict, named) in switch.verdicts().into_iter().zip(&mut named) {
                if matches!(verdict, Verdict::Missing { .. }) {
                    *named = (*named).min(switch.now - begin);
                }
            }
        });
        assert_eq!(
            switch.verdicts(),
            [missing(&[107], &[1]), missing(&[107], &[0])],
            "{repeat}: {named:?}"
        );
        switch.removed[0].clear();
        switch.run(Duration::from_secs(6), |_| {});
        assert_eq!(switch.verdicts(), [Verdict::Verified, Verdict::Verified]);
    }
}

#[test]
fn one_missing_vlan_of_4000_is_found_within_ten_seconds() {
    let mut switch = Switch::new(2, &vlans(2..4002));
    switch.removed[1].insert(3000);
    switch.run(Duration::from_secs(10), |_| {});
    assert_eq!(switch.verdicts(), [missing(&[3000], &[1]), missing(&[3000], &[0])]);
    switch.removed[1].clear();
    switch.run(Duration::from_secs(100), |_| {});
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

/// A guest that records frames and sends them again cannot hide that a VLAN is missing, and cannot cause an alarm.
#[test]
fn replayed_frames_are_no_evidence() {
    let mut switch = Switch::new(2, &vlans(100..110));
    switch.run(Duration::from_secs(10), |_| {});
    // Frames of host-1, of this session and of the next one.
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
    switch.removed[0].insert(103);
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
    // Replays of the dead peer do not keep it alive.
    switch.removed[0].clear();
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
    let now = switch.now + switch.agents[1].clock_offset + Duration::from_secs(1);
    let (frames, _) = switch.agents[1].probe.poll(now);
    let frame = &frames[0];
    let other = VlanId::try_from(55).unwrap();
    let now = switch.now + switch.agents[0].clock_offset;
    let agent = &mut switch.agents[0];
    assert_eq!(agent.probe.receive(now, Some(other), &frame.payload), Err(IgnoredFrame::Leaked));
    let leak = agent.probe.leak(now).unwrap().to_string();
    assert_eq!(leak, "frames that host-1 sends in VLAN 100 arrive in VLAN 55");
}

/// A day with lost, duplicated and reordered frames, restarts, stopped agents, clock jumps and changes of VLANs.
#[test]
fn a_day_without_a_false_alarm() {
    let all = vlans(100..108);
    let mut switch = Switch::new(4, &all);
    (switch.loss, switch.duplicates, switch.max_delay) = (20_000, 10_000, 30_000);
    switch.run(Duration::from_secs(20), |_| {});
    let mut checked = 0_u64;
    for hour in 0..24 {
        for event in 0..20 {
            let index = usize::try_from(switch.random(4)).unwrap();
            match event % 6 {
                0 => switch.restart(index),
                1 => switch.agents[index].is_running ^= true,
                2 => switch.agents[index].clock_offset += Duration::from_secs(3600),
                3 => {
                    let first = u16::try_from(switch.random(8)).unwrap();
                    switch.set_vlans(index, vlans(100 + first..108));
                }
                4 => switch.set_vlans(index, all.clone()),
                _ => {}
            }
            switch.run(Duration::from_secs(180), |switch| {
                checked += 1;
                if checked.is_multiple_of(50) {
                    for verdict in switch.verdicts() {
                        assert!(
                            !matches!(verdict, Verdict::Missing { .. }),
                            "hour {hour}, event {event}: {verdict:?}"
                        );
                    }
                }
            });
        }
    }
}
