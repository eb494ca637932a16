//! Encoding of a set of VLANs in a message: ranges, or a bitmap if there are many ranges. A message with any set fits
//! into one frame.

use berth_api::{VlanId, VlanSet};

/// Marker of a bitmap, in place of the number of ranges.
const BITMAP_MARKER: u16 = u16::MAX;
/// Size of the bitmap, which has one bit for each of the 4096 VLAN ids.
const BITMAP_BYTES: usize = 512;
/// Maximum number of ranges of 4 bytes each. More ranges would need more bytes than the bitmap.
const MAX_RANGES: usize = BITMAP_BYTES / 4;

pub(crate) fn encode(vlans: &VlanSet) -> Vec<u8> {
    let ranges = vlans.ranges();
    match u16::try_from(ranges.len()) {
        Ok(count) if ranges.len() <= MAX_RANGES => {
            let mut bytes = count.to_be_bytes().to_vec();
            for (first, last) in ranges {
                bytes.extend(u16::from(first).to_be_bytes());
                bytes.extend(u16::from(last).to_be_bytes());
            }
            bytes
        }
        _ => {
            let mut bitmap = [0_u8; BITMAP_BYTES];
            for id in vlans.iter().map(u16::from) {
                if let Some(byte) = bitmap.get_mut(usize::from(id / 8)) {
                    *byte |= 1 << (id % 8);
                }
            }
            [&BITMAP_MARKER.to_be_bytes()[..], &bitmap].concat()
        }
    }
}

/// Decodes a set; `None` if it is malformed.
pub(crate) fn decode(bytes: &[u8]) -> Option<VlanSet> {
    let (count, rest) = bytes.split_first_chunk::<2>()?;
    let count = u16::from_be_bytes(*count);
    if count == BITMAP_MARKER {
        let has_bit = |id: &u16| {
            rest.get(usize::from(id / 8)).is_some_and(|byte| byte & (1 << (id % 8)) != 0)
        };
        let ids = (1..4095).filter(has_bit).filter_map(|id| VlanId::try_from(id).ok());
        return (rest.len() == BITMAP_BYTES).then(|| ids.collect());
    }
    if usize::from(count) > MAX_RANGES || rest.len() != usize::from(count) * 4 {
        return None;
    }
    let mut vlans = VlanSet::default();
    for range in rest.chunks_exact(4) {
        let &[a, b, c, d] = range else { return None };
        let (first, last) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        if first == 0 || first > last || last > 4094 {
            return None;
        }
        vlans.extend((first..=last).filter_map(|id| VlanId::try_from(id).ok()));
    }
    Some(vlans)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn encode_and_decode_round_trip(
            ids in proptest::collection::btree_set(1_u16..4095, 0..400), step in 1_u16..3
        ) {
            let some: VlanSet = ids.iter().filter_map(|id| VlanId::try_from(*id).ok()).collect();
            let every: VlanSet = (1..4095).step_by(step.into())
                .filter_map(|id| VlanId::try_from(id).ok()).collect();
            for set in [some, every] {
                let bytes = encode(&set);
                prop_assert!(bytes.len() <= BITMAP_BYTES + 2);
                prop_assert_eq!(decode(&bytes), Some(set));
            }
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            drop(decode(&bytes));
        }
    }
}
