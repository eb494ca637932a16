//! Creates the frames that one agent sends on one network.

use berth_api::{VlanId, VlanSet};

use crate::codec::Codec;
use crate::key::ProbeKeys;
use crate::message::{Message, MessageKind};
use crate::vlan_list;

/// A frame to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// VLAN in which to send the frame.
    pub vlan: VlanId,
    /// Payload that follows the Ethernet header.
    pub payload: Vec<u8>,
}

/// Creates the frames that this agent sends on one network.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) node: String,
    pub(crate) network: String,
    pub(crate) codec: Codec,
    pub(crate) session: u64,
    /// Counter of the last frame: the number of frames that were created. The counter of every later frame is higher.
    pub(crate) counter: u64,
    encoded_vlans: Vec<u8>,
}

impl Sender {
    pub(crate) fn new(node: &str, network: &str, keys: ProbeKeys, session: u64) -> Self {
        Self {
            node: node.to_owned(),
            network: network.to_owned(),
            codec: Codec::new(keys),
            session,
            counter: 0,
            encoded_vlans: vlan_list::encode(&VlanSet::default()),
        }
    }

    /// Replaces the VLANs that the frames announce.
    pub(crate) fn set_vlans(&mut self, vlans: &VlanSet) {
        self.encoded_vlans = vlan_list::encode(vlans);
    }

    /// Creates a frame. Returns `None` only if the cipher fails.
    pub(crate) fn frame(
        &mut self,
        vlan: VlanId,
        kind: MessageKind,
        round: u32,
    ) -> Option<Outgoing> {
        self.counter += 1;
        let payload = self.codec.encode(&Message {
            kind,
            session: self.session,
            counter: self.counter,
            vlan,
            round,
            node: &self.node,
            network: &self.network,
            vlans: &self.encoded_vlans,
        })?;
        Some(Outgoing { vlan, payload })
    }
}
