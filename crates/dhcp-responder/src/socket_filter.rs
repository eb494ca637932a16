//! Classic BPF programs for the agent's packet sockets. The kernel runs them, so that data traffic of VMs never reaches
//! the agent.

use berth_api::{MacAddress, VlanId};

/// One instruction of a classic BPF program: the kernel's `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterInstruction {
    /// Operation code.
    pub code: u16,
    /// Number of instructions to skip if the comparison is true.
    pub jt: u8,
    /// Number of instructions to skip if the comparison is false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Returns a program that accepts only frames that [`crate::PortResponder::handle`] may answer or report:
///
/// * from the guest: ARP requests for the server identifier, DHCP messages to servers, router solicitations, and
///   neighbor solicitations for the server's link-local address; and the answers to [`crate::Probe`];
/// * to the guest: DHCP messages from servers, and router advertisements. The bridge floods the requests of each guest
///   to all ports of the network; the program rejects them, so that they do not fill the sockets of other ports.
///
/// The program rejects frames with a VLAN tag (the kernel moves the tag from the frame to the packet's metadata),
/// fragments, and IPv6 extension headers.
#[must_use]
pub const fn socket_filter() -> &'static [FilterInstruction] {
    &FULL_PROGRAM
}

/// Returns a variant of [`socket_filter`] that rejects all frames to the guest. The agent uses this program as long as
/// the rate of frames to the guest is too high.
#[must_use]
pub const fn request_filter() -> &'static [FilterInstruction] {
    &REQUEST_PROGRAM
}

/// Returns a program for the link through which the frames of a tenant leave the host. The program accepts only
/// received answers to [`crate::Probe`] that have the VLAN tag `vlan`, or no tag if `vlan` is `None`.
#[must_use]
pub fn probe_filter(link: MacAddress, vlan: Option<VlanId>) -> Vec<FilterInstruction> {
    assemble(&probe_steps(link, vlan)).to_vec()
}

// Operation codes of the kernel (`linux/bpf_common.h`). A load writes to the accumulator, unless its comment names the
// index register.
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
/// Loads 16 bits from the offset that is the sum of the operand and the index register.
const LOAD_HALF_INDEXED: u16 = 0x48;
/// Loads the length of the IPv4 header in bytes, `4 * (byte & 15)`, into the index register.
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ANY_BIT: u16 = 0x45;
/// Computes the bitwise AND of the accumulator and the operand.
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// `SKF_AD_OFF + SKF_AD_VLAN_TAG` of `linux/filter.h`: the VLAN tag, including the priority.
const VLAN_TAG: u32 = 0xffff_f000 + 44;
/// `SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT` of `linux/filter.h`: 1 if the frame has a VLAN tag.
const VLAN_TAG_PRESENT: u32 = 0xffff_f000 + 48;
/// `SKF_AD_OFF + SKF_AD_PKTTYPE` of `linux/filter.h`: the direction of the frame.
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
/// `PACKET_OUTGOING` of `linux/if_packet.h`: the frame leaves the host's bridge through the port, to the guest.
const OUTGOING: u32 = 4;
/// Maximum number of bytes of a frame to accept: more than any frame has, so frames are not truncated.
const WHOLE_FRAME: u32 = 0x0004_0000;

const IDENTIFIER_BITS: u32 = crate::SERVER_IDENTIFIER.to_bits();
const LINK_LOCAL_BITS: u128 = crate::SERVER_LINK_LOCAL.to_bits();

/// Two fields of an ARP packet: hardware type Ethernet and protocol type IPv4.
const ARP_TYPES: u32 = 0x0001_0800;
/// Three fields of an ARP packet: lengths of the Ethernet and IPv4 addresses, and the operation "request".
const ARP_REQUEST: u32 = 0x0604_0001;
/// Three fields of an ARP packet: lengths of the Ethernet and IPv4 addresses, and the operation "reply".
const ARP_REPLY: u32 = 0x0604_0002;

/// Returns the first 32 bits of an Ethernet address.
const fn mac_start(mac: MacAddress) -> u32 {
    let [a, b, c, d, _, _] = mac.0;
    u32::from_be_bytes([a, b, c, d])
}

/// Returns the last 16 bits of an Ethernet address.
const fn mac_end(mac: MacAddress) -> u32 {
    let [_, _, _, _, e, f] = mac.0;
    u32::from_be_bytes([0, 0, e, f])
}

/// Returns 32 bits of the server's link-local address, after a right shift by `shift` bits.
#[expect(clippy::cast_possible_truncation, reason = "selects 32 bits")]
const fn link_local_word(shift: u32) -> u32 {
    (LINK_LOCAL_BITS >> shift) as u32
}

/// An instruction whose jump targets are indexes of instructions, not distances.
struct AbsoluteInstruction {
    code: u16,
    k: u32,
    if_true: u8,
    if_false: u8,
}

const fn load(code: u16, k: u32) -> AbsoluteInstruction {
    AbsoluteInstruction { code, k, if_true: 0, if_false: 0 }
}

/// Returns the instruction that ends the program and accepts at most `k` bytes of the frame. 0 rejects the frame.
const fn return_length(k: u32) -> AbsoluteInstruction {
    load(RETURN, k)
}

const fn jump(code: u16, k: u32, if_true: u8, if_false: u8) -> AbsoluteInstruction {
    AbsoluteInstruction { code, k, if_true, if_false }
}

const fn equal(k: u32, if_true: u8, if_false: u8) -> AbsoluteInstruction {
    jump(JUMP_IF_EQUAL, k, if_true, if_false)
}

const LENGTH: u8 = 64;
/// Index of the first instruction for frames to the guest.
const TO_GUEST_START: u8 = 45;
/// Index of the instruction that rejects the frame.
const REJECT: u8 = LENGTH - 2;
/// Index of the instruction that accepts the frame.
const ACCEPT: u8 = LENGTH - 1;

/// Returns the instructions of the program. `to_guest` is the index of the instruction to which the program jumps for
/// frames to the guest. The number before each line is the index of the first instruction in the line.
#[rustfmt::skip]
const fn instructions(to_guest: u8) -> [AbsoluteInstruction; LENGTH as usize] {
    [
        /*  0 */ load(LOAD_WORD, VLAN_TAG_PRESENT), equal(0, 2, REJECT),
        /*  2 */ load(LOAD_WORD, PACKET_TYPE), equal(OUTGOING, to_guest, 4),
        // Frames from the guest.
        /*  4 */ load(LOAD_HALF, 12), // EtherType
        /*  5 */ equal(0x0800, 17, 6),
        /*  6 */ equal(0x86dd, 24, 7),
        /*  7 */ equal(0x0806, 8, REJECT),
        // ARP: the types are Ethernet and IPv4, the operation is "request", and the target is the server identifier.
        /*  8 */ load(LOAD_WORD, 14), equal(ARP_TYPES, 10, REJECT),
        /* 10 */ load(LOAD_WORD, 18), equal(ARP_REQUEST, 12, 14),
        /* 12 */ load(LOAD_WORD, 38), equal(IDENTIFIER_BITS, ACCEPT, REJECT),
        // ARP reply to a probe: its target IP address is 0, because the sender IP address of the probe is 0.
        /* 14 */ equal(ARP_REPLY, 15, REJECT),
        /* 15 */ load(LOAD_WORD, 38), equal(0, ACCEPT, REJECT),
        // IPv4: UDP to port 67, not fragmented.
        /* 17 */ load(LOAD_BYTE, 23), equal(17, 19, REJECT),
        /* 19 */ load(LOAD_HALF, 20), jump(JUMP_IF_ANY_BIT, 0x3fff, REJECT, 21),
        /* 21 */ load(LOAD_HEADER_LENGTH, 14),
        /* 22 */ load(LOAD_HALF_INDEXED, 16), equal(67, ACCEPT, REJECT),
        // IPv6: UDP to port 547.
        /* 24 */ load(LOAD_BYTE, 20), equal(58, 29, 26),
        /* 26 */ equal(17, 27, REJECT),
        /* 27 */ load(LOAD_HALF, 56), equal(547, ACCEPT, REJECT),
        // ICMPv6: a router solicitation, or a neighbor solicitation for the server's link-local address.
        /* 29 */ load(LOAD_BYTE, 54), equal(133, ACCEPT, 31),
        /* 31 */ equal(135, 32, 40),
        /* 32 */ load(LOAD_WORD, 62), equal(link_local_word(96), 34, REJECT),
        /* 34 */ load(LOAD_WORD, 66), equal(link_local_word(64), 36, REJECT),
        /* 36 */ load(LOAD_WORD, 70), equal(link_local_word(32), 38, REJECT),
        /* 38 */ load(LOAD_WORD, 74), equal(link_local_word(0), ACCEPT, REJECT),
        // ICMPv6: a neighbor advertisement to the server's Ethernet address.
        /* 40 */ equal(136, 41, REJECT),
        /* 41 */ load(LOAD_WORD, 0), equal(mac_start(crate::SERVER_MAC), 43, REJECT),
        /* 43 */ load(LOAD_HALF, 4), equal(mac_end(crate::SERVER_MAC), ACCEPT, REJECT),
        // Frames to the guest.
        /* 45 */ load(LOAD_HALF, 12), // EtherType
        /* 46 */ equal(0x0800, 48, 47),
        /* 47 */ equal(0x86dd, 55, REJECT),
        // IPv4: UDP from port 67, not fragmented.
        /* 48 */ load(LOAD_BYTE, 23), equal(17, 50, REJECT),
        /* 50 */ load(LOAD_HALF, 20), jump(JUMP_IF_ANY_BIT, 0x3fff, REJECT, 52),
        /* 52 */ load(LOAD_HEADER_LENGTH, 14),
        /* 53 */ load(LOAD_HALF_INDEXED, 14), equal(67, ACCEPT, REJECT),
        // IPv6: UDP from port 547, or an ICMPv6 router advertisement.
        /* 55 */ load(LOAD_BYTE, 20), equal(58, 60, 57),
        /* 57 */ equal(17, 58, REJECT),
        /* 58 */ load(LOAD_HALF, 54), equal(547, ACCEPT, REJECT),
        /* 60 */ load(LOAD_BYTE, 54), equal(134, ACCEPT, REJECT),
        /* 62 */ return_length(0),
        /* 63 */ return_length(WHOLE_FRAME),
    ]
}

const PROBE_LENGTH: u8 = 26;
const PROBE_REJECT: u8 = PROBE_LENGTH - 2;
const PROBE_ACCEPT: u8 = PROBE_LENGTH - 1;

/// Returns the instructions of [`probe_filter`].
#[rustfmt::skip]
fn probe_steps(link: MacAddress, vlan: Option<VlanId>) -> [AbsoluteInstruction; PROBE_LENGTH as usize] {
    let (untagged, tagged) = if vlan.is_some() { (PROBE_REJECT, 2) } else { (5, PROBE_REJECT) };
    let vlan = vlan.map_or(0, |vlan| u32::from(u16::from(vlan)));
    [
        /*  0 */ load(LOAD_WORD, VLAN_TAG_PRESENT), equal(0, untagged, tagged),
        /*  2 */ load(LOAD_WORD, VLAN_TAG), load(AND, 0x0fff), equal(vlan, 5, PROBE_REJECT),
        /*  5 */ load(LOAD_WORD, PACKET_TYPE), equal(OUTGOING, PROBE_REJECT, 7),
        /*  7 */ load(LOAD_HALF, 12), // EtherType
        /*  8 */ equal(0x0806, 10, 9),
        /*  9 */ equal(0x86dd, 16, PROBE_REJECT),
        // ARP reply to a probe: its target IP address is 0.
        /* 10 */ load(LOAD_WORD, 14), equal(ARP_TYPES, 12, PROBE_REJECT),
        /* 12 */ load(LOAD_WORD, 18), equal(ARP_REPLY, 14, PROBE_REJECT),
        /* 14 */ load(LOAD_WORD, 38), equal(0, PROBE_ACCEPT, PROBE_REJECT),
        // Neighbor advertisement to the Ethernet address of the link.
        /* 16 */ load(LOAD_BYTE, 20), equal(58, 18, PROBE_REJECT),
        /* 18 */ load(LOAD_BYTE, 54), equal(136, 20, PROBE_REJECT),
        /* 20 */ load(LOAD_WORD, 0), equal(mac_start(link), 22, PROBE_REJECT),
        /* 22 */ load(LOAD_HALF, 4), equal(mac_end(link), PROBE_ACCEPT, PROBE_REJECT),
        /* 24 */ return_length(0),
        /* 25 */ return_length(WHOLE_FRAME),
    ]
}

static FULL_PROGRAM: [FilterInstruction; LENGTH as usize] = assemble(&instructions(TO_GUEST_START));
static REQUEST_PROGRAM: [FilterInstruction; LENGTH as usize] = assemble(&instructions(REJECT));

/// Converts jump targets from indexes to distances from the next instruction.
const fn assemble<const LENGTH: usize>(
    instructions: &[AbsoluteInstruction; LENGTH],
) -> [FilterInstruction; LENGTH] {
    let mut program = [FilterInstruction { code: 0, jt: 0, jf: 0, k: 0 }; LENGTH];
    let mut at: u8 = 0;
    while (at as usize) < LENGTH {
        let AbsoluteInstruction { code, k, if_true, if_false } = instructions[at as usize];
        let is_jump = code == JUMP_IF_EQUAL || code == JUMP_IF_ANY_BIT;
        // A backward jump would overflow here, which is a compile error.
        let (jt, jf) = if is_jump { (if_true - at - 1, if_false - at - 1) } else { (0, 0) };
        program[at as usize] = FilterInstruction { code, jt, jf, k };
        at += 1;
    }
    program
}
