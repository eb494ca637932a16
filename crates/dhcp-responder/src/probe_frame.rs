//! Frames of address probes, and their answers.
//!
//! An ARP probe has no sender IP address, so it changes no ARP cache (RFC 5227). On the bridge port of the VM that has
//! the lease, the sender Ethernet address of the probe is the VM's own. Otherwise a guest that probes its own address
//! at the same time would detect a conflict. A probe that leaves the host never has the VM's Ethernet address, because
//! switches would learn that the VM is on this host, although it may still run on another host (before a live
//! migration).
//!
//! The neighbor solicitation of a probe has a link-local source address. Without a source address, the solicitation
//! would be duplicate address detection (RFC 4862), and a guest that performs this detection for the same address at
//! the same time would not use the address. The guest ignores a solicitation with a source address. A machine that
//! already uses the address answers in both cases.

use std::net::{IpAddr, Ipv6Addr};

use berth_api::{MacAddress, VlanId};
use etherparse::icmpv6::{Icmpv6PayloadSlice, NdpOptionSlice, NdpOptionType};
use etherparse::{ArpEthIpv4Packet, ArpOperation, Icmpv6Slice, Icmpv6Type};

use crate::frame::{BROADCAST_MAC, FrameAddresses, LINK_HOP_LIMIT};
use crate::identity::SERVER_MAC;
use crate::received::{Content, Received};

/// A probe to determine whether another machine uses the address of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Ethernet address of the VM that has the lease.
    pub owner: MacAddress,
    /// IP address of the lease.
    pub address: IpAddr,
}

impl Probe {
    /// Returns the frame to send to the guest through its bridge port.
    #[must_use]
    pub fn frame_to_guest(self) -> Option<Vec<u8>> {
        self.frame(SERVER_MAC, self.owner)
    }

    /// Returns the frame to send through a link that leaves the host. The frame has the Ethernet address of the link,
    /// and a VLAN tag if `vlan` is set.
    #[must_use]
    pub fn frame_by_link(self, link: MacAddress, vlan: Option<VlanId>) -> Option<Vec<u8>> {
        let mut frame = self.frame(link, link)?;
        if let Some(vlan) = vlan {
            let [high, low] = u16::from(vlan).to_be_bytes();
            frame.splice(12..12, [0x81, 0x00, high, low]);
        }
        Some(frame)
    }

    fn frame(self, source: MacAddress, arp_sender: MacAddress) -> Option<Vec<u8>> {
        match self.address {
            IpAddr::V4(address) => {
                let packet = ArpEthIpv4Packet {
                    operation: ArpOperation::REQUEST,
                    sender_mac: arp_sender.0,
                    sender_ipv4: [0; 4],
                    target_mac: [0; 6],
                    target_ipv4: address.octets(),
                };
                FrameAddresses { source, destination: BROADCAST_MAC }.arp_frame(&packet)
            }
            IpAddr::V6(address) => {
                let [.., high, middle, low] = address.octets();
                // Solicited-node multicast address of the probed address.
                let last = u16::from_be_bytes([middle, low]);
                let destination =
                    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(high), last);
                let destination_mac = MacAddress([0x33, 0x33, 0xff, high, middle, low]);
                let mut payload = address.octets().to_vec();
                payload.extend([NdpOptionType::SOURCE_LINK_LAYER_ADDRESS.0, 1]);
                payload.extend(source.0);
                FrameAddresses { source, destination: destination_mac }.icmpv6_frame(
                    link_local(source),
                    destination,
                    Icmpv6Type::NeighborSolicitation,
                    &payload,
                )
            }
        }
    }
}

/// Returns the link-local address that contains the modified EUI-64 of an Ethernet address.
fn link_local(mac: MacAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// An answer to a probe, which proves that a machine uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// Ethernet address of the machine.
    pub mac: MacAddress,
    /// Address that the machine uses.
    pub address: IpAddr,
}

impl ProbeAnswer {
    /// Parses a frame without VLAN tag. Returns `None` if the frame is not an answer to a probe.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let received = Received::parse(frame).ok()?;
        match received.content {
            Content::Arp(packet) => {
                let is_answer =
                    packet.operation == ArpOperation::REPLY && packet.target_ipv4 == [0; 4];
                is_answer.then(|| Self {
                    mac: MacAddress(packet.sender_mac),
                    address: packet.sender_ipv4.into(),
                })
            }
            Content::Icmpv6 { hop_limit: LINK_HOP_LIMIT, message, .. } => {
                Self::parse_advertisement(received.source_mac, &message)
            }
            Content::Icmpv6 { .. } | Content::Udp { .. } => None,
        }
    }

    fn parse_advertisement(source: MacAddress, message: &Icmpv6Slice<'_>) -> Option<Self> {
        let Ok(Icmpv6PayloadSlice::NeighborAdvertisement(advertisement)) = message.payload_slice()
        else {
            return None;
        };
        // If a machine answers for another machine, such as a router for a mobile node, this option contains the
        // Ethernet address of the machine that uses the address.
        let named = advertisement.options_iterator().find_map(|option| match option {
            Ok(NdpOptionSlice::TargetLinkLayerAddress(address)) => {
                address.link_layer_address().try_into().ok().map(MacAddress)
            }
            _ => None,
        });
        Some(Self { mac: named.unwrap_or(source), address: advertisement.target_address().into() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::SERVER_LINK_LOCAL;

    const OWNER: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const LINK: MacAddress = MacAddress([0x52, 0x54, 0, 0xab, 0xcd, 0xef]);

    fn probe(address: &str) -> Probe {
        Probe { owner: OWNER, address: address.parse().unwrap() }
    }

    #[test]
    fn an_arp_probe_has_the_owner_only_on_the_port_of_a_vm() {
        let frame = probe("10.0.0.7").frame_to_guest().unwrap();
        assert_eq!(frame[..12], [&[0xff; 6], &SERVER_MAC.0[..]].concat());
        // Operation, sender Ethernet address and sender IP address (0). The target address follows.
        assert_eq!(frame[20..32], [&[0, 1], &OWNER.0[..], &[0; 4]].concat());
        assert_eq!(frame[38..42], [10, 0, 0, 7]);
        let frame = probe("10.0.0.7").frame_by_link(LINK, Some(120.try_into().unwrap())).unwrap();
        assert_eq!(frame[6..16], [&LINK.0[..], &[0x81, 0, 0, 120]].concat());
        assert!(!frame.windows(6).any(|bytes| bytes == OWNER.0), "{frame:02x?}");
        assert_eq!(frame.len(), 46);
    }

    #[test]
    fn a_solicitation_is_no_duplicate_address_detection() {
        assert_eq!(link_local(SERVER_MAC), SERVER_LINK_LOCAL);
        assert_eq!(link_local(LINK), "fe80::5054:ff:feab:cdef".parse::<Ipv6Addr>().unwrap());
        let frame = probe("fd00::12:3456").frame_to_guest().unwrap();
        assert_eq!(frame[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        let destination: Ipv6Addr = "ff02::1:ff12:3456".parse().unwrap();
        assert_eq!(frame[22..38], SERVER_LINK_LOCAL.octets());
        assert_eq!(frame[38..54], destination.octets());
        assert_eq!(frame[54], 135);
    }

    /// Returns the ARP reply of a machine with the IP address `address`; `target` is the target IP address of the
    /// reply.
    fn arp_answer(mac: MacAddress, address: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let packet = ArpEthIpv4Packet {
            operation: ArpOperation::REPLY,
            sender_mac: mac.0,
            sender_ipv4: address,
            target_mac: OWNER.0,
            target_ipv4: target,
        };
        FrameAddresses { source: mac, destination: OWNER }.arp_frame(&packet).unwrap()
    }

    fn advertisement(option: Option<MacAddress>) -> Vec<u8> {
        let header = etherparse::icmpv6::NeighborAdvertisementHeader {
            router: false,
            solicited: true,
            r#override: true,
        };
        let mut payload = "fd00::7".parse::<Ipv6Addr>().unwrap().octets().to_vec();
        if let Some(mac) = option {
            payload.extend([NdpOptionType::TARGET_LINK_LAYER_ADDRESS.0, 1]);
            payload.extend(mac.0);
        }
        let message = Icmpv6Type::NeighborAdvertisement(header);
        let addresses = FrameAddresses { source: LINK, destination: SERVER_MAC };
        addresses.icmpv6_frame(link_local(LINK), SERVER_LINK_LOCAL, message, &payload).unwrap()
    }

    #[test]
    fn answers_are_parsed() {
        let answer = ProbeAnswer { mac: LINK, address: [10, 0, 0, 7].into() };
        assert_eq!(ProbeAnswer::parse(&arp_answer(LINK, [10, 0, 0, 7], [0; 4])), Some(answer));
        let to_another = arp_answer(LINK, [10, 0, 0, 7], [10, 0, 0, 8]);
        assert_eq!(ProbeAnswer::parse(&to_another), None, "an answer to another machine");
        let address = "fd00::7".parse().unwrap();
        for (option, mac) in [(None, LINK), (Some(OWNER), OWNER)] {
            let answer = ProbeAnswer { mac, address };
            assert_eq!(ProbeAnswer::parse(&advertisement(option)), Some(answer));
        }
        for frame in ["10.0.0.7", "fd00::7"].map(|address| probe(address).frame_to_guest()) {
            assert_eq!(ProbeAnswer::parse(&frame.unwrap()), None, "a probe is no answer");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(mut frame in proptest::collection::vec(any::<u8>(), 0..120), kind in 0..3_u8) {
            let header: &[u8] = match kind {
                0 => &[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2],
                1 => &[0x86, 0xdd, 0x60],
                _ => &[],
            };
            if frame.len() > 60 {
                frame.splice(12..12 + header.len(), header.iter().copied());
            }
            prop_assert!(ProbeAnswer::parse(&frame).is_none() || frame.len() >= 42);
        }
    }
}
