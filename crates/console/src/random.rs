//! Random values for cookies and links.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
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
