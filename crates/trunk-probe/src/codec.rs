//! Encryption and authentication of messages.
//!
//! ```text
//! version 1 | key id 4 | session 8 | counter 8 | VLAN 2 | encrypted body | tag 16
//! ```
//!
//! ChaCha20-Poly1305 authenticates the header and the body, and hides the body, because switches flood the frames to
//! guests, which must not learn the names of hosts and the VLANs of other tenants. Every session has its own key,
//! derived from the fleet's key with HMAC-SHA256, and the counter is the nonce, so no nonce is used twice.

use std::collections::BTreeMap;

use berth_api::VlanId;
use ring::aead::{Aad, LessSafeKey, Nonce};

use crate::key::ProbeKeys;
use crate::message::Message;

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 23;
/// Initial capacity of a frame in bytes, without the list of VLANs. It is sufficient for most frames.
const FRAME_CAPACITY: usize = 160;
/// Maximum number of session keys that are stored. Other session keys are derived again for each frame.
const MAX_STORED_KEYS: usize = 512;

/// Reason why a frame cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame is too short, or has an unknown version.
    #[error("the frame is malformed")]
    Malformed,
    /// The ID of the fleet key with which the frame was sent is unknown.
    #[error("the frame was sent with an unknown key")]
    UnknownKey,
    /// The frame was not encrypted with a key of the fleet.
    #[error("the frame is not authentic")]
    NotAuthentic,
}

/// Encrypts and decrypts messages.
#[derive(Debug)]
pub(crate) struct Codec {
    keys: ProbeKeys,
    stored_keys: BTreeMap<(u32, u64), SessionKey>,
    /// Buffer in which frames are decrypted. It is reused for all frames.
    buffer: Vec<u8>,
}

struct SessionKey(LessSafeKey);

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionKey")
    }
}

impl Codec {
    pub(crate) const fn new(keys: ProbeKeys) -> Self {
        Self { keys, stored_keys: BTreeMap::new(), buffer: Vec::new() }
    }

    /// Encrypts a message. The frame begins with `headroom` bytes of zero, which the caller overwrites. Returns `None`
    /// only if the cipher fails.
    pub(crate) fn encode(&mut self, message: &Message, headroom: usize) -> Option<Vec<u8>> {
        let id = self.keys.sending_id()?;
        self.store_key(id, message.session);
        let key = self.stored_keys.get(&(id, message.session))?;
        // The capacity avoids further allocations. They would matter, because even an idle trunk with 4,000 VLANs needs
        // hundreds of frames per second.
        let mut frame = Vec::with_capacity(headroom + FRAME_CAPACITY + message.vlans.len());
        frame.resize(headroom, 0);
        frame.push(VERSION);
        frame.extend(id.to_be_bytes());
        frame.extend(message.session.to_be_bytes());
        frame.extend(message.counter.to_be_bytes());
        frame.extend(u16::from(message.vlan).to_be_bytes());
        message.write_body(&mut frame);
        let (header, body) = frame.get_mut(headroom..)?.split_at_mut_checked(HEADER_BYTES)?;
        let aad = Aad::from(&*header);
        let tag = key.0.seal_in_place_separate_tag(nonce(message.counter), aad, body).ok()?;
        frame.extend(tag.as_ref());
        Some(frame)
    }

    /// Decrypts the frame of a message.
    pub(crate) fn decode(&mut self, frame: &[u8]) -> Result<Message<'_>, DecodeError> {
        let (header, body) = frame.split_at_checked(HEADER_BYTES).ok_or(DecodeError::Malformed)?;
        let (id, session, counter, vlan) = parse_header(header).ok_or(DecodeError::Malformed)?;
        let is_stored = self.stored_keys.contains_key(&(id, session));
        let derived = if is_stored {
            None
        } else {
            let key = self.keys.session_key(id, session).ok_or(DecodeError::UnknownKey)?;
            Some(SessionKey(key))
        };
        let key = derived.as_ref().or_else(|| self.stored_keys.get(&(id, session)));
        let key = key.ok_or(DecodeError::UnknownKey)?;
        self.buffer.clear();
        self.buffer.extend(body);
        let opened = key.0.open_in_place(nonce(counter), Aad::from(header), &mut self.buffer);
        let length = opened.map_err(|_| DecodeError::NotAuthentic)?.len();
        if let Some(key) = derived {
            self.insert_key(id, session, key);
        }
        let body = self.buffer.get(..length).ok_or(DecodeError::Malformed)?;
        Message::parse_body(body, (session, counter, vlan)).ok_or(DecodeError::Malformed)
    }

    fn store_key(&mut self, id: u32, session: u64) {
        if !self.stored_keys.contains_key(&(id, session))
            && let Some(key) = self.keys.session_key(id, session)
        {
            self.insert_key(id, session, SessionKey(key));
        }
    }

    fn insert_key(&mut self, id: u32, session: u64, key: SessionKey) {
        if self.stored_keys.len() >= MAX_STORED_KEYS {
            self.stored_keys.clear();
        }
        self.stored_keys.insert((id, session), key);
    }
}

fn parse_header(header: &[u8]) -> Option<(u32, u64, u64, VlanId)> {
    let (version, rest) = header.split_first()?;
    let (id, rest) = rest.split_first_chunk()?;
    let (session, rest) = rest.split_first_chunk()?;
    let (counter, rest) = rest.split_first_chunk()?;
    let vlan = u16::from_be_bytes(*rest.first_chunk()?).try_into().ok()?;
    (*version == VERSION).then_some((
        u32::from_be_bytes(*id),
        u64::from_be_bytes(*session),
        u64::from_be_bytes(*counter),
        vlan,
    ))
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    let (_, end) = bytes.split_at_mut(4);
    end.copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::MessageKind;

    fn codec(secret: &str) -> Codec {
        Codec::new(ProbeKeys::parse(&secret.repeat(32)).unwrap())
    }

    fn message() -> Message<'static> {
        Message {
            kind: MessageKind::Answer { session: 3, counter: 4 },
            session: 1,
            counter: 2,
            vlan: VlanId::try_from(120).unwrap(),
            round: 7,
            node: "rack1-a",
            network: "tenant-trunk",
            vlans: &[0, 0],
        }
    }

    #[test]
    fn only_the_fleet_reads_a_message() {
        let frame = codec("a").encode(&message(), 0).unwrap();
        assert_eq!(codec("a").decode(&frame), Ok(message()));
        assert_eq!(codec("b").decode(&frame), Err(DecodeError::UnknownKey));
        assert!(!frame.windows(7).any(|part| part == b"rack1-a"), "names are encrypted");
    }

    #[test]
    fn a_new_key_is_introduced_host_by_host() {
        let keys = format!("{}\n{}", "b".repeat(32), "a".repeat(32));
        let mut both = Codec::new(ProbeKeys::parse(&keys).unwrap());
        let old = codec("a").encode(&message(), 0).unwrap();
        assert_eq!(both.decode(&old), Ok(message()));
        let new = both.encode(&message(), 0).unwrap();
        assert_eq!(codec("b").decode(&new), Ok(message()));
    }

    #[test]
    fn every_kind_is_encoded_and_decoded() {
        let vlan = VlanId::try_from(4094).unwrap();
        for kind in [
            MessageKind::Probe,
            MessageKind::Solicit { session: 7 },
            MessageKind::ReportLoss { session: 8, vlan },
        ] {
            let sent = Message { kind, ..message() };
            let frame = codec("a").encode(&sent, 0).unwrap();
            assert_eq!(codec("a").decode(&frame), Ok(sent));
        }
    }

    proptest! {
        #[test]
        fn every_changed_byte_is_detected(at in 0_usize..70, flip in 1_u8..) {
            let mut frame = codec("a").encode(&message(), 0).unwrap();
            let at = at % frame.len();
            frame[at] ^= flip;
            prop_assert!(codec("a").decode(&frame).is_err());
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(codec("a").decode(&bytes).is_err());
            let header = (1, 2, VlanId::try_from(5).unwrap());
            let parsed = Message::parse_body(&bytes, header);
            prop_assert!(parsed.is_none_or(|message| !message.node.is_empty()));
        }
    }
}
