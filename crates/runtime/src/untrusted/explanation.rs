//! Explanations that untrusted servers return for refused requests. No other text of these servers is shown.

use std::fmt;

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::error::UntrustedError;

/// Maximum length of an explanation in bytes. It equals the maximum length of an object's name.
const MAX_LENGTH: usize = 253;
/// Maximum length of a word in bytes. Longer words are omitted, because they may be tokens. Names of objects that are
/// longer are therefore omitted, too.
const MAX_WORD_LENGTH: usize = 100;
/// Maximum length in bytes of a response's body from which an explanation is read.
pub(super) const MAX_BODY_LENGTH: usize = 1 << 16;

/// Explanation of a refused request: the message of the `Status` in the response, shortened, in printable ASCII, and
/// without the credential that the request contained. Empty if the server sent no message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation(Box<str>);

/// A failed request, with the explanation of the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}{explanation}")]
pub struct RequestFailure {
    /// Reason why the request failed.
    pub error: UntrustedError,
    /// Explanation from the server; empty if there is none.
    pub explanation: Explanation,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
}

impl Explanation {
    /// Reads the explanation in the body of a response. An explanation that contains one of the credentials is omitted.
    pub(super) fn read(body: &[u8], credentials: &[SecretString]) -> Self {
        if body.len() > MAX_BODY_LENGTH {
            return Self::default();
        }
        let Status { message } = serde_json::from_slice(body).unwrap_or_default();
        let is_secret = |one: &SecretString| {
            let secret = one.expose_secret();
            !secret.is_empty() && message.contains(secret)
        };
        if credentials.iter().any(is_secret) {
            return Self::default();
        }
        let mut text = String::new();
        for word in message.split_whitespace() {
            let separator = if text.is_empty() { "" } else { " " };
            let shown = if word.len() > MAX_WORD_LENGTH { "..." } else { word };
            let length = text.len().saturating_add(separator.len()).saturating_add(shown.len());
            if length > MAX_LENGTH {
                break;
            }
            text.push_str(separator);
            // Other characters are replaced, because they may change how a terminal displays the rest of the text.
            text.extend(shown.chars().map(|one| if one.is_ascii_graphic() { one } else { '?' }));
        }
        Self(text.into_boxed_str())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ", with the message {:?}", self.0) }
    }
}

impl From<UntrustedError> for RequestFailure {
    fn from(error: UntrustedError) -> Self {
        Self { error, explanation: Explanation::default() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(message: &str) -> String {
        let body = json!({"kind": "Status", "message": message}).to_string();
        let credentials = [SecretString::from("abc.def"), SecretString::from("")];
        Explanation::read(body.as_bytes(), &credentials).to_string()
    }

    #[test]
    fn a_refusal_is_explained() {
        let refused = "admission webhook \"nodes.example.com\" denied the request: no";
        assert_eq!(
            read(refused),
            r#", with the message "admission webhook \"nodes.example.com\" denied the request: no""#
        );
        assert_eq!(Explanation::read(b"<html>", &[]).to_string(), "");
        assert_eq!(Explanation::read(b"{\"message\": 7}", &[]).to_string(), "");
        let long = format!("{{\"message\": \"no\"{}}}", " ".repeat(MAX_BODY_LENGTH));
        assert_eq!(Explanation::read(long.as_bytes(), &[]).to_string(), "");
    }

    #[test]
    fn credentials_and_long_words_are_not_shown() {
        assert_eq!(read("no permission for Bearer abc.def"), "");
        let token = "t".repeat(MAX_WORD_LENGTH + 1);
        assert_eq!(
            read(&format!("token {token} is unknown")),
            ", with the message \"token ... is unknown\""
        );
        assert_eq!(read("a\u{1b}[31m\n\u{202e}b"), ", with the message \"a?[31m ?b\"");
    }

    proptest! {
        #[test]
        fn any_text_is_limited(text in "\\PC{0,80}", count in 1_usize..20) {
            let body = json!({"message": text.repeat(count)}).to_string();
            let Explanation(shown) = Explanation::read(body.as_bytes(), &[]);
            prop_assert!(shown.len() <= MAX_LENGTH && shown.is_ascii(), "{shown}");
        }
    }
}
