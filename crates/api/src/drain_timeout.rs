//! Time limit of the drain of a Node.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::excerpt::excerpt;
use crate::text::{parse_duration, string_serde, write_duration};

/// Maximum time limit in seconds: one year.
const MAX_SECONDS: u64 = 31_536_000;
/// Maximum number of digits of each number in the text form.
const MAX_DIGITS: usize = 8;
/// Maximum number of characters of the text form.
const MAX_LENGTH: usize = 32;

/// Time limit of the drain of a Node, in whole seconds.
///
/// Text form: as durations of Kubernetes in hours, minutes and seconds, such as `1h30m`, `90s` or `0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DrainTimeout {
    seconds: u64,
}

string_serde!(DrainTimeout, "A duration in hours, minutes and seconds, such as `2h`, `1h30m` or `90s`; `0` for no drain. At most one year.", {
    "type": "string",
    "maxLength": 32,
    "pattern": "^(0|([0-9]{1,8}h)?([0-9]{1,8}m)?([0-9]{1,8}s)?)$",
    "minLength": 1
});

/// Error when parsing a time limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a duration of hours, minutes and seconds, such as 2h, 1h30m or 0, of at most one year"
)]
pub struct ParseDrainTimeoutError(String);

impl DrainTimeout {
    /// Default: 2 hours, as in machine-controller.
    pub const DEFAULT: Self = Self { seconds: 7200 };
    /// Upper bound for time limits in annotations (1 day), as long as the controller has not read the upper bound in
    /// the InfraConfig.
    pub const FALLBACK_LIMIT: Self = Self { seconds: 86_400 };

    /// Returns the time limit as a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

impl FromStr for DrainTimeout {
    type Err = ParseDrainTimeoutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = parse_duration(text, MAX_DIGITS);
        let seconds = seconds.filter(|&seconds| seconds <= MAX_SECONDS && text.len() <= MAX_LENGTH);
        seconds.map(|seconds| Self { seconds }).ok_or_else(|| ParseDrainTimeoutError(excerpt(text)))
    }
}

impl fmt::Display for DrainTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.seconds == 0 {
            return f.write_str("0");
        }
        write_duration(f, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_have_hours_minutes_and_seconds() {
        for (text, seconds) in
            [("0", 0), ("0s", 0), ("90s", 90), ("1h30m", 5400), ("2h", 7200), ("1h1s", 3601)]
        {
            let parsed: DrainTimeout = text.parse().unwrap();
            assert_eq!(parsed.duration().as_secs(), seconds, "{text}");
        }
        for text in [
            "",
            "1",
            "-1s",
            "1d",
            "1m1h",
            "h",
            "1.5h",
            "1h ",
            "9999999h",
            "1h1h",
            "5m5m",
            "000000001s",
            "99999999999999999999s",
        ] {
            assert!(text.parse::<DrainTimeout>().is_err(), "{text}");
        }
        assert_eq!(DrainTimeout::DEFAULT.to_string(), "2h");
        assert_eq!(DrainTimeout::FALLBACK_LIMIT.to_string(), "24h");
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(seconds in 0..=MAX_SECONDS) {
            let timeout = DrainTimeout { seconds };
            prop_assert_eq!(timeout.to_string().parse(), Ok(timeout));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            drop(text.parse::<DrainTimeout>());
        }
    }
}
