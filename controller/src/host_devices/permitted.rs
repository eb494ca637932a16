//! Entries of `permittedHostDevices.pciHostDevices` of the KubeVirt object: which are missing, and which Berth has added.
//!
//! The list is atomic (KubeVirt: `staging/src/kubevirt.io/api/core/v1/types.go`), so a server-side apply must contain the
//! entries of others too, and has a conflict if another field manager owns the list and an entry would change.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::names::PERMITTED_DEVICES_ANNOTATION;
use berth_api::{HostDevices, PciId};
use serde_json::{Value, json};

/// JSON pointer to the entries in the KubeVirt object.
const LIST_POINTER: &str = "/spec/configuration/permittedHostDevices/pciHostDevices";

/// An entry: VMs may use the functions with an id through a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciHostDevice {
    pub id: PciId,
    /// Name of the device plugin resource.
    pub resource: String,
    /// True if the device plugin of a vendor provides the resource.
    pub is_external: bool,
}

impl PciHostDevice {
    /// Returns the entries that the InfraConfig allows.
    #[must_use]
    pub fn of_config(devices: &HostDevices) -> Vec<Self> {
        let entries = devices.allowed.iter().flat_map(|allowed| {
            allowed.ids.iter().map(|id| Self {
                id: *id,
                resource: allowed.resource_name.clone(),
                is_external: allowed.external_resource_provider == Some(true),
            })
        });
        entries.collect()
    }

    /// Returns the entry that is proposed for functions with an id that the InfraConfig does not mention.
    #[must_use]
    pub fn proposed(id: PciId) -> Self {
        let resource = format!("pci.berth.dev/{:04x}-{:04x}", id.vendor, id.device);
        Self { id, resource, is_external: false }
    }

    /// Returns the entry as KubeVirt expects it.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut entry =
            json!({"pciVendorSelector": self.id.to_string(), "resourceName": self.resource});
        if self.is_external {
            entry["externalResourceProvider"] = true.into();
        }
        entry
    }

    fn key(&self) -> String {
        key(self.id, &self.resource)
    }
}

/// Change of the entries of the KubeVirt object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermittedPlan {
    /// Body of a server-side apply; `None` if the object has all entries.
    pub apply: Option<Value>,
    /// Entries that the apply adds, as `ID=RESOURCE`.
    pub added: Vec<String>,
    /// Entries that are not added because another entry has the id, each with the other entry.
    pub refused: Vec<String>,
    /// Number of entries that Berth has not added.
    pub other_count: usize,
}

/// Returns the entries of the KubeVirt object.
#[must_use]
pub fn permitted_list(kubevirt: &Value) -> Vec<Value> {
    kubevirt.pointer(LIST_POINTER).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Returns the ids in the entries of the KubeVirt object.
#[must_use]
pub fn permitted_ids(kubevirt: &Value) -> BTreeSet<PciId> {
    permitted_list(kubevirt).iter().filter_map(|entry| Some(read_entry(entry)?.0)).collect()
}

/// Compares the entries of the KubeVirt object with the desired ones. Entries that Berth has added and that are not desired are
/// removed; all other entries stay.
#[must_use]
pub fn plan_permitted(kubevirt: &Value, desired: &[PciHostDevice]) -> PermittedPlan {
    let current = permitted_list(kubevirt);
    let recorded = recorded_keys(kubevirt);
    let mut plan = PermittedPlan::default();
    let desired = unique_devices(desired, &mut plan.refused);
    let (mut list, mut present, mut others) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
    for entry in &current {
        let read = read_entry(entry);
        let own = read.map(|(id, resource)| key(id, resource)).filter(|key| recorded.contains(key));
        match own {
            Some(key) => {
                if let Some(device) = desired.get(&key) {
                    list.push(device.to_value());
                    present.insert(key);
                }
            }
            None => {
                list.push(entry.clone());
                plan.other_count = plan.other_count.saturating_add(1);
                if let Some((id, resource)) = read {
                    others.insert(id, resource.to_owned());
                }
            }
        }
    }
    for (key, device) in &desired {
        match others.get(&device.id) {
            // Another manager has added the same entry.
            Some(resource) if *resource == device.resource => {}
            Some(resource) => {
                let id = device.id;
                plan.refused.push(format!("{key}: the KubeVirt object has {id}={resource}"));
            }
            None if present.contains(key) => {}
            None => {
                list.push(device.to_value());
                present.insert(key.clone());
                plan.added.push(key.clone());
            }
        }
    }
    if list != current || present != recorded {
        plan.apply = Some(apply_body(kubevirt, list, &present));
    }
    plan
}

/// Returns the desired entries by key, one for each id. KubeVirt would offer the functions of an id with two resources twice, so
/// the entries after the first are refused.
fn unique_devices<'d>(
    desired: &'d [PciHostDevice],
    refused: &mut Vec<String>,
) -> BTreeMap<String, &'d PciHostDevice> {
    let mut by_id: BTreeMap<PciId, &PciHostDevice> = BTreeMap::new();
    for device in desired {
        let first = *by_id.entry(device.id).or_insert(device);
        if first.resource != device.resource {
            refused.push(format!(
                "{}: hostDevices.allowed has {} before it",
                device.key(),
                first.key()
            ));
        }
    }
    by_id.into_values().map(|device| (device.key(), device)).collect()
}

/// Returns the body of a server-side apply of all entries. The list is always a part of the body: if it were left out, the API
/// server would remove the list with the entries of others. The API server refuses the body if the object has changed.
fn apply_body(kubevirt: &Value, list: Vec<Value>, own: &BTreeSet<String>) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion"] {
        metadata[field] = kubevirt["metadata"][field].clone();
    }
    if !own.is_empty() {
        let text = own.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        metadata["annotations"] = json!({PERMITTED_DEVICES_ANNOTATION: text});
    }
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": metadata,
        "spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": list}}},
    })
}

fn recorded_keys(kubevirt: &Value) -> BTreeSet<String> {
    let text = kubevirt["metadata"]["annotations"][PERMITTED_DEVICES_ANNOTATION].as_str();
    let keys = text.unwrap_or_default().split(',').filter(|key| !key.is_empty());
    keys.map(str::to_owned).collect()
}

fn key(id: PciId, resource: &str) -> String {
    format!("{id}={resource}")
}

/// Returns the id and the resource of an entry; `None` if the entry is malformed.
fn read_entry(entry: &Value) -> Option<(PciId, &str)> {
    let id = entry.get("pciVendorSelector")?.as_str()?.parse().ok()?;
    Some((id, entry.get("resourceName")?.as_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(id: &str, resource: &str) -> PciHostDevice {
        PciHostDevice { id: id.parse().unwrap(), resource: resource.to_owned(), is_external: false }
    }

    fn kubevirt(entries: &[PciHostDevice], own: Option<&str>) -> Value {
        let list: Vec<Value> = entries.iter().map(PciHostDevice::to_value).collect();
        let mut object = json!({
            "metadata": {"name": "kubevirt", "namespace": "kubevirt", "uid": "u", "resourceVersion": "3"},
            "spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": list}}},
        });
        if let Some(own) = own {
            object["metadata"]["annotations"] =
                json!({PERMITTED_DEVICES_ANNOTATION: own, "other": "x"});
        }
        object
    }

    fn applied_list(plan: &PermittedPlan) -> Vec<Value> {
        plan.apply.as_ref().map(permitted_list).unwrap()
    }

    #[test]
    fn entries_of_the_config_are_read() {
        let devices: HostDevices = serde_json::from_value(json!({"allowed": [
            {"resourceName": "a/x", "ids": ["10DE:20B5", "10de:20b6"], "externalResourceProvider": true},
            {"resourceName": "b/y"},
        ]}))
        .unwrap();
        let read = PciHostDevice::of_config(&devices);
        let first = json!({"pciVendorSelector": "10de:20b5", "resourceName": "a/x", "externalResourceProvider": true});
        assert_eq!((read.len(), read[0].to_value()), (2, first));
        let proposed = PciHostDevice::proposed("144d:a80a".parse().unwrap());
        assert_eq!(proposed.resource, "pci.berth.dev/144d-a80a");
    }

    #[test]
    fn missing_entries_are_added_after_those_of_others() {
        let other = device("10de:1eb8", "nvidia.com/T4");
        let own = device("144d:a80a", "pci.berth.dev/144d-a80a");
        let plan = plan_permitted(
            &kubevirt(std::slice::from_ref(&other), None),
            std::slice::from_ref(&own),
        );
        assert_eq!(applied_list(&plan), [other.to_value(), own.to_value()]);
        assert_eq!((plan.other_count, plan.added.len()), (1, 1));
        let body = plan.apply.unwrap();
        let recorded = "144d:a80a=pci.berth.dev/144d-a80a";
        let metadata = json!({
            "name": "kubevirt", "namespace": "kubevirt", "uid": "u", "resourceVersion": "3",
            "annotations": {PERMITTED_DEVICES_ANNOTATION: recorded},
        });
        assert_eq!(body["metadata"], metadata);
        let after = kubevirt(&[other, own.clone()], Some(recorded));
        assert_eq!(plan_permitted(&after, &[own]).apply, None);
        let empty = plan_permitted(&json!({"metadata": {"name": "kubevirt"}}), &[]);
        assert_eq!(empty, PermittedPlan::default());
    }

    #[test]
    fn only_own_entries_are_removed() {
        let (other, own) = (device("10de:1eb8", "nvidia.com/T4"), device("144d:a80a", "a/x"));
        let object = kubevirt(&[own.clone(), other.clone()], Some("144d:a80a=a/x"));
        let plan = plan_permitted(&object, &[]);
        assert_eq!(applied_list(&plan), [other.to_value()]);
        assert_eq!(plan.apply.unwrap()["metadata"].get("annotations"), None);
        // A renamed resource replaces the own entry, also if a user has removed the entry.
        let renamed = device("144d:a80a", "b/y");
        let plan = plan_permitted(&object, std::slice::from_ref(&renamed));
        assert_eq!(applied_list(&plan), [other.to_value(), renamed.to_value()]);
        let removed = kubevirt(&[], Some("144d:a80a=a/x"));
        let plan = plan_permitted(&removed, std::slice::from_ref(&own));
        assert_eq!(applied_list(&plan), [own.to_value()]);
    }

    #[test]
    fn an_id_gets_one_resource() {
        let (first, second) = (device("144d:a80a", "b/y"), device("144d:a80a", "a/x"));
        let desired = [first.clone(), first.clone(), second];
        let plan = plan_permitted(&kubevirt(&[], None), &desired);
        assert_eq!(applied_list(&plan), [first.to_value()]);
        assert_eq!(
            plan.refused,
            ["144d:a80a=a/x: hostDevices.allowed has 144d:a80a=b/y before it"]
        );
        // An own entry with the refused resource is replaced.
        let second = device("144d:a80a", "a/x");
        let object = kubevirt(std::slice::from_ref(&second), Some("144d:a80a=a/x"));
        assert_eq!(applied_list(&plan_permitted(&object, &desired)), [first.to_value()]);
    }

    #[test]
    fn entries_of_others_with_the_same_id_stay() {
        let other = device("144d:a80a", "samsung.com/pm9a3");
        let object = kubevirt(std::slice::from_ref(&other), None);
        let plan = plan_permitted(&object, std::slice::from_ref(&other));
        assert_eq!((plan.apply, plan.refused.len()), (None, 0), "the same entry");
        let plan = plan_permitted(&object, &[device("144d:a80a", "a/x")]);
        assert_eq!(plan.apply, None);
        assert_eq!(
            plan.refused,
            ["144d:a80a=a/x: the KubeVirt object has 144d:a80a=samsung.com/pm9a3"]
        );
        let mut odd = object;
        odd["spec"]["configuration"]["permittedHostDevices"]["pciHostDevices"] =
            json!([7, {"resourceName": 1}]);
        let plan = plan_permitted(&odd, &[device("144d:a80a", "a/x")]);
        assert_eq!(applied_list(&plan).len(), 3);
        assert_eq!(permitted_ids(&odd), BTreeSet::new());
    }
}
