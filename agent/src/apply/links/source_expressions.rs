//! Expressions of the rules that drop frames of VMs from foreign addresses.

use berth_host_facts::nftables::{Attributes, NF_ACCEPT};

use super::expressions::{
    Expression, ICMPV6, INPUT_BRIDGE, INPUT_GROUP, INPUT_NAME, INPUT_PVID, LINK_LAYER_HEADER,
    NEXT_REGISTER, NFT_JUMP, PROTOCOL, TRANSPORT_HEADER, bitwise_expression, compare_expression,
    inverted_lookup_expression, load_meta, load_payload, lookup_expression, meta_expression,
    payload_expression, unequal_expression, verdict_attributes,
};
use crate::nftables::NF_DROP;
use crate::plan::network::LINK_GROUP;
use crate::plan::network::filter::UPLINK_SET;
use crate::plan::network::source_guard::{BridgeKind, Family, SourceRule, SourceStep, TAG_SET};

/// Meta key of the EtherType after the VLAN tag that the kernel stores in the frame's metadata (`NFT_META_PROTOCOL`).
const ETHER_TYPE: u32 = 1;
/// Base of a payload expression that loads bytes of the ARP, IPv4 or IPv6 header (`NFT_PAYLOAD_NETWORK_HEADER`).
const NETWORK_HEADER: u32 = 1;
/// Number of the fifth register of 4 bytes (`NFT_REG32_04`), the first one after the name of a link.
const REGISTER_AFTER_NAME: u32 = 12;

const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Value that the kernel stores in place of the EtherType for a frame with a length and an LLC header (`ETH_P_802_2`).
const LLC: [u8; 2] = [0x00, 0x04];
/// LLC and SNAP headers before an EtherType.
const SNAP_ETHER_TYPE: [u8; 6] = [0xaa, 0xaa, 0x03, 0x00, 0x00, 0x00];
/// Type of neighbor advertisements (ICMPv6).
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// First bytes of a link-local IPv6 address, and their mask: fe80::/10.
const LINK_LOCAL: ([u8; 2], [u8; 2]) = ([0xfe, 0x80], [0xff, 0xc0]);

/// An address in a frame.
#[derive(Debug, Clone, Copy)]
struct AddressField {
    header: u32,
    /// Offset in the header, in bytes.
    offset: u32,
    family: Family,
}

impl AddressField {
    /// Sender's protocol address of an ARP message.
    const ARP_SENDER: Self = Self { header: NETWORK_HEADER, offset: 14, family: Family::V4 };
    const IPV4_SOURCE: Self = Self { header: NETWORK_HEADER, offset: 12, family: Family::V4 };
    const IPV6_SOURCE: Self = Self { header: NETWORK_HEADER, offset: 8, family: Family::V6 };
    const ADVERTISED_TARGET: Self =
        Self { header: TRANSPORT_HEADER, offset: 8, family: Family::V6 };

    const fn length(self) -> u32 {
        match self.family {
            Family::V4 => 4,
            Family::V6 => 16,
        }
    }

    /// Returns expressions that match unless the address is unspecified.
    fn is_specified(self) -> Vec<Expression> {
        let zeros: &[u8] = match self.family {
            Family::V4 => &[0; 4],
            Family::V6 => &[0; 16],
        };
        vec![
            ("payload", payload_expression(self.header, self.offset, self.length())),
            ("cmp", unequal_expression(zeros)),
        ]
    }

    /// Returns expressions that match unless the IPv6 address is link-local.
    fn is_not_link_local(self) -> Vec<Expression> {
        let (prefix, mask) = LINK_LOCAL;
        vec![
            ("payload", payload_expression(self.header, self.offset, 2)),
            ("bitwise", bitwise_expression(&mask)),
            ("cmp", unequal_expression(&prefix)),
        ]
    }

    /// Returns expressions that match if a lease of the frame's network has the Ethernet source and an address of this
    /// family, but no lease has the Ethernet source and this address.
    fn is_foreign(self, bridge_kind: BridgeKind) -> Vec<Expression> {
        let mut all = vec![("meta", meta_expression(INPUT_BRIDGE))];
        let mut next = REGISTER_AFTER_NAME;
        if bridge_kind == BridgeKind::Shared {
            all.push(("meta", load_meta(INPUT_PVID, next)));
            next += 1;
        }
        // The Ethernet source occupies two registers, of which the kernel fills the last two bytes with zeros.
        all.push(("payload", load_payload(next, LINK_LAYER_HEADER, 6, 6)));
        let machines = bridge_kind.machine_set(self.family);
        all.push(("lookup", lookup_expression(machines)));
        all.push(("payload", load_payload(next + 2, self.header, self.offset, self.length())));
        let set = bridge_kind.address_set(self.family);
        all.push(("lookup", inverted_lookup_expression(set)));
        all
    }
}

/// Returns the expressions of a rule.
pub(super) fn source_expressions(rule: SourceRule) -> Vec<Expression> {
    let SourceRule { bridge_kind, step } = rule;
    match step {
        SourceStep::Jump => {
            let mut all = vec![("meta", meta_expression(INPUT_BRIDGE))];
            if bridge_kind == BridgeKind::Shared {
                all.push(("meta", load_meta(INPUT_PVID, NEXT_REGISTER)));
            }
            all.push(("lookup", lookup_expression(bridge_kind.network_set())));
            all.push(("immediate", verdict_attributes(NFT_JUMP, Some(bridge_kind.chain()))));
            all
        }
        SourceStep::AcceptFromGroup => vec![
            ("meta", meta_expression(INPUT_GROUP)),
            ("cmp", compare_expression(&LINK_GROUP.to_ne_bytes())),
            ("immediate", verdict_attributes(NF_ACCEPT, None)),
        ],
        SourceStep::AcceptFromUplinks => vec![
            ("meta", meta_expression(INPUT_NAME)),
            ("lookup", lookup_expression(UPLINK_SET)),
            ("immediate", verdict_attributes(NF_ACCEPT, None)),
        ],
        SourceStep::DropTagged => drop_if(vec![
            ("meta", meta_expression(ETHER_TYPE)),
            ("lookup", lookup_expression(TAG_SET)),
        ]),
        SourceStep::DropSnap => drop_if(vec![
            ("meta", meta_expression(ETHER_TYPE)),
            ("cmp", compare_expression(&LLC)),
            ("payload", payload_expression(NETWORK_HEADER, 0, 6)),
            ("cmp", compare_expression(&SNAP_ETHER_TYPE)),
        ]),
        SourceStep::DropArp => drop_ipv4(ARP, AddressField::ARP_SENDER, bridge_kind),
        SourceStep::DropIpv4 => drop_ipv4(IPV4, AddressField::IPV4_SOURCE, bridge_kind),
        SourceStep::DropIpv6 => {
            let source = AddressField::IPV6_SOURCE;
            let mut all = is_ether_type(IPV6);
            all.extend(source.is_not_link_local());
            all.extend(source.is_specified());
            all.extend(source.is_foreign(bridge_kind));
            drop_if(all)
        }
        SourceStep::DropAdvertisement => {
            let target = AddressField::ADVERTISED_TARGET;
            let mut all = is_ether_type(IPV6);
            all.extend([
                ("meta", meta_expression(PROTOCOL)),
                ("cmp", compare_expression(&[ICMPV6])),
                ("payload", payload_expression(TRANSPORT_HEADER, 0, 1)),
                ("cmp", compare_expression(&[NEIGHBOR_ADVERTISEMENT])),
            ]);
            all.extend(target.is_not_link_local());
            all.extend(target.is_foreign(bridge_kind));
            drop_if(all)
        }
    }
}

fn drop_ipv4(kind: [u8; 2], source: AddressField, bridge_kind: BridgeKind) -> Vec<Expression> {
    let mut all = is_ether_type(kind);
    all.extend(source.is_specified());
    all.extend(source.is_foreign(bridge_kind));
    drop_if(all)
}

fn is_ether_type(kind: [u8; 2]) -> Vec<Expression> {
    vec![("meta", meta_expression(ETHER_TYPE)), ("cmp", compare_expression(&kind))]
}

/// Adds the verdict that drops a frame if all expressions match.
fn drop_if(mut expressions: Vec<Expression>) -> Vec<Expression> {
    expressions.push(("counter", Attributes::default()));
    expressions.push(("immediate", verdict_attributes(NF_DROP, None)));
    expressions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rule: SourceRule) -> Vec<&'static str> {
        source_expressions(rule).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn each_step_has_its_expressions() {
        let rule = |bridge_kind, step| SourceRule { bridge_kind, step };
        let jump = ["meta", "lookup", "immediate"];
        assert_eq!(names(rule(BridgeKind::Single, SourceStep::Jump)), jump);
        assert_eq!(names(rule(BridgeKind::Shared, SourceStep::Jump)).len(), 4);
        let arp = names(rule(BridgeKind::Single, SourceStep::DropArp));
        let expected = [
            "meta",
            "cmp",
            "payload",
            "cmp",
            "meta",
            "payload",
            "lookup",
            "payload",
            "lookup",
            "counter",
            "immediate",
        ];
        assert_eq!(arp, expected);
        for step in [SourceStep::DropIpv4, SourceStep::DropIpv6, SourceStep::DropAdvertisement] {
            let names = names(rule(BridgeKind::Shared, step));
            assert_eq!(names[names.len() - 3..], ["lookup", "counter", "immediate"]);
        }
    }

    #[test]
    fn registers_of_a_key_are_adjacent() {
        let mut expected = load_payload(14, NETWORK_HEADER, 14, 4);
        let field = AddressField::ARP_SENDER;
        let single = field.is_foreign(BridgeKind::Single);
        assert_eq!(single[3].1.as_bytes(), expected.as_bytes());
        expected = load_payload(15, NETWORK_HEADER, 14, 4);
        let shared = field.is_foreign(BridgeKind::Shared);
        assert_eq!(shared[4].1.as_bytes(), expected.as_bytes());
    }
}
