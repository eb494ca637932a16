//! List of the crate's parsers of untrusted bytes. The fuzz targets in `fuzz/` and the test that replays their corpus
//! use this list.

use std::hint::black_box;

use berth_api::{Lease, LeaseNetwork, LeaseOptions, MacAddress};

use crate::{Direction, Outcome, PortResponder, ProbeAnswer, SERVER_MAC, Uptime};

/// Name of a parser, and a function that calls it with bytes and ignores the result.
pub type Parser = (&'static str, fn(&[u8]));

/// All parsers of untrusted bytes.
pub const PARSERS: &[Parser] = &[("dhcp_frame", |bytes| {
    let options = |prefix_length| LeaseOptions { prefix_length, ..LeaseOptions::default() };
    let network = LeaseNetwork {
        ipv4: Some(options(24)),
        ipv6: Some(options(64)),
        ..LeaseNetwork::default()
    };
    let lease = Lease {
        mac: MacAddress([0x02, 1, 2, 3, 4, 5]),
        machine: String::new(),
        hostname: None,
        ipv4: Some([10, 0, 0, 7].into()),
        ipv6: Some([0xfd00, 0x120, 0, 0, 0, 0, 0, 7].into()),
        default_route: None,
    };
    let mut responder = PortResponder::new(&network, &lease, SERVER_MAC);
    for direction in [Direction::FromGuest, Direction::ToGuest] {
        if let Outcome::Answer { frame, .. } = responder.handle(direction, bytes, Uptime::ZERO) {
            // The responder must not answer a frame that is itself an answer of the responder.
            let second = responder.handle(Direction::FromGuest, &frame, Uptime::ZERO);
            assert!(matches!(second, Outcome::Ignored(_)), "{second:?}");
        }
    }
    black_box((responder.statistics(), ProbeAnswer::parse(bytes)));
})];
