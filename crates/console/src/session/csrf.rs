//! Tokens against cross-site request forgery: the value in a form must match the browser's cookie.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac::{self, HMAC_SHA256};
use ring::rand::SystemRandom;

use crate::random::RandomError;

/// Key of the tokens. It is lost when the console ends, like all sessions.
pub(crate) struct CsrfKey(hmac::Key);

impl std::fmt::Debug for CsrfKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CsrfKey").finish_non_exhaustive()
    }
}

impl CsrfKey {
    pub(crate) fn generate() -> Result<Self, RandomError> {
        let key = hmac::Key::generate(HMAC_SHA256, &SystemRandom::new());
        key.map(Self).map_err(|_| RandomError)
    }

    /// Returns the token for the forms of a browser with this cookie.
    pub(crate) fn token(&self, cookie: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, cookie.as_bytes()))
    }

    /// Returns true if a form with this token was sent to the browser with this cookie.
    pub(crate) fn is_valid(&self, cookie: &str, token: &str) -> bool {
        let Ok(tag) = URL_SAFE_NO_PAD.decode(token) else { return false };
        hmac::verify(&self.0, cookie.as_bytes(), &tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_valid_only_for_its_cookie_and_its_key() {
        let key = CsrfKey::generate().unwrap();
        let token = key.token("cookie");
        assert!(key.is_valid("cookie", &token));
        assert!(!key.is_valid("other", &token));
        assert!(!CsrfKey::generate().unwrap().is_valid("cookie", &token));
        for wrong in ["", "?", "AAAA", &token.to_uppercase(), &format!("{token}A")] {
            assert!(!key.is_valid("cookie", wrong), "{wrong}");
        }
    }
}
