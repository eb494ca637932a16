//! Domain names in the settings of guests.

/// Returns true if the text is a domain name that resolvers and DHCP clients accept: RFC 1035, with underscores,
/// without a final dot. Other characters are refused, because scripts of DHCP clients use domain names in shell
/// commands, and network managers write one name per line into configuration files.
#[must_use]
pub fn is_domain_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_valid)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_lengths_are_checked() {
        let label = "a".repeat(63);
        for valid in ["local", "a.example", "_sip.example", "10-0.x", &label] {
            assert!(is_domain_name(valid), "{valid}");
        }
        let long = "a.".repeat(127);
        for invalid in [
            "",
            ".",
            "a.",
            "a..b",
            "a b",
            "a;reboot",
            "ä.example",
            "-a",
            "a-.b",
            &"a".repeat(64),
            &long,
        ] {
            assert!(!is_domain_name(invalid), "{invalid}");
        }
    }
}
