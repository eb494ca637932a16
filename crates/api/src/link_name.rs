//! Names of network links.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;
use crate::text::string_serde;

/// The name of a network link (`eth0`, `bond0.120`): 1 to 15 bytes without `/`, `:` or white space.
///
/// Rule: the kernel's `dev_valid_name()`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkName(String);

string_serde!(LinkName, "The name of a network link, at most 15 bytes.", {
    "type": "string",
    "minLength": 1,
    "maxLength": 15,
    "pattern": "^[^/:\\s]+$"
});

/// Error when parsing a link name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a link name: it must have 1 to 15 bytes, without `/`, `:` and white space")]
pub struct ParseLinkNameError(String);

impl LinkName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for LinkName {
    type Err = ParseLinkNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let forbidden = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace();
        let valid = (1..=15).contains(&text.len()) && text != "." && text != "..";
        if valid && !text.contains(forbidden) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseLinkNameError(excerpt(text)))
        }
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkName({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn link_name_accepts_only_valid_kernel_names() {
        for text in ["eth0", "bond0.120", "enp96s0f0", "br-tenant", "a23456789012345"] {
            assert_eq!(text.parse::<LinkName>().unwrap().to_string(), text);
        }
        for text in ["", ".", "..", "a/b", "a b", "eth0:1", "a234567890123456", "a\0"] {
            assert!(text.parse::<LinkName>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn link_name_never_exceeds_ifnamsiz(text in ".{0,20}") {
            if let Ok(name) = text.parse::<LinkName>() {
                prop_assert!(name.as_str().len() < 16);
            }
        }
    }
}
