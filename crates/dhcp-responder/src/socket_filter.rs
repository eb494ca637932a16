//! Classic BPF program for the agent's packet socket, so that data traffic of VMs never reaches the agent.

/// One instruction, as the kernel's `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterInstruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if the comparison is true.
    pub jt: u8,
    /// Instructions to skip if the comparison is false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Returns a program that accepts only frames that [`crate::PortResponder::handle`] may answer or report:
///
/// * from the guest: ARP requests for the server identifier, DHCP messages to servers, router solicitations, and
///   neighbor solicitations for the server's link-local address;
/// * to the guest: DHCP messages from servers, and router advertisements. The bridge sends the requests of each guest
///   to all ports of the network; they are rejected there, so that the guests of other ports occupy no socket.
///
/// It rejects frames with a VLAN tag (the kernel moves the tag from the frame to the metadata of the packet),
/// fragments, and IPv6 extension headers.
#[must_use]
pub const fn socket_filter() -> &'static [FilterInstruction] {
    &PROGRAM
}

/// Returns the program of [`socket_filter`] without frames to the guest. The agent uses it while too many of them
/// arrive.
#[must_use]
pub const fn request_filter() -> &'static [FilterInstruction] {
    &REQUEST_PROGRAM
}

const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
/// Loads 16 bits at an offset behind the index register.
const LOAD_HALF_INDEXED: u16 = 0x48;
/// Loads the length of the IPv4 header into the index register: `4 * (byte & 15)`.
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// `SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT` of `linux/filter.h`.
const VLAN_TAG_PRESENT: u32 = 0xffff_f000 + 48;
/// `SKF_AD_OFF + SKF_AD_PKTTYPE` of `linux/filter.h`.
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
/// `PACKET_OUTGOING` of `linux/if_packet.h`: the frame leaves by the port, to the guest.
const OUTGOING: u32 = 4;
/// More than any frame.
const WHOLE_FRAME: u32 = 0x0004_0000;

const IDENTIFIER: u32 = crate::SERVER_IDENTIFIER.to_bits();
const LINK_LOCAL: u128 = crate::SERVER_LINK_LOCAL.to_bits();

/// 32 bits of the server's link-local address.
#[expect(clippy::cast_possible_truncation, reason = "selects 32 bits")]
const fn link_local_word(shift: u32) -> u32 {
    (LINK_LOCAL >> shift) as u32
}

/// An instruction with absolute targets.
struct Step {
    code: u16,
    k: u32,
    if_true: u8,
    if_false: u8,
}

const fn load(code: u16, k: u32) -> Step {
    Step { code, k, if_true: 0, if_false: 0 }
}

const fn end(k: u32) -> Step {
    load(RETURN, k)
}

const fn jump(code: u16, k: u32, if_true: u8, if_false: u8) -> Step {
    Step { code, k, if_true, if_false }
}

const fn equal(k: u32, if_true: u8, if_false: u8) -> Step {
    jump(JUMP_IF_EQUAL, k, if_true, if_false)
}

const LENGTH: u8 = 56;
/// Index of the first instruction for frames to the guest.
const TO_GUEST: u8 = 37;
/// Index of the instruction that rejects the frame.
const REJECT: u8 = LENGTH - 2;
/// Index of the instruction that accepts the frame.
const ACCEPT: u8 = LENGTH - 1;

/// Returns the instructions; `to_guest` is the index of the first one for frames to the guest. The number before each
/// line is the index of its first instruction.
#[rustfmt::skip]
const fn steps(to_guest: u8) -> [Step; LENGTH as usize] {
    [
        /*  0 */ load(LOAD_WORD, VLAN_TAG_PRESENT), equal(0, 2, REJECT),
        /*  2 */ load(LOAD_WORD, PACKET_TYPE), equal(OUTGOING, to_guest, 4),
        // From the guest.
        /*  4 */ load(LOAD_HALF, 12), // EtherType
        /*  5 */ equal(0x0800, 14, 6),
        /*  6 */ equal(0x86dd, 21, 7),
        /*  7 */ equal(0x0806, 8, REJECT),
        // ARP: Ethernet and IPv4; address lengths and operation "request"; target address.
        /*  8 */ load(LOAD_WORD, 14), equal(0x0001_0800, 10, REJECT),
        /* 10 */ load(LOAD_WORD, 18), equal(0x0604_0001, 12, REJECT),
        /* 12 */ load(LOAD_WORD, 38), equal(IDENTIFIER, ACCEPT, REJECT),
        // IPv4: UDP; no fragment; port 67 as destination.
        /* 14 */ load(LOAD_BYTE, 23), equal(17, 16, REJECT),
        /* 16 */ load(LOAD_HALF, 20), jump(JUMP_IF_ANY_BIT, 0x3fff, REJECT, 18),
        /* 18 */ load(LOAD_HEADER_LENGTH, 14),
        /* 19 */ load(LOAD_HALF_INDEXED, 16), equal(67, ACCEPT, REJECT),
        // IPv6: UDP with port 547 as destination.
        /* 21 */ load(LOAD_BYTE, 20), equal(58, 26, 23),
        /* 23 */ equal(17, 24, REJECT),
        /* 24 */ load(LOAD_HALF, 56), equal(547, ACCEPT, REJECT),
        // ICMPv6: router solicitation, or neighbor solicitation with its target.
        /* 26 */ load(LOAD_BYTE, 54), equal(133, ACCEPT, 28),
        /* 28 */ equal(135, 29, REJECT),
        /* 29 */ load(LOAD_WORD, 62), equal(link_local_word(96), 31, REJECT),
        /* 31 */ load(LOAD_WORD, 66), equal(link_local_word(64), 33, REJECT),
        /* 33 */ load(LOAD_WORD, 70), equal(link_local_word(32), 35, REJECT),
        /* 35 */ load(LOAD_WORD, 74), equal(link_local_word(0), ACCEPT, REJECT),
        // To the guest.
        /* 37 */ load(LOAD_HALF, 12), // EtherType
        /* 38 */ equal(0x0800, 40, 39),
        /* 39 */ equal(0x86dd, 47, REJECT),
        // IPv4: UDP; no fragment; port 67 as source.
        /* 40 */ load(LOAD_BYTE, 23), equal(17, 42, REJECT),
        /* 42 */ load(LOAD_HALF, 20), jump(JUMP_IF_ANY_BIT, 0x3fff, REJECT, 44),
        /* 44 */ load(LOAD_HEADER_LENGTH, 14),
        /* 45 */ load(LOAD_HALF_INDEXED, 14), equal(67, ACCEPT, REJECT),
        // IPv6: UDP with port 547 as source; ICMPv6: router advertisement.
        /* 47 */ load(LOAD_BYTE, 20), equal(58, 52, 49),
        /* 49 */ equal(17, 50, REJECT),
        /* 50 */ load(LOAD_HALF, 54), equal(547, ACCEPT, REJECT),
        /* 52 */ load(LOAD_BYTE, 54), equal(134, ACCEPT, REJECT),
        /* 54 */ end(0),
        /* 55 */ end(WHOLE_FRAME),
    ]
}

static PROGRAM: [FilterInstruction; LENGTH as usize] = assemble(&steps(TO_GUEST));
static REQUEST_PROGRAM: [FilterInstruction; LENGTH as usize] = assemble(&steps(REJECT));

/// Makes the targets of jumps relative to the next instruction.
const fn assemble(steps: &[Step; LENGTH as usize]) -> [FilterInstruction; LENGTH as usize] {
    let mut program = [FilterInstruction { code: 0, jt: 0, jf: 0, k: 0 }; LENGTH as usize];
    let mut at: u8 = 0;
    while at < LENGTH {
        let Step { code, k, if_true, if_false } = steps[at as usize];
        let is_jump = code == JUMP_IF_EQUAL || code == JUMP_IF_ANY_BIT;
        // An overflow, which a jump backwards causes, is an error of the compiler.
        let (jt, jf) = if is_jump { (if_true - at - 1, if_false - at - 1) } else { (0, 0) };
        program[at as usize] = FilterInstruction { code, jt, jf, k };
        at += 1;
    }
    program
}
