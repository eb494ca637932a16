//! A guest with its lease, and the frames that the guest sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use berth_api::{Lease, LeaseNetwork, LeaseOptions, MacAddress, NetworkRoute};
use berth_dhcp_responder::{Direction, Outcome, PortResponder, SERVER_MAC};
use dhcproto::{Encodable as _, v4, v6};
use etherparse::{Icmpv6Type, PacketBuilder};

pub(crate) const MAC: MacAddress = MacAddress([0x02, 1, 2, 3, 4, 5]);
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 53);
pub(crate) const ADDRESS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x120, 0, 0, 0, 0, 0, 7);
pub(crate) const DNS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x120, 0, 0, 0, 0, 0, 53);
pub(crate) const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4);
pub(crate) const CLIENT_DUID: [u8; 6] = [0, 4, 9, 9, 9, 9];

/// Returns a network in which all settings are set.
pub(crate) fn network() -> LeaseNetwork {
    let options =
        |length, gateway: Option<IpAddr>, dns: IpAddr, to: &str, via: &str| LeaseOptions {
            prefix_length: length,
            gateway,
            routes: vec![NetworkRoute { to: to.parse().unwrap(), via: via.parse().unwrap() }],
            nameservers: vec![dns],
            search_domains: vec!["tenant.example".to_owned(), "example".to_owned()],
        };
    LeaseNetwork {
        name: "cluster-a".to_owned(),
        mtu: Some(1450),
        ipv4: Some(options(24, Some(GATEWAY.into()), DNS.into(), "10.9.0.0/16", "10.0.0.2")),
        ipv6: Some(options(64, None, DNS6.into(), "fd00:9::/32", "fd00:120::2")),
        ..LeaseNetwork::default()
    }
}

pub(crate) fn lease() -> Lease {
    Lease {
        mac: MAC,
        machine: "tenant/worker-0".to_owned(),
        hostname: Some("worker-0".to_owned()),
        ipv4: Some(ADDRESS),
        ipv6: Some(ADDRESS6),
        default_route: None,
    }
}

pub(crate) fn responder() -> PortResponder {
    PortResponder::new(&network(), &lease(), SERVER_MAC)
}

/// Passes a frame of the guest to the responder, and returns the outcome.
pub(crate) fn send(responder: &mut PortResponder, frame: &[u8]) -> Outcome {
    responder.handle(Direction::FromGuest, frame, Duration::from_secs(9))
}

/// Returns a DHCPv4 message of the guest with only one option, the message type.
pub(crate) fn dhcpv4(message_type: v4::MessageType) -> v4::Message {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut message = v4::Message::new_with_id(0x1234_5678, none, none, none, none, &MAC.0);
    message.opts_mut().insert(v4::DhcpOption::MessageType(message_type));
    message
}

/// Returns a DHCPREQUEST that selects an offer: it contains the server identifier and the requested address.
pub(crate) fn selecting_request(server: Ipv4Addr, address: Ipv4Addr) -> v4::Message {
    let mut message = dhcpv4(v4::MessageType::Request);
    message.opts_mut().insert(v4::DhcpOption::ServerIdentifier(server));
    message.opts_mut().insert(v4::DhcpOption::RequestedIpAddress(address));
    message
}

pub(crate) fn frame_of_dhcpv4(message: &v4::Message) -> Vec<u8> {
    frame_of_dhcpv4_from(MAC, message.ciaddr(), Ipv4Addr::BROADCAST, &message.to_vec().unwrap())
}

pub(crate) fn frame_of_dhcpv4_from(
    mac: MacAddress,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    message: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac.0, [0xff; 6])
        .ipv4(source.octets(), destination.octets(), 64)
        .udp(68, 67)
        .write(&mut frame, message)
        .unwrap();
    frame
}

/// Returns a DHCPv6 message with the guest's client identifier and the given options.
pub(crate) fn dhcpv6(message_type: v6::MessageType, options: Vec<v6::DhcpOption>) -> Vec<u8> {
    let mut message = v6::Message::new_with_id(message_type, [1, 2, 3]);
    message.opts_mut().insert(v6::DhcpOption::ClientId(CLIENT_DUID.to_vec()));
    for option in options {
        message.opts_mut().insert(option);
    }
    frame_of_dhcpv6(&message.to_vec().unwrap())
}

pub(crate) fn frame_of_dhcpv6(message: &[u8]) -> Vec<u8> {
    let all_servers: Ipv6Addr = "ff02::1:2".parse().unwrap();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(MAC.0, [0x33, 0x33, 0, 1, 0, 2])
        .ipv6(LINK_LOCAL.octets(), all_servers.octets(), 1)
        .udp(546, 547)
        .write(&mut frame, message)
        .unwrap();
    frame
}

/// Returns an identity association with addresses.
pub(crate) fn association(id: u32, addresses: &[Ipv6Addr]) -> v6::DhcpOption {
    let opts = addresses.iter().map(|&addr| {
        let opts = v6::DhcpOptions::new();
        v6::DhcpOption::IAAddr(v6::IAAddr { addr, preferred_life: 0, valid_life: 0, opts })
    });
    v6::DhcpOption::IANA(v6::IANA { id, t1: 0, t2: 0, opts: opts.collect() })
}

pub(crate) fn icmpv6(
    source: Ipv6Addr,
    hop_limit: u8,
    message: Icmpv6Type,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    let all_routers: Ipv6Addr = "ff02::2".parse().unwrap();
    PacketBuilder::ethernet2(MAC.0, [0x33, 0x33, 0, 0, 0, 2])
        .ipv6(source.octets(), all_routers.octets(), hop_limit)
        .icmpv6(message)
        .write(&mut frame, payload)
        .unwrap();
    frame
}
