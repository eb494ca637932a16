//! Random values for cookies and links.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};

/// Number of random bytes in an id: it cannot be guessed.
const ID_BYTES: usize = 32;

/// Error of the operating system's random number generator.
#[derive(Debug, thiserror::Error)]
#[error("the operating system returned no random numbers")]
pub(crate) struct RandomError;

/// Returns a random id that can be part of a cookie or of a URL.
pub(crate) fn random_id() -> Result<String, RandomError> {
    let mut bytes = [0; ID_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| RandomError)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Hash of a random id, or of a credential. The time of a comparison of hashes reveals nothing about the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdHash([u8; 32]);

impl IdHash {
    pub(crate) fn new(text: &str) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
        Self(hash)
    }
}
