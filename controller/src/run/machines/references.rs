//! Collects the objects to which the providerSpec of a MachineDeployment refers.

use std::collections::BTreeSet;

use serde_json::Value;

/// Objects to which a providerSpec refers.
#[derive(Debug, Default)]
pub(super) struct References {
    /// Kind (Secret or ConfigMap), namespace and name of each object.
    pub(super) secrets_and_config_maps: BTreeSet<(&'static str, String, String)>,
    /// Names of StorageClasses.
    pub(super) storage_classes: BTreeSet<String>,
    pub(super) instancetypes: BTreeSet<String>,
}

impl References {
    /// Collects the references in a JSON value, including all nested values. `namespace` is the namespace of references
    /// that do not name one.
    pub(super) fn collect_references(&mut self, value: &Value, namespace: &str) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    match key.to_ascii_lowercase().as_str() {
                        "secretkeyref" => {
                            self.secrets_and_config_maps.insert((
                                "Secret",
                                text(&value["namespace"]),
                                text(&value["name"]),
                            ));
                        }
                        "configmapkeyref" => {
                            self.secrets_and_config_maps.insert((
                                "ConfigMap",
                                text(&value["namespace"]),
                                text(&value["name"]),
                            ));
                        }
                        "extraheaderssecretref" => {
                            self.secrets_and_config_maps.insert((
                                "Secret",
                                namespace.to_owned(),
                                text(value),
                            ));
                        }
                        "storageclassname" => {
                            self.storage_classes.insert(text(value));
                        }
                        "instancetype" | "flavor" => {
                            self.instancetypes.insert(text(&value["name"]));
                        }
                        _ => {}
                    }
                    self.collect_references(value, namespace);
                }
                // References with an empty name are removed. Machine-controller permits a reference in place of a name:
                // such a name is empty here until the reference is resolved.
                self.secrets_and_config_maps
                    .retain(|(_, namespace, name)| !namespace.is_empty() && !name.is_empty());
                self.storage_classes.retain(|name| !name.is_empty());
                self.instancetypes.retain(|name| !name.is_empty());
            }
            Value::Array(items) => {
                items.iter().for_each(|item| self.collect_references(item, namespace))
            }
            _ => {}
        }
    }
}
