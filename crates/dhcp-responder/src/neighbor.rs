//! Answers ARP requests and neighbor solicitations for the server's addresses.

use std::net::Ipv6Addr;

use etherparse::icmpv6::{Icmpv6PayloadSlice, NdpOptionType, NeighborAdvertisementHeader};
use etherparse::{ArpEthIpv4Packet, ArpOperation, Icmpv6Slice, Icmpv6Type};

use crate::frame::{ALL_NODES, ALL_NODES_MAC, FrameAddresses};
use crate::identity::{SERVER_IDENTIFIER, SERVER_LINK_LOCAL};
use crate::outcome::{AnswerKind, IgnoredReason, Outcome};
use crate::settings::Settings;

/// Answers an ARP request for the server identifier, so that clients can send renewals to this address.
pub(crate) fn answer_arp(
    settings: &Settings,
    request: &ArpEthIpv4Packet,
) -> Result<Outcome, IgnoredReason> {
    if request.operation != ArpOperation::REQUEST || request.target_ipv4_addr() != SERVER_IDENTIFIER
    {
        return Err(IgnoredReason::Unrelated);
    }
    if request.sender_mac != settings.mac.0 {
        return Err(IgnoredReason::OtherMac);
    }
    if settings.ipv4.is_none() {
        return Err(IgnoredReason::NotConfigured);
    }
    let reply = ArpEthIpv4Packet {
        operation: ArpOperation::REPLY,
        sender_mac: settings.server_mac.0,
        sender_ipv4: SERVER_IDENTIFIER.octets(),
        target_mac: request.sender_mac,
        target_ipv4: request.sender_ipv4,
    };
    let addresses = FrameAddresses { source: settings.server_mac, destination: settings.mac };
    let frame = addresses.arp_frame(&reply).ok_or(IgnoredReason::Malformed)?;
    Ok(Outcome::Answer { kind: AnswerKind::ArpReply, frame })
}

/// Answers a neighbor solicitation for the link-local address of the server.
pub(crate) fn answer_neighbor_solicitation(
    settings: &Settings,
    source: Ipv6Addr,
    message: &Icmpv6Slice<'_>,
) -> Result<Outcome, IgnoredReason> {
    let payload = message.payload_slice().map_err(|_| IgnoredReason::Malformed)?;
    let Icmpv6PayloadSlice::NeighborSolicitation(solicitation) = payload else {
        return Err(IgnoredReason::Unrelated);
    };
    if solicitation.target_address() != SERVER_LINK_LOCAL {
        return Err(IgnoredReason::Unrelated);
    }
    if settings.ipv6.is_none() {
        return Err(IgnoredReason::NotConfigured);
    }
    // A solicitation without a source address is duplicate address detection by a guest that has no address yet.
    let is_solicited = !source.is_unspecified();
    let (destination, destination_mac) =
        if is_solicited { (source, settings.mac) } else { (ALL_NODES, ALL_NODES_MAC) };
    let header =
        NeighborAdvertisementHeader { router: true, solicited: is_solicited, r#override: true };
    let mut payload = SERVER_LINK_LOCAL.octets().to_vec();
    payload.extend([NdpOptionType::TARGET_LINK_LAYER_ADDRESS.0, 1]);
    payload.extend(settings.server_mac.0);
    let addresses = FrameAddresses { source: settings.server_mac, destination: destination_mac };
    let message = Icmpv6Type::NeighborAdvertisement(header);
    let frame = addresses.icmpv6_frame(SERVER_LINK_LOCAL, destination, message, &payload);
    let frame = frame.ok_or(IgnoredReason::Malformed)?;
    Ok(Outcome::Answer { kind: AnswerKind::NeighborAdvertisement, frame })
}
