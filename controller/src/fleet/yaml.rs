//! Conversion of a YAML document to JSON, with a fast path for ordinary documents.

use std::borrow::Cow;

use serde_json::{Map, Value};
use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, StrInput};
use serde_saphyr::{Budget, Options, budget, options};

/// Error for a string that is not a valid YAML document.
#[derive(Debug, thiserror::Error)]
#[error("{}", first_line(.0))]
pub(super) struct InvalidYaml(#[source] Box<serde_saphyr::Error>);

/// Returns the first line of an error of the YAML library (serde-saphyr), without the excerpt of the document that
/// follows.
fn first_line(error: &serde_saphyr::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// Converts a YAML document to a JSON value.
///
/// Three quarters of the work of the YAML library (serde-saphyr) are for features that manifests do not use: anchors,
/// tags, merge keys, and keys that are not strings. Therefore the fast path builds the value from parser events
/// (granit-parser). At the first unusual or invalid event, the document is read by the library instead.
pub(super) fn parse(document: &str) -> Result<Value, InvalidYaml> {
    if let Some(value) = FastParser::parse_document(document) {
        return Ok(value);
    }
    serde_saphyr::from_str_with_options(document, parser_options(document))
        .map_err(|error| InvalidYaml(Box::new(error)))
}

/// Returns the options of the YAML library. By default the library rejects documents with more than 250,000 nodes,
/// and a list of 5,000 VMs exceeds this. A document cannot have more nodes than bytes unless aliases multiply nodes,
/// so the limits are raised to the number of bytes.
fn parser_options(document: &str) -> Options {
    let usual = Budget::default();
    options! {
        budget: budget! {
            max_nodes: usual.max_nodes.max(document.len()),
            max_events: usual.max_events.max(document.len().saturating_mul(2)),
            max_total_scalar_bytes: usual.max_total_scalar_bytes.max(document.len()),
            max_total_comment_bytes: usual.max_total_comment_bytes.max(document.len()),
        },
    }
}

/// Maximum nesting depth of the fast path; it is less than the library's limit.
const MAX_DEPTH: usize = 60;

struct FastParser<'t> {
    parser: Parser<'t, StrInput<'t>>,
}

impl<'t> FastParser<'t> {
    /// Reads the document. Returns `None` if the fast path does not support the document.
    fn parse_document(document: &'t str) -> Option<Value> {
        let mut options = granit_parser::Options::default();
        options.set_emit_comments(false);
        let mut this = Self { parser: Parser::new_from_str_with_options(document, options) };
        let Event::StreamStart = this.next_event()? else { return None };
        let Event::DocumentStart(..) = this.next_event()? else { return None };
        let first = this.next_event()?;
        let value = this.parse_value(first, 0)?;
        let Event::DocumentEnd = this.next_event()? else { return None };
        let Event::StreamEnd = this.next_event()? else { return None };
        Some(value)
    }

    fn next_event(&mut self) -> Option<Event<'t>> {
        Some(self.parser.next_event()?.ok()?.0)
    }

    fn parse_value(&mut self, event: Event<'t>, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        match event {
            Event::Scalar(text, ScalarStyle::Plain, 0, None) => parse_plain_scalar(text),
            Event::Scalar(text, _, 0, None) => Some(Value::String(text.into_owned())),
            Event::SequenceStart(_, 0, None) => {
                let mut all = Vec::new();
                loop {
                    match self.next_event()? {
                        Event::SequenceEnd => return Some(Value::Array(all)),
                        item => all.push(self.parse_value(item, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(_, 0, None) => {
                let mut all = Map::new();
                loop {
                    let key = match self.next_event()? {
                        Event::MappingEnd => return Some(Value::Object(all)),
                        Event::Scalar(text, ScalarStyle::Plain, 0, None) => {
                            match parse_plain_scalar(text)? {
                                Value::String(key) if key != "<<" => key,
                                _ => return None,
                            }
                        }
                        Event::Scalar(text, _, 0, None) => text.into_owned(),
                        _ => return None,
                    };
                    let next = self.next_event()?;
                    let value = self.parse_value(next, depth + 1)?;
                    if all.insert(key, value).is_some() {
                        return None;
                    }
                }
            }
            _ => None,
        }
    }
}

/// Unquoted words that some versions of YAML do not treat as strings. They end the fast path.
const AMBIGUOUS_WORDS: [&str; 10] =
    ["yes", "no", "on", "off", "y", "n", "null", "nan", "inf", "infinity"];

/// Returns the value of an unquoted scalar (YAML 1.2, 10.3.2); `None` if its type is ambiguous.
fn parse_plain_scalar(text: Cow<'_, str>) -> Option<Value> {
    let is_word = |word: &&str| text.eq_ignore_ascii_case(word);
    let only =
        |bytes: &[u8]| text.bytes().all(|byte| byte.is_ascii_digit() || bytes.contains(&byte));
    let first = *text.as_bytes().first()?;
    let is_text = if first.is_ascii_digit() {
        if only(b"") {
            let is_canonical = text.len() <= 18 && (first != b'0' || text.len() == 1);
            return is_canonical.then(|| text.parse::<u64>().ok())?.map(Value::from);
        }
        let in_number = |byte: u8| byte.is_ascii_hexdigit() || b"_.+-xXoO".contains(&byte);
        let is_list = only(b",-") && text.bytes().any(|byte| byte == b',' || byte == b'-');
        let is_address = only(b".") && text.bytes().filter(|byte| *byte == b'.').count() > 1;
        is_list || is_address || !text.bytes().all(in_number)
    } else {
        match &*text {
            "true" => return Some(Value::Bool(true)),
            "false" => return Some(Value::Bool(false)),
            _ => {
                let has_plain_start = first.is_ascii_alphabetic() || first == b'/';
                let is_bool = ["true", "false"].iter().any(is_word);
                has_plain_start && !is_bool && !AMBIGUOUS_WORDS.iter().any(is_word)
            }
        }
    };
    is_text.then(|| Value::String(text.into_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_without_fast_path(document: &str) -> Option<Value> {
        serde_saphyr::from_str_with_options(document, parser_options(document)).ok()
    }

    #[test]
    fn fast_path_and_library_agree() {
        for document in [
            "a: 1\nb: [x, ~, 1.5, true, -3, 0x10, \"0\", 18446744073709551615]\nc:\n  d: >-\n    e\n    f\n",
            "a: &a {b: 1}\nc: *a\nd: {<<: *a, e: 2}\n",
            "1: a\n2: b\ntrue: c\n",
            "- 1\n- {}\n- []\n-\n",
            "# only a comment\n",
            "yes",
            "a: [0-79, '1', 0, 012, 4Gi, 1e3, 1_000, 10.0.0.1, 2026-11-22T10:00:00Z, 0000:3e:00.0, 1,2, 1-]\n",
            "b: [no, No, NaN, inf, Infinity, null, Null, True, TRUE, true, y, ~, /dev, \"no\", 'null']\n",
            "c: !!str 1\nd: |\n  yes\ne: >-\n  0,1\n\nf: 1.5\ng: 18446744073709551615\nh: 1:30\n",
        ] {
            let wanted = read_without_fast_path(document);
            assert!(wanted.is_some(), "{document}");
            assert_eq!(parse(document).ok(), wanted, "{document}");
        }
    }

    #[test]
    fn a_duplicate_key_is_an_error() {
        for document in ["a: 1\nb: {c: 1, c: 2}\n", "a: 1\n'a': 2\n"] {
            let message = parse(document).unwrap_err().to_string();
            assert!(message.contains("duplicate mapping key"), "{document}: {message}");
        }
        assert!(parse("a: [1\n").unwrap_err().to_string().contains("line "));
    }

    #[test]
    fn a_long_list_is_read_and_alias_expansion_is_rejected() {
        let long = format!("items:\n{}", "- {a: 1, b: 2}\n".repeat(100_000));
        assert_eq!(parse(&long).unwrap()["items"].as_array().map(Vec::len), Some(100_000));
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for at in 1..9 {
            let previous = at - 1;
            bomb += &format!(
                "a{at}: &a{at} [*a{previous}, *a{previous}, *a{previous}, *a{previous}, *a{previous}, *a{previous}, *a{previous}, *a{previous}]\n"
            );
        }
        assert!(parse(&bomb).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn any_text_is_read_the_same_way(text in "[-abcefinox01_+.:{},\\[\\]\\n \"'&*#|>!~]{0,40}") {
            prop_assert_eq!(parse(&text).ok(), read_without_fast_path(&text));
        }

        #[test]
        fn any_scalar_is_read_the_same_way(text in "[-0-9a-fxonyNIit.,_+:eET/]{1,7}|[0-9]{1,20}|(?i)(true|off|inf|nan|y|null)") {
            // The fast path does not accept many of these strings as keys, so a separate document uses the string as a
            // key.
            for document in [format!("a: {text}\nc: [d, {text}]\n"), format!("{text}: b\n")] {
                prop_assert_eq!(parse(&document).ok(), read_without_fast_path(&document));
            }
        }
    }
}
