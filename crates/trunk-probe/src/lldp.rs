//! Parses LLDP frames (IEEE 802.1AB): the switch and the port to which an uplink is connected, and the port's VLANs, as
//! far as the switch announces them (IEEE 802.1 organizationally specific TLVs).

use std::net::{Ipv4Addr, Ipv6Addr};

/// EtherType of LLDP.
pub const ETHERTYPE: u16 = 0x88CC;
/// Destination address of LLDP frames, which only the nearest bridge receives.
pub const GROUP: [u8; 6] = [0x01, 0x80, 0xC2, 0x00, 0x00, 0x0E];
/// Maximum number of characters of a text in a frame. An LLDP string has at most 255 bytes.
const MAX_CHARS: usize = 255;
/// Maximum number of VLANs that are read from an announcement.
pub const MAX_VLANS: usize = 128;

const TLV_END: u8 = 0;
const TLV_CHASSIS_ID: u8 = 1;
const TLV_PORT_ID: u8 = 2;
const TLV_TIME_TO_LIVE: u8 = 3;
const TLV_PORT_DESCRIPTION: u8 = 4;
const TLV_SYSTEM_NAME: u8 = 5;
const TLV_ORGANIZATION: u8 = 127;
/// Organizationally unique identifier of IEEE 802.1, and subtypes of its TLVs.
const OUI_802_1: [u8; 3] = [0x00, 0x80, 0xC2];
const PORT_VLAN_ID: u8 = 1;
const VLAN_NAME: u8 = 3;

/// Announcement of a neighbour, usually a switch, about itself and its port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Neighbor {
    /// Chassis id, usually the Ethernet address of the switch.
    pub chassis: String,
    /// Port id, usually the name of the port.
    pub port: String,
    /// Time in seconds for which the announcement is valid; 0 if the neighbour shuts down.
    pub time_to_live: u16,
    pub port_description: Option<String>,
    /// Name of the switch.
    pub system_name: Option<String>,
    /// VLAN to which the port assigns untagged frames.
    pub port_vlan: Option<u16>,
    /// IDs and names of the port's VLANs. Switches rarely announce all VLANs of a port.
    pub vlans: Vec<(u16, String)>,
}

/// Reason why an LLDP frame cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LldpError {
    /// The frame ends within a TLV.
    #[error("the frame is truncated")]
    Truncated,
    /// The frame does not begin with the chassis ID, the port ID and the time to live.
    #[error("a mandatory TLV is missing or malformed")]
    MandatoryTlvMissing,
}

/// Parses the payload of a frame, that is, the frame without its Ethernet header.
///
/// # Errors
///
/// Returns an error if the frame is truncated, or lacks a mandatory TLV.
pub fn parse(mut payload: &[u8]) -> Result<Neighbor, LldpError> {
    let mut neighbor = Neighbor::default();
    let mut expected = [TLV_CHASSIS_ID, TLV_PORT_ID, TLV_TIME_TO_LIVE].into_iter();
    while let Some((kind, value, rest)) = split_tlv(payload)? {
        payload = rest;
        let mandatory = expected.next();
        if mandatory.is_some_and(|mandatory| mandatory != kind) {
            return Err(LldpError::MandatoryTlvMissing);
        }
        match kind {
            TLV_END => break,
            TLV_CHASSIS_ID if mandatory.is_some() => {
                neighbor.chassis = id_to_text(value, 4, 5).ok_or(LldpError::MandatoryTlvMissing)?;
            }
            TLV_PORT_ID if mandatory.is_some() => {
                neighbor.port = id_to_text(value, 3, 4).ok_or(LldpError::MandatoryTlvMissing)?;
            }
            TLV_TIME_TO_LIVE if mandatory.is_some() => {
                let seconds = value.first_chunk().ok_or(LldpError::MandatoryTlvMissing)?;
                neighbor.time_to_live = u16::from_be_bytes(*seconds);
            }
            TLV_PORT_DESCRIPTION => neighbor.port_description = to_printable_text(value),
            TLV_SYSTEM_NAME => neighbor.system_name = to_printable_text(value),
            TLV_ORGANIZATION => neighbor.read_organization(value),
            _ => {}
        }
    }
    if expected.next().is_some() {
        return Err(LldpError::MandatoryTlvMissing);
    }
    Ok(neighbor)
}

impl Neighbor {
    fn read_organization(&mut self, value: &[u8]) {
        let Some((&[a, b, c, subtype], rest)) = value.split_first_chunk() else { return };
        if [a, b, c] != OUI_802_1 {
            return;
        }
        let Some((id, rest)) = rest.split_first_chunk() else { return };
        let id = u16::from_be_bytes(*id);
        if !(1..=4094).contains(&id) {
            return;
        }
        match subtype {
            PORT_VLAN_ID => self.port_vlan = Some(id),
            VLAN_NAME if self.vlans.len() < MAX_VLANS => {
                let name = rest.split_first().and_then(|(length, name)| {
                    let length = usize::from(*length).min(name.len());
                    to_printable_text(name.get(..length)?)
                });
                self.vlans.push((id, name.unwrap_or_default()));
            }
            _ => {}
        }
    }
}

type Tlv<'a> = (u8, &'a [u8], &'a [u8]);

/// Splits off the first TLV: returns its type, its value, and the rest of the payload; `None` at the end of the frame.
fn split_tlv(payload: &[u8]) -> Result<Option<Tlv<'_>>, LldpError> {
    if payload.is_empty() {
        return Ok(None);
    }
    let (head, rest) = payload.split_first_chunk::<2>().ok_or(LldpError::Truncated)?;
    let length = usize::from(u16::from_be_bytes(*head) & 0x1FF);
    let (value, rest) = rest.split_at_checked(length).ok_or(LldpError::Truncated)?;
    let [first, _] = *head;
    Ok(Some((first >> 1, value, rest)))
}

/// Converts an ID to text. The first byte is the subtype; `mac` and `address` are the subtypes for Ethernet addresses
/// and IP addresses.
fn id_to_text(value: &[u8], mac: u8, address: u8) -> Option<String> {
    let (subtype, id) = value.split_first()?;
    if *subtype == mac
        && let Ok(octets) = <[u8; 6]>::try_from(id)
    {
        return Some(berth_api::MacAddress(octets).to_string());
    }
    if *subtype == address
        && let Some((family, id)) = id.split_first()
    {
        // Address families by IANA: 1 is IPv4, and 2 is IPv6.
        if let (1, Ok(octets)) = (family, <[u8; 4]>::try_from(id)) {
            return Some(Ipv4Addr::from(octets).to_string());
        }
        if let (2, Ok(octets)) = (family, <[u8; 16]>::try_from(id)) {
            return Some(Ipv6Addr::from(octets).to_string());
        }
    }
    to_printable_text(id)
}

/// Converts bytes to printable text; `None` if no printable character is left.
fn to_printable_text(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().take(MAX_CHARS).map(printable).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        let head = (u16::from(kind) << 9) | u16::try_from(value.len()).unwrap();
        [&head.to_be_bytes()[..], value].concat()
    }

    fn mandatory() -> Vec<u8> {
        [
            tlv(1, &[4, 0x00, 0x1B, 0x21, 0xAA, 0xBB, 0xCC]),
            tlv(2, b"\x05Ethernet1/7"),
            tlv(3, &[0, 120]),
        ]
        .concat()
    }

    #[test]
    fn switch_port_and_vlans_are_read() {
        let frame = [
            mandatory(),
            tlv(4, b"rack1-a\ntrunk"),
            tlv(5, b"leaf1"),
            tlv(127, &[0x00, 0x80, 0xC2, 1, 0, 1]),
            tlv(127, b"\x00\x80\xC2\x03\x00\x78\x05blues"),
            tlv(127, &[0x00, 0x12, 0x0F, 1, 3]),
            tlv(0, &[]),
            vec![0; 10],
        ]
        .concat();
        assert_eq!(
            parse(&frame),
            Ok(Neighbor {
                chassis: "00:1b:21:aa:bb:cc".to_owned(),
                port: "Ethernet1/7".to_owned(),
                time_to_live: 120,
                port_description: Some("rack1-a trunk".to_owned()),
                system_name: Some("leaf1".to_owned()),
                port_vlan: Some(1),
                vlans: vec![(120, "blues".to_owned())],
            })
        );
    }

    #[test]
    fn frames_without_mandatory_tlvs_are_rejected() {
        for (frame, error) in [
            (vec![], LldpError::MandatoryTlvMissing),
            (tlv(2, b"\x05eth1"), LldpError::MandatoryTlvMissing),
            (mandatory()[..20].to_vec(), LldpError::Truncated),
            ([mandatory(), vec![0x08]].concat(), LldpError::Truncated),
        ] {
            assert_eq!(parse(&frame), Err(error), "{frame:?}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(tail in proptest::collection::vec(any::<u8>(), 0..600)) {
            drop(parse(&tail));
            if let Ok(neighbor) = parse(&[mandatory(), tail].concat()) {
                prop_assert!(neighbor.vlans.len() <= MAX_VLANS);
                prop_assert!(neighbor.port.chars().count() <= MAX_CHARS);
            }
        }
    }
}
