//! Ethernet header of probe frames.

use berth_api::{MacAddress, VlanId};

/// EtherType of probe frames: Local Experimental EtherType 1 of IEEE 802.
pub const ETHERTYPE: u16 = 0x88B5;
/// Destination of probe frames: a locally administered multicast address, so that switches flood the frames, and the
/// network cards of guests discard them.
pub const DESTINATION: MacAddress = MacAddress([0x03, 0x62, 0x65, 0x72, 0x74, 0x68]);
/// EtherType of an 802.1Q tag.
const TAG_ETHERTYPE: u16 = 0x8100;
/// Size of an Ethernet header with an 802.1Q tag.
pub(crate) const TAGGED_HEADER_BYTES: usize = 18;

/// Returns an Ethernet header with an 802.1Q tag.
pub(crate) fn tagged_header(source: MacAddress, vlan: VlanId) -> [u8; TAGGED_HEADER_BYTES] {
    let mut header = [0; TAGGED_HEADER_BYTES];
    let [tag, vlan, ethertype] = [TAG_ETHERTYPE, u16::from(vlan), ETHERTYPE].map(u16::to_be_bytes);
    let fields = DESTINATION.0.into_iter().chain(source.0).chain(tag).chain(vlan).chain(ethertype);
    header.iter_mut().zip(fields).for_each(|(byte, value)| *byte = value);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_tag_and_ethertype() {
        let header = tagged_header(MacAddress([2, 0, 0, 0, 0, 1]), VlanId::try_from(120).unwrap());
        assert_eq!(header[6..12], [2, 0, 0, 0, 0, 1]);
        assert_eq!(header[12..], [0x81, 0x00, 0x00, 120, 0x88, 0xB5]);
        assert_eq!(header[0] & 3, 3, "multicast, locally administered");
    }
}
