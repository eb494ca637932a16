//! A StorageClass of the infra cluster, reduced to the fields that are copied to the StorageClasses in tenants'
//! clusters.

use std::collections::BTreeMap;

use berth_api::VolumeBindingMode;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use super::topology::Topologies;

/// Annotation with which old releases of KKP selected the classes that tenants get. Its value is `true`.
pub const INITIALIZE_ANNOTATION: &str = "kubevirt-initialization.k8c.io/initialize-sc";
/// Fields of a StorageClass that [`InfraClass::from_object`] reads.
const READ_FIELDS: [&str; 3] = ["volumeBindingMode", "allowVolumeExpansion", "allowedTopologies"];

/// A StorageClass of the infra cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfraClass {
    /// True if tenants get the class even if the InfraConfig does not list it.
    pub is_initialized: bool,
    pub volume_binding_mode: Option<VolumeBindingMode>,
    /// True if volumes of the class can be expanded.
    pub allow_volume_expansion: bool,
    /// Zones and regions in which storage of the class is available.
    pub topologies: Topologies,
}

impl InfraClass {
    /// Reads a class. A field with an invalid value, which the API server would not accept, counts as absent.
    #[must_use]
    pub fn from_object(class: &DynamicObject) -> Self {
        let field = |name: &str| class.data.get(name).cloned().unwrap_or_default();
        let topologies = serde_json::from_value(field("allowedTopologies")).ok();
        let topologies = topologies.and_then(Topologies::from_objects).unwrap_or_default();
        let annotation = class.annotations().get(INITIALIZE_ANNOTATION);
        Self {
            is_initialized: annotation.is_some_and(|value| value == "true"),
            volume_binding_mode: serde_json::from_value(field("volumeBindingMode")).ok(),
            allow_volume_expansion: field("allowVolumeExpansion") == true,
            topologies: topologies.only_zones(),
        }
    }

    /// Removes the fields of a class that [`InfraClass::from_object`] does not read.
    pub fn trim(class: &mut DynamicObject) {
        class.metadata.managed_fields = None;
        class.metadata.labels = None;
        class.annotations_mut().retain(|key, _| key == INITIALIZE_ANNOTATION);
        if let Value::Object(fields) = &mut class.data {
            fields.retain(|name, _| READ_FIELDS.contains(&name.as_str()));
        }
    }
}

/// Reads all StorageClasses of the infra cluster, by name.
#[must_use]
pub fn read_infra_classes<'c>(
    classes: impl Iterator<Item = &'c DynamicObject>,
) -> BTreeMap<String, InfraClass> {
    classes.map(|class| (class.name_any(), InfraClass::from_object(class))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trimmed_class_has_the_same_fields() {
        let mut object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "fast", "annotations": {INITIALIZE_ANNOTATION: "true", "x": "y"}},
            "provisioner": "rbd.csi.ceph.com", "parameters": {"pool": "vms"},
            "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
            "allowedTopologies": [{"matchLabelExpressions": [
                {"key": "topology.kubernetes.io/zone", "values": ["a"]},
            ]}],
        }))
        .unwrap();
        let class = InfraClass::from_object(&object);
        let expected = InfraClass {
            is_initialized: true,
            volume_binding_mode: Some(VolumeBindingMode::WaitForFirstConsumer),
            allow_volume_expansion: true,
            topologies: Topologies::of_zones(&["a".to_owned()], &[]),
        };
        assert_eq!(class, expected);
        InfraClass::trim(&mut object);
        assert_eq!(InfraClass::from_object(&object), expected);
        assert_eq!(object.data.get("parameters"), None);
    }

    #[test]
    fn malformed_fields_are_absent() {
        for fields in [
            json!({"metadata": {"name": "x"}}),
            json!({"metadata": {"name": "x"}, "volumeBindingMode": 7, "allowedTopologies": "a", "allowVolumeExpansion": "true"}),
        ] {
            let mut object: DynamicObject = serde_json::from_value(fields).unwrap();
            assert_eq!(InfraClass::from_object(&object), InfraClass::default());
            InfraClass::trim(&mut object);
        }
    }
}
