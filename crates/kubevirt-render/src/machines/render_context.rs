//! Objects that rendering needs in addition to the MachineDeployment: defaults, tenants, storage, Secrets. The
//! reconciler reads them from the API server; `berth-controller render` and `plan` read them from their input.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names::MANAGED_BY_LABEL;
use berth_api::{CloneStrategy, InfraConfigSpec, TenantCluster};
use serde_json::Value;

use super::references::{EntryReference, ReferenceResolver, ResolveError, SecretRefusal};
use super::requested_devices::DEVICE_LISTS;
use crate::images::{DataVolumeState, SnapshotClass, StorageProfile};

/// Objects that rendering needs. If an object is missing here, `is_exhaustive` determines whether it does not exist, or
/// whether its existence is unknown.
#[derive(Clone, Debug, Default)]
pub struct RenderContext {
    /// Spec of the InfraConfig, which contains defaults for all tenants.
    pub config: InfraConfigSpec,
    /// TenantClusters by name.
    pub tenants: BTreeMap<String, TenantCluster>,
    /// Values of the entries of Secrets and ConfigMaps.
    pub secret_and_config_map_entries: BTreeMap<EntryReference, String>,
    /// StorageClasses by name.
    pub storage_classes: BTreeMap<String, StorageClass>,
    /// StorageProfiles (CDI) by the name of the storage class.
    pub storage_profiles: BTreeMap<String, StorageProfile>,
    /// VolumeSnapshotClasses; `None` if they are unknown.
    pub snapshot_classes: Option<Vec<SnapshotClass>>,
    /// Names of the CSIDrivers; `None` if they are unknown.
    pub csi_drivers: Option<BTreeSet<String>>,
    /// `spec.cloneStrategyOverride` of the CDI object.
    pub clone_strategy_override: Option<CloneStrategy>,
    /// DataVolumes by namespace and name: those of golden images, and those that machines clone.
    pub data_volumes: BTreeMap<(String, String), DataVolumeState>,
    /// Instance types by namespace and name. The namespace of cluster instance types is empty.
    pub instancetypes: BTreeMap<(String, String), InstanceType>,
    /// Secrets and ConfigMaps that the controller may not read, and Secrets to which no object may refer, by kind, namespace
    /// and name, with the reason.
    pub forbidden_objects: BTreeMap<(&'static str, String, String), String>,
    /// True if the context contains all existing objects, so that a missing object does not exist.
    pub is_exhaustive: bool,
}

/// The fields of an instance type that restrict the fields of a VM: KubeVirt rejects a VM that sets a field that its
/// instance type also sets, even with an equal value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceType {
    /// Field `spec.schedulerName`.
    pub scheduler_name: Option<String>,
    /// True if the instance type has a `spec.nodeSelector`.
    pub has_node_selector: bool,
    /// True if the CPUs of the VM are dedicated (`spec.cpu.dedicatedCPUPlacement`).
    pub has_dedicated_cpus: bool,
    /// Names of the device plugin resources in `spec.gpus` and in `spec.hostDevices`.
    pub devices: [Vec<String>; 2],
}

/// Annotation with which old releases of KKP selected the StorageClasses that tenants may use. Its value is `true`.
const INITIALIZE_ANNOTATION: &str = "kubevirt-initialization.k8c.io/initialize-sc";

/// The fields of a StorageClass that affect disks of machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageClass {
    /// Provisioner, the name of a CSI driver.
    pub provisioner: String,
    /// True if volumes can be expanded.
    pub allows_expansion: bool,
    /// True if tenants may use the class even if InfraConfig does not list it.
    pub is_initialized: bool,
    /// Keys and values of each term of `allowedTopologies`, in the order of the StorageClass.
    pub topologies: Vec<Vec<(String, Vec<String>)>>,
}

impl RenderContext {
    /// Adds an object. Returns false if rendering does not use objects of the object's kind.
    pub fn add(&mut self, object: &Value) -> bool {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = text("/metadata/name").to_owned();
        let namespace = text("/metadata/namespace").to_owned();
        match text("/kind") {
            kind @ ("Secret" | "ConfigMap") => {
                let kind = if kind == "Secret" { "Secret" } else { "ConfigMap" };
                match refusal(kind, object) {
                    Some(refusal) => {
                        let message = refusal.to_string();
                        self.forbidden_objects.insert((kind, namespace, name), message);
                    }
                    None => self.add_entries(kind, &namespace, &name, object),
                }
            }
            "StorageClass" => {
                self.storage_classes.insert(name, StorageClass::from_object(object));
            }
            "StorageProfile" => {
                self.storage_profiles.insert(name, StorageProfile::from_object(object));
            }
            "VolumeSnapshotClass" => {
                let class = SnapshotClass::from_object(object);
                self.snapshot_classes.get_or_insert_default().push(class);
            }
            "CSIDriver" => {
                self.csi_drivers.get_or_insert_default().insert(name);
            }
            "CDI" => {
                self.clone_strategy_override =
                    CloneStrategy::from_cdi_name(text("/spec/cloneStrategyOverride"));
            }
            "DataVolume" => {
                let state = DataVolumeState::from_object(object);
                self.data_volumes.insert((namespace, name), state);
            }
            "VirtualMachineInstancetype" | "VirtualMachineClusterInstancetype" => {
                self.instancetypes.insert((namespace, name), InstanceType::from_object(object));
            }
            _ => return false,
        }
        true
    }

    /// Returns true if a CSIDriver has the name of this provisioner, or if the CSIDrivers are unknown.
    pub(super) fn has_csi_driver(&self, provisioner: &str) -> bool {
        self.csi_drivers.as_ref().is_none_or(|drivers| drivers.contains(provisioner))
    }

    fn add_entries(&mut self, kind: &'static str, namespace: &str, name: &str, object: &Value) {
        use base64::Engine as _;
        let mut add = |key: &str, value: String| {
            let reference = EntryReference {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                key: key.to_owned(),
            };
            self.secret_and_config_map_entries.insert(reference, value);
        };
        let entries =
            |field: &str| object.get(field).and_then(Value::as_object).into_iter().flatten();
        for (key, value) in entries("data") {
            let text = value.as_str().unwrap_or_default();
            if kind == "ConfigMap" {
                add(key, text.to_owned());
                continue;
            }
            let decoded = base64::engine::general_purpose::STANDARD.decode(text.trim()).ok();
            if let Some(text) = decoded.and_then(|bytes| String::from_utf8(bytes).ok()) {
                add(key, text);
            }
        }
        for (key, value) in entries("stringData") {
            add(key, value.as_str().unwrap_or_default().to_owned());
        }
    }

    /// Returns the keys and values of all entries of a Secret, sorted by key.
    pub(super) fn secret_entries(&self, namespace: &str, name: &str) -> Vec<(&str, &str)> {
        let is_in_secret = |reference: &EntryReference| {
            reference.kind == "Secret" && reference.namespace == namespace && reference.name == name
        };
        let found = self
            .secret_and_config_map_entries
            .iter()
            .filter(|(reference, _)| is_in_secret(reference));
        found.map(|(reference, value)| (reference.key.as_str(), value.as_str())).collect()
    }
}

/// Returns the reason why no object may refer to a Secret.
fn refusal(kind: &str, object: &Value) -> Option<SecretRefusal> {
    let labels = object.pointer("/metadata/labels");
    let managed_by =
        labels.and_then(|labels| labels.get(MANAGED_BY_LABEL.0)).and_then(Value::as_str);
    let secret_type = object.get("type").and_then(Value::as_str);
    if kind == "Secret" { SecretRefusal::find(secret_type, managed_by) } else { None }
}

impl ReferenceResolver for RenderContext {
    fn resolve(&self, reference: &EntryReference) -> Result<String, ResolveError> {
        let EntryReference { kind, namespace, name, .. } = reference;
        if let Some(message) = self.forbidden_objects.get(&(*kind, namespace.clone(), name.clone()))
        {
            let (reference, message) = (reference.clone(), message.clone());
            return Err(ResolveError::Forbidden { reference, message });
        }
        self.secret_and_config_map_entries.get(reference).cloned().ok_or_else(|| {
            let mut keys = self.secret_and_config_map_entries.keys();
            let exists = keys.any(|other| {
                other.kind == *kind && other.namespace == *namespace && other.name == *name
            });
            if exists {
                ResolveError::EntryNotFound(reference.clone())
            } else {
                ResolveError::ObjectNotFound(reference.clone())
            }
        })
    }
}

impl InstanceType {
    /// Reads an instance type from its JSON.
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let scheduler = object.pointer("/spec/schedulerName").and_then(Value::as_str);
        let selector = object.pointer("/spec/nodeSelector").and_then(Value::as_object);
        let dedicated = object.pointer("/spec/cpu/dedicatedCPUPlacement").and_then(Value::as_bool);
        let devices = DEVICE_LISTS.map(|(field, _)| {
            let all = object["spec"][field].as_array().into_iter().flatten();
            all.map(|one| one["deviceName"].as_str().unwrap_or_default().to_owned()).collect()
        });
        Self {
            scheduler_name: scheduler.filter(|name| !name.is_empty()).map(str::to_owned),
            has_node_selector: selector.is_some_and(|selector| !selector.is_empty()),
            has_dedicated_cpus: dedicated == Some(true),
            devices,
        }
    }
}

impl StorageClass {
    /// Reads a StorageClass from its JSON.
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let list =
            |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let terms = list(object.get("allowedTopologies")).into_iter().map(|term| {
            let labels = list(term.get("matchLabelExpressions")).into_iter();
            let label = |label: Value| {
                let values = list(label.get("values"));
                (label.get("key").map(text).unwrap_or_default(), values.iter().map(text).collect())
            };
            labels.map(label).collect()
        });
        let annotations = object.pointer("/metadata/annotations");
        let annotation = annotations.and_then(|all| all.get(INITIALIZE_ANNOTATION));
        Self {
            provisioner: object.get("provisioner").map(text).unwrap_or_default(),
            allows_expansion: object.get("allowVolumeExpansion") == Some(&Value::Bool(true)),
            is_initialized: annotation.is_some_and(|value| value == "true"),
            topologies: terms.collect(),
        }
    }
}
