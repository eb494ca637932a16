//! Reads the validity of the certificates in webhook configurations.

use std::time::SystemTime;

use berth_runtime::certificate::{CertificateError, ExpiryWarning, parse_bundle};
use berth_runtime::cli::text::error_chain;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::check::{BundleValidity, CaBundle, InvalidBundle, Kind, Lists, Read, ReadError};

/// Services of the webhooks of KubeVirt and CDI.
const WEBHOOK_SERVICES: [&str; 3] = ["virt-api", "kubevirt-operator-webhook", "cdi-api"];
/// Resources with which a rule of a webhook selects pods or PersistentVolumeClaims.
const WEBHOOK_RESOURCES: [&str; 4] = ["pods", "persistentvolumeclaims", "*", "*/*"];

/// Returns the CA bundles of all webhooks.
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
                let webhook_name = webhook["name"].as_str().unwrap_or_default();
                all.push(CaBundle {
                    webhook: format!("{kind} {name}, webhook {webhook_name}"),
                    is_needed_for_vms: is_needed_for_vms(webhook),
                    validity: read_validity(data, now),
                });
            }
        }
    }
    Ok(all)
}

/// Returns true if the API server refuses VMs, their disks or their pods while it cannot call the webhook.
fn is_needed_for_vms(webhook: &Value) -> bool {
    let service = webhook["clientConfig"]["service"]["name"].as_str().unwrap_or_default();
    let mut rules = webhook["rules"].as_array().into_iter().flatten();
    webhook["failurePolicy"] == "Fail"
        && (WEBHOOK_SERVICES.contains(&service) || rules.any(is_rule_for_vms))
}

/// Returns true for a rule that selects objects of KubeVirt or CDI, pods or PersistentVolumeClaims.
fn is_rule_for_vms(rule: &Value) -> bool {
    let has = |field: &str, matches: fn(&str) -> bool| {
        let values = rule[field].as_array().into_iter().flatten();
        values.filter_map(Value::as_str).any(matches)
    };
    has("apiGroups", |group| group == "kubevirt.io" || group.ends_with(".kubevirt.io"))
        || has("apiGroups", |group| ["", "*"].contains(&group))
            && has("resources", |resource| WEBHOOK_RESOURCES.contains(&resource))
}

fn read_validity(data: &str, now: SystemTime) -> Result<BundleValidity, InvalidBundle> {
    let unreadable = |error: CertificateError| InvalidBundle(error_chain(&error));
    let validity = parse_bundle(data).map_err(unreadable)?;
    let end = Timestamp::try_from(validity.not_after);
    Ok(BundleValidity {
        end: end.map_or_else(|error| error.to_string(), |end| end.to_string()),
        expiry: validity.expiry_with(ExpiryWarning::Tenth, now),
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
        assert!(!bundles[0].is_needed_for_vms);
        lists.insert((Kind::ValidatingWebhook, ""), Err(ReadError::Forbidden(String::new())));
        assert!(read_bundles(&lists, SystemTime::UNIX_EPOCH).is_err());
    }

    #[test]
    fn webhooks_for_vms_are_distinguished() {
        let needed = |policy: &str, service: &str, group: &str, resource: &str| {
            is_needed_for_vms(&json!({
                "failurePolicy": policy, "clientConfig": {"service": {"name": service}},
                "rules": [7, {"apiGroups": [group], "resources": [resource]}],
            }))
        };
        assert!(needed("Fail", "virt-api", "apps", "deployments"));
        assert!(needed("Fail", "a", "kubevirt.io", "virtualmachines"));
        assert!(needed("Fail", "a", "cdi.kubevirt.io", "datavolumes"));
        assert!(needed("Fail", "a", "", "pods"));
        assert!(needed("Fail", "a", "*", "*"));
        assert!(!needed("Ignore", "virt-api", "kubevirt.io", "virtualmachines"));
        assert!(!needed("Fail", "a", "apps", "pods"));
        assert!(!needed("Fail", "cert-manager-webhook", "cert-manager.io", "*"));
        assert!(!is_needed_for_vms(&json!({"failurePolicy": "Fail", "rules": "pods"})));
    }
}
