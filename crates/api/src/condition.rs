//! Conditions in the status of objects, as `metav1.Condition` defines them.

use std::fmt;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One aspect of the current state of an object.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Time of the last change of `status`.
    pub last_transition_time: Time,
    /// Human-readable message. May be empty.
    pub message: String,
    /// `metadata.generation` of the object from which the condition was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Machine-readable reason of the current status, in CamelCase.
    pub reason: String,
    /// True, False or Unknown.
    pub status: String,
    /// Type of the condition, in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
}

/// A time in RFC 3339 with whole seconds, as the API server writes times of metadata and conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_serialized_with_whole_seconds() {
        let time: Time = serde_json::from_str("\"2026-11-25T01:02:03.987654321Z\"").unwrap();
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2026-11-25T01:02:03Z\"");
        assert!(serde_json::from_str::<Time>("\"yesterday\"").is_err());
    }
}
