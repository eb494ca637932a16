//! DHCPv6 messages.

use std::net::Ipv6Addr;

use berth_dhcp_responder::{AnswerKind, IgnoredReason, Outcome, PortResponder, SERVER_MAC};
use dhcproto::v6::{
    DhcpOption, IANA, IAPD, Message, MessageType, OptionCode, Status, UnknownOption,
};
use etherparse::PacketBuilder;

use crate::answer::{expect_dhcpv6, parse};
use crate::guest::{
    ADDRESS6, CLIENT_DUID, DNS6, MAC, association, dhcpv6, frame_of_dhcpv6, lease, network,
    responder, send,
};

const OTHER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x120, 0, 0, 0, 0, 0, 0x99);
const SERVER_DUID: [u8; 10] = [0, 3, 0, 1, 0x02, 0x62, 0x65, 0x72, 0x74, 0x68];

fn server_identifier() -> DhcpOption {
    DhcpOption::ServerId(SERVER_DUID.to_vec())
}

fn answer_to(message_type: MessageType, options: Vec<DhcpOption>) -> (AnswerKind, Message) {
    let (kind, answer) = expect_dhcpv6(send(&mut responder(), &dhcpv6(message_type, options)));
    assert_eq!(answer.xid(), [1, 2, 3]);
    assert_eq!(answer.opts().get(OptionCode::ServerId), Some(&server_identifier()));
    let client = DhcpOption::ClientId(CLIENT_DUID.to_vec());
    assert_eq!(answer.opts().get(OptionCode::ClientId), Some(&client));
    (kind, answer)
}

fn ignored_reason(frame: &[u8]) -> IgnoredReason {
    match send(&mut responder(), frame) {
        Outcome::Ignored(reason) => reason,
        outcome => panic!("{outcome:?}"),
    }
}

fn associations(answer: &Message) -> Vec<&IANA> {
    let all = answer.opts().iter().filter_map(|option| match option {
        DhcpOption::IANA(association) => Some(association),
        _ => None,
    });
    all.collect()
}

/// Returns the addresses in an identity association, each with its lifetime, and the status. Asserts that the preferred
/// and the valid lifetime are equal.
fn addresses_and_status(association: &IANA) -> (Vec<(Ipv6Addr, u32)>, Option<Status>) {
    let addresses = association.opts.iter().filter_map(|option| match option {
        DhcpOption::IAAddr(address) => {
            assert_eq!(address.preferred_life, address.valid_life);
            Some((address.addr, address.valid_life))
        }
        _ => None,
    });
    (addresses.collect(), status_of(association.opts.get(OptionCode::StatusCode)))
}

fn status_of(option: Option<&DhcpOption>) -> Option<Status> {
    match option? {
        DhcpOption::StatusCode(code) => Some(code.status),
        other => panic!("{other:?}"),
    }
}

fn assert_has_lease(answer: &Message) {
    let [association] = associations(answer)[..] else { panic!("{answer}") };
    assert_eq!((association.id, association.t1, association.t2), (5, 1800, 529_200));
    assert_eq!(addresses_and_status(association), (vec![(ADDRESS6, 604_800)], None));
    let servers = DhcpOption::DomainNameServers(vec![DNS6]);
    assert_eq!(answer.opts().get(OptionCode::DomainNameServers), Some(&servers));
    let domains = ["tenant.example.", "example."].map(|name| name.parse().unwrap());
    let domains = DhcpOption::DomainSearchList(domains.to_vec());
    assert_eq!(answer.opts().get(OptionCode::DomainSearchList), Some(&domains));
}

#[test]
fn solicit_is_answered_by_advertise_or_at_once_by_reply() {
    let (kind, answer) = answer_to(MessageType::Solicit, vec![association(5, &[])]);
    assert_eq!((kind, answer.msg_type()), (AnswerKind::Dhcpv6Advertise, MessageType::Advertise));
    assert_eq!(answer.opts().get(OptionCode::Preference), Some(&DhcpOption::Preference(255)));
    assert_has_lease(&answer);
    let options = vec![association(5, &[OTHER]), DhcpOption::RapidCommit];
    let (kind, answer) = answer_to(MessageType::Solicit, options);
    assert_eq!((kind, answer.msg_type()), (AnswerKind::Dhcpv6Reply, MessageType::Reply));
    assert_eq!(answer.opts().get(OptionCode::RapidCommit), Some(&DhcpOption::RapidCommit));
    assert_has_lease(&answer);
}

#[test]
fn request_renew_and_rebind_get_the_lease() {
    for (message_type, server) in [
        (MessageType::Request, Some(server_identifier())),
        (MessageType::Renew, Some(server_identifier())),
        (MessageType::Rebind, None),
    ] {
        let options = [association(5, &[ADDRESS6])].into_iter().chain(server).collect();
        let (kind, answer) = answer_to(message_type, options);
        assert_eq!((kind, answer.msg_type()), (AnswerKind::Dhcpv6Reply, MessageType::Reply));
        assert_has_lease(&answer);
    }
}

#[test]
fn domain_names_are_not_compressed() {
    let Outcome::Answer { frame, .. } =
        send(&mut responder(), &dhcpv6(MessageType::Solicit, vec![association(5, &[])]))
    else {
        panic!()
    };
    let list = b"\0\x18\0\x19\x06tenant\x07example\0\x07example\0";
    assert!(frame.windows(list.len()).any(|window| window == list));
}

#[test]
fn old_addresses_of_the_client_are_removed() {
    let options = vec![association(5, &[OTHER]), server_identifier()];
    let (_, answer) = answer_to(MessageType::Renew, options);
    let [association] = associations(&answer)[..] else { panic!("{answer}") };
    assert_eq!(addresses_and_status(association), (vec![(OTHER, 0), (ADDRESS6, 604_800)], None));
}

#[test]
fn only_one_association_gets_the_address() {
    let options = vec![association(1, &[]), association(2, &[ADDRESS6]), server_identifier()];
    let (_, answer) = answer_to(MessageType::Request, options);
    for association in associations(&answer) {
        let expected = match association.id {
            1 => (vec![], Some(Status::NoAddrsAvail)),
            _ => (vec![(ADDRESS6, 604_800)], None),
        };
        assert_eq!(addresses_and_status(association), expected);
    }
    assert_eq!(associations(&answer).len(), 2);
}

#[test]
fn prefixes_are_not_delegated() {
    let prefix = DhcpOption::IAPD(IAPD { id: 3, t1: 0, t2: 0, opts: [].into_iter().collect() });
    let (_, answer) = answer_to(MessageType::Solicit, vec![prefix]);
    let Some(DhcpOption::IAPD(prefix)) = answer.opts().get(OptionCode::IAPD) else { panic!() };
    let status = status_of(prefix.opts.get(OptionCode::StatusCode));
    assert_eq!(status, Some(Status::NoPrefixAvail));
}

#[test]
fn confirm_compares_the_addresses() {
    for (address, expected) in [(ADDRESS6, Status::Success), (OTHER, Status::NotOnLink)] {
        let (_, answer) = answer_to(MessageType::Confirm, vec![association(5, &[address])]);
        let status = status_of(answer.opts().get(OptionCode::StatusCode));
        assert_eq!(status, Some(expected), "{address}");
    }
    let without_address = dhcpv6(MessageType::Confirm, vec![association(5, &[])]);
    assert_eq!(ignored_reason(&without_address), IgnoredReason::NoRequest);
}

#[test]
fn information_request_gets_settings() {
    let (kind, answer) = answer_to(MessageType::InformationRequest, vec![]);
    assert_eq!(kind, AnswerKind::Dhcpv6Reply);
    // The option is compared as bytes, because dhcproto encodes it, but does not decode it.
    let data = 1800_u32.to_be_bytes().to_vec();
    let refresh = UnknownOption::new(OptionCode::InformationRefreshTime, data);
    let refresh = DhcpOption::Unknown(refresh);
    assert_eq!(answer.opts().get(OptionCode::InformationRefreshTime), Some(&refresh));
    assert!(answer.opts().get(OptionCode::DomainNameServers).is_some());
    // A message without a client identifier is valid.
    let frame = frame_of_dhcpv6(&[11, 1, 2, 3]);
    assert_eq!(expect_dhcpv6(send(&mut responder(), &frame)).0, AnswerKind::Dhcpv6Reply);
}

#[test]
fn release_is_confirmed_and_decline_is_reported() {
    let options = || vec![association(5, &[ADDRESS6]), server_identifier()];
    let (_, answer) = answer_to(MessageType::Release, options());
    assert_eq!(status_of(answer.opts().get(OptionCode::StatusCode)), Some(Status::Success));
    let outcome = send(&mut responder(), &dhcpv6(MessageType::Decline, options()));
    let Outcome::Declined(declined) = outcome else { panic!("{outcome:?}") };
    assert_eq!(declined.address, ADDRESS6);
    assert_eq!(parse(&declined.answer.unwrap()).0, MAC);
}

#[test]
fn identifiers_are_checked() {
    let other = DhcpOption::ServerId(vec![0, 3, 0, 1, 9, 9, 9, 9, 9, 9]);
    let request = |server| dhcpv6(MessageType::Request, vec![association(5, &[]), server]);
    assert_eq!(ignored_reason(&request(other)), IgnoredReason::OtherServer);
    let without_server = dhcpv6(MessageType::Renew, vec![association(5, &[])]);
    assert_eq!(ignored_reason(&without_server), IgnoredReason::Malformed);
    let with_server = dhcpv6(MessageType::Solicit, vec![server_identifier()]);
    assert_eq!(ignored_reason(&with_server), IgnoredReason::Malformed);
    assert_eq!(ignored_reason(&frame_of_dhcpv6(&[1, 1, 2, 3])), IgnoredReason::Malformed);
    let advertise = dhcpv6(MessageType::Advertise, vec![server_identifier()]);
    assert_eq!(ignored_reason(&advertise), IgnoredReason::NoRequest);
    assert_eq!(ignored_reason(&frame_of_dhcpv6(&[12; 40])), IgnoredReason::RelayAgent);
}

/// Checks messages with which the decoder of dhcproto 0.15 panics.
#[test]
fn options_that_are_too_short_do_not_panic() {
    for code in [13, 16, 17] {
        let short = [0, code, 0, 0, 0, 0, 0, 0];
        let bytes = [&[1, 1, 2, 3, 0, 1, 0, 2, 7, 7][..], &short].concat();
        let answer = send(&mut responder(), &frame_of_dhcpv6(&bytes));
        assert_eq!(expect_dhcpv6(answer).0, AnswerKind::Dhcpv6Advertise);
    }
    for association in [&[0, 3, 0, 3, 1, 1, 1][..], &[0, 3, 0, 4, 1, 1, 1, 1], &[0, 3, 0, 99]] {
        let bytes = [&[1, 1, 2, 3, 0, 1, 0, 2, 7, 7], association].concat();
        assert_eq!(ignored_reason(&frame_of_dhcpv6(&bytes)), IgnoredReason::Malformed);
    }
}

#[test]
fn answer_fits_into_the_smallest_mtu() {
    let mut network = network();
    let options = network.ipv6.as_mut().unwrap();
    options.nameservers = vec![DNS6.into(); 8];
    options.search_domains = vec![format!("{0}.{0}.{0}.example", "a".repeat(60)); 16];
    let mut responder = PortResponder::new(&network, &lease(), SERVER_MAC);
    let many = (0..90).map(|id| association(id, &[OTHER])).chain([server_identifier()]).collect();
    let Outcome::Answer { frame, .. } = send(&mut responder, &dhcpv6(MessageType::Renew, many))
    else {
        panic!()
    };
    assert!(frame.len() <= 14 + 1280, "{}", frame.len());
    assert_eq!(responder.statistics().options_left_out, 1);
    let advertisement = responder.advertisement().unwrap();
    assert!(advertisement.len() <= 14 + 1280, "{}", advertisement.len());
}

#[test]
fn source_must_be_unicast() {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(MAC.0, [0x33, 0x33, 0, 1, 0, 2])
        .ipv6([0; 16], ADDRESS6.octets(), 1)
        .udp(546, 547)
        .write(&mut frame, &[11, 1, 2, 3])
        .unwrap();
    assert_eq!(ignored_reason(&frame), IgnoredReason::Malformed);
}
