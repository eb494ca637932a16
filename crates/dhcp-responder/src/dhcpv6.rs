//! Answers DHCPv6 messages (RFC 8415).

use std::net::Ipv6Addr;

use dhcproto::v6::{
    Decodable as _, DhcpOption, DhcpOptions, Encodable as _, IAAddr, IANA, IAPD, IATA, Message,
    MessageType, OptionCode, Status, StatusCode, UnknownOption,
};

use crate::dhcpv6_options::{Association, AssociationKind, RequestOptions};
use crate::domain_name::encode_all;
use crate::frame::{DHCPV6_HEADERS, FrameAddresses};
use crate::identity::{LEASE_TIME, REBINDING_TIME, RENEWAL_TIME, seconds, server_duid};
use crate::outcome::{AnswerKind, DeclinedAddress, IgnoredReason, Outcome};
use crate::settings::{Ipv6Settings, Settings};

/// Maximum length of an answer in bytes. The packet fits into the minimum MTU of IPv6 (1280 bytes).
const MAX_MESSAGE_LENGTH: usize = 1280 - DHCPV6_HEADERS;
/// Value of the option Preference. A client that receives this value does not wait for answers of other servers.
const HIGHEST_PREFERENCE: u8 = 255;

/// Answers a DHCPv6 message of the guest. Increments `left_out_count` by the number of options that do not fit into the
/// answer.
pub(crate) fn answer(
    settings: &Settings,
    source: Ipv6Addr,
    bytes: &[u8],
    left_out_count: &mut u64,
) -> Result<Outcome, IgnoredReason> {
    let (header, options) = bytes.split_first_chunk::<4>().ok_or(IgnoredReason::Malformed)?;
    let message_type = MessageType::from(header[0]);
    match message_type {
        MessageType::RelayForw | MessageType::RelayRepl => return Err(IgnoredReason::RelayAgent),
        MessageType::Solicit
        | MessageType::Request
        | MessageType::Confirm
        | MessageType::Renew
        | MessageType::Rebind
        | MessageType::Release
        | MessageType::Decline
        | MessageType::InformationRequest => {}
        _ => return Err(IgnoredReason::NoRequest),
    }
    let ipv6 = settings.ipv6.as_ref().ok_or(IgnoredReason::NotConfigured)?;
    if source.is_unspecified() || source.is_multicast() {
        return Err(IgnoredReason::Malformed);
    }
    let request = RequestOptions::parse(options)?;
    check_identifiers(settings, message_type, &request)?;
    let address = ipv6.address.addr();
    let has_address =
        request.associations.iter().any(|association| association.addresses.contains(&address));
    let gives_new_address = match message_type {
        MessageType::Solicit | MessageType::Request => true,
        MessageType::Renew | MessageType::Rebind => !has_address,
        _ => false,
    };
    if gives_new_address {
        settings.ipv6_state.check()?;
    }

    let mut answer = Message::from_bytes(header).map_err(|_| IgnoredReason::Malformed)?;
    answer.set_msg_type(MessageType::Reply);
    let options = answer.opts_mut();
    if let Some(client) = request.client {
        options.insert(DhcpOption::ClientId(client.to_vec()));
    }
    options.insert(DhcpOption::ServerId(server_duid(settings.server_mac)));
    let mut kind = AnswerKind::Dhcpv6Reply;
    match message_type {
        MessageType::Solicit if request.has_rapid_commit => {
            options.insert(DhcpOption::RapidCommit);
            insert_associations(options, ipv6, &request.associations, false);
        }
        MessageType::Solicit => {
            kind = AnswerKind::Dhcpv6Advertise;
            options.insert(DhcpOption::Preference(HIGHEST_PREFERENCE));
            insert_associations(options, ipv6, &request.associations, false);
        }
        MessageType::Request | MessageType::Renew | MessageType::Rebind => {
            let is_renewal = message_type != MessageType::Request;
            insert_associations(options, ipv6, &request.associations, is_renewal);
        }
        MessageType::Confirm => options.insert(confirm(ipv6, &request.associations)?),
        MessageType::Release | MessageType::Decline => options.insert(status(Status::Success)),
        _ => options.insert(DhcpOption::InformationRefreshTime(seconds(RENEWAL_TIME))),
    }
    if kind == AnswerKind::Dhcpv6Advertise {
        answer.set_msg_type(MessageType::Advertise);
    }
    let has_settings =
        !matches!(message_type, MessageType::Confirm | MessageType::Release | MessageType::Decline);
    let message = encode_answer(answer, ipv6, has_settings, left_out_count)?;
    let addresses = FrameAddresses { source: settings.server_mac, destination: settings.mac };
    let frame = addresses.dhcpv6_frame(source, &message).ok_or(IgnoredReason::Malformed)?;
    if message_type == MessageType::Decline && has_address {
        let declined = DeclinedAddress { address: address.into(), answer: Some(frame) };
        return Ok(Outcome::Declined(declined));
    }
    Ok(Outcome::Answer { kind, frame })
}

/// Checks the client and server identifiers of a message according to RFC 8415, section 16.
fn check_identifiers(
    settings: &Settings,
    message_type: MessageType,
    request: &RequestOptions<'_>,
) -> Result<(), IgnoredReason> {
    let has_own_server = match request.server {
        Some(server) if server == server_duid(settings.server_mac) => true,
        Some(_) => return Err(IgnoredReason::OtherServer),
        None => false,
    };
    let is_valid = match message_type {
        MessageType::Solicit | MessageType::Confirm | MessageType::Rebind => {
            !has_own_server && request.client.is_some()
        }
        MessageType::InformationRequest => request.associations.is_empty(),
        _ => has_own_server && request.client.is_some(),
    };
    if is_valid { Ok(()) } else { Err(IgnoredReason::Malformed) }
}

/// Inserts an answer to each identity association. Because a VM has only one address, one association gets it: the
/// association that already contains the address, otherwise the first association for addresses.
fn insert_associations(
    options: &mut DhcpOptions,
    ipv6: &Ipv6Settings,
    associations: &[Association],
    is_renewal: bool,
) {
    let address = ipv6.address.addr();
    let is_address = |a: &&Association| a.kind == AssociationKind::Address;
    let owner = associations
        .iter()
        .filter(is_address)
        .find(|association| association.addresses.contains(&address))
        .or_else(|| associations.iter().find(is_address));
    for association in associations {
        let is_owner = owner.is_some_and(|owner| std::ptr::eq(owner, association));
        let address = is_owner.then_some(address);
        options.insert(answer_to_association(association, address, is_renewal));
    }
}

/// Returns the answer to an identity association. The answer to a renewal contains the client's other addresses with a
/// lifetime of 0, so that the client removes addresses from another server or lease.
fn answer_to_association(
    association: &Association,
    address: Option<Ipv6Addr>,
    is_renewal: bool,
) -> DhcpOption {
    let others =
        association.addresses.iter().filter(|other| is_renewal && Some(**other) != address);
    let lifetimes = others.map(|other| (*other, 0));
    let lifetimes = lifetimes.chain(address.map(|address| (address, seconds(LEASE_TIME))));
    let addresses = lifetimes.map(|(addr, lifetime)| {
        let opts = DhcpOptions::new();
        DhcpOption::IAAddr(IAAddr { addr, preferred_life: lifetime, valid_life: lifetime, opts })
    });
    let mut opts: DhcpOptions = addresses.collect();
    let id = association.id;
    match association.kind {
        AssociationKind::Prefix => {
            let opts = [status(Status::NoPrefixAvail)].into_iter().collect();
            DhcpOption::IAPD(IAPD { id, t1: 0, t2: 0, opts })
        }
        AssociationKind::TemporaryAddress => {
            opts.insert(status(Status::NoAddrsAvail));
            DhcpOption::IATA(IATA { id, opts })
        }
        AssociationKind::Address if address.is_some() => {
            let (t1, t2) = (seconds(RENEWAL_TIME), seconds(REBINDING_TIME));
            DhcpOption::IANA(IANA { id, t1, t2, opts })
        }
        AssociationKind::Address => {
            opts.insert(status(Status::NoAddrsAvail));
            DhcpOption::IANA(IANA { id, t1: 0, t2: 0, opts })
        }
    }
}

/// Answers a Confirm message: whether the client's addresses are still valid. RFC 8415 requires only that they have a
/// valid prefix. Berth confirms only the address of the lease, so that a client with another address immediately
/// requests the address of its lease.
fn confirm(ipv6: &Ipv6Settings, associations: &[Association]) -> Result<DhcpOption, IgnoredReason> {
    let mut addresses = associations.iter().flat_map(|association| &association.addresses);
    let first = addresses.next().ok_or(IgnoredReason::NoRequest)?;
    let is_right = *first == ipv6.address.addr() && addresses.all(|address| address == first);
    Ok(status(if is_right { Status::Success } else { Status::NotOnLink }))
}

fn status(status: Status) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode { status, msg: String::new() })
}

/// Encodes an answer. Name servers and search domains that do not fit are left out.
fn encode_answer(
    mut answer: Message,
    ipv6: &Ipv6Settings,
    has_settings: bool,
    left_out_count: &mut u64,
) -> Result<Vec<u8>, IgnoredReason> {
    let encode = |answer: &Message| answer.to_vec().map_err(|_| IgnoredReason::Malformed);
    if has_settings && !ipv6.nameservers.is_empty() {
        answer.opts_mut().insert(DhcpOption::DomainNameServers(ipv6.nameservers.to_vec()));
    }
    let without_domains = encode(&answer)?;
    if !has_settings || ipv6.search_domains.is_empty() {
        return Ok(without_domains);
    }
    let domains = encode_all(ipv6.search_domains);
    if without_domains.len() + 4 + domains.len() > MAX_MESSAGE_LENGTH {
        *left_out_count += 1;
        return Ok(without_domains);
    }
    let option = UnknownOption::new(OptionCode::DomainSearchList, domains);
    answer.opts_mut().insert(DhcpOption::Unknown(option));
    encode(&answer)
}
