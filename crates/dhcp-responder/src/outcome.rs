//! Results of handling a frame.

use std::net::IpAddr;

use berth_api::MacAddress;

/// Direction of a frame on the bridge port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The VM sent the frame.
    FromGuest,
    /// The bridge sends the frame to the VM.
    ToGuest,
}

/// Result of handling a frame: the task of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Send the frame to the guest.
    Answer {
        /// Type of the message in the frame.
        kind: AnswerKind,
        /// Ethernet frame without the frame check sequence.
        frame: Vec<u8>,
    },
    /// Report a DHCP server or router that is not Berth's.
    ForeignServer(ForeignServer),
    /// Report that the guest declined its address because another machine uses it, and send the answer if there is one.
    Declined(DeclinedAddress),
    /// Do nothing.
    Ignored(IgnoredReason),
}

/// Message type of an answer. Its text form is the value of a metric label.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum AnswerKind {
    /// DHCPOFFER.
    Dhcpv4Offer,
    /// DHCPACK.
    Dhcpv4Ack,
    /// DHCPNAK: the client requested another address than the address of its lease.
    Dhcpv4Nak,
    Dhcpv6Advertise,
    Dhcpv6Reply,
    RouterAdvertisement,
    /// ARP reply that contains the server identifier.
    ArpReply,
    /// Neighbor advertisement that contains the server's link-local address.
    NeighborAdvertisement,
}

/// DHCP server or router that is not Berth's, in the layer 2 network of the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignServer {
    /// Protocol of the server's message.
    pub kind: ForeignKind,
    /// Ethernet address of the server.
    pub mac: MacAddress,
    /// IP source address of the server's message.
    pub address: IpAddr,
}

/// Protocol of a foreign server. Its text form is the value of a metric label.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum ForeignKind {
    /// The server answers DHCPv4 requests.
    Dhcpv4,
    /// The server answers DHCPv6 requests.
    Dhcpv6,
    /// The server is a router that sends router advertisements.
    RouterAdvertisement,
}

/// Address that the guest declined (DHCPDECLINE, DHCPv6 Decline).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclinedAddress {
    /// Address of the lease that the guest declined.
    pub address: IpAddr,
    /// Frame to send to the guest as a confirmation of a DHCPv6 Decline; `None` for DHCPv4, which has no confirmation.
    pub answer: Option<Vec<u8>>,
}

/// Reason why a frame is not answered. Its text form is the value of a metric label.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::EnumIter,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum IgnoredReason {
    /// The frame contains no message that the responder answers or reports.
    Unrelated,
    /// The frame has a VLAN tag.
    VlanTag,
    /// The frame is truncated or malformed.
    Malformed,
    /// The source Ethernet address or `chaddr` is not the Ethernet address of the lease.
    OtherMac,
    /// The lease has no address of this family.
    NotConfigured,
    /// A relay agent forwarded the message.
    RelayAgent,
    /// The client selected another server, or renews an address of another server.
    OtherServer,
    /// The guest sent a message that only servers may send, or a message that needs no answer.
    NoRequest,
    /// The guest released its address. The address remains allocated to the VM.
    Released,
    /// The router advertisement comes from the configured gateway, or may come from this gateway, whose link-local
    /// address is unknown.
    Gateway,
    /// The probes have not yet shown whether another machine uses the address of the lease.
    AddressNotProbed,
    /// Another machine uses the address of the lease.
    AddressInUse,
    /// The rate limit of the port is exceeded.
    RateLimited,
}
