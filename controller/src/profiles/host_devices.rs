//! Static validation of the devices in the InfraConfig.

use std::collections::BTreeMap;

use berth_api::{HostDevices, PciId};

/// Returns the problems of `hostDevices`, each as a message with field and value.
pub(super) fn host_device_problems(devices: &HostDevices) -> Vec<String> {
    let mut problems = Vec::new();
    let mut resources: BTreeMap<PciId, &str> = BTreeMap::new();
    for (at, allowed) in devices.allowed.iter().enumerate() {
        let name = allowed.resource_name.as_str();
        let (domain, _) = name.split_once('/').unwrap_or_default();
        if domain.is_empty() {
            problems.push(format!(
                "hostDevices.allowed[{at}].resourceName: `{name}` is not the name of a device plugin resource such as \
                 nvidia.com/GA100"
            ));
        } else if domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") {
            problems.push(format!(
                "hostDevices.allowed[{at}].resourceName: `{name}` is in a domain of Kubernetes; use another domain"
            ));
        }
        for id in &allowed.ids {
            if let Some(other) = resources.insert(*id, name).filter(|other| *other != name) {
                problems.push(format!(
                    "hostDevices.allowed[{at}].ids: `{id}` is also in the ids of {other}, and KubeVirt would offer each \
                     function twice"
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(allowed: Value) -> Vec<String> {
        host_device_problems(&serde_json::from_value(json!({"allowed": allowed})).unwrap())
    }

    #[test]
    fn resources_have_a_domain_and_ids_of_their_own() {
        let valid = json!([{"resourceName": "a.b/x", "ids": ["144d:a80a", "144D:A80A"]}, {"resourceName": "a.b/y"}]);
        assert!(problems(valid).is_empty());
        for (allowed, words) in [
            (json!([{"resourceName": "x"}]), "allowed[0].resourceName: `x` is not the name"),
            (json!([{"resourceName": "kubernetes.io/x"}]), "is in a domain of Kubernetes"),
            (
                json!([
                    {"resourceName": "a.b/x", "ids": ["144d:a80a"]}, {"resourceName": "a.b/y", "ids": ["144d:a80a"]},
                ]),
                "allowed[1].ids: `144d:a80a` is also in the ids of a.b/x",
            ),
        ] {
            let found = problems(allowed);
            assert!(found.len() == 1 && found[0].contains(words), "{found:?}");
        }
    }
}
