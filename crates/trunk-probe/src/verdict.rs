//! Conclusions from the evidence about the trunk of a network.

use std::fmt;

use berth_api::{VlanId, VlanSet};

/// Verdict on the trunk of one network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verdict {
    /// No other agent with a common VLAN was received, or the evidence is not complete yet.
    #[default]
    Unknown,
    /// In every VLAN, the probes of every other agent that also probes the VLAN arrive, and there is at least one such
    /// agent.
    Verified,
    /// Every common VLAN was received, but no other agent is received in some VLANs. Either no other host carries them,
    /// or the switches do not.
    Unverified {
        /// The VLANs in which no other agent is received.
        vlans: VlanSet,
    },
    /// Some agents' probes in some VLANs were not received.
    Missing {
        /// The VLANs that were not received from at least one agent.
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
