//! Finds out whether another machine uses the address of a lease, before the agent serves the lease (RFC 2131, section
//! 2.2; RFC 5227).
//!
//! Each new address is tested in a round of probes. If no machine answers, or only the VM of the lease answers, the
//! address is served; so a VM that migrates to this host causes no conflict. If another machine answers, or the guest
//! declines the address, the address is withheld, and probed again after a backoff until the other machine no longer
//! answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use berth_api::MacAddress;

use crate::outcome::IgnoredReason;
use crate::probe_frame::{Probe, ProbeAnswer};
use crate::rate_limit::Uptime;

/// Number of probes in a round. More than one is sent, because a probe may be lost.
pub const PROBE_COUNT: u8 = 3;
/// Time for which the answers to a probe are awaited. RFC 5227 waits a second, which would delay the first answer to a
/// guest for longer than its own retransmissions.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Time until an address in use is probed again. The time doubles after each round, up to [`MAX_BACKOFF`].
pub const MIN_BACKOFF: Duration = Duration::from_secs(15);
/// Longest time until an address in use is probed again.
pub const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// State of the address of a lease, which determines whether the address may be served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressState {
    /// The first round of probes is not complete.
    Unknown,
    /// No other machine uses the address.
    #[default]
    Free,
    /// Another machine uses the address.
    InUse,
}

impl AddressState {
    /// Returns an error if the address may not be served.
    pub(crate) const fn check(self) -> Result<(), IgnoredReason> {
        match self {
            Self::Unknown => Err(IgnoredReason::AddressNotProbed),
            Self::Free => Ok(()),
            Self::InUse => Err(IgnoredReason::AddressInUse),
        }
    }
}

/// Next step of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStep {
    /// Send a probe, then call [`AddressProbes::poll`] again.
    Send(Probe),
    /// Call [`AddressProbes::poll`] again at this time, or earlier if a lease or a state changes.
    Wait(Uptime),
    /// Call [`AddressProbes::poll`] again when a lease or a state changes.
    Idle,
}

/// An address of a lease that another machine uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressConflict {
    /// Address of the lease.
    pub address: IpAddr,
    /// Ethernet address of the VM that has the lease.
    pub owner: MacAddress,
    /// Ethernet address of the other machine; `None` if the guest declined the address.
    pub user: Option<MacAddress>,
}

/// State of one address.
#[derive(Clone, Debug)]
struct AddressEntry {
    owner: MacAddress,
    state: AddressState,
    user: Option<MacAddress>,
    /// Number of probes that were sent in the current round.
    sent_probes: u8,
    /// Time of the next probe, or of the end of the round.
    due: Option<Uptime>,
    backoff: Duration,
}

/// Probes of the addresses of one network.
#[derive(Clone, Debug, Default)]
pub struct AddressProbes {
    entries: BTreeMap<IpAddr, AddressEntry>,
    /// Addresses whose round has begun, by the time of the next probe. They take precedence over waiting addresses, so
    /// that the duration of a round does not depend on the number of waiting addresses.
    in_round: BTreeSet<(Uptime, IpAddr)>,
    /// Addresses whose round has not begun, by the time at which it may begin.
    waiting: BTreeSet<(Uptime, IpAddr)>,
}

impl AddressProbes {
    /// Replaces the leases, which map addresses to owners. Probes each address that is new or has a new owner.
    pub fn set_leases(&mut self, leases: &BTreeMap<IpAddr, MacAddress>, now: Uptime) {
        self.entries.retain(|address, entry| leases.get(address) == Some(&entry.owner));
        for queue in [&mut self.in_round, &mut self.waiting] {
            queue.retain(|(_, address)| self.entries.contains_key(address));
        }
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
    }

    /// Returns the state of an address. The state of an address without a lease on this host is `Unknown`.
    #[must_use]
    pub fn state(&self, address: IpAddr) -> AddressState {
        self.entries.get(&address).map_or(AddressState::Unknown, |entry| entry.state)
    }

    /// Returns the addresses in use.
    pub fn conflicts(&self) -> impl Iterator<Item = AddressConflict> + '_ {
        let in_use = self.entries.iter().filter(|(_, entry)| entry.state == AddressState::InUse);
        in_use.map(|(&address, entry)| entry.conflict(address))
    }

    /// Moves an address to the front of the queue, because its guest is waiting for an answer. An address in use keeps
    /// its backoff. Returns true if the order changed.
    pub fn prioritize(&mut self, address: IpAddr) -> bool {
        let Some(entry) = self.entries.get(&address) else { return false };
        let is_waiting = entry.state == AddressState::Unknown && entry.sent_probes == 0;
        let is_preferred = is_waiting && entry.due != Some(Uptime::ZERO);
        if is_preferred {
            self.schedule(address, Some(Uptime::ZERO));
        }
        is_preferred
    }

    /// Returns the next step. The caller must pass all received answers to [`Self::observe`] before.
    pub fn poll(&mut self, now: Uptime) -> ProbeStep {
        while let Some(address) = self.next_due(now) {
            // Every address of a queue has an entry.
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

    /// Returns the next address that is due.
    fn next_due(&self, now: Uptime) -> Option<IpAddr> {
        let queues = [&self.in_round, &self.waiting].into_iter();
        let mut due = queues.filter_map(|queue| queue.first()).filter(|(due, _)| *due <= now);
        due.next().map(|(_, address)| *address)
    }

    /// Handles an answer. Returns the conflict if a machine other than the owner answered during a round of probes.
    /// Answers at other times are ignored: they could be for other machines that probe, and an address that is served
    /// stays served.
    pub fn observe(&mut self, answer: ProbeAnswer, now: Uptime) -> Option<AddressConflict> {
        let entry = self.entries.get(&answer.address)?;
        let is_other = answer.mac != entry.owner && entry.sent_probes > 0;
        is_other.then(|| self.withhold(answer.address, Some(answer.mac), now)).flatten()
    }

    /// Withholds an address that its guest declined (RFC 2131, section 4.3.3).
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

    /// Runs steps until nothing is due before `end`; returns the addresses of the probes.
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
        // A later conflict begins with the shortest backoff.
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
        // Sending a probe to a hundred ports takes one millisecond for each port.
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
        /// For any sequence of events, each address ends up queued or with a state, and the run terminates.
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
