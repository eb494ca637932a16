//! Domain names in the format of DNS messages.

use berth_api::is_domain_name;

/// A valid domain name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DomainName {
    /// Text without the final dot.
    pub(crate) text: String,
    /// The name in the format of DNS messages, without compression: DHCPv6 (RFC 8415, section 10) and router
    /// advertisements (RFC 8106) forbid compression, and DHCPv4 does not require it.
    pub(crate) encoded: Vec<u8>,
}

impl DomainName {
    /// Parses a domain name, with or without the final dot; `None` if the name is invalid.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if !is_domain_name(text) {
            return None;
        }
        let mut encoded = Vec::with_capacity(text.len() + 2);
        for label in text.split('.') {
            encoded.push(u8::try_from(label.len()).ok()?);
            encoded.extend_from_slice(label.as_bytes());
        }
        encoded.push(0);
        Some(Self { text: text.to_owned(), encoded })
    }
}

/// Returns the encoded names of a list, one after the other.
pub(crate) fn encode_all(names: &[DomainName]) -> Vec<u8> {
    names.iter().flat_map(|name| name.encoded.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_and_checked() {
        let name = DomainName::parse("a.example.").unwrap();
        assert_eq!(name.text, "a.example");
        assert_eq!(name.encoded, b"\x01a\x07example\0");
        let long = "a.".repeat(127);
        assert!(DomainName::parse(&long).is_some(), "254 characters with the final dot");
        let longer = format!("{long}b.");
        for text in ["", ".", "a..b", "a b", "a;reboot", "ä.example", &"a".repeat(64), &longer] {
            assert_eq!(DomainName::parse(text), None, "{text}");
        }
    }
}
