//! Requests for addresses that another machine uses, or whose probes have not ended.

use berth_dhcp_responder::{AddressState, AnswerKind, IgnoredReason, Outcome};
use dhcproto::v6::DhcpOption;
use dhcproto::{v4, v6};

use crate::answer::{expect_dhcpv4, expect_dhcpv6};
use crate::guest::{
    ADDRESS, ADDRESS6, association, dhcpv4, dhcpv6, frame_of_dhcpv4, responder, selecting_request,
    send,
};

const SERVER_DUID: [u8; 10] = [0, 3, 0, 1, 0x02, 0x62, 0x65, 0x72, 0x74, 0x68];

const WITHHELD: [(AddressState, IgnoredReason); 2] = [
    (AddressState::Unknown, IgnoredReason::AddressNotProbed),
    (AddressState::InUse, IgnoredReason::AddressInUse),
];

#[test]
fn an_ipv4_address_is_withheld_from_guests_that_do_not_use_it() {
    let server = berth_dhcp_responder::SERVER_IDENTIFIER;
    let offer = frame_of_dhcpv4(&dhcpv4(v4::MessageType::Discover));
    let request = frame_of_dhcpv4(&selecting_request(server, ADDRESS));
    let mut renewal = dhcpv4(v4::MessageType::Request);
    renewal.set_ciaddr(ADDRESS);
    for (state, reason) in WITHHELD {
        let mut responder = responder();
        responder.set_address_states(state, AddressState::Free);
        for frame in [&offer, &request] {
            assert_eq!(send(&mut responder, frame), Outcome::Ignored(reason));
        }
        let (kind, _) = expect_dhcpv4(send(&mut responder, &frame_of_dhcpv4(&renewal)));
        assert_eq!(kind, AnswerKind::Dhcpv4Ack, "the guest should keep an address that it uses");
        // If the guest requests another address than that of its lease, the answer is still a DHCPNAK.
        let other = selecting_request(server, [10, 0, 0, 99].into());
        let (kind, _) = expect_dhcpv4(send(&mut responder, &frame_of_dhcpv4(&other)));
        assert_eq!(kind, AnswerKind::Dhcpv4Nak);
        responder.set_address_states(AddressState::Free, state);
        let (kind, _) = expect_dhcpv4(send(&mut responder, &offer));
        assert_eq!(
            kind,
            AnswerKind::Dhcpv4Offer,
            "the state of the other family's address should not matter"
        );
    }
}

#[test]
fn an_ipv6_address_is_withheld_from_guests_that_do_not_use_it() {
    let server = || DhcpOption::ServerId(SERVER_DUID.to_vec());
    let solicit = dhcpv6(v6::MessageType::Solicit, vec![association(1, &[])]);
    let request = dhcpv6(v6::MessageType::Request, vec![server(), association(1, &[])]);
    let other_renewal = dhcpv6(v6::MessageType::Renew, vec![server(), association(1, &[])]);
    let renewal = dhcpv6(v6::MessageType::Renew, vec![server(), association(1, &[ADDRESS6])]);
    for (state, reason) in WITHHELD {
        let mut responder = responder();
        responder.set_address_states(AddressState::Free, state);
        for frame in [&solicit, &request, &other_renewal] {
            assert_eq!(send(&mut responder, frame), Outcome::Ignored(reason));
        }
        let (kind, _) = expect_dhcpv6(send(&mut responder, &renewal));
        assert_eq!(kind, AnswerKind::Dhcpv6Reply);
    }
}
