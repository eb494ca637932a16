//! Random frames and leases cause no panic and no invalid answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use berth_api::{Lease, LeaseNetwork, LeaseOptions, NetworkRoute};
use berth_dhcp_responder::{
    Direction, IgnoredReason, Outcome, PortResponder, SERVER_IDENTIFIER, SERVER_MAC,
};
use dhcproto::{Encodable as _, v4, v6};
use etherparse::Icmpv6Type;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::answer::{expect_answer, parse};
use crate::guest::{
    ADDRESS, ADDRESS6, LINK_LOCAL, MAC, association, dhcpv4, dhcpv6, frame_of_dhcpv4,
    frame_of_dhcpv4_from, frame_of_dhcpv6, icmpv6, responder, selecting_request,
};

/// Returns valid requests, which the test then modifies.
fn seeds() -> Vec<Vec<u8>> {
    let mut renewing = dhcpv4(v4::MessageType::Request);
    renewing.set_ciaddr(ADDRESS);
    vec![
        frame_of_dhcpv4(&dhcpv4(v4::MessageType::Discover)),
        frame_of_dhcpv4(&selecting_request(SERVER_IDENTIFIER, ADDRESS)),
        frame_of_dhcpv4(&renewing),
        dhcpv6(v6::MessageType::Solicit, vec![association(5, &[ADDRESS6])]),
        dhcpv6(v6::MessageType::Confirm, vec![association(5, &[ADDRESS6])]),
        icmpv6(LINK_LOCAL, 255, Icmpv6Type::RouterSolicitation, &[]),
    ]
}

/// Checks that an answer is valid, and that only frames of the guest are answered.
fn check_outcome(outcome: Outcome, frame: &[u8], direction: Direction) {
    match outcome {
        Outcome::Answer { .. } => {
            expect_answer(outcome);
            assert_eq!(frame[6..12], MAC.0, "only the lease's Ethernet address gets answers");
            assert_eq!(direction, Direction::FromGuest);
        }
        Outcome::Declined(declined) => {
            declined.answer.map(|answer| parse(&answer));
            assert_eq!(frame[6..12], MAC.0);
        }
        Outcome::ForeignServer(_) => assert_eq!(direction, Direction::ToGuest),
        Outcome::Ignored(_) => {}
    }
}

fn handle(frame: &[u8]) {
    for direction in [Direction::FromGuest, Direction::ToGuest] {
        check_outcome(responder().handle(direction, frame, Duration::ZERO), frame, direction);
    }
}

fn options(v6: bool) -> impl Strategy<Value = LeaseOptions> {
    let address = move |bits: u128| {
        if v6 {
            IpAddr::from(Ipv6Addr::from_bits(bits))
        } else {
            IpAddr::from(Ipv4Addr::from_bits(bits as u32))
        }
    };
    let route = move |(bits, length): (u128, u8)| {
        let length = if v6 { length % 129 } else { length % 33 };
        let to = ipnet::IpNet::new(address(bits), length).unwrap();
        NetworkRoute { to, via: address(bits) }
    };
    let addresses = vec(any::<u128>().prop_map(address), 0..9);
    let domains = vec("[a-z.ä-]{1,80}(\\.[a-z0-9]{1,63}){0,2}", 0..17);
    (0_u8..=128, any::<Option<u128>>(), vec(any::<(u128, u8)>(), 0..65), addresses, domains)
        .prop_map(move |(prefix_length, gateway, routes, nameservers, search_domains)| {
            LeaseOptions {
                prefix_length,
                gateway: gateway.map(address),
                routes: routes.into_iter().map(route).collect(),
                nameservers,
                search_domains,
            }
        })
}

proptest! {
    #[test]
    fn any_bytes_are_handled(frame in vec(any::<u8>(), 0..400)) {
        handle(&frame);
    }

    #[test]
    fn any_payload_is_handled(bytes in vec(any::<u8>(), 0..600)) {
        handle(&frame_of_dhcpv6(&bytes));
        handle(&frame_of_dhcpv4_from(MAC, ADDRESS, Ipv4Addr::BROADCAST, &bytes));
        let header = &dhcpv4(v4::MessageType::Discover).to_vec().unwrap()[..243];
        let message = [header, &bytes].concat();
        handle(&frame_of_dhcpv4_from(MAC, ADDRESS, Ipv4Addr::BROADCAST, &message));
        handle(&icmpv6(LINK_LOCAL, 255, Icmpv6Type::NeighborSolicitation, &bytes));
    }

    #[test]
    fn damaged_requests_are_handled(
        seed in 0..6_usize,
        changes in vec(any::<(prop::sample::Index, u8)>(), 0..6),
        length in any::<prop::sample::Index>(),
    ) {
        let mut frame = seeds().swap_remove(seed);
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        handle(&frame);
        handle(&frame[..length.index(frame.len())]);
    }

    #[test]
    fn other_machines_get_no_answers(seed in 0..6_usize, mac: [u8; 6]) {
        prop_assume!(mac != MAC.0);
        let mut frame = seeds().swap_remove(seed);
        frame[6..12].copy_from_slice(&mac);
        let outcome = responder().handle(Direction::FromGuest, &frame, Duration::ZERO);
        prop_assert!(matches!(outcome, Outcome::Ignored(_)), "{:?}", outcome);
    }

    #[test]
    fn any_lease_is_handled(
        ipv4 in options(false),
        ipv6 in options(true),
        families: (bool, bool),
        mtu: Option<u16>,
        hostname: Option<String>,
        limit: u16,
    ) {
        // A value of the wrong address family in the lease is left out of the answer.
        let (ipv4, ipv6) = if families.0 { (ipv4, ipv6) } else { (ipv6, ipv4) };
        let network = LeaseNetwork { mtu, ipv4: Some(ipv4), ipv6: Some(ipv6), ..Default::default() };
        let machine = "tenant/worker".to_owned();
        let (ipv4, ipv6) = (Some(ADDRESS), families.1.then_some(ADDRESS6));
        let lease = Lease { mac: MAC, machine, hostname, ipv4, ipv6, default_route: None };
        let mut responder = PortResponder::new(&network, &lease, SERVER_MAC);
        responder.advertisement().map(|frame| parse(&frame));
        let mut discover = dhcpv4(v4::MessageType::Discover);
        discover.opts_mut().insert(v4::DhcpOption::MaxMessageSize(limit));
        for frame in seeds().into_iter().chain([frame_of_dhcpv4(&discover)]) {
            let outcome = responder.handle(Direction::FromGuest, &frame, Duration::ZERO);
            if let Outcome::Answer { frame, .. } = &outcome {
                let longest = usize::from(mtu.unwrap_or(1500).max(1280));
                prop_assert!(frame.len() <= 14 + longest, "{} bytes", frame.len());
            }
            check_outcome(outcome, &frame, Direction::FromGuest);
        }
    }
}

#[test]
fn seeds_get_answers() {
    for frame in seeds() {
        expect_answer(responder().handle(Direction::FromGuest, &frame, Duration::ZERO));
        let mut tagged = frame.clone();
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        let outcome = responder().handle(Direction::FromGuest, &tagged, Duration::ZERO);
        assert_eq!(outcome, Outcome::Ignored(IgnoredReason::VlanTag));
    }
}
