//! The running kubelet's command line, from `/proc/<pid>/cmdline`.

use std::collections::BTreeMap;

/// Flags by name without dashes. Both `--name=value` and `--name value` are understood; the last wins,
/// as in the kubelet. A flag without a value is `true`.
#[must_use]
pub fn parse(cmdline: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(cmdline);
    let mut words = text.split('\0').skip(1).peekable();
    let mut flags = BTreeMap::new();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let value = words.next_if(|next| !next.is_empty() && !next.starts_with('-'));
                (flag, value.unwrap_or("true").to_owned())
            }
        };
        flags.insert(name.to_owned(), value);
    }
    flags
}

/// A flag that is a map, `a=true,b=false`.
pub fn map(value: &str) -> impl Iterator<Item = (&str, &str)> {
    value.split(',').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.trim(), v.trim()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_forms_are_understood() {
        let flags = parse(b"/usr/bin/kubelet\0--config\0/a\0--v=2\0--fail-swap-on\0--x=1\0--x=2\0");
        let get = |name: &str| flags.get(name).map(String::as_str);
        assert_eq!(get("config"), Some("/a"));
        assert_eq!(get("v"), Some("2"));
        assert_eq!(get("fail-swap-on"), Some("true"));
        assert_eq!(get("x"), Some("2"));
        assert_eq!(map("a=true,b = c,d").collect::<Vec<_>>(), [("a", "true"), ("b", "c")]);
    }

    proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>) {
            drop(parse(&bytes));
        }
    }
}
