//! Answers DHCPv4 messages (RFC 2131).

use std::net::Ipv4Addr;

use dhcproto::v4::{
    self, Decodable as _, Encodable as _, HType, MAGIC, MIN_PACKET_SIZE, MessageType, Opcode,
};

use crate::dhcpv4_options::{OptionWriter, RequestOptions};
use crate::frame::{BROADCAST_MAC, DHCPV4_HEADERS, FrameAddresses};
use crate::identity::SERVER_IDENTIFIER;
use crate::outcome::{AnswerKind, DeclinedAddress, IgnoredReason, Outcome};
use crate::settings::{Ipv4Settings, Settings};

/// Number of bytes before the options: the fixed fields and the magic cookie.
const HEADER_LENGTH: usize = 240;
/// Maximum length in bytes of an IP datagram that every client must accept (RFC 2131).
const MIN_MESSAGE_LIMIT: u16 = 576;

/// A DHCPv4 message that the guest sent.
struct Request<'a> {
    header: v4::borrowed::Message<'a>,
    bytes: &'a [u8],
    options: RequestOptions,
}

/// Answers a DHCPv4 message of the guest. Increments `left_out_count` by the number of options that do not fit into the
/// answer.
pub(crate) fn answer(
    settings: &Settings,
    (source, destination): (Ipv4Addr, Ipv4Addr),
    bytes: &[u8],
    left_out_count: &mut u64,
) -> Result<Outcome, IgnoredReason> {
    let request = parse(settings, bytes)?;
    let ipv4 = settings.ipv4.as_ref().ok_or(IgnoredReason::NotConfigured)?;
    let kind = match request.options.message_type {
        Some(MessageType::Discover) => AnswerKind::Dhcpv4Offer,
        Some(MessageType::Request) => answer_to_request(&request, destination, ipv4)?,
        Some(MessageType::Inform) => {
            return answer_inform(settings, &request, source, left_out_count);
        }
        Some(MessageType::Decline) => return decline(&request, ipv4),
        Some(MessageType::Release) => return Err(IgnoredReason::Released),
        Some(_) => return Err(IgnoredReason::NoRequest),
        // A BOOTP request, which has no message type, is not answered.
        None => return Err(IgnoredReason::Malformed),
    };
    let uses_address = request.header.ciaddr() == ipv4.address.addr();
    if kind != AnswerKind::Dhcpv4Nak && !uses_address {
        settings.ipv4_state.check()?;
    }
    let mut answer = header_of_answer(&request)?;
    let options = if kind == AnswerKind::Dhcpv4Nak {
        OptionWriter::for_nak(max_message_length(settings, &request), &request.options)
    } else {
        answer.set_ciaddr(request.header.ciaddr()).set_yiaddr(ipv4.address.addr());
        let message_type =
            if kind == AnswerKind::Dhcpv4Offer { MessageType::Offer } else { MessageType::Ack };
        let limit = max_message_length(settings, &request);
        OptionWriter::for_lease(limit, message_type, settings, ipv4, &request.options)
    };
    let (destination, destination_mac) = destination_of_answer(settings, &request, ipv4, kind);
    *left_out_count += options.left_out_count;
    let frame = answer_frame(settings, &answer, options, destination, destination_mac)?;
    Ok(Outcome::Answer { kind, frame })
}

fn parse<'a>(settings: &Settings, bytes: &'a [u8]) -> Result<Request<'a>, IgnoredReason> {
    let header = v4::borrowed::Message::new(bytes).map_err(|_| IgnoredReason::Malformed)?;
    if header.opcode() != Opcode::BootRequest {
        return Err(IgnoredReason::NoRequest);
    }
    // The accessor `chaddr` panics if `hlen` is larger than the message.
    if header.htype() != HType::Eth || header.hlen() != 6 || bytes.get(236..240) != Some(&MAGIC) {
        return Err(IgnoredReason::Malformed);
    }
    if header.chaddr() != settings.mac.0 {
        return Err(IgnoredReason::OtherMac);
    }
    if !header.giaddr().is_unspecified() {
        return Err(IgnoredReason::RelayAgent);
    }
    let options = RequestOptions::parse(header.opts());
    Ok(Request { header, bytes, options })
}

/// Selects DHCPACK or DHCPNAK for a DHCPREQUEST.
fn answer_to_request(
    request: &Request<'_>,
    destination: Ipv4Addr,
    ipv4: &Ipv4Settings,
) -> Result<AnswerKind, IgnoredReason> {
    if request.options.server.is_some_and(|server| server != SERVER_IDENTIFIER) {
        return Err(IgnoredReason::OtherServer);
    }
    // Clients in the states RENEWING and REBINDING set `ciaddr`. Clients in the states SELECTING and INIT-REBOOT set
    // the option "Requested IP Address" instead.
    let ciaddr = Some(request.header.ciaddr()).filter(|address| !address.is_unspecified());
    let address = request.options.address.or(ciaddr).ok_or(IgnoredReason::Malformed)?;
    if address == ipv4.address.addr() {
        return Ok(AnswerKind::Dhcpv4Ack);
    }
    // A renewal contains no server identifier. Its IP destination is the server that allocated the address.
    if is_unicast(destination) && destination != SERVER_IDENTIFIER {
        return Err(IgnoredReason::OtherServer);
    }
    Ok(AnswerKind::Dhcpv4Nak)
}

/// Answers a DHCPINFORM: the client already has an address, and requests only the other settings of the network.
fn answer_inform(
    settings: &Settings,
    request: &Request<'_>,
    source: Ipv4Addr,
    left_out_count: &mut u64,
) -> Result<Outcome, IgnoredReason> {
    let ipv4 = settings.ipv4.as_ref().ok_or(IgnoredReason::NotConfigured)?;
    let candidates = [request.header.ciaddr(), source];
    let destination = candidates.into_iter().find(|address| is_unicast(*address));
    let destination = destination.ok_or(IgnoredReason::Malformed)?;
    let mut answer = header_of_answer(request)?;
    answer.set_ciaddr(request.header.ciaddr());
    let limit = max_message_length(settings, request);
    let options = OptionWriter::for_inform(limit, settings, ipv4, &request.options);
    *left_out_count += options.left_out_count;
    let frame = answer_frame(settings, &answer, options, destination, settings.mac)?;
    Ok(Outcome::Answer { kind: AnswerKind::Dhcpv4Ack, frame })
}

fn decline(request: &Request<'_>, ipv4: &Ipv4Settings) -> Result<Outcome, IgnoredReason> {
    if request.options.server.is_some_and(|server| server != SERVER_IDENTIFIER) {
        return Err(IgnoredReason::OtherServer);
    }
    let address = ipv4.address.addr();
    if request.options.address != Some(address) {
        return Err(IgnoredReason::NoRequest);
    }
    Ok(Outcome::Declined(DeclinedAddress { address: address.into(), answer: None }))
}

/// Returns the header of the answer to a request: with the request's transaction ID, flags and `chaddr`.
fn header_of_answer(request: &Request<'_>) -> Result<v4::Message, IgnoredReason> {
    let header = request.bytes.get(..HEADER_LENGTH).ok_or(IgnoredReason::Malformed)?;
    let mut answer = v4::Message::from_bytes(header).map_err(|_| IgnoredReason::Malformed)?;
    answer.clear_fname();
    answer.clear_sname();
    answer.set_opcode(Opcode::BootReply).set_hops(0).set_secs(0).clear_addrs();
    Ok(answer)
}

/// Returns the Ethernet and IP destination of an answer (RFC 2131, section 4.1).
fn destination_of_answer(
    settings: &Settings,
    request: &Request<'_>,
    ipv4: &Ipv4Settings,
    kind: AnswerKind,
) -> (Ipv4Addr, berth_api::MacAddress) {
    if kind == AnswerKind::Dhcpv4Nak {
        return (Ipv4Addr::BROADCAST, BROADCAST_MAC);
    }
    if request.header.ciaddr() == ipv4.address.addr() {
        return (ipv4.address.addr(), settings.mac);
    }
    // A client that cannot receive unicast before it has an address sets the broadcast flag.
    if request.header.flags().broadcast() {
        return (Ipv4Addr::BROADCAST, BROADCAST_MAC);
    }
    (ipv4.address.addr(), settings.mac)
}

/// Returns the maximum length of an answer: the client accepts it, and it fits into one frame.
fn max_message_length(settings: &Settings, request: &Request<'_>) -> usize {
    let mtu = settings.mtu.unwrap_or(1500).max(MIN_MESSAGE_LIMIT);
    let accepted = request.options.limit.unwrap_or(MIN_MESSAGE_LIMIT).clamp(MIN_MESSAGE_LIMIT, mtu);
    usize::from(accepted) - DHCPV4_HEADERS
}

fn answer_frame(
    settings: &Settings,
    header: &v4::Message,
    options: OptionWriter,
    destination: Ipv4Addr,
    destination_mac: berth_api::MacAddress,
) -> Result<Vec<u8>, IgnoredReason> {
    let mut message = header.to_vec().map_err(|_| IgnoredReason::Malformed)?;
    message.extend(options.finish());
    // Pads the message to the minimum length of BOOTP messages, which some clients and firmware require.
    message.resize(message.len().max(MIN_PACKET_SIZE), 0);
    let addresses = FrameAddresses { source: settings.server_mac, destination: destination_mac };
    addresses.dhcpv4_frame(destination, &message).ok_or(IgnoredReason::Malformed)
}

fn is_unicast(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_broadcast() && !address.is_multicast()
}
