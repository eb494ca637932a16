//! Storage objects of a fleet: StorageClasses, CSI drivers with the storage that they report, claims and volumes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use berth_placement::rules::{
    ClaimVolume, InvalidField, StorageCapacityFields, StorageClassFields, UnboundClaim,
};
use berth_views::deserialize_object;
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::Value;

use super::kinds::{group_of_api_version, string_at};
use berth_api::Problem;

/// Annotations of a default class, the most important first: for VMs (CDI), and for all claims.
const DEFAULT_ANNOTATIONS: [&str; 3] = [
    "storageclass.kubevirt.io/is-default-virt-class",
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// Namespace and name of a PersistentVolumeClaim.
type ClaimKey = (String, String);

/// Storage objects on which the hosts of VMs depend.
#[derive(Clone, Debug, Default)]
pub struct StorageObjects {
    /// StorageClasses by name.
    pub classes: BTreeMap<String, StorageClassFields>,
    /// Default class by the index of its annotation in [`DEFAULT_ANNOTATIONS`]: the newest class with this annotation,
    /// as in Kubernetes.
    default_classes: BTreeMap<usize, DefaultClass>,
    /// Names of the CSIDrivers that report their storage.
    pub reporting_drivers: BTreeSet<String>,
    /// CSIStorageCapacities by `namespace/name`.
    pub capacities: BTreeMap<String, StorageCapacityFields>,
    claims: BTreeMap<ClaimKey, PlannedClaim>,
    /// Claims whose volumes a populator of CDI has provisioned through claims of its own.
    populated_claims: BTreeSet<ClaimKey>,
    /// Required node affinity of each PersistentVolume, by the name of the volume.
    volumes: BTreeMap<String, Option<NodeSelector>>,
}

/// Creation time and name of a default class. The class with the maximum applies: the newest, and of classes that were
/// created in the same second, the first by name.
type DefaultClass = (Option<Time>, Reverse<String>);

/// A PersistentVolumeClaim.
#[derive(Clone, Debug)]
enum PlannedClaim {
    /// The claim is bound to the volume with this name.
    Bound(String),
    Unbound(UnboundClaim),
}

/// A parsed storage object.
#[derive(Debug)]
pub(super) enum StorageObject {
    Driver { name: String, reports_storage: bool },
    Capacity(String, Box<StorageCapacityFields>),
    Claim(Box<PersistentVolumeClaim>),
    Volume(String, Box<Option<NodeSelector>>),
}

impl StorageObject {
    /// Parses an object; returns `None` if it is of another kind.
    pub(super) fn parse(location: &str, object: &Value) -> Option<Result<Self, Problem>> {
        let group = group_of_api_version(string_at(object, "/apiVersion"));
        Some(match (string_at(object, "/kind"), group) {
            (kind @ "PersistentVolumeClaim", "") => {
                deserialize_object(kind, location, object).map(|claim| Self::Claim(Box::new(claim)))
            }
            (kind @ "PersistentVolume", "") => {
                let volume = deserialize_object(kind, location, object);
                volume.map(|volume: PersistentVolume| {
                    let affinity = volume.spec.and_then(|spec| spec.node_affinity?.required);
                    Self::Volume(volume.metadata.name.unwrap_or_default(), Box::new(affinity))
                })
            }
            (kind @ "CSIDriver", "storage.k8s.io") => {
                let driver = deserialize_object(kind, location, &without_version(object));
                driver.map(|driver: CSIDriver| Self::Driver {
                    name: driver.metadata.name.unwrap_or_default(),
                    reports_storage: driver.spec.storage_capacity == Some(true),
                })
            }
            (kind @ "CSIStorageCapacity", "storage.k8s.io") => {
                let capacity = deserialize_object(kind, location, &without_version(object));
                capacity.and_then(|capacity: CSIStorageCapacity| {
                    let (namespace, name) = key(&capacity.metadata);
                    let name = format!("{namespace}/{name}");
                    let fields = StorageCapacityFields::from_object(&capacity);
                    let fields = fields.map_err(|invalid| {
                        invalid_problem(format!("CSIStorageCapacity {name}"), invalid)
                    });
                    Ok(Self::Capacity(name, Box::new(fields?)))
                })
            }
            _ => return None,
        })
    }
}

impl StorageObjects {
    /// Adds an object. Returns a message if an object of this kind and name was added before.
    pub(super) fn add(&mut self, object: StorageObject) -> Result<Option<String>, Problem> {
        Ok(match object {
            StorageObject::Driver { name, reports_storage } => {
                if reports_storage {
                    self.reporting_drivers.insert(name);
                }
                None
            }
            StorageObject::Capacity(name, fields) => {
                let qualified_name = format!("CSIStorageCapacity {name}");
                self.capacities.insert(name, *fields).map(|_| qualified_name)
            }
            StorageObject::Claim(claim) => self.add_claim(&claim)?,
            StorageObject::Volume(name, affinity) => {
                let qualified_name = format!("PersistentVolume {name}");
                self.volumes.insert(name, *affinity).map(|_| qualified_name)
            }
        })
    }

    fn add_claim(&mut self, claim: &PersistentVolumeClaim) -> Result<Option<String>, Problem> {
        let key = key(&claim.metadata);
        let qualified_name = format!("PersistentVolumeClaim {}/{}", key.0, key.1);
        let unbound = UnboundClaim::from_object(claim);
        let unbound = unbound.map_err(|invalid| invalid_problem(&qualified_name, invalid))?;
        let planned = match unbound {
            Some(unbound) => PlannedClaim::Unbound(unbound),
            None => {
                let owners = claim.metadata.owner_references.iter().flatten();
                let mut owners = owners.filter(|owner| owner.controller == Some(true));
                let owner = owners.find(|owner| owner.kind == "PersistentVolumeClaim");
                let owner = owner.map(|owner| (key.0.clone(), owner.name.clone()));
                self.populated_claims.extend(owner);
                let spec = claim.spec.as_ref();
                let volume = spec.and_then(|spec| spec.volume_name.clone());
                PlannedClaim::Bound(volume.unwrap_or_default())
            }
        };
        Ok(self.claims.insert(key, planned).map(|_| qualified_name))
    }

    /// Adds a StorageClass. Returns false if the object is of another kind.
    pub(super) fn add_class(&mut self, location: &str, object: &Value) -> Result<bool, Problem> {
        let kind = string_at(object, "/kind");
        let group = group_of_api_version(string_at(object, "/apiVersion"));
        if (kind, group) != ("StorageClass", "storage.k8s.io") {
            return Ok(false);
        }
        let class: StorageClass = deserialize_object(kind, location, &without_version(object))?;
        let name = class.metadata.name.clone().unwrap_or_default();
        let annotations = class.metadata.annotations.as_ref();
        for (rank, annotation) in DEFAULT_ANNOTATIONS.iter().enumerate() {
            let value = annotations.and_then(|all| all.get(*annotation));
            if value.is_some_and(|value| value == "true") {
                let created = class.metadata.creation_timestamp.clone();
                let candidate = (created, Reverse(name.clone()));
                let newest = self.default_classes.entry(rank).or_insert_with(|| candidate.clone());
                if *newest < candidate {
                    *newest = candidate;
                }
            }
        }
        self.classes.insert(name, StorageClassFields::from_object(&class));
        Ok(true)
    }

    /// Returns the volume of a claim. A claim that is not in the input is created from `template`; without a template,
    /// nothing is known about its volume (`None`).
    #[must_use]
    pub fn claim_volume(
        &self,
        namespace: &str,
        name: &str,
        template: Option<&UnboundClaim>,
    ) -> Option<ClaimVolume> {
        let key = (namespace.to_owned(), name.to_owned());
        Some(ClaimVolume::Unbound(match self.claims.get(&key) {
            Some(PlannedClaim::Bound(volume)) => {
                return Some(ClaimVolume::Bound(self.volumes.get(volume)?.clone()));
            }
            Some(PlannedClaim::Unbound(claim)) => {
                let is_populated = self.populated_claims.contains(&key);
                let bytes = claim.bytes.filter(|_| !is_populated);
                UnboundClaim { bytes, ..claim.clone() }
            }
            None => {
                let template = template?;
                let default = || self.default_class().unwrap_or_default().to_owned();
                let class = Some(&template.class).filter(|class| !class.is_empty());
                UnboundClaim { class: class.cloned().unwrap_or_else(default), ..template.clone() }
            }
        }))
    }

    /// Returns the name of the class of disks that name no class.
    fn default_class(&self) -> Option<&str> {
        let (_, (_, Reverse(name))) = self.default_classes.first_key_value()?;
        Some(name)
    }
}

fn key(metadata: &ObjectMeta) -> ClaimKey {
    let namespace = metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    (namespace, metadata.name.clone().unwrap_or_default())
}

/// Returns the object without its `apiVersion`. All versions of the kinds that are read have the same fields.
fn without_version(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("apiVersion");
    }
    object
}

fn invalid_problem(object: impl Into<String>, invalid: InvalidField) -> Problem {
    Problem::new(object, invalid.field, invalid.value, invalid.problem).into_fatal("left out")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn add(storage: &mut StorageObjects, object: &Value) -> Result<Option<String>, Problem> {
        let parsed = StorageObject::parse("f", object);
        parsed.map_or(Ok(None), |parsed| storage.add(parsed?))
    }

    fn claim(name: &str, spec: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": "vms", "name": name}, "spec": spec})
    }

    #[test]
    fn volumes_of_claims_are_found() {
        let mut storage = StorageObjects::default();
        let affinity = json!({"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "host", "operator": "In", "values": ["a"]}]}]});
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-1"},
            "spec": {"nodeAffinity": {"required": affinity}}});
        let size = json!({"requests": {"storage": "1Ki"}});
        let filling = claim("filling", json!({"storageClassName": "local", "resources": size}));
        let mut of_populator = claim("prime-1", json!({"volumeName": "pv-2"}));
        of_populator["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "name": "filling", "uid": "u", "controller": true}]);
        for object in [
            volume,
            claim("bound", json!({"volumeName": "pv-1"})),
            claim("elsewhere", json!({"volumeName": "pv-9"})),
            claim("waiting", json!({"storageClassName": "local", "resources": size})),
            filling,
            of_populator,
        ] {
            assert_eq!(add(&mut storage, &object), Ok(None), "{object}");
        }
        let bytes = |bytes| {
            let class = "local".to_owned();
            Some(ClaimVolume::Unbound(UnboundClaim { class, bytes, selected_node: None }))
        };
        let affinity: NodeSelector = serde_json::from_value(affinity).unwrap();
        let find = |name| storage.claim_volume("vms", name, None);
        assert_eq!(find("bound"), Some(ClaimVolume::Bound(Some(affinity))));
        assert_eq!(find("elsewhere"), None);
        assert_eq!(find("waiting"), bytes(Some(1024)));
        assert_eq!(find("filling"), bytes(None));
        assert_eq!(find("missing"), None);
        let again = claim("bound", json!({"volumeName": "pv-1"}));
        let message = "PersistentVolumeClaim vms/bound".to_owned();
        assert_eq!(add(&mut storage, &again), Ok(Some(message)));
        let invalid = claim("x", json!({"resources": {"requests": {"storage": "big"}}}));
        let problem = add(&mut storage, &invalid).unwrap_err();
        assert_eq!(
            problem.to_string(),
            "PersistentVolumeClaim vms/x: spec.resources.requests.storage: `big`: is not a quantity; left out"
        );
    }

    #[test]
    fn disks_without_a_class_get_the_default_class() {
        let mut storage = StorageObjects::default();
        let template = UnboundClaim { bytes: Some(1), ..UnboundClaim::default() };
        let class_of =
            |storage: &StorageObjects| match storage.claim_volume("vms", "disk", Some(&template)) {
                Some(ClaimVolume::Unbound(claim)) => claim.class,
                other => panic!("{other:?}"),
            };
        assert_eq!(class_of(&storage), "");
        for (name, annotation, year) in [
            ("old", DEFAULT_ANNOTATIONS[1], 2024),
            ("new", DEFAULT_ANNOTATIONS[1], 2025),
            ("older", DEFAULT_ANNOTATIONS[1], 2023),
        ] {
            let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name,
                "creationTimestamp": format!("{year}-01-01T00:00:00Z"), "annotations": {annotation: "true"}}});
            assert_eq!(storage.add_class("f", &class), Ok(true));
        }
        assert_eq!(class_of(&storage), "new");
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "virt", "annotations": {DEFAULT_ANNOTATIONS[0]: "true"}}});
        assert_eq!(storage.add_class("f", &class), Ok(true));
        assert_eq!(class_of(&storage), "virt");
        assert_eq!(
            storage.add_class("f", &json!({"apiVersion": "v1", "kind": "Secret"})),
            Ok(false)
        );
    }

    #[test]
    fn storage_of_all_versions_is_read() {
        let mut storage = StorageObjects::default();
        for (name, version) in [("a", "v1"), ("b", "v1beta1")] {
            let object = json!({"apiVersion": format!("storage.k8s.io/{version}"), "kind": "CSIStorageCapacity",
                "metadata": {"namespace": "csi", "name": name}, "storageClassName": "local", "capacity": "1Gi"});
            assert_eq!(add(&mut storage, &object), Ok(None));
        }
        assert_eq!(storage.capacities.keys().collect::<Vec<_>>(), ["csi/a", "csi/b"]);
        for (name, reports_storage) in [("reports", true), ("other", false)] {
            let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name},
                "spec": {"storageCapacity": reports_storage}});
            assert_eq!(add(&mut storage, &object), Ok(None));
        }
        assert_eq!(storage.reporting_drivers.iter().collect::<Vec<_>>(), ["reports"]);
        let other = json!({"apiVersion": "example.com/v1", "kind": "CSIDriver"});
        assert!(StorageObject::parse("f", &other).is_none());
    }
}
