//! DHCPv4 messages.

use std::net::Ipv4Addr;
use std::sync::Arc;

use berth_api::MacAddress;
use berth_dhcp_responder::{
    AnswerKind, DeclinedAddress, IgnoredReason, NetworkSettings, Outcome, PortResponder,
    SERVER_IDENTIFIER, SERVER_MAC,
};
use dhcproto::v4::{DhcpOption, Flags, Message, MessageType, OptionCode};
use dhcproto::{Encodable as _, v4};

use crate::answer::{Content, expect_answer, expect_dhcpv4};
use crate::guest::{
    ADDRESS, DNS, GATEWAY, MAC, dhcpv4, frame_of_dhcpv4, frame_of_dhcpv4_from, lease, network,
    responder, selecting_request, send,
};

const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 99);

fn option(message: &Message, code: OptionCode) -> Option<&DhcpOption> {
    message.opts().get(code)
}

fn answer_to(message: &Message) -> (AnswerKind, Message) {
    expect_dhcpv4(send(&mut responder(), &frame_of_dhcpv4(message)))
}

fn ignored_reason(message: &Message) -> IgnoredReason {
    match send(&mut responder(), &frame_of_dhcpv4(message)) {
        Outcome::Ignored(reason) => reason,
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn discover_gets_an_offer_with_all_settings() {
    let mut discover = dhcpv4(MessageType::Discover);
    discover.opts_mut().insert(DhcpOption::ClientIdentifier(vec![1, 2, 3]));
    let outcome = send(&mut responder(), &frame_of_dhcpv4(&discover));
    let answer = expect_answer(outcome);
    let Content::Dhcpv4 { destination, message, length } = answer.content else { panic!() };
    assert_eq!((answer.kind, answer.destination), (AnswerKind::Dhcpv4Offer, MAC));
    assert_eq!((destination, message.yiaddr(), message.xid()), (ADDRESS, ADDRESS, 0x1234_5678));
    assert_eq!(message.chaddr(), MAC.0);
    assert!(length <= 548, "{length}");
    let expected = [
        DhcpOption::MessageType(MessageType::Offer),
        DhcpOption::ServerIdentifier(SERVER_IDENTIFIER),
        DhcpOption::ClientIdentifier(vec![1, 2, 3]),
        DhcpOption::AddressLeaseTime(604_800),
        DhcpOption::Renewal(1800),
        DhcpOption::Rebinding(529_200),
        DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
        DhcpOption::BroadcastAddr(Ipv4Addr::new(10, 0, 0, 255)),
        DhcpOption::Router(vec![GATEWAY]),
        DhcpOption::DomainNameServer(vec![DNS]),
        DhcpOption::InterfaceMtu(1450),
        DhcpOption::Hostname("worker-0".to_owned()),
        DhcpOption::DomainName("tenant.example".to_owned()),
        DhcpOption::DomainSearch(vec![
            "tenant.example.".parse().unwrap(),
            "example.".parse().unwrap(),
        ]),
        DhcpOption::ClasslessStaticRoute(vec![
            ("169.254.255.67/32".parse().unwrap(), Ipv4Addr::UNSPECIFIED),
            ("10.9.0.0/16".parse().unwrap(), Ipv4Addr::new(10, 0, 0, 2)),
            ("0.0.0.0/0".parse().unwrap(), GATEWAY),
        ]),
    ];
    for wanted in &expected {
        assert_eq!(option(&message, wanted.into()), Some(wanted));
    }
    assert_eq!(message.opts().len(), expected.len());
}

#[test]
fn message_type_is_the_first_option() {
    let Outcome::Answer { frame, .. } =
        send(&mut responder(), &frame_of_dhcpv4(&dhcpv4(MessageType::Discover)))
    else {
        panic!()
    };
    assert_eq!(frame[14 + 20 + 8 + 240..][..5], [53, 1, 2, 54, 4]);
}

#[test]
fn routes_are_sent_on_request_or_if_there_are_routes() {
    let mut network = network();
    network.ipv4.as_mut().unwrap().routes.clear();
    network.ipv4.as_mut().unwrap().gateway = None;
    let mut responder = PortResponder::new(&network, &lease(), SERVER_MAC);
    let mut discover = dhcpv4(MessageType::Discover);
    let (_, offer) = expect_dhcpv4(send(&mut responder, &frame_of_dhcpv4(&discover)));
    assert_eq!(option(&offer, OptionCode::ClasslessStaticRoute), None);
    assert_eq!(option(&offer, OptionCode::Router), None);
    let requested = vec![OptionCode::SubnetMask, OptionCode::ClasslessStaticRoute];
    discover.opts_mut().insert(DhcpOption::ParameterRequestList(requested));
    let (_, offer) = expect_dhcpv4(send(&mut responder, &frame_of_dhcpv4(&discover)));
    let server = ("169.254.255.67/32".parse().unwrap(), Ipv4Addr::UNSPECIFIED);
    let routes = DhcpOption::ClasslessStaticRoute(vec![server]);
    assert_eq!(option(&offer, OptionCode::ClasslessStaticRoute), Some(&routes));
}

#[test]
fn request_is_acknowledged_in_all_states_of_the_client() {
    let selecting = selecting_request(SERVER_IDENTIFIER, ADDRESS);
    let mut reboot = dhcpv4(MessageType::Request);
    reboot.opts_mut().insert(DhcpOption::RequestedIpAddress(ADDRESS));
    let mut renewing = dhcpv4(MessageType::Request);
    renewing.set_ciaddr(ADDRESS);
    for request in [&selecting, &reboot, &renewing] {
        let (kind, answer) = answer_to(request);
        assert_eq!((kind, answer.yiaddr()), (AnswerKind::Dhcpv4Ack, ADDRESS), "{request}");
        assert_eq!(answer.ciaddr(), request.ciaddr());
        assert!(answer.opts().has_msg_type(MessageType::Ack));
    }
}

#[test]
fn renewal_to_any_unicast_address_is_acknowledged() {
    let mut renewing = dhcpv4(MessageType::Request);
    renewing.set_ciaddr(ADDRESS).set_flags(Flags::default().set_broadcast());
    let bytes = renewing.to_vec().unwrap();
    for server in [SERVER_IDENTIFIER, GATEWAY] {
        let frame = frame_of_dhcpv4_from(MAC, ADDRESS, server, &bytes);
        let answer = expect_answer(send(&mut responder(), &frame));
        let Content::Dhcpv4 { destination, .. } = answer.content else { panic!() };
        assert_eq!((answer.destination, destination), (MAC, ADDRESS));
    }
}

#[test]
fn wrong_address_is_refused_by_broadcast() {
    let mut renewing = dhcpv4(MessageType::Request);
    renewing.set_ciaddr(OTHER);
    for request in [selecting_request(SERVER_IDENTIFIER, OTHER), renewing] {
        let answer = expect_answer(send(&mut responder(), &frame_of_dhcpv4(&request)));
        assert_eq!(answer.kind, AnswerKind::Dhcpv4Nak);
        assert_eq!(answer.destination, MacAddress([0xff; 6]));
        let Content::Dhcpv4 { destination, message, .. } = answer.content else { panic!() };
        assert_eq!((destination, message.yiaddr()), (Ipv4Addr::BROADCAST, Ipv4Addr::UNSPECIFIED));
        assert_eq!(message.ciaddr(), Ipv4Addr::UNSPECIFIED);
        assert_eq!(option(&message, OptionCode::AddressLeaseTime), None);
    }
}

#[test]
fn renewal_of_another_address_at_another_server_is_ignored() {
    let mut renewing = dhcpv4(MessageType::Request);
    renewing.set_ciaddr(OTHER);
    let bytes = renewing.to_vec().unwrap();
    let send_to =
        |server| send(&mut responder(), &frame_of_dhcpv4_from(MAC, OTHER, server, &bytes));
    assert_eq!(send_to(GATEWAY), Outcome::Ignored(IgnoredReason::OtherServer));
    assert_eq!(expect_answer(send_to(SERVER_IDENTIFIER)).kind, AnswerKind::Dhcpv4Nak);
}

#[test]
fn broadcast_flag_is_respected() {
    let mut discover = dhcpv4(MessageType::Discover);
    discover.set_flags(Flags::default().set_broadcast());
    let answer = expect_answer(send(&mut responder(), &frame_of_dhcpv4(&discover)));
    assert_eq!(answer.destination, MacAddress([0xff; 6]));
    let Content::Dhcpv4 { destination, message, .. } = answer.content else { panic!() };
    assert_eq!(destination, Ipv4Addr::BROADCAST);
    assert!(message.flags().broadcast());
}

#[test]
fn inform_gets_settings_without_an_address() {
    let mut inform = dhcpv4(MessageType::Inform);
    inform.set_ciaddr(OTHER);
    let answer = expect_answer(send(&mut responder(), &frame_of_dhcpv4(&inform)));
    let Content::Dhcpv4 { destination, message, .. } = answer.content else { panic!() };
    assert_eq!((answer.kind, destination), (AnswerKind::Dhcpv4Ack, OTHER));
    assert_eq!(message.yiaddr(), Ipv4Addr::UNSPECIFIED);
    assert_eq!(option(&message, OptionCode::AddressLeaseTime), None);
    assert!(option(&message, OptionCode::DomainNameServer).is_some());
}

#[test]
fn declined_address_is_reported() {
    let mut decline = selecting_request(SERVER_IDENTIFIER, ADDRESS);
    decline.opts_mut().insert(DhcpOption::MessageType(MessageType::Decline));
    let mut responder = responder();
    let outcome = send(&mut responder, &frame_of_dhcpv4(&decline));
    let declined = DeclinedAddress { address: ADDRESS.into(), answer: None };
    assert_eq!(outcome, Outcome::Declined(declined));
    assert_eq!(responder.statistics().declined, 1);
    decline.opts_mut().insert(DhcpOption::RequestedIpAddress(OTHER));
    assert_eq!(ignored_reason(&decline), IgnoredReason::NoRequest);
}

#[test]
fn other_messages_are_ignored() {
    assert_eq!(ignored_reason(&dhcpv4(MessageType::Release)), IgnoredReason::Released);
    assert_eq!(ignored_reason(&dhcpv4(MessageType::Offer)), IgnoredReason::NoRequest);
    assert_eq!(ignored_reason(&selecting_request(GATEWAY, ADDRESS)), IgnoredReason::OtherServer);
    assert_eq!(ignored_reason(&dhcpv4(MessageType::Request)), IgnoredReason::Malformed);
    let mut relayed = dhcpv4(MessageType::Discover);
    relayed.set_giaddr(GATEWAY);
    assert_eq!(ignored_reason(&relayed), IgnoredReason::RelayAgent);
    let mut other = dhcpv4(MessageType::Discover);
    other.set_chaddr(&[2, 9, 9, 9, 9, 9]);
    assert_eq!(ignored_reason(&other), IgnoredReason::OtherMac);
    let mut reply = dhcpv4(MessageType::Discover);
    reply.set_opcode(v4::Opcode::BootReply);
    assert_eq!(ignored_reason(&reply), IgnoredReason::NoRequest);
    let mut bootp = dhcpv4(MessageType::Discover);
    bootp.opts_mut().clear();
    assert_eq!(ignored_reason(&bootp), IgnoredReason::Malformed);
}

#[test]
fn hardware_address_with_a_wrong_length_is_malformed() {
    for length in [0, 16, 255] {
        let mut bytes = dhcpv4(MessageType::Discover).to_vec().unwrap();
        bytes[2] = length;
        let (source, destination) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
        let frame = frame_of_dhcpv4_from(MAC, source, destination, &bytes);
        let outcome = send(&mut responder(), &frame);
        assert_eq!(outcome, Outcome::Ignored(IgnoredReason::Malformed));
    }
}

#[test]
fn lease_without_ipv4_gets_no_answer() {
    let (network, lease) = (network(), lease());
    let without_address = berth_api::Lease { ipv4: None, ..lease.clone() };
    let without_options = berth_api::LeaseNetwork { ipv4: None, ..network.clone() };
    let mut wrong_prefix = network.clone();
    wrong_prefix.ipv4.as_mut().unwrap().prefix_length = 33;
    let mut responder = responder();
    for (network, lease) in
        [(&network, &without_address), (&without_options, &lease), (&wrong_prefix, &lease)]
    {
        responder.set_lease(&Arc::new(NetworkSettings::new(network, SERVER_MAC)), lease);
        let outcome = send(&mut responder, &frame_of_dhcpv4(&dhcpv4(MessageType::Discover)));
        assert_eq!(outcome, Outcome::Ignored(IgnoredReason::NotConfigured));
    }
}

#[test]
fn interface_in_another_network_gets_no_gateway() {
    let lease = berth_api::Lease { default_route: Some(false), ..lease() };
    let mut responder = PortResponder::new(&network(), &lease, SERVER_MAC);
    let discover = frame_of_dhcpv4(&dhcpv4(MessageType::Discover));
    let (_, offer) = expect_dhcpv4(send(&mut responder, &discover));
    assert_eq!(option(&offer, OptionCode::Router), None);
    let routes = option(&offer, OptionCode::ClasslessStaticRoute);
    let Some(DhcpOption::ClasslessStaticRoute(routes)) = routes else { panic!("{routes:?}") };
    assert!(routes.iter().all(|(to, _)| to.prefix_len() > 0), "{routes:?}");
    assert!(routes.len() > 1, "the routes of the pool stay");
}

#[test]
fn long_options_are_left_out_if_the_client_accepts_no_more() {
    let mut network = network();
    let domain = format!("{0}.{0}.example", "a".repeat(60));
    network.ipv4.as_mut().unwrap().search_domains = vec![domain; 7];
    let mut responder = PortResponder::new(&network, &lease(), SERVER_MAC);
    let mut discover = dhcpv4(MessageType::Discover);
    let (_, offer) = expect_dhcpv4(send(&mut responder, &frame_of_dhcpv4(&discover)));
    assert_eq!(option(&offer, OptionCode::DomainSearch), None);
    assert!(option(&offer, OptionCode::ClasslessStaticRoute).is_some());
    assert_eq!(responder.statistics().options_left_out, 1);
    discover.opts_mut().insert(DhcpOption::MaxMessageSize(u16::MAX));
    let answer = expect_answer(send(&mut responder, &frame_of_dhcpv4(&discover)));
    let Content::Dhcpv4 { message, length, .. } = answer.content else { panic!() };
    assert!(option(&message, OptionCode::DomainSearch).is_some(), "917 bytes fit");
    assert!(length + 28 <= 1450, "{length}");
}

#[test]
fn invalid_names_are_left_out() {
    let mut network = network();
    network.ipv4.as_mut().unwrap().search_domains =
        vec!["a;b".to_owned(), "good.example".to_owned()];
    let lease = berth_api::Lease { hostname: Some("$(reboot)".to_owned()), ..lease() };
    let mut responder = PortResponder::new(&network, &lease, SERVER_MAC);
    let frame = frame_of_dhcpv4(&dhcpv4(MessageType::Discover));
    let (_, offer) = expect_dhcpv4(send(&mut responder, &frame));
    assert_eq!(option(&offer, OptionCode::Hostname), None);
    let domain = DhcpOption::DomainName("good.example".to_owned());
    assert_eq!(option(&offer, OptionCode::DomainName), Some(&domain));
}
