//! The responder of one bridge port.

use std::net::IpAddr;
use std::sync::Arc;

use berth_api::{Lease, LeaseNetwork, MacAddress};
use dhcproto::{v4, v6};
use etherparse::{Icmpv6Type, UdpSlice};

use crate::address_probes::AddressState;
use crate::frame::LINK_HOP_LIMIT;
use crate::outcome::{Direction, ForeignKind, ForeignServer, IgnoredReason, Outcome};
use crate::rate_limit::{RateLimit, Uptime};
use crate::received::{Content, Received};
use crate::settings::{LeaseSettings, NetworkSettings};
use crate::statistics::Statistics;
use crate::{dhcpv4, dhcpv6, neighbor, received_advertisement, router_advertisement};

/// Answers the frames of one bridge port with the data of its VM's lease.
#[derive(Clone, Debug)]
pub struct PortResponder {
    lease: LeaseSettings,
    rate_limit: RateLimit,
    statistics: Statistics,
}

impl PortResponder {
    /// Creates the responder of a port. `server_mac` is the Ethernet source of all answers: [`crate::SERVER_MAC`].
    #[must_use]
    pub fn new(network: &LeaseNetwork, lease: &Lease, server_mac: MacAddress) -> Self {
        Self::with_network(&Arc::new(NetworkSettings::new(network, server_mac)), lease)
    }

    /// Creates the responder of a port, which shares the settings of the network with other responders.
    #[must_use]
    pub fn with_network(network: &Arc<NetworkSettings>, lease: &Lease) -> Self {
        Self {
            lease: LeaseSettings::new(network, lease),
            rate_limit: RateLimit::default(),
            statistics: Statistics::default(),
        }
    }

    /// Replaces the lease and the settings of the network. The rate limit and the statistics remain. Resets the states
    /// of both addresses to `Free`.
    pub fn set_lease(&mut self, network: &Arc<NetworkSettings>, lease: &Lease) {
        self.lease = LeaseSettings::new(network, lease);
    }

    /// Returns the Ethernet address of the lease.
    #[must_use]
    pub const fn mac(&self) -> MacAddress {
        self.lease.mac
    }

    /// Sets the results of the address probes. By default, both addresses are `Free`.
    ///
    /// An address with another state is not offered. However, a guest that already uses the address can still renew it,
    /// because otherwise the guest would lose a working address.
    pub const fn set_address_states(&mut self, ipv4: AddressState, ipv6: AddressState) {
        self.lease.ipv4_state = ipv4;
        self.lease.ipv6_state = ipv6;
    }

    /// Returns the counters since the responder was created.
    #[must_use]
    pub const fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Handles an Ethernet frame (without frame check sequence) of the port, and returns what the agent has to do.
    pub fn handle(&mut self, direction: Direction, frame: &[u8], now: Uptime) -> Outcome {
        let outcome = Received::parse(frame).and_then(|received| match direction {
            Direction::FromGuest => self.answer(&received, now),
            Direction::ToGuest => self.find_foreign_server(&received),
        });
        let outcome = outcome.unwrap_or_else(Outcome::Ignored);
        self.statistics.count(&outcome);
        outcome
    }

    /// Handles a frame that belongs to no guest with a lease: detects foreign servers, and sends no answer. Does not
    /// change the rate limit and the statistics, so all ports of a network can share one responder for such frames.
    #[must_use]
    pub fn observe(&self, direction: Direction, frame: &[u8]) -> Outcome {
        let outcome = Received::parse(frame).and_then(|received| match direction {
            Direction::FromGuest => Err(IgnoredReason::OtherMac),
            Direction::ToGuest => self.find_foreign_server(&received),
        });
        outcome.unwrap_or_else(Outcome::Ignored)
    }

    /// Returns a frame with an unsolicited router advertisement, if IPv6 is configured. The agent sends this frame when
    /// the port appears, when the lease changes, and once per [`crate::ADVERTISEMENT_INTERVAL`].
    #[must_use]
    pub fn advertisement(&self) -> Option<Vec<u8>> {
        let settings = self.lease.settings();
        router_advertisement::advertisement_frame(&settings, settings.ipv6.as_ref()?, None)
    }

    fn answer(&mut self, received: &Received<'_>, now: Uptime) -> Result<Outcome, IgnoredReason> {
        let settings = &self.lease.settings();
        if received.source_mac != settings.mac {
            return Err(IgnoredReason::OtherMac);
        }
        // The rate limit is checked before the answer is computed, so that a flood of requests causes little work.
        if !self.rate_limit.has_token(now) {
            return Err(IgnoredReason::RateLimited);
        }
        let left_out_count = &mut self.statistics.options_left_out;
        let outcome = match &received.content {
            Content::Arp(request) => neighbor::answer_arp(settings, request),
            Content::Udp { source, destination, datagram } => {
                match (source, destination, datagram.destination_port()) {
                    (IpAddr::V4(source), IpAddr::V4(destination), v4::SERVER_PORT) => {
                        let addresses = (*source, *destination);
                        dhcpv4::answer(settings, addresses, datagram.payload(), left_out_count)
                    }
                    (IpAddr::V6(source), _, v6::SERVER_PORT) => {
                        dhcpv6::answer(settings, *source, datagram.payload(), left_out_count)
                    }
                    _ => Err(IgnoredReason::Unrelated),
                }
            }
            Content::Icmpv6 { source, hop_limit, message } => match message.icmp_type() {
                Icmpv6Type::RouterSolicitation | Icmpv6Type::NeighborSolicitation
                    if *hop_limit != LINK_HOP_LIMIT =>
                {
                    Err(IgnoredReason::Malformed)
                }
                Icmpv6Type::RouterSolicitation => {
                    router_advertisement::answer_router_solicitation(settings, *source)
                }
                Icmpv6Type::NeighborSolicitation => {
                    neighbor::answer_neighbor_solicitation(settings, *source, message)
                }
                _ => Err(IgnoredReason::Unrelated),
            },
        }?;
        self.rate_limit.take(now);
        Ok(outcome)
    }

    /// Detects messages of foreign servers. DHCP options are not parsed.
    ///
    /// A message from Berth's own Ethernet address is also foreign. Answers of this agent are not delivered to the
    /// socket that sends them. Answers of other agents do not arrive, because a bridge forwards only frames that it
    /// receives through a port, not frames that a socket sends through the port to the guest.
    fn find_foreign_server(&self, received: &Received<'_>) -> Result<Outcome, IgnoredReason> {
        let (kind, address) = match &received.content {
            Content::Arp(_) => return Err(IgnoredReason::Unrelated),
            Content::Udp { source, datagram, .. } => (server_kind(*source, datagram)?, *source),
            Content::Icmpv6 { source, hop_limit, message } => {
                if !matches!(message.icmp_type(), Icmpv6Type::RouterAdvertisement(_)) {
                    return Err(IgnoredReason::Unrelated);
                }
                // Guests also ignore an advertisement with another hop limit or source.
                if *hop_limit != LINK_HOP_LIMIT || !source.is_unicast_link_local() {
                    return Err(IgnoredReason::Malformed);
                }
                let settings = self.lease.settings();
                let is_own_address = received.source_mac == settings.server_mac;
                if !is_own_address
                    && received_advertisement::is_expected(&settings, *source, message)
                {
                    return Err(IgnoredReason::Gateway);
                }
                (ForeignKind::RouterAdvertisement, IpAddr::V6(*source))
            }
        };
        Ok(Outcome::ForeignServer(ForeignServer { kind, mac: received.source_mac, address }))
    }
}

/// Returns the protocol of a server if the datagram is a message from a server.
fn server_kind(source: IpAddr, datagram: &UdpSlice<'_>) -> Result<ForeignKind, IgnoredReason> {
    let first = datagram.payload().first().copied().ok_or(IgnoredReason::Malformed)?;
    let is_reply = u8::from(v4::Opcode::BootReply) == first;
    let is_answer = matches!(
        v6::MessageType::from(first),
        v6::MessageType::Advertise | v6::MessageType::Reply | v6::MessageType::Reconfigure
    );
    match (source, datagram.source_port()) {
        (IpAddr::V4(_), v4::SERVER_PORT) if is_reply => Ok(ForeignKind::Dhcpv4),
        (IpAddr::V6(_), v6::SERVER_PORT) if is_answer => Ok(ForeignKind::Dhcpv6),
        _ => Err(IgnoredReason::Unrelated),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host has a thousand responders. What all guests of a network share belongs in [`NetworkSettings`].
    #[test]
    fn a_responder_is_small() {
        assert!(size_of::<PortResponder>() <= 192, "{} bytes", size_of::<PortResponder>());
    }
}
