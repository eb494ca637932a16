//! Verifies that a trunk carries its VLANs. Agents on one segment send small probe frames in every VLAN, and each agent
//! concludes from the frames that it receives which VLANs the switches do not carry.
//!
//! ```text
//! VLANs of the host ─► Schedule ─► TrunkProbe ─► frames to the uplink
//! frames from the uplink ─► Codec ─► TrunkProbe { peers } ─► Verdict
//! ```
//!
//! | type | content |
//! |---|---|
//! | `ProbeKeys` | keys of the fleet, from the text of a key file |
//! | `Message`, `Codec` | wire format, encrypted and authenticated |
//! | `Schedule` | rounds: one probe in each VLAN; fast rounds after a change |
//! | `Peer` | another agent: its session, its VLANs, and the evidence about them |
//! | `PeerRound` | the current round of a peer; probes that were missed |
//! | `UnreceivedVlans` | VLANs of a peer that are suspected, solicited, or missing |
//! | `Solicitor`, `SolicitationBudget` | solicitations of all peers in turn; their rate |
//! | `Answers` | answers to the solicitations of peers |
//! | `UnverifiedVlans` | VLANs in which no peer is received |
//! | `TrunkProbe` | probe of one network of this host: answers, challenges, verdict |
//!
//! A peer probes its VLANs in ascending order, so a VLAN is suspected as soon as a probe in a higher VLAN arrives
//! before the probe in this VLAN. The VLAN is missing if the peer then answers solicitations in other VLANs, but not in
//! this one. Evidence thus counts frames of the peer, not seconds, so that a peer that stops, restarts or has a wrong
//! clock causes no false alarm. The crate does no I/O: callers pass the time and a random session number, and send the
//! frames.

mod answers;
mod codec;
mod ethernet;
mod key;
pub mod lldp;
mod message;
mod peer;
mod peer_round;
mod replay_window;
mod schedule;
mod sender;
mod solicitation;
mod solicitation_budget;
mod solicitor;
mod trunk_probe;
mod unreceived_vlans;
mod unverified_vlans;
mod verdict;
mod vlan_list;

pub use codec::DecodeError;
pub use ethernet::{DESTINATION, ETHERTYPE};
pub use key::{KeyError, ProbeKeys};
pub use sender::Outgoing;
pub use trunk_probe::{IgnoredFrame, TrunkProbe};
pub use verdict::{Leak, Verdict};
