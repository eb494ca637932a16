//! Value types that are strings in YAML and in CRD schemas.

use std::fmt;

/// Implements serde and the JSON schema for a type with `FromStr` and `Display`: a string with a pattern. The API
/// server rejects objects with values that do not match the pattern.
macro_rules! string_serde {
    ($type:ident, $description:literal, $schema:tt) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let mut schema = schemars::json_schema!($schema);
                schema.insert("description".into(), $description.into());
                schema
            }
        }
    };
}

pub(crate) use string_serde;

/// Parses a duration such as `1h30m` to a number of seconds. The units h, m and s may occur once each, in this order,
/// and each number has at most `max_digits` digits; `0` needs no unit. All durations in fields and annotations of Berth
/// have this format, which is a subset of the format of Kubernetes.
pub(crate) fn parse_duration(text: &str, max_digits: usize) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (mut rest, mut total) = (text, 0_u64);
    for (unit, factor) in [('h', 3600), ('m', 60), ('s', 1)] {
        let Some((number, after)) = rest.split_once(unit) else { continue };
        let is_number = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
        if !is_number || number.len() > max_digits {
            return None;
        }
        let part = number.parse::<u64>().ok()?.checked_mul(factor)?;
        total = total.checked_add(part)?;
        rest = after;
    }
    (rest.is_empty() && !text.is_empty()).then_some(total)
}

/// Writes a number of seconds as hours, minutes and seconds, and omits units with the number 0: `1h30m`.
pub(crate) fn write_duration(f: &mut fmt::Formatter<'_>, seconds: u64) -> fmt::Result {
    let parts = [(seconds / 3600, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let mut present = parts.iter().filter(|(number, _)| *number > 0);
    present.try_for_each(|(number, unit)| write!(f, "{number}{unit}"))
}
