//! DHCPv4 messages of a guest as Ethernet frames.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use dhcproto::v4::{
    CLIENT_PORT, DhcpOption, MIN_PACKET_SIZE, Message, MessageType, OptionCode, SERVER_PORT,
};
use dhcproto::{Decodable as _, Encodable as _};
use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};

use super::guests::Guest;

/// Answer of a DHCP server to a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) transaction: u32,
    pub(super) message_type: MessageType,
    /// Address that the server offers or assigns to the guest (`yiaddr`).
    pub(super) address: Ipv4Addr,
    pub(super) server: Ipv4Addr,
}

/// Returns a DHCPDISCOVER.
pub(super) fn discover_frame(guest: Guest, transaction: u32) -> Result<Vec<u8>> {
    frame(guest, &message(guest, transaction, MessageType::Discover))
}

/// Returns the DHCPREQUEST that accepts an offer.
pub(super) fn request_frame(guest: Guest, offer: Answer) -> Result<Vec<u8>> {
    let mut message = message(guest, offer.transaction, MessageType::Request);
    message.opts_mut().insert(DhcpOption::ServerIdentifier(offer.server));
    message.opts_mut().insert(DhcpOption::RequestedIpAddress(offer.address));
    frame(guest, &message)
}

/// Parses a frame; `None` if it is no complete DHCP answer.
pub(super) fn parse_answer(frame: &[u8]) -> Option<Answer> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(TransportSlice::Udp(datagram)) = packet.transport else { return None };
    if datagram.destination_port() != CLIENT_PORT {
        return None;
    }
    let message = Message::from_bytes(datagram.payload()).ok()?;
    let Some(DhcpOption::ServerIdentifier(server)) =
        message.opts().get(OptionCode::ServerIdentifier)
    else {
        return None;
    };
    Some(Answer {
        transaction: message.xid(),
        message_type: message.opts().msg_type()?,
        address: message.yiaddr(),
        server: *server,
    })
}

/// Returns a message without the broadcast flag, with the options that common clients request.
fn message(guest: Guest, transaction: u32, message_type: MessageType) -> Message {
    let none = Ipv4Addr::UNSPECIFIED;
    let mac = guest.mac();
    let mut message = Message::new_with_id(transaction, none, none, none, none, &mac.0);
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(message_type));
    options.insert(DhcpOption::ParameterRequestList(vec![
        OptionCode::SubnetMask,
        OptionCode::Router,
        OptionCode::DomainNameServer,
        OptionCode::Hostname,
        OptionCode::InterfaceMtu,
        OptionCode::BroadcastAddr,
        OptionCode::ClasslessStaticRoute,
    ]));
    message
}

fn frame(guest: Guest, message: &Message) -> Result<Vec<u8>> {
    let mut payload = message.to_vec().context("encode a DHCP message")?;
    payload.resize(payload.len().max(MIN_PACKET_SIZE), 0);
    let builder = PacketBuilder::ethernet2(guest.mac().0, [0xff; 6])
        .ipv4(Ipv4Addr::UNSPECIFIED.octets(), Ipv4Addr::BROADCAST.octets(), 64)
        .udp(CLIENT_PORT, SERVER_PORT);
    let mut frame = Vec::with_capacity(builder.size(payload.len()));
    builder.write(&mut frame, &payload).context("write a frame")?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_api::{Lease, LeaseNetwork, LeaseOptions};
    use berth_dhcp_responder::{Direction, Outcome, PortResponder, SERVER_IDENTIFIER, SERVER_MAC};

    use super::super::guests::Server;
    use super::*;

    /// The guest exchanges its messages with the agent's DHCP responder.
    #[test]
    fn a_guest_gets_its_address() {
        let guest = Server::Agent.guests(1000).last().unwrap();
        let options = LeaseOptions { prefix_length: 16, ..LeaseOptions::default() };
        let network = LeaseNetwork { ipv4: Some(options), ..LeaseNetwork::default() };
        let lease = Lease {
            mac: guest.mac(),
            machine: "cluster-a/worker".to_owned(),
            hostname: None,
            ipv4: Some(guest.address()),
            ipv6: None,
            default_route: None,
        };
        let mut responder = PortResponder::new(&network, &lease, SERVER_MAC);
        let mut answer = |frame: &[u8]| {
            let outcome = responder.handle(Direction::FromGuest, frame, Duration::ZERO);
            let Outcome::Answer { frame, .. } = outcome else { panic!("{outcome:?}") };
            parse_answer(&frame).unwrap()
        };
        let expected = Answer {
            transaction: 7,
            message_type: MessageType::Offer,
            address: guest.address(),
            server: SERVER_IDENTIFIER,
        };
        let offer = answer(&discover_frame(guest, 7).unwrap());
        assert_eq!(offer, expected);
        let ack = answer(&request_frame(guest, offer).unwrap());
        assert_eq!(ack, Answer { message_type: MessageType::Ack, ..expected });
    }

    #[test]
    fn other_frames_are_no_answers() {
        let guest = Server::Dnsmasq.guests(1).last().unwrap();
        let frame = discover_frame(guest, 7).unwrap();
        assert_eq!(parse_answer(&frame), None);
        assert_eq!(parse_answer(&frame[..40]), None);
        assert_eq!(parse_answer(&[]), None);
    }
}
