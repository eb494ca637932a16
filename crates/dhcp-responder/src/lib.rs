//! Answers DHCP requests and router solicitations of one guest.
#![allow(missing_docs, missing_debug_implementations, reason = "a stub")]

use berth_api::{Lease, LeaseNetwork, MacAddress};

pub const SERVER_MAC: MacAddress = MacAddress([0x02, 0x62, 0x65, 0x72, 0x74, 0x68]);
pub const ADVERTISEMENT_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1800);

pub type Uptime = std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    FromGuest,
    ToGuest,
}

#[derive(Clone, Debug)]
pub struct PortResponder {
    mac: MacAddress,
}

impl PortResponder {
    #[must_use]
    pub fn new(_: &LeaseNetwork, lease: &Lease, _: MacAddress) -> Self {
        Self { mac: lease.mac }
    }

    pub fn update(&mut self, _: &LeaseNetwork, lease: &Lease) {
        self.mac = lease.mac;
    }

    pub fn handle(&mut self, _: Direction, _: &[u8], _: Uptime) -> Outcome {
        Outcome::Ignored(IgnoredReason::Malformed)
    }

    #[must_use]
    pub fn advertisement(&self) -> Option<Vec<u8>> {
        Some(self.mac.0.to_vec())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Answer { kind: AnswerKind, frame: Vec<u8> },
    ForeignServer(ForeignServer),
    Declined(DeclinedAddress),
    Ignored(IgnoredReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum AnswerKind {
    Dhcpv4Offer,
    Dhcpv4Ack,
    Dhcpv4Nak,
    Dhcpv6Advertise,
    Dhcpv6Reply,
    RouterAdvertisement,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclinedAddress {
    pub address: std::net::IpAddr,
    pub answer: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignServer {
    pub kind: ForeignKind,
    pub mac: MacAddress,
    pub address: std::net::IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ForeignKind {
    Dhcpv4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum IgnoredReason {
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterInstruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

#[must_use]
pub fn socket_filter() -> &'static [FilterInstruction] {
    &[FilterInstruction { code: 6, jt: 0, jf: 0, k: u32::MAX }]
}
