//! Releases of `KubeVirt`. The requests of launcher pods differ between releases.

use std::fmt;
use std::str::FromStr;

use berth_api::excerpt;

/// A release of `KubeVirt` whose launcher pods can be predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u16,
    minor: u16,
    patch: u16,
}

/// Error for a string that is not a supported KubeVirt release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a supported KubeVirt release: use {oldest} or later, such as v1.9.0",
    oldest = Version::OLDEST
)]
pub struct ParseVersionError(String);

impl Version {
    /// Oldest supported release. Earlier releases are end of life, and calculate the memory of VMs with passt
    /// interfaces differently.
    pub const OLDEST: Self = Self::new(1, 3, 0);
    /// Newest release whose source code was used to write the prediction.
    pub const NEWEST: Self = Self::new(1, 9, 0);
    /// KubeVirt's main branch as of 2026-08-22, which the prediction also supports as the future release 1.10.
    pub const MAIN: Self = Self::new(1, 10, 0);

    const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    /// Returns true if this release is 1.`minor`.`patch` or newer.
    #[must_use]
    pub fn is_at_least(self, minor: u16, patch: u16) -> bool {
        self >= Self::new(1, minor, patch)
    }

    /// Returns true if this release contains a change that was introduced in 1.`minor`.`patch` and backported to
    /// 1.`backport_minor`.`backport_patch`.
    pub(super) fn is_since_or_backport(
        self,
        minor: u16,
        patch: u16,
        backport_minor: u16,
        backport_patch: u16,
    ) -> bool {
        self.is_at_least(minor, patch)
            || (self.minor == backport_minor && self.is_at_least(backport_minor, backport_patch))
    }
}

impl FromStr for Version {
    type Err = ParseVersionError;

    /// Parses `v1.9.0`, `1.9.0-rc.1` (as 1.9.0), `1.9` and `main`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "main" {
            return Ok(Self::MAIN);
        }
        let parse_error = || ParseVersionError(excerpt(text));
        let release = text.strip_prefix('v').unwrap_or(text);
        let release = release.split_once(['-', '+']).map_or(release, |(release, _)| release);
        let mut numbers = release.split('.').map(str::parse::<u16>);
        let mut next = || numbers.next().transpose().map_err(|_| parse_error());
        let major = next()?.ok_or_else(parse_error)?;
        let minor = next()?.ok_or_else(parse_error)?;
        let patch = next()?.unwrap_or(0);
        let version = Self::new(major, minor, patch);
        let is_complete = next()?.is_none();
        Some(version)
            .filter(|version| is_complete && *version >= Self::OLDEST)
            .ok_or_else(parse_error)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_parsed() {
        for (text, read) in [
            ("v1.9.0", Version::NEWEST),
            ("1.9", Version::NEWEST),
            ("v1.9.0-rc.2", Version::NEWEST),
            ("main", Version::MAIN),
            ("v1.3.0", Version::OLDEST),
        ] {
            assert_eq!(text.parse(), Ok(read), "{text}");
        }
        assert!("v1.10.2".parse::<Version>().unwrap() > Version::MAIN);
        for text in [
            "",
            "v",
            "v1",
            "v1.x.0",
            "v1.2.9",
            "0.59.0",
            "1.9.0.1",
            "devel",
            "v1.99999999.0",
            "v1.-3.0",
        ] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }

    #[test]
    fn backports_are_known() {
        let has = |text: &str| text.parse::<Version>().unwrap().is_since_or_backport(5, 1, 4, 1);
        assert!(has("1.4.1") && has("1.5.1") && has("1.6.0"));
        assert!(!has("1.4.0") && !has("1.5.0") && !has("1.3.1"));
    }
}
