//! Tests the responder with whole frames. dhcproto and etherparse encode the requests; smoltcp, which the responder
//! does not use, parses the answers.

#![expect(
    clippy::cast_possible_truncation,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

#[path = "responder/answer.rs"]
mod answer;
#[path = "responder/dhcpv4.rs"]
mod dhcpv4;
#[path = "responder/dhcpv6.rs"]
mod dhcpv6;
#[path = "responder/foreign_servers.rs"]
mod foreign_servers;
#[path = "responder/guest.rs"]
mod guest;
#[path = "responder/neighbors.rs"]
mod neighbors;
#[path = "responder/random.rs"]
mod random;
#[path = "responder/socket_filter.rs"]
mod socket_filter;
#[path = "responder/withheld_addresses.rs"]
mod withheld_addresses;
