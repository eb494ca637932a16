//! Releases of Kubernetes, KubeVirt and CDI.

use std::fmt;
use std::str::FromStr;

/// Major, minor and patch number of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release(pub(super) u32, pub(super) u32, pub(super) u32);

/// Error for a string that is not a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a release such as v1.36.2")]
pub(super) struct InvalidRelease;

impl Release {
    /// Returns the first release with the same minor number.
    pub(super) const fn first_patch(self) -> Self {
        Self(self.0, self.1, 0)
    }
}

impl FromStr for Release {
    type Err = InvalidRelease;

    /// Parses `v1.36.2`, `1.20`, `v1.31.4-gke.100` and `v1.9.0-rc.1`, without the suffix.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let release = text.strip_prefix('v').unwrap_or(text);
        let release = release.split(['-', '+']).next().unwrap_or_default();
        let mut numbers = release.split('.').map(|number| number.parse().ok());
        let major = numbers.next().flatten().ok_or(InvalidRelease)?;
        let minor = numbers.next().flatten().ok_or(InvalidRelease)?;
        let patch = numbers.next().unwrap_or(Some(0)).ok_or(InvalidRelease)?;
        Ok(Self(major, minor, patch))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn releases_are_compared_without_their_suffix() {
        for (text, release) in [
            ("v1.36.2", Release(1, 36, 2)),
            ("1.20", Release(1, 20, 0)),
            ("v1.31.4-gke.100", Release(1, 31, 4)),
            ("v1.9.0-rc.1", Release(1, 9, 0)),
            ("v0.59.2", Release(0, 59, 2)),
            ("1.30+", Release(1, 30, 0)),
        ] {
            assert_eq!(text.parse(), Ok(release), "{text}");
        }
        assert!(Release(1, 10, 0) > Release(1, 9, 3));
        for text in ["", "v", "v1", "1.x", "v1.36.", "v99999999999.1", "devel"] {
            assert_eq!(text.parse::<Release>(), Err(InvalidRelease), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_an_error_or_a_release(text in "v?[0-9.+-]{0,12}") {
            if let Ok(release) = text.parse::<Release>() {
                prop_assert_eq!(release.to_string().parse(), Ok(release));
            }
        }
    }
}
