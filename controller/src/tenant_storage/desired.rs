//! StorageClasses that each tenant's cluster should have.

use std::collections::BTreeMap;

use berth_api::{InfraConfigSpec, InfraStorageClass, VolumeBindingMode};

use super::infra_class::InfraClass;
use super::topology::Topologies;

/// Name of KubeVirt's CSI driver.
pub const PROVISIONER: &str = "csi.kubevirt.io";
/// Parameter of KubeVirt's CSI driver: name of the StorageClass in the infra cluster with which the driver creates
/// volumes.
pub const INFRA_CLASS_PARAMETER: &str = "infraStorageClassName";
/// Parameter of KubeVirt's CSI driver: bus of the disks. The value is the driver's default, and permits hot-plugging.
const BUS_PARAMETER: (&str, &str) = ("bus", "scsi");
/// Prefix of the names of the StorageClasses that Berth creates; the rest is the name of the class in the infra
/// cluster. KKP uses the same names.
pub const NAME_PREFIX: &str = "kubevirt-";
/// Maximum length of an object name in Kubernetes, in characters.
const MAX_NAME_LENGTH: usize = 253;

/// Fields of a StorageClass that the API server permits only to be set at the creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImmutableFields {
    /// Name of the CSI driver.
    pub provisioner: String,
    /// Parameters for the driver.
    pub parameters: BTreeMap<String, String>,
    pub reclaim_policy: String,
    pub volume_binding_mode: String,
}

/// Mutable fields of a StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MutableFields {
    /// True if the class is the default class for PersistentVolumeClaims without a class.
    pub is_default: bool,
    /// True if volumes can be expanded.
    pub allow_volume_expansion: bool,
    /// Zones and regions in which storage of the class is available.
    pub topologies: Topologies,
}

/// A StorageClass that each tenant's cluster should have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredClass {
    /// Fields that can be set only at the creation of the class.
    pub immutable: ImmutableFields,
    /// Fields that are applied again if they differ from the actual ones.
    pub mutable: MutableFields,
}

/// The StorageClasses that each tenant's cluster should have, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredClasses {
    /// Classes that can be created.
    pub classes: BTreeMap<String, DesiredClass>,
    /// Names of classes that the InfraConfig lists, but that do not exist in the infra cluster.
    pub missing: Vec<String>,
    /// Names of classes in the infra cluster whose names in tenants' clusters would be too long.
    pub too_long: Vec<String>,
}

impl DesiredClasses {
    /// Computes the desired classes from the list in the InfraConfig and from `infra`, the classes of the infra cluster
    /// by name.
    #[must_use]
    pub fn new(config: &InfraConfigSpec, infra: &BTreeMap<String, InfraClass>) -> Self {
        let mut listed: BTreeMap<&str, InfraStorageClass> = BTreeMap::new();
        let mut default = None;
        for class in &config.infra_storage_classes {
            listed.entry(&class.name).or_insert_with(|| class.clone());
            if class.is_default_class == Some(true) && class.is_for_tenants() && default.is_none() {
                default = Some(class.name.as_str());
            }
        }
        for (name, _) in infra.iter().filter(|(_, class)| class.is_initialized) {
            let entry = InfraStorageClass { name: name.clone(), ..InfraStorageClass::default() };
            listed.entry(name).or_insert(entry);
        }
        let mut desired = Self::default();
        for (name, entry) in listed.into_iter().filter(|(_, entry)| entry.is_for_tenants()) {
            let tenant_name = format!("{NAME_PREFIX}{name}");
            match infra.get(name) {
                None => desired.missing.push(name.to_owned()),
                Some(_) if tenant_name.len() > MAX_NAME_LENGTH => {
                    desired.too_long.push(name.to_owned());
                }
                Some(class) => {
                    let class = desired_class(&entry, class, default == Some(name));
                    desired.classes.insert(tenant_name, class);
                }
            }
        }
        desired
    }

    /// Returns true if tenants' clusters should have no class.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty() && self.missing.is_empty() && self.too_long.is_empty()
    }

    /// Returns true if `name`, a class in a tenant's cluster, belongs to a class of the infra cluster that tenants may
    /// use.
    #[must_use]
    pub fn is_permitted(&self, name: &str) -> bool {
        let infra_name = name.strip_prefix(NAME_PREFIX);
        let is_missing = |infra: &str| self.missing.iter().any(|missing| missing == infra);
        self.classes.contains_key(name) || infra_name.is_some_and(is_missing)
    }
}

fn desired_class(entry: &InfraStorageClass, infra: &InfraClass, is_default: bool) -> DesiredClass {
    let mode = entry.volume_binding_mode.or(infra.volume_binding_mode);
    let topologies = match (entry.zones.as_slice(), entry.regions.as_slice()) {
        ([], []) => infra.topologies.clone(),
        (zones, regions) => Topologies::of_zones(zones, regions),
    };
    let parameters = [(INFRA_CLASS_PARAMETER, entry.name.as_str()), BUS_PARAMETER];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    DesiredClass {
        immutable: ImmutableFields {
            provisioner: PROVISIONER.to_owned(),
            parameters: parameters.into(),
            reclaim_policy: entry.reclaim_policy.unwrap_or_default().as_str().to_owned(),
            volume_binding_mode: mode.unwrap_or(VolumeBindingMode::Immediate).as_str().to_owned(),
        },
        mutable: MutableFields {
            is_default,
            allow_volume_expansion: entry
                .allow_volume_expansion
                .unwrap_or(infra.allow_volume_expansion),
            topologies,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn infra(names: &[&str]) -> BTreeMap<String, InfraClass> {
        names.iter().map(|name| ((*name).to_owned(), InfraClass::default())).collect()
    }

    fn desired(list: serde_json::Value, infra: &BTreeMap<String, InfraClass>) -> DesiredClasses {
        let config = serde_json::from_value(json!({"infraStorageClasses": list})).unwrap();
        DesiredClasses::new(&config, infra)
    }

    #[test]
    fn unset_fields_are_those_of_the_infra_class() {
        let mut all = infra(&["fast"]);
        all.insert(
            "fast".to_owned(),
            InfraClass {
                volume_binding_mode: Some(VolumeBindingMode::WaitForFirstConsumer),
                allow_volume_expansion: true,
                topologies: Topologies::of_zones(&["a".to_owned()], &[]),
                ..InfraClass::default()
            },
        );
        let classes = desired(json!([{"name": "fast"}]), &all).classes;
        let class = &classes["kubevirt-fast"];
        assert_eq!(class.immutable.provisioner, "csi.kubevirt.io");
        let parameters = serde_json::to_value(&class.immutable.parameters).unwrap();
        assert_eq!(parameters, json!({"infraStorageClassName": "fast", "bus": "scsi"}));
        assert_eq!(class.immutable.volume_binding_mode, "WaitForFirstConsumer");
        assert_eq!(class.immutable.reclaim_policy, "Delete");
        assert_eq!(class.mutable.topologies, all["fast"].topologies);
        assert!(class.mutable.allow_volume_expansion && !class.mutable.is_default);
        let own = json!([{
            "name": "fast", "isDefaultClass": true, "volumeBindingMode": "Immediate", "reclaimPolicy": "Retain",
            "allowVolumeExpansion": false, "zones": ["b"],
        }]);
        let classes = desired(own, &all).classes;
        let class = &classes["kubevirt-fast"];
        assert_eq!(class.immutable.volume_binding_mode, "Immediate");
        assert_eq!(class.immutable.reclaim_policy, "Retain");
        assert_eq!(class.mutable.topologies, Topologies::of_zones(&["b".to_owned()], &[]));
        assert!(!class.mutable.allow_volume_expansion && class.mutable.is_default);
    }

    #[test]
    fn classes_are_selected_by_list_or_annotation() {
        let mut all = infra(&["disks", "fast", "other"]);
        let long = "x".repeat(250);
        for name in ["disks", "old", long.as_str()] {
            let class = InfraClass { is_initialized: true, ..InfraClass::default() };
            all.insert(name.to_owned(), class);
        }
        let list = json!([
            {"name": "disks", "volumeProvisioner": "infra-csi-driver", "isDefaultClass": true},
            {"name": "fast", "isDefaultClass": true}, {"name": "fast"}, {"name": "gone"},
        ]);
        let found = desired(list, &all);
        let names: Vec<_> = found.classes.keys().map(String::as_str).collect();
        assert_eq!(names, ["kubevirt-fast", "kubevirt-old"]);
        assert!(found.classes["kubevirt-fast"].mutable.is_default);
        assert_eq!(
            (found.missing.as_slice(), found.too_long.as_slice()),
            (&["gone".to_owned()][..], &[long][..])
        );
        assert!(found.is_permitted("kubevirt-gone") && !found.is_permitted("kubevirt-other"));
        assert!(desired(json!([]), &infra(&["a"])).is_empty());
    }
}
