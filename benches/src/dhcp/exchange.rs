//! Emulated guests: each guest obtains its address with DHCPDISCOVER and DHCPREQUEST, and the time until each
//! answer is measured.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use dhcproto::v4::MessageType;
use nix::sys::socket::LinkAddr;
use serde::{Deserialize, Serialize};

use super::guests::Guest;
use super::message::{Answer, discover_frame, request_frame};
use super::socket::GuestSocket;

/// Time after which a guest repeats its message.
const RETRANSMISSION_INTERVAL: Duration = Duration::from_secs(1);
/// Number of transmissions of a message without an answer after which the measurement fails.
const MAX_TRANSMISSIONS: u32 = 10;

/// Times until the answers to all guests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct AnswerTimes {
    /// Milliseconds from the first DHCPDISCOVER to the DHCPOFFER.
    pub(super) offer_millis: Vec<f64>,
    /// Milliseconds from the first DHCPREQUEST to the DHCPACK.
    pub(super) ack_millis: Vec<f64>,
    /// Number of messages that guests sent again.
    pub(super) retransmissions: u32,
}

impl AnswerTimes {
    /// Returns the milliseconds until each DHCPOFFER and each DHCPACK.
    pub(super) fn all_millis(&self) -> Vec<f64> {
        [&self.offer_millis[..], &self.ack_millis].concat()
    }

    /// Returns the milliseconds by the type of the answer.
    pub(super) fn millis_by_type(&self) -> [(&'static str, &[f64]); 2] {
        [("DHCPOFFER", &self.offer_millis), ("DHCPACK", &self.ack_millis)]
    }

    /// Adds the times of another round.
    pub(super) fn extend(&mut self, other: Self) {
        self.offer_millis.extend(other.offer_millis);
        self.ack_millis.extend(other.ack_millis);
        self.retransmissions += other.retransmissions;
    }
}

/// A guest that waits for an answer.
struct Exchange {
    guest: Guest,
    link: LinkAddr,
    /// The last message that the guest sent, for retransmissions.
    frame: Vec<u8>,
    expected_type: MessageType,
    first_sent: Instant,
    last_sent: Instant,
    transmissions: u32,
}

/// Lets all guests get their addresses, with at most `at_once` guests that wait at the same time. `transaction` is
/// the last used transaction ID.
pub(super) fn serve_guests(
    socket: &GuestSocket,
    guests: &[(Guest, LinkAddr)],
    at_once: usize,
    transaction: &mut u32,
) -> Result<AnswerTimes> {
    let mut exchanges =
        Exchanges { socket, waiting: BTreeMap::new(), times: AnswerTimes::default() };
    let mut remaining = guests.iter();
    loop {
        if exchanges.waiting.len() < at_once
            && let Some((guest, link)) = remaining.next()
        {
            *transaction = transaction.wrapping_add(1);
            exchanges.start(*transaction, *guest, *link)?;
            // Receives answers also between the starts of guests, because the measured time of an answer ends when
            // it is received.
            while let Some((at, answer)) = socket.try_receive()? {
                exchanges.handle(at, answer)?;
            }
        } else if exchanges.waiting.is_empty() {
            return Ok(exchanges.times);
        } else {
            if let Some((at, answer)) = socket.receive()? {
                exchanges.handle(at, answer)?;
            }
            exchanges.retransmit()?;
        }
    }
}

/// All guests that wait for an answer, by transaction ID.
struct Exchanges<'a> {
    socket: &'a GuestSocket,
    waiting: BTreeMap<u32, Exchange>,
    times: AnswerTimes,
}

impl Exchanges<'_> {
    fn start(&mut self, transaction: u32, guest: Guest, link: LinkAddr) -> Result<()> {
        let frame = discover_frame(guest, transaction)?;
        self.send(transaction, guest, link, frame, MessageType::Offer)
    }

    /// Sends a new message of a guest.
    fn send(
        &mut self,
        transaction: u32,
        guest: Guest,
        link: LinkAddr,
        frame: Vec<u8>,
        expected_type: MessageType,
    ) -> Result<()> {
        let now = Instant::now();
        self.socket.send(&frame, &link)?;
        let (first_sent, last_sent) = (now, now);
        let exchange =
            Exchange { guest, link, frame, expected_type, first_sent, last_sent, transmissions: 1 };
        self.waiting.insert(transaction, exchange);
        Ok(())
    }

    /// Handles an answer. A retransmitted message may be answered twice, so an answer of an unexpected type is
    /// ignored.
    fn handle(&mut self, at: Instant, answer: Answer) -> Result<()> {
        let Some(exchange) = self.waiting.get(&answer.transaction) else { return Ok(()) };
        let (guest, link) = (exchange.guest, exchange.link);
        ensure!(answer.message_type != MessageType::Nak, "{}: DHCPNAK", guest.mac());
        if answer.message_type != exchange.expected_type {
            return Ok(());
        }
        let (address, expected) = (answer.address, guest.address());
        ensure!(address == expected, "{} got {address} instead of {expected}", guest.mac());
        let millis = (at - exchange.first_sent).as_secs_f64() * 1e3;
        if answer.message_type == MessageType::Offer {
            self.times.offer_millis.push(millis);
            let frame = request_frame(guest, answer)?;
            return self.send(answer.transaction, guest, link, frame, MessageType::Ack);
        }
        self.times.ack_millis.push(millis);
        self.waiting.remove(&answer.transaction);
        Ok(())
    }

    /// Sends the messages without an answer again after [`RETRANSMISSION_INTERVAL`].
    fn retransmit(&mut self) -> Result<()> {
        let now = Instant::now();
        for exchange in self.waiting.values_mut() {
            if now.saturating_duration_since(exchange.last_sent) < RETRANSMISSION_INTERVAL {
                continue;
            }
            ensure!(
                exchange.transmissions < MAX_TRANSMISSIONS,
                "{}: no answer to {} messages",
                exchange.guest.mac(),
                exchange.transmissions
            );
            self.socket.send(&exchange.frame, &exchange.link)?;
            exchange.last_sent = now;
            exchange.transmissions += 1;
            self.times.retransmissions += 1;
        }
        Ok(())
    }
}
