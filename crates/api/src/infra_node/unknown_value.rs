//! Deserializes enum values that a newer agent has written and that this version does not know. Otherwise the
//! controller could not parse the whole InfraNode because of one unknown value, until the controller is upgraded.
//!
//! Only fields of the status use this module. An unknown value in a spec must stay an error.

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer as _};
use serde::{Deserialize, Deserializer};

/// Deserializes an optional value. An unknown value becomes `None`.
pub(super) fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| parse(&text)))
}

/// Deserializes an optional value. An absent value becomes `None`; an unknown value becomes the default, because the
/// two have different effects.
pub(super) fn optional_or_default<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.map(|text| parse(&text).unwrap_or_default()))
}

/// Deserializes a required value. An unknown value becomes the default.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let text = String::deserialize(deserializer)?;
    Ok(parse(&text).unwrap_or_default())
}

/// Deserializes an optional list without its unknown values.
pub(super) fn optional_list<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let texts = Option::<Vec<String>>::deserialize(deserializer)?;
    Ok(texts.map(|texts| texts.iter().filter_map(|text| parse(text)).collect()))
}

fn parse<T: DeserializeOwned>(text: &str) -> Option<T> {
    let deserializer: StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
    T::deserialize(deserializer).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::*;

    fn read(status: Value) -> InfraNodeStatus {
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn unknown_values_of_a_newer_agent_are_accepted() {
        let status = read(json!({
            "capabilities": {
                "machine": {"hypervisor": "New"},
                "kvm": {"state": "New", "confidential": ["SEV-SNP", "New"]},
                "memory": {"transparentHugepages": "New", "ksm": {"owner": "New", "advisor": "New"}},
                "cpu": {"coreKinds": [{"kind": "New", "cpus": "0-3"}]},
                "uplinks": [{"name": "eth0", "kind": "New", "state": "New"}],
            },
            "networks": [{
                "name": "trunk", "ready": 1, "pending": 0, "failed": 0,
                "notReady": [{"tenant": "bank", "state": "New"}],
                "trunk": {"state": "New", "reason": "New", "message": "why"},
            }],
            "changes": [{"what": "pages", "result": "New"}],
            "unknown": [{"path": "zones", "reason": "New"}],
        }));
        let capabilities = &status.capabilities;
        assert_eq!(capabilities.uplinks[0].state, None);
        assert_eq!(capabilities.kvm.confidential, Some(vec![Confidential::SevSnp]));
        let network = &status.networks[0];
        let trunk = network.trunk.as_ref().unwrap();
        assert_eq!((trunk.state, trunk.reason), (TrunkState::Unknown, None));
        assert_eq!(trunk.message.as_deref(), Some("why"));
        // An unknown value never means that VMs can run.
        assert_eq!(capabilities.kvm.state, Some(KvmState::SmokeTestFailed));
        assert_eq!(network.not_ready[0].state, TenantNetworkState::Pending);
        assert_eq!(status.changes[0].result, ChangeResult::Failed);
        assert_eq!(status.unknown[0].reason, UnknownReason::Unreadable);
    }

    #[test]
    fn an_absent_state_of_kvm_is_not_a_failure() {
        for kvm in [json!({}), json!({"state": null})] {
            let status = read(json!({"capabilities": {"kvm": kvm}}));
            assert_eq!(status.capabilities.kvm.state, None);
        }
    }

    #[test]
    fn known_values_round_trip() {
        let written = json!({
            "capabilities": {"kvm": {"state": "Ready", "confidential": ["SEV", "TDX"]}},
            "networks": [{
                "name": "trunk", "ready": 1, "pending": 0, "failed": 1,
                "notReady": [{"tenant": "bank", "state": "Failed"}],
                "trunk": {"state": "Unknown", "reason": "VlansWithoutPeers"},
            }],
            "changes": [{"what": "pages", "result": "Done"}],
        });
        let status = read(written.clone());
        let again = serde_json::to_value(&status).unwrap();
        for field in ["networks", "changes"] {
            assert_eq!(again[field], written[field]);
        }
        assert_eq!(again["capabilities"]["kvm"], written["capabilities"]["kvm"]);
        let malformed = json!({"changes": [{"what": "pages", "result": 7}]});
        assert!(serde_json::from_value::<InfraNodeStatus>(malformed).is_err());
    }
}
