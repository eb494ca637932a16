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

/// Returns a program that accepts only frames that [`crate::PortResponder::handle`] may answer or report: ARP requests
/// for the server identifier, DHCP messages from or to servers, router solicitations and advertisements, and neighbor
/// solicitations for the server's link-local address. It rejects frames with a VLAN tag (the kernel moves the tag from
/// the frame to the metadata of the packet), fragments, and IPv6 extension headers.
#[must_use]
pub const fn socket_filter() -> &'static [FilterInstruction] {
    &PROGRAM
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

const LENGTH: u8 = 42;
/// Index of the instruction that rejects the frame.
const REJECT: u8 = LENGTH - 2;
/// Index of the instruction that accepts the frame.
const ACCEPT: u8 = LENGTH - 1;

/// The number before each line is the index of its first instruction.
#[rustfmt::skip]
const STEPS: [Step; LENGTH as usize] = [
    /*  0 */ load(LOAD_WORD, VLAN_TAG_PRESENT), equal(0, 2, REJECT),
    /*  2 */ load(LOAD_HALF, 12), // EtherType
    /*  3 */ equal(0x0800, 12, 4),
    /*  4 */ equal(0x86dd, 21, 5),
    /*  5 */ equal(0x0806, 6, REJECT),
    // ARP: Ethernet and IPv4; address lengths and operation "request"; target address.
    /*  6 */ load(LOAD_WORD, 14), equal(0x0001_0800, 8, REJECT),
    /*  8 */ load(LOAD_WORD, 18), equal(0x0604_0001, 10, REJECT),
    /* 10 */ load(LOAD_WORD, 38), equal(IDENTIFIER, ACCEPT, REJECT),
    // IPv4: UDP; no fragment; port 67 as destination or source.
    /* 12 */ load(LOAD_BYTE, 23), equal(17, 14, REJECT),
    /* 14 */ load(LOAD_HALF, 20), jump(JUMP_IF_ANY_BIT, 0x3fff, REJECT, 16),
    /* 16 */ load(LOAD_HEADER_LENGTH, 14),
    /* 17 */ load(LOAD_HALF_INDEXED, 16), equal(67, ACCEPT, 19),
    /* 19 */ load(LOAD_HALF_INDEXED, 14), equal(67, ACCEPT, REJECT),
    // IPv6: UDP with port 547 as destination or source.
    /* 21 */ load(LOAD_BYTE, 20), equal(58, 28, 23),
    /* 23 */ equal(17, 24, REJECT),
    /* 24 */ load(LOAD_HALF, 56), equal(547, ACCEPT, 26),
    /* 26 */ load(LOAD_HALF, 54), equal(547, ACCEPT, REJECT),
    // ICMPv6: router solicitation, router advertisement, or neighbor solicitation with its target.
    /* 28 */ load(LOAD_BYTE, 54), equal(133, ACCEPT, 30),
    /* 30 */ equal(134, ACCEPT, 31),
    /* 31 */ equal(135, 32, REJECT),
    /* 32 */ load(LOAD_WORD, 62), equal(link_local_word(96), 34, REJECT),
    /* 34 */ load(LOAD_WORD, 66), equal(link_local_word(64), 36, REJECT),
    /* 36 */ load(LOAD_WORD, 70), equal(link_local_word(32), 38, REJECT),
    /* 38 */ load(LOAD_WORD, 74), equal(link_local_word(0), ACCEPT, REJECT),
    /* 40 */ end(0),
    /* 41 */ end(WHOLE_FRAME),
];

static PROGRAM: [FilterInstruction; LENGTH as usize] = assemble();

/// Makes the targets of jumps relative to the next instruction.
const fn assemble() -> [FilterInstruction; LENGTH as usize] {
    let mut program = [FilterInstruction { code: 0, jt: 0, jf: 0, k: 0 }; LENGTH as usize];
    let mut at: u8 = 0;
    while at < LENGTH {
        let Step { code, k, if_true, if_false } = STEPS[at as usize];
        let is_jump = code == JUMP_IF_EQUAL || code == JUMP_IF_ANY_BIT;
        // An overflow, which a jump backwards causes, is an error of the compiler.
        let (jt, jf) = if is_jump { (if_true - at - 1, if_false - at - 1) } else { (0, 0) };
        program[at as usize] = FilterInstruction { code, jt, jf, k };
        at += 1;
    }
    program
}
