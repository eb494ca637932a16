//! Creates the frames that one agent sends on one network.

use berth_api::{MacAddress, VlanId, VlanSet};

use crate::codec::Codec;
use crate::ethernet::{TAGGED_HEADER_BYTES, tagged_header};
use crate::key::ProbeKeys;
use crate::message::{Message, MessageKind};
use crate::vlan_list;

/// A frame to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// VLAN in which to send the frame.
    pub vlan: VlanId,
    /// Space for the Ethernet header, and the payload. One buffer for both avoids a copy of each frame.
    bytes: Vec<u8>,
}

impl Outgoing {
    /// Returns the payload that follows the Ethernet header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(TAGGED_HEADER_BYTES..).unwrap_or_default()
    }

    /// Returns the frame with an Ethernet header that has an 802.1Q tag.
    #[must_use]
    pub fn into_tagged_frame(mut self, source: MacAddress) -> Vec<u8> {
        let header = tagged_header(source, self.vlan);
        self.bytes.iter_mut().zip(header).for_each(|(byte, value)| *byte = value);
        self.bytes
    }
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
        let message = Message {
            kind,
            session: self.session,
            counter: self.counter,
            vlan,
            round,
            node: &self.node,
            network: &self.network,
            vlans: &self.encoded_vlans,
        };
        let bytes = self.codec.encode(&message, TAGGED_HEADER_BYTES)?;
        Some(Outgoing { vlan, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_header_and_payload() {
        let keys = ProbeKeys::parse(&"k".repeat(32)).unwrap();
        let mut sender = Sender::new("rack1-a", "tenants", keys, 7);
        let vlan = VlanId::try_from(120).unwrap();
        let outgoing = sender.frame(vlan, MessageKind::Probe, 1).unwrap();
        let payload = outgoing.payload().to_vec();
        assert_eq!(sender.codec.decode(&payload).unwrap().vlan, vlan);
        let source = MacAddress([2, 0, 0, 0, 0, 1]);
        let frame = outgoing.into_tagged_frame(source);
        assert_eq!(frame, [&tagged_header(source, vlan)[..], &payload].concat());
    }
}
