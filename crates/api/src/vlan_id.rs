//! 802.1Q VLAN identifiers.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::excerpt::excerpt;

/// A VLAN ID from 1 to 4094. IEEE 802.1Q uses 0 for priority tags and reserves 4095.
///
/// VLAN 1 exists on hosts as the default of every bridge. It is never allocated to tenants:
/// [`VlanId::is_allowed_for_tenants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct VlanId(u16);

/// Error when parsing a VLAN id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a VLAN id: it must be a number from 1 to 4094")]
pub struct ParseVlanIdError(String);

impl VlanId {
    /// Returns true if a tenant network may use the VLAN: true except for VLAN 1, whose frames switches and bridges
    /// send untagged by default.
    #[must_use]
    pub const fn is_allowed_for_tenants(self) -> bool {
        self.0 != 1
    }
}

impl TryFrom<u16> for VlanId {
    type Error = ParseVlanIdError;

    fn try_from(id: u16) -> Result<Self, Self::Error> {
        match id {
            1..=4094 => Ok(Self(id)),
            _ => Err(ParseVlanIdError(id.to_string())),
        }
    }
}

impl From<VlanId> for u16 {
    fn from(id: VlanId) -> Self {
        id.0
    }
}

impl std::str::FromStr for VlanId {
    type Err = ParseVlanIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse_error = || ParseVlanIdError(excerpt(text));
        let digits = text.trim();
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(parse_error());
        }
        digits
            .parse::<u16>()
            .map_err(|_| parse_error())
            .and_then(|id| Self::try_from(id).map_err(|_| parse_error()))
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl JsonSchema for VlanId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VlanId".into()
    }

    fn inline_schema() -> bool {
        true
    }

    /// Returns a schema with the range of tenants' VLANs (2 to 4094), because objects contain no other VLANs.
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "An 802.1Q VLAN id, 2 to 4094. VLAN 1 is the default of bridges, and never allocated to a tenant.",
            "type": "integer", "format": "int32", "minimum": 2, "maximum": 4094
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn vlan_id_accepts_exactly_the_usable_ids(id: u16) {
            let usable = (1..=4094).contains(&id);
            prop_assert_eq!(VlanId::try_from(id).is_ok(), usable);
            prop_assert_eq!(id.to_string().parse::<VlanId>().is_ok(), usable);
        }

        #[test]
        fn parsing_never_panics(text in ".*") {
            drop(text.parse::<VlanId>());
        }
    }

    #[test]
    fn error_contains_value_and_range() {
        assert_eq!(
            "4095".parse::<VlanId>().unwrap_err().to_string(),
            "`4095` is not a VLAN id: it must be a number from 1 to 4094"
        );
        assert!("+5".parse::<VlanId>().is_err());
        assert!(!VlanId(1).is_allowed_for_tenants());
    }
}
