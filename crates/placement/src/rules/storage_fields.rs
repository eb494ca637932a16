//! Fields of storage objects that restrict the hosts of pods, read from Kubernetes API types.

use std::collections::BTreeMap;

use berth_api::Quantity;
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolumeClaim, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::field_path::{FieldPath, InvalidField};

/// Annotation that overrides `spec.storageClassName` of a claim (`GetPersistentVolumeClaimClass` of component-helpers).
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// Annotation in which kube-scheduler names the node on which the volume of a claim is to be provisioned.
const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";

/// The fields of a StorageClass that restrict the hosts of pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StorageClassFields {
    /// Field `provisioner`. For a CSI driver, it is also the name of the CSIDriver.
    pub provisioner: String,
    /// True if `volumeBindingMode` is `WaitForFirstConsumer`: volumes are provisioned where their first pod is placed.
    pub waits_for_consumer: bool,
    /// Field `allowedTopologies`. An empty list permits all hosts.
    pub allowed_topologies: Vec<TopologySelectorTerm>,
}

impl StorageClassFields {
    /// Reads the fields of a StorageClass.
    #[must_use]
    pub fn from_object(class: &StorageClass) -> Self {
        Self {
            provisioner: class.provisioner.clone(),
            waits_for_consumer: class.volume_binding_mode.as_deref()
                == Some("WaitForFirstConsumer"),
            allowed_topologies: class.allowed_topologies.clone().unwrap_or_default(),
        }
    }
}

/// The fields of a CSIStorageCapacity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StorageCapacityFields {
    /// Field `storageClassName`.
    pub class: String,
    /// Field `nodeTopology`: selects the hosts that can use the storage. `None` selects no host.
    pub node_topology: Option<LabelSelector>,
    /// Field `capacity`: free storage in bytes.
    pub capacity: Option<u64>,
    /// Field `maximumVolumeSize` in bytes: size of the largest volume that can be provisioned.
    pub maximum_volume_size: Option<u64>,
}

impl StorageCapacityFields {
    /// Reads the fields of a CSIStorageCapacity.
    ///
    /// # Errors
    /// Returns an error if a quantity is malformed.
    pub fn from_object(object: &CSIStorageCapacity) -> Result<Self, InvalidField> {
        let read = |name, quantity: &Option<resource::Quantity>| {
            let bytes = quantity.as_ref();
            bytes.map(|quantity| parse_bytes(&FieldPath::root(name), quantity)).transpose()
        };
        Ok(Self {
            class: object.storage_class_name.clone(),
            node_topology: object.node_topology.clone(),
            capacity: read("capacity", &object.capacity)?,
            maximum_volume_size: read("maximumVolumeSize", &object.maximum_volume_size)?,
        })
    }
}

/// A PersistentVolumeClaim without a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnboundClaim {
    /// Name of the claim's StorageClass; empty if there is none.
    pub class: String,
    /// Requested size in bytes; `None` if the claim requests none, or if its volume has been provisioned already.
    pub bytes: Option<u64>,
    /// Node that kube-scheduler has selected for the claim's volume.
    pub selected_node: Option<String>,
}

impl UnboundClaim {
    /// Reads a claim; returns `None` if the claim names a volume.
    ///
    /// # Errors
    /// Returns an error if the requested size is malformed.
    pub fn from_object(claim: &PersistentVolumeClaim) -> Result<Option<Self>, InvalidField> {
        let spec = claim.spec.as_ref();
        let volume = spec.and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
        if !volume.is_empty() {
            return Ok(None);
        }
        let annotation = |key: &str| {
            let annotations: Option<&BTreeMap<String, String>> =
                claim.metadata.annotations.as_ref();
            annotations.and_then(|all| all.get(key)).cloned()
        };
        let class = annotation(CLASS_ANNOTATION)
            .or_else(|| spec.and_then(|spec| spec.storage_class_name.clone()));
        let requests = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
        let size = requests.and_then(|requests| requests.get("storage"));
        let root = FieldPath::root("spec");
        let resources = root.field("resources");
        let path = resources.field("requests");
        let bytes = size.map(|size| parse_bytes(&path.field("storage"), size)).transpose()?;
        Ok(Some(Self {
            class: class.unwrap_or_default(),
            bytes,
            selected_node: annotation(SELECTED_NODE_ANNOTATION),
        }))
    }
}

/// The volume of a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimVolume {
    /// The claim is bound to a volume, whose required node affinity is given. `None` permits all hosts.
    Bound(Option<NodeSelector>),
    /// The claim has no volume yet.
    Unbound(UnboundClaim),
}

/// Returns the number of bytes of a quantity, rounded up as by `Value()` of apimachinery.
fn parse_bytes(path: &FieldPath<'_>, quantity: &resource::Quantity) -> Result<u64, InvalidField> {
    let parsed: Result<Quantity, _> = quantity.0.parse();
    let parsed = parsed.map_err(|_| path.invalid_field(&quantity.0, "is not a quantity"))?;
    Ok(u64::try_from(parsed.whole_units_rounded_up()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn claims_are_read_with_class_size_and_selected_node() {
        let read = |annotations: Value, spec: Value| {
            let object =
                json!({"metadata": {"name": "disk", "annotations": annotations}, "spec": spec});
            UnboundClaim::from_object(&serde_json::from_value(object).unwrap())
        };
        let resources = json!({"requests": {"storage": "1500M"}});
        let local = UnboundClaim {
            class: "local".to_owned(),
            bytes: Some(1_500_000_000),
            selected_node: None,
        };
        assert_eq!(
            read(json!({}), json!({"storageClassName": "local", "resources": resources})),
            Ok(Some(local.clone()))
        );
        let annotations = json!({CLASS_ANNOTATION: "local", SELECTED_NODE_ANNOTATION: "a"});
        assert_eq!(
            read(annotations, json!({"storageClassName": "other", "resources": resources})),
            Ok(Some(UnboundClaim { selected_node: Some("a".to_owned()), ..local }))
        );
        assert_eq!(read(json!({}), json!({})), Ok(Some(UnboundClaim::default())));
        assert_eq!(read(json!({}), json!({"volumeName": "pv-1"})), Ok(None));
        let invalid = read(json!({}), json!({"resources": {"requests": {"storage": "big"}}}));
        assert_eq!(
            invalid.unwrap_err().to_string(),
            "spec.resources.requests.storage: `big` is not a quantity"
        );
    }

    #[test]
    fn capacities_are_read_in_bytes() {
        let read = |fields: Value| {
            StorageCapacityFields::from_object(&serde_json::from_value(fields).unwrap())
        };
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {"name": "c"}, "storageClassName": "local", "nodeTopology": {},
            "capacity": "2Ki", "maximumVolumeSize": "1.5"});
        let fields = StorageCapacityFields {
            class: "local".to_owned(),
            node_topology: Some(LabelSelector::default()),
            capacity: Some(2048),
            maximum_volume_size: Some(2),
        };
        assert_eq!(read(object), Ok(fields));
        let invalid = read(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {"name": "c"}, "storageClassName": "local", "capacity": "1x"}));
        assert_eq!(invalid.unwrap_err().to_string(), "capacity: `1x` is not a quantity");
    }
}
