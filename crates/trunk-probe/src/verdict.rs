//! Conclusions from the evidence about the trunk of a network.

use std::fmt;

use berth_api::{VlanId, VlanSet};

/// Verdict on the trunk of one network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verdict {
    /// No frame has arrived from an agent that has a VLAN in common with this agent, or the evidence is not complete
    /// yet.
    #[default]
    Unknown,
    /// In every VLAN of this host, at least one other agent sends probes, and the probes of all these agents arrive.
    Verified,
    /// The probes of every other agent arrive in all VLANs that the agent has in common with this host, but in some
    /// VLANs of this host no frame of another agent arrives. Either no other host carries these VLANs, or the switches
    /// do not.
    Unverified {
        /// The VLANs in which no frame of another agent arrives.
        vlans: VlanSet,
    },
    /// Some agents' probes do not arrive in some VLANs.
    Missing {
        /// The VLANs in which the probes of at least one agent do not arrive.
        vlans: VlanSet,
        /// Nodes of the agents whose probes do not arrive, sorted.
        from: Vec<String>,
    },
}

/// A frame that arrived in another VLAN than it was sent in: the switches translate or leak VLANs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leak {
    /// Node of the sender.
    pub from: String,
    /// VLAN in which the frame was sent.
    pub sent: VlanId,
    /// VLAN in which the frame arrived; `None` if it arrived untagged.
    pub received: Option<VlanId>,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, sent, received } = self;
        match received {
            Some(received) => {
                write!(f, "frames that {from} sends in VLAN {sent} arrive in VLAN {received}")
            }
            None => write!(f, "frames that {from} sends in VLAN {sent} arrive untagged"),
        }
    }
}
