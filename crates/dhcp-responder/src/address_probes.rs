//! Detects whether another machine uses the IP address of a lease, before the agent offers the lease to the VM (RFC
//! 2131, section 2.2; RFC 5227).
//!
//! For each new address, the agent sends a round of [`PROBE_COUNT`] probes. If no machine answers, or only the VM of
//! the lease (which may have migrated to this host with the address), the agent offers the lease. If another machine
//! answers, or the guest declines the address, the agent does not offer the lease, and sends another round after a
//! backoff, until no other machine answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use berth_api::MacAddress;

use crate::outcome::IgnoredReason;
use crate::probe_frame::{Probe, ProbeAnswer};
use crate::rate_limit::Uptime;

/// Number of probes in a round. Several are sent, because a probe may be lost.
pub const PROBE_COUNT: u8 = 3;
/// Time between two probes of a round, during which answers are accepted. RFC 5227 requires a second, but the first
/// answer to a guest would then arrive after the guest's retransmissions.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Delay before an address that is in use is probed again. The delay doubles after each round, up to [`MAX_BACKOFF`].
pub const MIN_BACKOFF: Duration = Duration::from_secs(15);
/// Maximum delay before an address that is in use is probed again.
pub const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// Result of the probes of a lease's address. The agent offers only an address with the state `Free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressState {
    /// The first round of probes has not ended.
    Unknown,
    /// No other machine uses the address.
    #[default]
    Free,
    /// Another machine uses the address, or the guest has declined it.
    InUse,
}

impl AddressState {
    /// Returns an error if the agent must not offer the address.
    pub(crate) const fn check(self) -> Result<(), IgnoredReason> {
        match self {
            Self::Unknown => Err(IgnoredReason::AddressNotProbed),
            Self::Free => Ok(()),
            Self::InUse => Err(IgnoredReason::AddressInUse),
        }
    }
}

/// Next action of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStep {
    /// Send a probe, then call [`AddressProbes::poll`] again.
    Send(Probe),
    /// Call [`AddressProbes::poll`] again at this time, or earlier if the leases or the state of an address change.
    Wait(Uptime),
    /// Call [`AddressProbes::poll`] again when the leases or the state of an address change.
    Idle,
}

/// A leased address that another machine uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressConflict {
    /// Leased address.
    pub address: IpAddr,
    /// Ethernet address of the VM that has the lease.
    pub owner: MacAddress,
    /// Ethernet address of the other machine; `None` if it is unknown because the guest declined the address.
    pub user: Option<MacAddress>,
}

/// Probes and state of one leased address.
#[derive(Clone, Debug)]
struct AddressEntry {
    owner: MacAddress,
    state: AddressState,
    user: Option<MacAddress>,
    /// Number of probes that were sent in the current round.
    sent_probes: u8,
    /// Time of the next probe, or of the end of the current round; `None` if no further round is planned.
    due: Option<Uptime>,
    backoff: Duration,
}

/// Probes of the leased addresses of one network.
#[derive(Clone, Debug, Default)]
pub struct AddressProbes {
    entries: BTreeMap<IpAddr, AddressEntry>,
    /// Addresses with a current round, by the time of the next probe. [`poll`](Self::poll) handles them before
    /// `waiting`, so that the duration of a round does not depend on the number of waiting addresses.
    in_round: BTreeSet<(Uptime, IpAddr)>,
    /// Addresses whose next round has not started, by the earliest time at which it may start.
    waiting: BTreeSet<(Uptime, IpAddr)>,
}

impl AddressProbes {
    /// Replaces the leases: a map from each address to the Ethernet address of the VM that has the lease. Schedules
    /// probes of each address that is new or that another VM has got.
    pub fn set_leases(&mut self, leases: &BTreeMap<IpAddr, MacAddress>, now: Uptime) {
        self.entries.retain(|address, entry| leases.get(address) == Some(&entry.owner));
        for queue in [&mut self.in_round, &mut self.waiting] {
            queue.retain(|(_, address)| self.entries.contains_key(address));
        }
        let count = self.entries.len();
        for (&address, &owner) in leases {
            self.entries.entry(address).or_insert_with(|| {
                self.waiting.insert((now, address));
                AddressEntry {
                    owner,
                    state: AddressState::Unknown,
                    user: None,
                    sent_probes: 0,
                    due: Some(now),
                    backoff: MIN_BACKOFF,
                }
            });
        }
        if self.entries.len() > count {
            // Insertions in ascending order leave half of the map's memory empty.
            self.entries = std::mem::take(&mut self.entries).into_iter().collect();
        }
    }

    /// Returns the state of an address. The state of an address without a lease on this host is `Unknown`.
    #[must_use]
    pub fn state(&self, address: IpAddr) -> AddressState {
        self.entries.get(&address).map_or(AddressState::Unknown, |entry| entry.state)
    }

    /// Returns all addresses whose state is [`AddressState::InUse`].
    pub fn conflicts(&self) -> impl Iterator<Item = AddressConflict> + '_ {
        let in_use = self.entries.iter().filter(|(_, entry)| entry.state == AddressState::InUse);
        in_use.map(|(&address, entry)| entry.conflict(address))
    }

    /// Moves an address to the front of the queue, because its guest is waiting for an answer. Has no effect on an
    /// address that is in use, which is probed after its backoff. Returns true if the order of the queue changed.
    pub fn prioritize(&mut self, address: IpAddr) -> bool {
        let Some(entry) = self.entries.get(&address) else { return false };
        let is_waiting = entry.state == AddressState::Unknown && entry.sent_probes == 0;
        let is_preferred = is_waiting && entry.due != Some(Uptime::ZERO);
        if is_preferred {
            self.schedule(address, Some(Uptime::ZERO));
        }
        is_preferred
    }

    /// Returns the next action. The caller must first pass all received answers to [`Self::observe`].
    pub fn poll(&mut self, now: Uptime) -> ProbeStep {
        while let Some(address) = self.next_due(now) {
            // Never breaks: `entries` contains every address that is in a queue.
            let Some(entry) = self.entries.get_mut(&address) else { break };
            if entry.sent_probes < PROBE_COUNT {
                entry.sent_probes += 1;
                let probe = Probe { owner: entry.owner, address };
                self.schedule(address, Some(now.saturating_add(PROBE_INTERVAL)));
                return ProbeStep::Send(probe);
            }
            *entry = AddressEntry {
                owner: entry.owner,
                state: AddressState::Free,
                user: None,
                sent_probes: 0,
                due: entry.due,
                backoff: MIN_BACKOFF,
            };
            self.schedule(address, None);
        }
        let queues = [&self.in_round, &self.waiting].into_iter();
        let next = queues.filter_map(|queue| queue.first()).map(|(due, _)| *due).min();
        next.map_or(ProbeStep::Idle, ProbeStep::Wait)
    }

    /// Returns an address for which the next step is due, or `None`.
    fn next_due(&self, now: Uptime) -> Option<IpAddr> {
        let queues = [&self.in_round, &self.waiting].into_iter();
        let mut due = queues.filter_map(|queue| queue.first()).filter(|(due, _)| *due <= now);
        due.next().map(|(_, address)| *address)
    }

    /// Handles an answer to a probe. Returns the conflict if another machine than the lease's VM answered during a
    /// round. Ignores answers at other times: they may be answers to probes of other machines, and the offer of
    /// an address must stay valid.
    pub fn observe(&mut self, answer: ProbeAnswer, now: Uptime) -> Option<AddressConflict> {
        let entry = self.entries.get(&answer.address)?;
        let is_other = answer.mac != entry.owner && entry.sent_probes > 0;
        is_other.then(|| self.withhold(answer.address, Some(answer.mac), now)).flatten()
    }

    /// Marks an address as in use because its guest declined it (RFC 2131, section 4.3.3).
    pub fn decline(&mut self, address: IpAddr, now: Uptime) -> Option<AddressConflict> {
        self.withhold(address, None, now)
    }

    fn withhold(
        &mut self,
        address: IpAddr,
        user: Option<MacAddress>,
        now: Uptime,
    ) -> Option<AddressConflict> {
        let entry = self.entries.get_mut(&address)?;
        entry.state = AddressState::InUse;
        entry.user = user;
        entry.sent_probes = 0;
        let due = now.saturating_add(entry.backoff);
        entry.backoff = (entry.backoff * 2).min(MAX_BACKOFF);
        let conflict = entry.conflict(address);
        self.schedule(address, Some(due));
        Some(conflict)
    }

    fn schedule(&mut self, address: IpAddr, due: Option<Uptime>) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        if let Some(previous) = entry.due {
            self.in_round.remove(&(previous, address));
            self.waiting.remove(&(previous, address));
        }
        entry.due = due;
        let queue = if entry.sent_probes > 0 { &mut self.in_round } else { &mut self.waiting };
        queue.extend(due.map(|due| (due, address)));
    }
}

impl AddressEntry {
    const fn conflict(&self, address: IpAddr) -> AddressConflict {
        AddressConflict { address, owner: self.owner, user: self.user }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWNER: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
    const START: Uptime = Duration::from_secs(1000);

    fn address(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    fn probes(count: u8) -> AddressProbes {
        let mut probes = AddressProbes::default();
        let leases = (1..=count).map(|number| (address(number), OWNER)).collect();
        probes.set_leases(&leases, START);
        probes
    }

    /// Runs the probes until nothing is due before `end`, and returns the probed addresses in order.
    fn run(probes: &mut AddressProbes, mut now: Uptime, end: Uptime) -> Vec<IpAddr> {
        let mut sent = Vec::new();
        loop {
            match probes.poll(now) {
                ProbeStep::Send(probe) => sent.push(probe.address),
                ProbeStep::Wait(until) if until <= end => now = until,
                ProbeStep::Wait(_) | ProbeStep::Idle => return sent,
            }
        }
    }

    #[test]
    fn an_unused_address_is_served_after_one_round() {
        let mut probes = probes(1);
        let end = START + PROBE_INTERVAL * u32::from(PROBE_COUNT);
        let before_end = end - Duration::from_millis(1);
        assert_eq!(run(&mut probes, START, before_end), [address(1); PROBE_COUNT as usize]);
        assert_eq!(probes.state(address(1)), AddressState::Unknown);
        assert!(run(&mut probes, before_end, end).is_empty());
        assert_eq!(probes.state(address(1)), AddressState::Free);
        assert_eq!(probes.poll(end + Duration::from_secs(1 << 30)), ProbeStep::Idle);
        assert_eq!(probes.state(address(2)), AddressState::Unknown, "no lease of this host");
    }

    #[test]
    fn the_vm_itself_is_no_conflict_when_it_migrates() {
        let mut probes = probes(1);
        assert!(matches!(probes.poll(START), ProbeStep::Send(_)));
        let answer = ProbeAnswer { mac: OWNER, address: address(1) };
        assert_eq!(probes.observe(answer, START), None);
        run(&mut probes, START, START + Duration::from_secs(2));
        assert_eq!(probes.state(address(1)), AddressState::Free);
    }

    #[test]
    fn an_address_in_use_is_withheld_until_the_other_machine_is_gone() {
        let mut probes = probes(1);
        let answer = ProbeAnswer { mac: OTHER, address: address(1) };
        let conflict = AddressConflict { address: address(1), owner: OWNER, user: Some(OTHER) };
        assert_eq!(probes.observe(answer, START), None, "no probe was sent");
        let mut now = START;
        for backoff in [15, 30, 60, 120, 240, 300, 300] {
            assert!(matches!(probes.poll(now), ProbeStep::Send(_)));
            assert_eq!(probes.observe(answer, now), Some(conflict));
            assert_eq!(probes.observe(answer, now), None, "the round has ended");
            assert_eq!(probes.state(address(1)), AddressState::InUse);
            assert!(!probes.prioritize(address(1)), "a guest does not shorten the backoff");
            now += Duration::from_secs(backoff);
            assert_eq!(probes.poll(now - Duration::from_millis(1)), ProbeStep::Wait(now));
        }
        assert_eq!(probes.conflicts().collect::<Vec<_>>(), [conflict]);
        run(&mut probes, now, now + Duration::from_secs(1));
        assert_eq!(probes.state(address(1)), AddressState::Free);
        assert_eq!(probes.conflicts().count(), 0);
        // The backoff of a later conflict starts at the minimum again.
        probes.decline(address(1), now).unwrap();
        assert_eq!(probes.poll(now), ProbeStep::Wait(now + MIN_BACKOFF));
    }

    #[test]
    fn an_address_that_is_served_stays_served() {
        let mut probes = probes(1);
        run(&mut probes, START, START + Duration::from_secs(2));
        let answer = ProbeAnswer { mac: OTHER, address: address(1) };
        assert_eq!(probes.observe(answer, START), None);
        assert_eq!(probes.state(address(1)), AddressState::Free);
        let leases = [(address(1), OWNER), (address(2), OWNER)].into();
        probes.set_leases(&leases, START);
        assert_eq!(probes.state(address(1)), AddressState::Free);
        let leases = [(address(1), OTHER)].into();
        probes.set_leases(&leases, START);
        assert_eq!(probes.state(address(1)), AddressState::Unknown, "the lease of another VM");
    }

    #[test]
    fn the_address_of_a_waiting_guest_is_probed_first() {
        let mut probes = probes(200);
        assert!(probes.prioritize(address(200)));
        assert!(!probes.prioritize(address(200)));
        let ProbeStep::Send(probe) = probes.poll(START) else { panic!("nothing to send") };
        assert_eq!(probe.address, address(200));
        assert!(!probes.prioritize(address(200)), "its round has begun");
    }

    #[test]
    fn a_waiting_guest_is_served_soon_on_a_host_with_many_vms() {
        let mut probes = probes(200);
        // For 100 ports, sending one probe takes 1 ms per port.
        let duration = Duration::from_millis(100);
        let mut now = START;
        let mut step = |probes: &mut AddressProbes| {
            match probes.poll(now) {
                ProbeStep::Send(_) => now += duration,
                ProbeStep::Wait(until) => now = until,
                ProbeStep::Idle => panic!("addresses are unknown"),
            }
            now
        };
        for _ in 0..20 {
            step(&mut probes);
        }
        assert!(probes.prioritize(address(200)));
        let begin = step(&mut probes);
        let mut end = begin;
        while probes.state(address(200)) == AddressState::Unknown {
            end = step(&mut probes);
        }
        assert!(end - begin < Duration::from_secs(2), "{:?}", end - begin);
        assert_eq!(probes.state(address(199)), AddressState::Unknown);
    }

    proptest! {
        /// For any sequence of events, each address is still queued at the end or has a state, and the test terminates.
        #[test]
        fn every_address_gets_a_state_or_stays_queued(events in proptest::collection::vec((0..5_u8, 1..6_u8), 0..60)) {
            let mut probes = probes(3);
            let mut now = START;
            for (event, number) in events {
                match event {
                    0 => {
                        probes.poll(now);
                    }
                    1 => {
                        let answer = ProbeAnswer { mac: OTHER, address: address(number) };
                        probes.observe(answer, now);
                    }
                    2 => {
                        probes.decline(address(number), now);
                    }
                    3 => {
                        probes.prioritize(address(number));
                    }
                    _ => {
                        let leases = (1..=number).map(|number| (address(number), OWNER)).collect();
                        probes.set_leases(&leases, now);
                    }
                }
                now += Duration::from_millis(200);
            }
            run(&mut probes, now, now + Duration::from_secs(3600));
            for number in 1..=probes.entries.len() {
                prop_assert_eq!(probes.state(address(u8::try_from(number).unwrap())), AddressState::Free);
            }
            prop_assert!(probes.in_round.is_empty() && probes.waiting.is_empty());
        }
    }
}
