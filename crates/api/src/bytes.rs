//! Amounts of memory or storage as Kubernetes quantities.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;
use crate::quantity::{BINARY_SUFFIXES, split_quantity};

/// A number of bytes, written as a Kubernetes quantity (`64Gi`, `47925628Ki`, `0`).
///
/// Parsed by the rules of `k8s.io/apimachinery/pkg/api/resource`: binary (`Ki`..`Ei`) and decimal (`k`..`E`, `m`)
/// suffixes, decimal fractions and exponents; a fraction of a byte is rounded up. Printed with the largest binary
/// suffix without loss of precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// Error when parsing an amount of bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseBytesError {
    /// The text is not a quantity.
    #[error("`{0}` is not a quantity such as 64Gi or 500M")]
    Malformed(String),
    /// The amount does not fit into 64 bits, or is less than zero.
    #[error("`{0}` is out of range: an amount of bytes is from 0 to 2^64-1")]
    OutOfRange(String),
}

impl Bytes {
    /// Converts an amount in units of 1,024 bytes, which the kernel calls `kB`. Saturates if the amount does not fit
    /// into 64 bits.
    #[must_use]
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1024))
    }

    /// Returns a human-readable amount: three digits and a binary unit (`45.7 GiB`).
    #[must_use]
    pub fn to_human_readable(self) -> String {
        let unit = BINARY_SUFFIXES.iter().find(|(_, shift)| self.0 >> shift != 0 && *shift > 0);
        let Some((suffix, shift)) = unit else { return format!("{} B", self.0) };
        // Tenths are computed with integers: a float would be printed with too many digits, or need a cast.
        let tenths = (u128::from(self.0) * 10 + (1u128 << shift) / 2) >> shift;
        if tenths.is_multiple_of(10) || tenths >= 1000 {
            format!("{} {suffix}B", (tenths + 5) / 10)
        } else {
            format!("{}.{} {suffix}B", tenths / 10, tenths % 10)
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |shift: u32| self.0 != 0 && self.0.trailing_zeros() >= shift;
        let (suffix, shift) =
            BINARY_SUFFIXES.iter().copied().find(|&(_, shift)| exact(shift)).unwrap_or(("", 0));
        write!(f, "{}{suffix}", self.0 >> shift)
    }
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || ParseBytesError::Malformed(excerpt(text));
        let out_of_range = || ParseBytesError::OutOfRange(excerpt(text));
        let parts = split_quantity(text.trim()).ok_or_else(malformed)?;
        if parts.is_negative {
            return Err(out_of_range());
        }
        let fraction = parts.fraction.trim_end_matches('0');
        let digits: u128 =
            format!("{}{fraction}", parts.whole).parse().map_err(|_| out_of_range())?;
        let fraction_digits = i32::try_from(fraction.len()).map_err(|_| out_of_range())?;
        let (shift, decimal_exponent) = (
            parts.shift,
            parts.decimal_exponent.checked_sub(fraction_digits).ok_or_else(out_of_range)?,
        );
        let value = digits.checked_mul(1 << shift).ok_or_else(out_of_range)?;
        let power = 10u128.checked_pow(decimal_exponent.unsigned_abs());
        let value = match (digits, decimal_exponent < 0, power) {
            (0, _, _) => Some(0),
            (_, true, Some(power)) => Some(value.div_ceil(power)),
            (_, true, None) => Some(1),
            (_, false, Some(power)) => value.checked_mul(power),
            (_, false, None) => None,
        };
        value.and_then(|v| u64::try_from(v).ok()).map(Self).ok_or_else(out_of_range)
    }
}

impl serde::Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Bytes {
    /// Accepts a quantity as text or as a number, as Kubernetes does (`x-kubernetes-int-or-string`).
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum IntOrString {
            Int(u64),
            String(String),
        }
        match IntOrString::deserialize(deserializer)? {
            IntOrString::Int(bytes) => Ok(Self(bytes)),
            IntOrString::String(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl schemars::JsonSchema for Bytes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bytes".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "An amount of bytes as a Kubernetes quantity.",
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": "^\\+?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_accept_kubernetes_quantities() {
        for (text, bytes) in [
            ("0", 0),
            ("540Gi", 540 << 30),
            ("1.5Gi", 3 << 29),
            ("500M", 500_000_000),
            ("1e3", 1000),
            ("12E", 12_000_000_000_000_000_000),
            ("100m", 1),
            ("0.0001Ki", 1),
            ("0.000", 0),
            (".5Ki", 512),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "Gi", "1.2.3", "1 Gi", "1gi", "-1", "99E", "1e999", "0x10"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn display_is_exact_and_human_readable_form_is_rounded() {
        assert_eq!(Bytes::from_kib(47_925_628).to_string(), "47925628Ki");
        assert_eq!(Bytes(2 << 30).to_string(), "2Gi");
        assert_eq!(Bytes(0).to_string(), "0");
        assert_eq!(Bytes::from_kib(47_925_628).to_human_readable(), "45.7 GiB");
        assert_eq!(Bytes(2 << 30).to_human_readable(), "2 GiB");
        assert_eq!(Bytes(1023 << 20).to_human_readable(), "1023 MiB");
        assert_eq!(Bytes(12).to_human_readable(), "12 B");
        assert_eq!(Bytes(u64::MAX).to_human_readable(), "16 EiB");
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(bytes: u64) {
            prop_assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
            prop_assert!(!Bytes(bytes).to_human_readable().is_empty());
        }

        #[test]
        fn parsing_never_panics(text in "[-+]?[0-9.]{0,50}[a-zA-Z]{0,3}[-+0-9]{0,12}") {
            drop(text.parse::<Bytes>());
        }
    }
}
