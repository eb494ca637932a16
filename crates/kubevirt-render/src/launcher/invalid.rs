//! Error about an invalid object, which names the object and the field, and functions that parse objects and return
//! this error.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Error about an invalid field of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field}: {message}")]
pub struct Invalid {
    /// Kind, namespace and name of the object, such as `VirtualMachine tenant-a/web-1`.
    pub object: String,
    /// Path of the field, such as `spec.template.spec.domain.cpu.cores`.
    pub field: String,
    /// The value, and why it is invalid.
    pub message: String,
}

impl Invalid {
    /// Creates an error about a field of an object.
    pub fn new(
        object: impl Into<String>,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { object: object.into(), field: field.into(), message: message.into() }
    }
}

/// Returns kind, namespace and name of an object for messages. A missing kind is shown as `object`, a missing name as
/// `?`.
pub(super) fn qualified_name(object: &Value) -> String {
    let text = |value: Option<&Value>| {
        value.and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let metadata = object.get("metadata");
    let kind = text(object.get("kind")).unwrap_or_else(|| "object".to_owned());
    let name = text(metadata.and_then(|m| m.get("name"))).unwrap_or_else(|| "?".to_owned());
    match text(metadata.and_then(|m| m.get("namespace"))) {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Parses an object. Returns the first invalid field if parsing fails. As in an API server, a field with the value
/// `null` counts as absent.
pub(super) fn deserialize<T: DeserializeOwned>(object: &Value) -> Result<T, Invalid> {
    // An absent field has the same meaning as the value `null` for every type that accepts `null`, so such fields are
    // removed only from an object that cannot be parsed with them. Only such an object is parsed with the path of each
    // field. Both are slower than parsing.
    T::deserialize(object).or_else(|_| {
        let object = match has_nulls(object) {
            true => Cow::Owned(without_nulls(object)),
            false => Cow::Borrowed(object),
        };
        serde_path_to_error::deserialize(&*object).map_err(|error| {
            let field = error.path().to_string();
            Invalid::new(qualified_name(&object), field, error.into_inner().to_string())
        })
    })
}

/// Returns true if a value contains a field with the value `null`, at any depth.
fn has_nulls(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().any(|value| value.is_null() || has_nulls(value)),
        Value::Array(items) => items.iter().any(has_nulls),
        _ => false,
    }
}

/// Returns a copy of a value without the fields that have the value `null`, at any depth.
pub(crate) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::launcher::{ClusterObjects, Machine};

    /// Returns copies of a value. In each copy, another field has the value `null`.
    fn with_one_null(value: &Value) -> Vec<Value> {
        match value {
            Value::Object(map) => {
                let each = map.iter().flat_map(|(key, field)| {
                    let fields = with_one_null(field).into_iter().chain([Value::Null]);
                    fields.map(move |changed| {
                        let mut map = map.clone();
                        map.insert(key.clone(), changed);
                        Value::Object(map)
                    })
                });
                each.collect()
            }
            Value::Array(items) => {
                let each = items.iter().enumerate().flat_map(|(at, item)| {
                    with_one_null(item).into_iter().map(move |changed| {
                        let mut items = items.clone();
                        items[at] = changed;
                        Value::Array(items)
                    })
                });
                each.collect()
            }
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_null_field_is_an_absent_field() {
        let term = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]});
        let group = json!({"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"});
        let domain = json!({
            "cpu": {
                "cores": 2, "model": "m", "dedicatedCpuPlacement": true,
                "numa": {"guestMappingPassthrough": {}},
            },
            "memory": {"guest": "1Gi", "hugepages": {"pageSize": "1Gi"}},
            "resources": {"requests": {"memory": "2Gi"}, "limits": {"cpu": "2"}},
            "devices": {
                "disks": [{"name": "root", "lun": {"reservation": true}}],
                "interfaces": [{"name": "n", "macAddress": "m", "sriov": {}}],
                "gpus": [{"name": "g", "deviceName": "x/y"}], "tpm": {"enabled": true},
                "autoattachGraphicsDevice": false,
            },
            "features": {"hyperv": {"vpindex": {"enabled": true}}},
            "ioThreads": {"supplementalPoolThreadCount": 2},
            "launchSecurity": {"sev": {"policy": {"encryptedState": true}}},
        });
        let spec = json!({
            "architecture": "amd64", "nodeSelector": {"a": "b"}, "schedulerName": "s",
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
                },
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [group]},
            },
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                "minDomains": 2, "labelSelector": {"matchLabels": {"a": "b"}},
            }],
            "domain": domain,
            "networks": [{"name": "n", "multus": {"networkName": "x"}}],
            "volumes": [{"name": "root", "containerDisk": {}}],
            "readinessProbe": {"exec": {}},
        });
        let vm = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {
                "instancetype": {"name": "small", "kind": "c"}, "preference": {"name": "d"},
                "template": {
                    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                    "spec": spec,
                },
            },
        });
        assert!(matches!(Machine::read(&vm), Ok(Some(_))));
        let changed = with_one_null(&vm);
        assert!(changed.len() > 80);
        for object in changed {
            assert_eq!(Machine::read(&object), Machine::read(&without_nulls(&object)), "{object}");
        }
    }

    #[test]
    fn a_null_field_of_a_cluster_object_is_an_absent_field() {
        let metadata = json!({"name": "small", "namespace": "b", "labels": {"a": "b"}});
        for object in [
            json!({
                "kind": "VirtualMachineInstancetype", "metadata": metadata,
                "spec": {
                    "cpu": {"guest": 2, "model": "m", "dedicatedCPUPlacement": true},
                    "memory": {"guest": "1Gi"}, "nodeSelector": {"a": "b"},
                    "ioThreadsPolicy": "auto", "annotations": {"a": "b"},
                },
            }),
            json!({"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"limits.cpu": "2"}}}),
            json!({"kind": "RuntimeClass", "metadata": metadata, "overhead": {"podFixed": {"cpu": "1"}}}),
            json!({"kind": "Namespace", "metadata": metadata}),
        ] {
            for object in with_one_null(&object) {
                let (mut found, mut expected) =
                    (ClusterObjects::default(), ClusterObjects::default());
                let result = found.add(&object);
                assert_eq!(result, expected.add(&without_nulls(&object)), "{object}");
                assert_eq!(found, expected, "{object}");
            }
        }
    }
}
