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
//! | `Peer` | another agent: its session, its VLANs, and the last round in which each VLAN was received |
//! | `TrunkProbe` | probe of one network of this host: answers, challenges, verdict |
//!
//! A VLAN is missing if a peer announces that it probes the VLAN, and completes rounds, but neither its probes nor its
//! answers to solicitations arrive in the VLAN. Evidence counts rounds of the peer, not seconds, so that a peer that
//! stops, restarts or has a wrong clock causes no alarm. The crate is pure: callers pass the time and a random session
//! number, and send the frames.

mod codec;
mod ethernet;
mod key;
pub mod lldp;
mod message;
mod peer;
mod replay_window;
mod schedule;
mod solicitation;
mod trunk_probe;
mod verdict;
mod vlan_list;

pub use codec::DecodeError;
pub use ethernet::{DESTINATION, ETHERTYPE, tagged_frame};
pub use key::{KeyError, ProbeKeys};
pub use trunk_probe::{IgnoredFrame, Outgoing, TrunkProbe};
pub use verdict::{Leak, Verdict};
