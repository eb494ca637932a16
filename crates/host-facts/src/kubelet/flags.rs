//! The flags of a kubelet's command line, from `/proc/<pid>/cmdline` or from the environment files of its unit.

use std::collections::BTreeMap;

/// Values of flags by name, in the order of the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags(BTreeMap<String, Vec<String>>);

impl Flags {
    /// Returns the last value of a flag. It is the effective value, unless the flag is a list or a map.
    #[must_use]
    pub fn last_value(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.last().map(String::as_str)
    }

    /// Returns all values of a flag, in the order of the command line.
    #[must_use]
    pub fn all_values(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Adds the flags `later`, which come after these flags on the command line.
    pub fn extend(&mut self, later: Self) {
        for (name, values) in later.0 {
            self.0.entry(name).or_default().extend(values);
        }
    }

    /// Parses the flags in the arguments of a command line, without the program.
    #[must_use]
    pub fn from_arguments(arguments: &[String]) -> Self {
        Self::from_words(arguments.iter().map(String::as_str))
    }

    fn from_words<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let mut words = words.peekable();
        let mut flags = Self::default();
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
            // Kubernetes accepts `_` instead of `-` in flag names.
            flags.0.entry(name.replace('_', "-")).or_default().push(value);
        }
        flags
    }
}

/// Parses the flags in `/proc/<pid>/cmdline`, where each word ends with a NUL byte and the first word is the program.
/// Both `--name=value` and `--name value` are accepted. A flag without a value has the value `true`.
#[must_use]
pub fn parse_cmdline(cmdline: &[u8]) -> Flags {
    Flags::from_arguments(&parse_arguments(cmdline))
}

/// Returns the words in `/proc/<pid>/cmdline`, without the program.
#[must_use]
pub fn parse_arguments(cmdline: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(cmdline);
    text.trim_end_matches('\0').split('\0').skip(1).map(str::to_owned).collect()
}

/// Parses the flags in a variable of an environment file, such as `KUBELET_EXTRA_ARGS="--a=b --c=d"`.
#[must_use]
pub fn parse_environment(text: &str, variable: &str) -> Flags {
    let value =
        text.lines().rev().find_map(|line| line.trim().strip_prefix(variable)?.strip_prefix('='));
    let value = value.unwrap_or_default().trim_matches(|c| c == '"' || c == '\'');
    Flags::from_words(value.split_whitespace())
}

/// Splits a value of a map flag, such as `full-pcpus-only=true`, into the key and its value.
#[must_use]
pub fn parse_pair(value: &str) -> Option<(&str, &str)> {
    value.split_once('=').map(|(name, value)| (name.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn flag_accepts_both_forms_and_last_value_is_effective() {
        let flags =
            parse_cmdline(b"/usr/bin/kubelet\0--config\0/a\0--v=2\0--fail_swap_on\0--x=1\0--x=2\0");
        assert_eq!(flags.last_value("config"), Some("/a"));
        assert_eq!(flags.last_value("v"), Some("2"));
        assert_eq!(flags.last_value("fail-swap-on"), Some("true"));
        assert_eq!(flags.last_value("x"), Some("2"));
        assert_eq!(flags.all_values("x"), ["1", "2"]);
        assert_eq!(parse_pair("a = b=c"), Some(("a", "b=c")));
    }

    #[test]
    fn environment_file_is_parsed_as_flags() {
        let flags =
            parse_environment("# x\nKUBELET_EXTRA_ARGS=\"--a=1 --b 2\"\n", "KUBELET_EXTRA_ARGS");
        assert_eq!((flags.last_value("a"), flags.last_value("b")), (Some("1"), Some("2")));
        assert_eq!(parse_environment("OTHER=--a=1", "KUBELET_EXTRA_ARGS"), Flags::default());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes: Vec<u8>) {
            drop(parse_cmdline(&bytes));
            drop(parse_environment(&String::from_utf8_lossy(&bytes), ""));
        }
    }
}
