//! Simulations of 100 hosts. Each agent receives the frames of all others, and can read 16,000 frames per second.

use std::time::Duration;

use berth_trunk_probe::Verdict;

use super::{Switch, missing, vlans};

/// Maximum number of frames that all agents together send per second while VLANs are missing: 3,300 solicitations, half as
/// many answers, 640 probes, and some frames in missing VLANs.
const MAX_FRAMES_PER_SECOND: u64 = 6000;

impl Switch {
    /// Starts the agents one after the other. Until all are started, frames arrive after different times: an agent answers
    /// only a few of the solicitations that arrive at the same time, so many simultaneous ones would make the test slow.
    fn start_one_by_one(&mut self) {
        self.agents.iter_mut().for_each(|agent| agent.is_running = false);
        self.max_delay_micros = 100_000;
        for index in 0..self.agents.len() {
            self.agents[index].is_running = true;
            self.run(Duration::from_millis(100), |_| {});
        }
        self.max_delay_micros = 1;
        self.run(Duration::from_secs(20), |_| {});
    }

    /// Runs the simulation for some seconds, and returns the largest number of frames that the agents sent in one of
    /// them.
    fn max_frames_per_second(&mut self, seconds: u64) -> u64 {
        let mut max = 0;
        for _ in 0..seconds {
            self.sent_frames = 0;
            self.run(Duration::from_secs(1), |_| {});
            max = max.max(self.sent_frames);
        }
        max
    }
}

#[test]
fn solicitations_of_100_hosts_are_limited_and_faults_are_reported() {
    let mut switch = Switch::new(100, &vlans(100..108));
    switch.start_one_by_one();
    assert_eq!(switch.verdicts(), vec![Verdict::Verified; 100]);

    // The port of one host has lost all VLANs but one.
    switch.removed_vlans[0] = (100..107).collect();
    let frames = switch.max_frames_per_second(30);
    assert!(frames <= MAX_FRAMES_PER_SECOND, "{frames}");
    let lost = vlans(100..107);
    let verdicts = switch.verdicts();
    let (first, others) = verdicts.split_first().unwrap();
    assert!(matches!(first, Verdict::Missing { vlans, .. } if *vlans == lost), "{first:?}");
    assert_eq!(switch.agents[0].probe.unverified_vlans(), lost);
    let lost_by_first = missing(&[100, 101, 102, 103, 104, 105, 106], &[0]);
    for verdict in others {
        assert_eq!(*verdict, lost_by_first);
    }

    switch.removed_vlans[0].clear();
    switch.run(Duration::from_secs(10), |_| {});
    assert_eq!(switch.verdicts(), vec![Verdict::Verified; 100]);

    // The ports of 60 hosts have lost half of the VLANs.
    switch.removed_vlans[..60].fill((100..104).collect());
    let frames = switch.max_frames_per_second(20);
    assert!(frames <= MAX_FRAMES_PER_SECOND, "{frames}");
    let lost = vlans(100..104);
    for (index, verdict) in switch.verdicts().into_iter().enumerate() {
        let is_reported = matches!(&verdict, Verdict::Missing { vlans, .. } if *vlans == lost);
        assert!(is_reported, "host-{index}: {verdict:?}");
    }
    for agent in &switch.agents[..60] {
        assert_eq!(agent.probe.unverified_vlans(), lost);
    }
}
