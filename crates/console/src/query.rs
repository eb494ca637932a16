//! Fields of forms and of the query of a URL.

/// Fields of a form or of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Parses fields in the format `application/x-www-form-urlencoded`.
    pub(crate) fn parse(encoded: &[u8]) -> Self {
        Self(form_urlencoded::parse(encoded).into_owned().collect())
    }

    /// Returns the value of a field; empty if the field is missing.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
    }
}

/// Returns `path?name=value&...` without the fields whose values are empty.
pub(crate) fn url(path: &str, fields: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()));
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Returns a path of the console to which a form may lead back: a path without a host.
pub(crate) fn local_path(text: &str) -> &str {
    let is_local = text.starts_with('/')
        && !text.starts_with("//")
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_local { text } else { "/" }
}

/// Returns true if a name of an object can have this text: the characters of DNS subdomains.
pub(crate) fn is_object_name(text: &str) -> bool {
    let is_permitted = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    (1..=253).contains(&text.len())
        && text.bytes().all(is_permitted)
        && !text.starts_with('.')
        && !text.ends_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded_and_encoded() {
        let fields = Fields::parse(b"a=1+2&b=%3Cx%3E&c&a=3");
        assert_eq!(
            [fields.get("a"), fields.get("b"), fields.get("c"), fields.get("d")],
            ["1 2", "<x>", "", ""]
        );
        assert_eq!(
            url("/vms", &[("q", "a b&c"), ("state", ""), ("page", "2")]),
            "/vms?q=a+b%26c&page=2"
        );
        assert_eq!(url("/vms", &[("q", "")]), "/vms");
    }

    #[test]
    fn names_of_objects_contain_no_parts_of_paths() {
        for valid in ["a", "rack1-a.example.com", "vm-1", &"a".repeat(253)] {
            assert!(is_object_name(valid), "{valid}");
        }
        for invalid in ["", "..", ".", "a/b", "a,b=c", "A", "a?b", "a%2f", "ä", &"a".repeat(254)] {
            assert!(!is_object_name(invalid), "{invalid}");
        }
    }

    #[test]
    fn forms_lead_to_no_other_site() {
        for (text, expected) in [
            ("/hosts/a?x=1", "/hosts/a?x=1"),
            ("//evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\\evil.example", "/"),
            ("/a\r\nSet-Cookie: x", "/"),
            ("", "/"),
        ] {
            assert_eq!(local_path(text), expected, "{text}");
        }
    }
}
