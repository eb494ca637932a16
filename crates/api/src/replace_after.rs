//! Time after which the machines of a lost host are replaced.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::excerpt::excerpt;
use crate::text::{parse_duration, string_serde, write_duration};

/// Maximum number of digits of each number in the text form.
const MAX_DIGITS: usize = 5;

/// Time after which the machines of a lost host are replaced. Text form: `10m` or `1h30m`; `0` means never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceAfter {
    /// Machines are not replaced.
    Never,
    /// Machines are replaced after this time.
    After(Duration),
}

string_serde!(
    ReplaceAfter,
    "A time in hours, minutes and seconds: `10m`, `1h30m`, `90s`; `0` means never.",
    {"type": "string", "minLength": 1, "maxLength": 20, "pattern": "^(0|([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?)$"}
);

/// Error when parsing a [`ReplaceAfter`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a time such as 10m, 1h30m, 90s, or 0 for never")]
pub struct ParseReplaceAfterError(String);

impl ReplaceAfter {
    /// Default: 10 minutes.
    pub const DEFAULT_TIME: Duration = Duration::from_secs(600);
}

impl Default for ReplaceAfter {
    /// Returns [`Self::DEFAULT_TIME`].
    fn default() -> Self {
        Self::After(Self::DEFAULT_TIME)
    }
}

impl FromStr for ReplaceAfter {
    type Err = ParseReplaceAfterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = parse_duration(text, MAX_DIGITS);
        let time = seconds.map(|seconds| match seconds {
            0 => Self::Never,
            seconds => Self::After(Duration::from_secs(seconds)),
        });
        time.ok_or_else(|| ParseReplaceAfterError(excerpt(text)))
    }
}

impl fmt::Display for ReplaceAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::After(time) = self else { return f.write_str("0") };
        write_duration(f, time.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_parsed_as_kubernetes_writes_them() {
        let parse = |text: &str| text.parse::<ReplaceAfter>().ok();
        let after = |seconds| Some(ReplaceAfter::After(Duration::from_secs(seconds)));
        assert_eq!(parse("10m"), after(600));
        assert_eq!(parse("1h30m"), after(5400));
        assert_eq!(parse("90s"), after(90));
        assert_eq!(parse("0s"), Some(ReplaceAfter::Never));
        assert_eq!(parse("0"), Some(ReplaceAfter::Never));
        for invalid in
            ["", "10", "m", "-1m", "1.5h", "10 m", "1d", "123456s", "1m2", "٣m", "5m5m", "1m1h"]
        {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
        assert_eq!(ReplaceAfter::default().to_string(), "10m");
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(seconds in 0_u64..200_000_000) {
            let time = match seconds {
                0 => ReplaceAfter::Never,
                seconds => ReplaceAfter::After(Duration::from_secs(seconds)),
            };
            prop_assert_eq!(time.to_string().parse(), Ok(time));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,30}") {
            drop(text.parse::<ReplaceAfter>());
        }
    }
}
