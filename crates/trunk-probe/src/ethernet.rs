//! Ethernet header of probe frames.

use berth_api::{MacAddress, VlanId};

/// EtherType of probe frames: Local Experimental EtherType 1 of IEEE 802.
pub const ETHERTYPE: u16 = 0x88B5;
/// Destination of probe frames: a locally administered multicast address, so that switches flood the frames, and the
/// network cards of guests discard them.
pub const DESTINATION: MacAddress = MacAddress([0x03, 0x62, 0x65, 0x72, 0x74, 0x68]);
/// EtherType of an 802.1Q tag.
const TAG_ETHERTYPE: u16 = 0x8100;

/// Returns a frame with an 802.1Q tag.
#[must_use]
pub fn tagged_frame(source: MacAddress, vlan: VlanId, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(18 + payload.len());
    frame.extend(DESTINATION.0);
    frame.extend(source.0);
    frame.extend(TAG_ETHERTYPE.to_be_bytes());
    frame.extend(u16::from(vlan).to_be_bytes());
    frame.extend(ETHERTYPE.to_be_bytes());
    frame.extend(payload);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_has_tag_and_ethertype() {
        let frame =
            tagged_frame(MacAddress([2, 0, 0, 0, 0, 1]), VlanId::try_from(120).unwrap(), &[7]);
        assert_eq!(frame[12..], [0x81, 0x00, 0x00, 120, 0x88, 0xB5, 7]);
        assert_eq!(frame[0] & 3, 3, "multicast, locally administered");
    }
}
