//! Amounts of any resource (CPUs, bytes, devices) as Kubernetes quantities.

use std::fmt;
use std::str::FromStr;

use crate::excerpt::excerpt;

/// An amount as a Kubernetes quantity (`1500m`, `64Gi`, `1e3`, `-2`), exact to a billionth.
///
/// Parsed by the rules of `k8s.io/apimachinery/pkg/api/resource/quantity.go`: decimal (`n` to `E`) and binary (`Ki` to
/// `Ei`) suffixes, decimal fractions, exponents and a sign. Fractions smaller than `n` are rounded away from zero.
/// Unlike in Kubernetes, an amount beyond 2^63-1 is an error and not silently truncated, and the maximum is 24 digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    nanos: i128,
}

/// Error when parsing a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// The text is not a quantity.
    #[error("`{0}` is not a quantity such as 500m, 2 or 64Gi")]
    Malformed(String),
    /// The absolute value is above 2^63-1, or the text has more than 24 digits.
    #[error("`{0}` is out of range: a quantity is from 1-2^63 to 2^63-1, with at most 24 digits")]
    OutOfRange(String),
}

pub(crate) const BINARY_SUFFIXES: [(&str, u32); 7] =
    [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10), ("", 0)];
const DECIMAL_SUFFIXES: [(&str, i32); 9] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// Parts of the text of a quantity. The value is ±`whole`.`fraction` × 2^`shift` × 10^`decimal_exponent`.
pub(crate) struct QuantityParts<'a> {
    pub(crate) is_negative: bool,
    pub(crate) whole: &'a str,
    pub(crate) fraction: &'a str,
    pub(crate) shift: u32,
    pub(crate) decimal_exponent: i32,
}

/// Splits a text into its parts; `None` if it is not a quantity.
pub(crate) fn split_quantity(text: &str) -> Option<QuantityParts<'_>> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let (shift, decimal_exponent) =
        if let Some((_, shift)) = BINARY_SUFFIXES.iter().find(|(s, _)| *s == suffix) {
            (*shift, 0)
        } else if let Some((_, power)) = DECIMAL_SUFFIXES.iter().find(|(s, _)| *s == suffix) {
            (0, *power)
        } else {
            (0, suffix.strip_prefix(['e', 'E'])?.parse().ok()?)
        };
    Some(QuantityParts {
        is_negative: text.starts_with('-'),
        whole,
        fraction,
        shift,
        decimal_exponent,
    })
}

const NANOS_PER_UNIT: i128 = 1_000_000_000;
const MAX_NANOS: i128 = 0x7fff_ffff_ffff_ffff * NANOS_PER_UNIT;
/// Maximum number of digits. The largest intermediate result is that of an amount in `Ei` (2^60) with 23 decimal
/// places: 10^24 × 2^46, which fits into 128 bits.
const MAX_DIGITS: usize = 24;

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self { nanos: 0 };

    /// Creates a quantity from a number of whole units, such as bytes, devices or CPUs.
    #[must_use]
    pub fn from_units(units: u64) -> Self {
        Self { nanos: i128::from(units).saturating_mul(NANOS_PER_UNIT).min(MAX_NANOS) }
    }

    /// Returns the number of whole units, rounded away from zero, as `Value()` of apimachinery.
    #[must_use]
    pub const fn whole_units_rounded_up(self) -> i128 {
        divide_rounding_away_from_zero(self.nanos, NANOS_PER_UNIT)
    }

    /// Returns the number of thousandths of a unit, rounded away from zero, as `MilliValue()` of apimachinery.
    #[must_use]
    pub const fn millis_rounded_up(self) -> i128 {
        divide_rounding_away_from_zero(self.nanos, NANOS_PER_UNIT / 1000)
    }

    /// Returns the number of thousands of units, rounded away from zero, as `ScaledValue(resource.Kilo)` of
    /// apimachinery.
    #[must_use]
    pub const fn thousands_rounded_up(self) -> i128 {
        divide_rounding_away_from_zero(self.nanos, NANOS_PER_UNIT * 1000)
    }

    /// Returns true if the quantity is zero.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Returns true if the quantity is less than zero.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Returns the sum; a sum outside the range of quantities becomes the minimum or maximum.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_add(other.nanos).clamp(-MAX_NANOS, MAX_NANOS) }
    }

    /// Returns the difference; a difference outside the range of quantities becomes the minimum or maximum.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos).clamp(-MAX_NANOS, MAX_NANOS) }
    }
}

const fn divide_rounding_away_from_zero(nanos: i128, unit: i128) -> i128 {
    let (whole, rest) = (nanos / unit, nanos % unit);
    whole + rest.signum()
}

/// Returns `digits` × 2^`shift` × 10^`decimal_exponent`, rounded up; `None` if the result does not fit into 128 bits.
fn scale(digits: u128, shift: u32, decimal_exponent: i32) -> Option<u128> {
    let exponent_magnitude = decimal_exponent.unsigned_abs();
    if decimal_exponent >= 0 {
        return digits
            .checked_mul(1 << shift)?
            .checked_mul(10u128.checked_pow(exponent_magnitude)?);
    }
    // 10^n is 2^n × 5^n: factors of 2 are cancelled against `shift`, because fractions with the suffix `Ei` would
    // overflow otherwise.
    let twos = shift.min(exponent_magnitude);
    let numerator = digits.checked_mul(1 << (shift - twos))?;
    let denominator = 5u128.checked_pow(exponent_magnitude).and_then(|fives| {
        let power_of_two = 1u128.checked_shl(exponent_magnitude - twos)?;
        fives.checked_mul(power_of_two)
    });
    // If the denominator overflows, the value is less than 1 and not 0, so it is rounded up to 1.
    Some(denominator.map_or(1, |below| numerator.div_ceil(below)))
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let out_of_range = || ParseQuantityError::OutOfRange(excerpt(text));
        let parts =
            split_quantity(text).ok_or_else(|| ParseQuantityError::Malformed(excerpt(text)))?;
        let fraction = parts.fraction.trim_end_matches('0');
        let digits = format!("{}{fraction}", parts.whole);
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return Ok(Self::ZERO);
        }
        if digits.len() > MAX_DIGITS {
            return Err(out_of_range());
        }
        let digits: u128 = digits.parse().map_err(|_| out_of_range())?;
        let fraction_digits = i32::try_from(fraction.len()).map_err(|_| out_of_range())?;
        // The value in billionths has nine more decimal places.
        let decimal_exponent =
            parts.decimal_exponent.checked_sub(fraction_digits).and_then(|ten| ten.checked_add(9));
        let nanos = scale(digits, parts.shift, decimal_exponent.ok_or_else(out_of_range)?);
        let nanos = nanos.and_then(|nanos| i128::try_from(nanos).ok()).filter(|n| *n <= MAX_NANOS);
        let nanos = nanos.ok_or_else(out_of_range)?;
        Ok(Self { nanos: if parts.is_negative { -nanos } else { nanos } })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (step, suffix) = [(NANOS_PER_UNIT, ""), (NANOS_PER_UNIT / 1000, "m"), (1000, "u")]
            .into_iter()
            .find(|(step, _)| self.nanos % step == 0)
            .unwrap_or((1, "n"));
        let amount = self.nanos / step;
        let exact =
            |shift: u32| suffix.is_empty() && amount != 0 && amount.trailing_zeros() >= shift;
        match BINARY_SUFFIXES.iter().find(|(_, shift)| exact(*shift)) {
            Some((suffix, shift)) => write!(f, "{}{suffix}", amount >> shift),
            None => write!(f, "{amount}{suffix}"),
        }
    }
}

impl serde::Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Quantity {
    /// Accepts a quantity as text or as a number, as Kubernetes does (`x-kubernetes-int-or-string`).
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuantityVisitor)
    }
}

struct QuantityVisitor;

impl serde::de::Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity such as 500m, 2 or 64Gi")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Quantity, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Bytes;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    /// Test cases from `TestQuantityParse` of apimachinery.
    #[test]
    fn quantity_accepts_kubernetes_quantities() {
        for (text, millis) in [
            ("0", 0),
            ("-0", 0),
            ("+0.0Ki", 0),
            ("100m", 100),
            ("0.5", 500),
            ("-1.5", -1500),
            ("1.", 1000),
            (".25", 250),
            ("1.1", 1100),
            ("1e3", 1_000_000),
            ("1E-3", 1),
            ("1e+2", 100_000),
            ("2k", 2_000_000),
            ("4Ki", 4_096_000),
            ("1E", 1_000_000_000_000_000_000_000),
            ("7Ei", 7 * (1 << 60) * 1000),
            ("9223372036854775807", i128::from(i64::MAX) * 1000),
            ("0.1Ki", 102_400),
            ("1.00000000000000000001Ei", (1 << 60) * 1000 + 12),
        ] {
            assert_eq!(quantity(text).millis_rounded_up(), millis, "{text}");
        }
    }

    #[test]
    fn quantity_is_rounded_away_from_zero() {
        assert_eq!(
            (quantity("1n").whole_units_rounded_up(), quantity("1n").millis_rounded_up()),
            (1, 1)
        );
        assert_eq!(
            (quantity("-1n").whole_units_rounded_up(), quantity("-1n").millis_rounded_up()),
            (-1, -1)
        );
        assert_eq!(quantity("0.1n"), quantity("1n"));
        assert_eq!(quantity("1e-2000000000"), quantity("1n"));
        assert_eq!(quantity("0.00000000000000000000000000000000000000000001Ei"), quantity("1n"));
        assert_eq!(quantity("333.3333333333333m").millis_rounded_up(), 334);
        assert_eq!(
            (quantity("1Gi").thousands_rounded_up(), quantity("1000").thousands_rounded_up()),
            (1_073_742, 1)
        );
    }

    #[test]
    fn invalid_quantity_is_rejected() {
        for text in [
            "", ".", "-", "+-1", "1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", "1i", "-3.01i",
            "-3.01e-", " 1", "1 ", "1e", "1ee3", "0x10", "1KI", "NaN", "infinity", "１",
        ] {
            let wrong = text.parse::<Quantity>();
            assert!(matches!(wrong, Err(ParseQuantityError::Malformed(_))), "{text}: {wrong:?}");
        }
        for text in ["8Ei", "9223372036854775808", "1e999", "-10E", "1234567890123456789012345"] {
            let wrong = text.parse::<Quantity>();
            assert!(matches!(wrong, Err(ParseQuantityError::OutOfRange(_))), "{text}: {wrong:?}");
        }
    }

    #[test]
    fn quantity_accepts_json_numbers() {
        for (json, millis) in [("2", 2000), ("0.5", 500), ("-1", -1000), ("\"64Mi\"", 64 << 20)] {
            let read: Quantity = serde_json::from_str(json).unwrap();
            assert_eq!(
                if json.contains("Mi") {
                    read.whole_units_rounded_up()
                } else {
                    read.millis_rounded_up()
                },
                millis
            );
        }
        for json in ["true", "[]", "{}", "null", "\"\"", "1e300"] {
            assert!(serde_json::from_str::<Quantity>(json).is_err(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(nanos in -MAX_NANOS..=MAX_NANOS) {
            let quantity = Quantity { nanos };
            let read: Result<Quantity, _> = quantity.to_string().parse();
            prop_assert!(nanos % NANOS_PER_UNIT != 0 && nanos.abs() > 10i128.pow(24) || read == Ok(quantity), "{}", quantity);
        }

        #[test]
        fn quantity_agrees_with_integer_arithmetic(
            whole in 0u64..1_000_000, millionths in 0u64..1_000_000, shift in 0usize..5, negative: bool
        ) {
            let (suffix, bits) = [("", 0), ("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)][shift];
            let sign = if negative { "-" } else { "" };
            let text = format!("{sign}{whole}.{millionths:06}{suffix}");
            let exact = (u128::from(whole) * 1_000_000 + u128::from(millionths)) << bits;
            let units = i128::try_from(exact.div_ceil(1_000_000)).unwrap();
            prop_assert_eq!(quantity(&text).whole_units_rounded_up(), if negative { -units } else { units });
        }

        #[test]
        fn quantity_agrees_with_bytes(text in "[0-9]{1,9}(\\.[0-9]{0,9})?([KMGT]i|[munkMGT]|[eE]-?[0-9])?") {
            // `Bytes` accepts amounts below 2^64, but `Quantity` (as Kubernetes) only amounts below 2^63.
            let bytes: Option<Bytes> = text.parse().ok();
            let bytes = bytes.map(|bytes| i128::from(bytes.0)).filter(|bytes| *bytes <= i128::from(i64::MAX));
            prop_assert_eq!(bytes, text.parse().map(Quantity::whole_units_rounded_up).ok());
        }

        #[test]
        fn parsing_never_panics(text in "[-+]?[0-9.]{0,50}[a-zA-Z]{0,3}[-+0-9]{0,12}") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                prop_assert!(quantity.whole_units_rounded_up().abs() <= quantity.millis_rounded_up().abs());
                prop_assert_eq!(quantity.saturating_sub(quantity), Quantity::ZERO);
            }
        }
    }
}
