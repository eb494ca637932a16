//! Answers the DHCPv4, DHCPv6, ARP and neighbor discovery requests of one VM with the data of the VM's lease. The agent
//! of the host that runs the VM receives the requests from the VM's bridge port, and sends the answers to this port;
//! the crate has no I/O and no clock.
//!
//! ```text
//! bridge port ─► packet socket with socket_filter() ─► PortResponder::handle ─► Answer ─► the same bridge port
//!                                                        │        ▲             ForeignServer, Declined ─► report
//!                                                        │        LeaseNetwork, Lease (HostLeases, copy on disk)
//!                                                        └─► Statistics ─► metrics
//! ```
//!
//! # Answered requests
//!
//! The responder answers only frames without a VLAN tag whose source address (and `chaddr` of DHCPv4) is the Ethernet
//! address of the lease. Requests to unicast destinations are also answered, unless the client renews another address
//! with another server. Checksums of requests are not verified, because virtio interfaces do not compute them
//! (`CHECKSUM_PARTIAL`). A token bucket limits the answers to each port.
//!
//! # Identity of the server
//!
//! A guest must not notice its migration to another host. Therefore all hosts have the same [`SERVER_MAC`],
//! [`SERVER_IDENTIFIER`], [`SERVER_LINK_LOCAL`] and DUID, in every network. The agent sends answers only through the
//! bridge port of the VM, so switches never learn the server's Ethernet address. The responder has no state of clients:
//! it answers renewals with the data of the lease.
//!
//! * The DHCPv4 server identifier is the address to which clients send renewals at T1. Clients need a route to this
//!   address even in networks without a gateway, and no other machine may have it. It is 169.254.255.67: RFC 3927
//!   reserves the last /24 of 169.254.0.0/16, so machines do not select this address automatically. It is also outside
//!   169.254.0.0/17, which OVN-Kubernetes uses inside of nodes. The gateway's address is not suitable: a gateway that
//!   also serves DHCP would assume that clients selected its own offer.
//! * An on-link route to the server identifier is in option 121 (classless static routes), and the responder answers
//!   ARP requests for the server identifier. A client that ignores option 121 sends the renewal to the gateway's
//!   Ethernet address; the responder also receives this frame. A client that has neither this route nor a gateway
//!   renews at T2 (rebinding), by broadcast.
//! * A client that uses option 121 ignores option 3 (RFC 3442), so option 121 also contains the default route.
//!
//! # IPv6 default route
//!
//! DHCPv6 has no routes, and a router advertisement only announces its own source address as default router, or as next
//! hop (RFC 4191). So:
//!
//! * If the gateway is a link-local address, the responder sends router advertisements from this address, without a
//!   link-layer address. The guest then resolves the gateway's real Ethernet address, and has a default route.
//! * Otherwise router advertisements have a router lifetime of 0. The default route comes from router advertisements of
//!   the gateway itself, or from the network data that cloud-init gets. Other IPv6 routes come from the same sources.
//!
//! If the gateway is a link-local address, router advertisements from other addresses are reported as foreign. A
//! gateway with a global address sends router advertisements from a link-local address that the lease does not contain;
//! in such a network, only advertisements with another prefix than the network's are reported.
//!
//! # Crates
//!
//! `dhcproto` encodes DHCP messages, and decodes DHCPv4 requests without copies (`v4::borrowed`). DHCPv6 options are
//! split by `dhcpv6_options`: the decoder of `dhcproto` 0.15 subtracts lengths without a check, so a guest could crash
//! the agent with vendor options of length 0. The encoder of `dhcproto` compresses domain lists, which RFC 8415
//! forbids. `etherparse` slices and writes Ethernet, ARP, IP, UDP and ICMPv6: it checks all lengths when a frame is
//! parsed, so that no accessor panics, and supports any neighbor discovery option, unlike `smoltcp`. The tests parse
//! answers with `smoltcp`.

mod address_probes;
mod dhcpv4;
mod dhcpv4_options;
mod dhcpv6;
mod dhcpv6_options;
mod domain_name;
mod frame;
mod identity;
mod neighbor;
mod outcome;
pub mod parsers;
mod probe_frame;
mod rate_limit;
mod received;
mod received_advertisement;
mod responder;
mod router_advertisement;
mod settings;
mod socket_filter;
mod statistics;

pub use address_probes::{
    AddressConflict, AddressProbes, AddressState, MAX_BACKOFF, MIN_BACKOFF, PROBE_COUNT,
    PROBE_INTERVAL, ProbeStep,
};
pub use identity::{
    ADVERTISEMENT_INTERVAL, LEASE_TIME, REBINDING_TIME, RENEWAL_TIME, SERVER_IDENTIFIER,
    SERVER_LINK_LOCAL, SERVER_MAC,
};
pub use outcome::{
    AnswerKind, DeclinedAddress, Direction, ForeignKind, ForeignServer, IgnoredReason, Outcome,
};
pub use probe_frame::{Probe, ProbeAnswer};
pub use rate_limit::{ANSWER_CAPACITY, ANSWER_INTERVAL, Uptime};
pub use responder::PortResponder;
pub use settings::NetworkSettings;
pub use socket_filter::{FilterInstruction, probe_filter, request_filter, socket_filter};
pub use statistics::{Counters, Statistics};
