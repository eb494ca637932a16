//! Keys that all agents of the fleet share.

use std::fmt;

use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::hmac;

/// Minimum and maximum number of characters of a key.
const KEY_CHARS: std::ops::RangeInclusive<usize> = 32..=256;
/// Maximum number of keys in a file.
const MAX_KEYS: usize = 4;

/// Keys that all agents of the fleet share. Messages are encrypted with the first key, and decrypted with any of the
/// keys, so that a key can be replaced host by host.
#[derive(Clone)]
pub struct ProbeKeys {
    keys: Vec<FleetKey>,
}

#[derive(Clone)]
struct FleetKey {
    id: u32,
    key: hmac::Key,
}

/// Reason why a key file cannot be parsed. The messages never contain a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The file has no key.
    #[error("the file contains no key; write the output of `openssl rand -hex 32` to it")]
    Empty,
    /// A key has a wrong length.
    #[error(
        "line {line} has {chars} characters, a key must have {min} to {max}; `openssl rand -hex 32` prints one",
        min = KEY_CHARS.start(),
        max = KEY_CHARS.end()
    )]
    Length {
        /// Number of the line, starting at 1.
        line: usize,
        /// Number of characters in the line.
        chars: usize,
    },
    /// The file has too many keys.
    #[error("the file contains more than {MAX_KEYS} keys; remove the keys that no host uses")]
    TooMany,
}

impl ProbeKeys {
    /// Parses a key file: one key per line. Empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// Returns an error if the file has no key, too many keys, or a key of a wrong length.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let chars = line.chars().count();
            if !KEY_CHARS.contains(&chars) {
                return Err(KeyError::Length { line: index + 1, chars });
            }
            keys.push(FleetKey::new(line.as_bytes()));
        }
        match keys.len() {
            0 => Err(KeyError::Empty),
            1..=MAX_KEYS => Ok(Self { keys }),
            _ => Err(KeyError::TooMany),
        }
    }

    /// Returns the ID of the key with which messages are encrypted.
    pub(crate) fn sending_id(&self) -> Option<u32> {
        self.keys.first().map(|key| key.id)
    }

    /// Returns the key of a session; `None` if the fleet key with this ID is unknown.
    pub(crate) fn session_key(&self, id: u32, session: u64) -> Option<LessSafeKey> {
        let fleet = self.keys.iter().find(|key| key.id == id)?;
        let mut label = b"berth trunk probe session ".to_vec();
        label.extend(session.to_be_bytes());
        let secret = hmac::sign(&fleet.key, &label);
        UnboundKey::new(&CHACHA20_POLY1305, secret.as_ref()).ok().map(LessSafeKey::new)
    }
}

impl FleetKey {
    fn new(secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, b"berth trunk probe key id");
        let id = tag.as_ref().first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        Self { id, key }
    }
}

/// Keys are compared by their IDs, which are hashes of the keys.
impl PartialEq for ProbeKeys {
    fn eq(&self, other: &Self) -> bool {
        self.keys.iter().map(|key| key.id).eq(other.keys.iter().map(|key| key.id))
    }
}

impl Eq for ProbeKeys {}

impl fmt::Debug for ProbeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeKeys").field("count", &self.keys.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_debug_output_never_contain_a_key() {
        let secret = "0123456789abcdef0123456789abcdef";
        let keys = ProbeKeys::parse(&format!("# fleet\n\n {secret} \n")).unwrap();
        assert_eq!(keys, ProbeKeys::parse(secret).unwrap());
        assert!(!format!("{keys:?}").contains("0123"));
        assert_eq!(ProbeKeys::parse("\n#x\n"), Err(KeyError::Empty));
        let short = ProbeKeys::parse("\nhunter2").unwrap_err();
        assert_eq!(short, KeyError::Length { line: 2, chars: 7 });
        assert!(!short.to_string().contains("hunter2"));
        assert_eq!(ProbeKeys::parse(&format!("{secret}\n").repeat(5)), Err(KeyError::TooMany));
    }
}
