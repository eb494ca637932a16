//! Reads the validity of the certificates in webhook configurations.

use std::time::SystemTime;

use berth_runtime::certificate::{CertificateError, parse_bundle};
use berth_runtime::cli::text::error_chain;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::check::{BundleValidity, CaBundle, InvalidBundle, Kind, Lists, Read, ReadError};

/// Returns the bundles of all webhooks.
pub(super) fn read_bundles(lists: &Lists, now: SystemTime) -> Read<Vec<CaBundle>> {
    let mut all = Vec::new();
    for kind in [Kind::MutatingWebhook, Kind::ValidatingWebhook] {
        let configurations = match lists.get(&(kind, "")) {
            Some(Ok(configurations)) => configurations,
            Some(Err(ReadError::NotFound)) => continue,
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(ReadError::NotRequested),
        };
        let [_, _, kind, _] = kind.resource();
        for configuration in configurations {
            let text = |pointer: &str| configuration.pointer(pointer).and_then(Value::as_str);
            let name = text("/metadata/name").unwrap_or_default();
            let webhooks = configuration.pointer("/webhooks").and_then(Value::as_array);
            for webhook in webhooks.into_iter().flatten() {
                let Some(data) = webhook["clientConfig"]["caBundle"].as_str() else { continue };
                let webhook = webhook["name"].as_str().unwrap_or_default();
                all.push(CaBundle {
                    webhook: format!("{kind} {name}, webhook {webhook}"),
                    validity: read_validity(data, now),
                });
            }
        }
    }
    Ok(all)
}

fn read_validity(data: &str, now: SystemTime) -> Result<BundleValidity, InvalidBundle> {
    let unreadable = |error: CertificateError| InvalidBundle(error_chain(&error));
    let validity = parse_bundle(data).map_err(unreadable)?;
    let end = Timestamp::try_from(validity.not_after);
    Ok(BundleValidity {
        end: end.map_or_else(|error| error.to_string(), |end| end.to_string()),
        expiry: validity.expiry_at(now),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn bundles_of_all_webhooks_are_read() {
        let webhooks =
            |value: Value| Ok(vec![json!({"metadata": {"name": "virt-api"}, "webhooks": value})]);
        let mutating = webhooks(json!([{"name": "a", "clientConfig": {"caBundle": "bm8="}}, 7]));
        let validating = webhooks(json!([{"name": "b", "clientConfig": {}}]));
        let mut lists: Lists = BTreeMap::new();
        lists.insert((Kind::MutatingWebhook, ""), mutating);
        lists.insert((Kind::ValidatingWebhook, ""), validating);
        let bundles = read_bundles(&lists, SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(bundles.len(), 1);
        assert_eq!(bundles[0].webhook, "MutatingWebhookConfiguration virt-api, webhook a");
        assert!(bundles[0].validity.is_err());
        lists.insert((Kind::ValidatingWebhook, ""), Err(ReadError::Forbidden(String::new())));
        assert!(read_bundles(&lists, SystemTime::UNIX_EPOCH).is_err());
    }
}
