//! Hashes of the template of a MachineDeployment: one of the parts whose change replaces machines, and one of the disks
//! that are added to and removed from running machines.
//!
//! The hashes are computed from the template as the user wrote it, so that all releases of Berth compute the same ones. A
//! template without hotpluggable disks has the hash of releases that do not know them.

use serde_json::{Map, Value, json};

use crate::stable_hash::{safe_encode, stable_hash};

/// Path from the template to the secondary disks, up to the field that contains them.
const DISKS_PARENT: [&str; 6] =
    ["spec", "providerSpec", "value", "cloudProviderSpec", "virtualMachine", "template"];
const DISKS_FIELD: &str = "secondaryDisks";

/// Hashes of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TemplateRevisions {
    /// Hash of the template without hotpluggable disks.
    pub(super) replacing: String,
    /// Hash of an equivalent template: if the template has no other secondary disks, `secondaryDisks` may be absent or
    /// empty. Otherwise the removal of the last hotpluggable disk would replace machines.
    pub(super) equivalent: Option<String>,
    /// Hash of the hotpluggable disks; `None` if there are none.
    pub(super) hotplug: Option<String>,
}

impl TemplateRevisions {
    /// Computes the hashes of `spec.template` of a MachineDeployment.
    pub(super) fn of_object(object: &Value) -> Self {
        let Some(template) = object.pointer("/spec/template") else {
            return Self { replacing: hash(""), ..Self::default() };
        };
        let mut template = template.clone();
        let hotplug = take_hotpluggable_disks(&mut template);
        let replacing = hash(&template.to_string());
        let equivalent = toggle_empty_disks(&mut template).then(|| hash(&template.to_string()));
        let hotplug = (!hotplug.is_empty()).then(|| hash(&Value::Array(hotplug).to_string()));
        Self { replacing, equivalent, hotplug }
    }
}

fn hash(text: &str) -> String {
    safe_encode(stable_hash(text.bytes()), 10)
}

/// Removes the hotpluggable disks from a template, and returns them. If no other disks remain, the whole list is removed.
fn take_hotpluggable_disks(template: &mut Value) -> Vec<Value> {
    let Some(parent) = disks_parent(template) else { return Vec::new() };
    let Some(key) = field_key(parent, DISKS_FIELD) else { return Vec::new() };
    let Some(disks) = parent.get_mut(&key).and_then(Value::as_array_mut) else {
        return Vec::new();
    };
    let all = std::mem::take(disks);
    let (hotplug, others): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_hotpluggable);
    let is_removed = others.is_empty() && !hotplug.is_empty();
    *disks = others;
    if is_removed {
        parent.remove(&key);
    }
    hotplug
}

/// Adds an empty list of secondary disks if there is none, or removes an empty list. Returns false if the template has
/// secondary disks, or cannot have any.
fn toggle_empty_disks(template: &mut Value) -> bool {
    let Some(parent) = disks_parent(template) else { return false };
    match field_key(parent, DISKS_FIELD) {
        None => {
            parent.insert(DISKS_FIELD.to_owned(), json!([]));
            true
        }
        Some(key) => {
            let is_empty = parent.get(&key).and_then(Value::as_array).is_some_and(Vec::is_empty);
            if is_empty {
                parent.remove(&key);
            }
            is_empty
        }
    }
}

fn is_hotpluggable(disk: &Value) -> bool {
    let fields = disk.as_object();
    let field = fields.and_then(|fields| fields.get(&field_key(fields, "hotpluggable")?));
    field == Some(&Value::Bool(true))
}

fn disks_parent(template: &mut Value) -> Option<&mut Map<String, Value>> {
    let mut object = template.as_object_mut()?;
    for name in DISKS_PARENT {
        let key = field_key(object, name)?;
        object = object.get_mut(&key)?.as_object_mut()?;
    }
    Some(object)
}

/// Returns the key of a field. The parser of the providerSpec ignores the case of names, as Go's encoding/json does.
fn field_key(object: &Map<String, Value>, name: &str) -> Option<String> {
    if object.contains_key(name) {
        return Some(name.to_owned());
    }
    object.keys().find(|key| key.eq_ignore_ascii_case(name)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revisions(machine_template: &Value) -> TemplateRevisions {
        let value =
            json!({"cloudProviderSpec": {"virtualMachine": {"template": machine_template}}});
        let template = json!({"spec": {"providerSpec": {"value": value}}});
        TemplateRevisions::of_object(&json!({"spec": {"template": template}}))
    }

    fn hot(name: &str, size: &str) -> Value {
        json!({"name": name, "size": size, "hotpluggable": true})
    }

    #[test]
    fn a_template_without_hotpluggable_disks_keeps_its_hash() {
        let template = json!({"spec": {"providerSpec": {"value": {"cloudProviderSpec": {}}}}});
        let object = json!({"spec": {"template": template}});
        let read = TemplateRevisions::of_object(&object);
        let expected = safe_encode(stable_hash(template.to_string().bytes()), 10);
        assert_eq!(read, TemplateRevisions { replacing: expected, ..Default::default() });
        let none = TemplateRevisions::of_object(&json!({"spec": {}}));
        assert_eq!(none.replacing, safe_encode(stable_hash("".bytes()), 10));
        for odd in [json!({"secondaryDisks": "x"}), json!({"secondaryDisks": [7, {"size": "1Gi"}]})]
        {
            let read = revisions(&odd);
            assert_eq!((read.equivalent, read.hotplug), (None, None), "{odd}");
        }
    }

    #[test]
    fn hotpluggable_disks_do_not_replace_machines() {
        let cold = json!({"size": "5Gi"});
        let base = revisions(&json!({"cpus": "2", "secondaryDisks": [cold]}));
        assert_eq!((base.equivalent.as_ref(), base.hotplug.as_ref()), (None, None));
        let added = revisions(&json!({"cpus": "2", "secondaryDisks": [hot("a", "1Gi"), cold]}));
        assert_eq!(added.replacing, base.replacing);
        let grown = revisions(&json!({"cpus": "2", "secondaryDisks": [hot("a", "2Gi"), cold]}));
        assert_eq!(grown.replacing, base.replacing);
        assert!(added.hotplug.is_some() && added.hotplug != grown.hotplug);
        let other = json!({"size": "6Gi", "hotpluggable": false});
        let changed = revisions(&json!({"cpus": "2", "secondaryDisks": [hot("a", "1Gi"), other]}));
        assert_ne!(changed.replacing, base.replacing);
        assert_eq!(changed.hotplug, added.hotplug);
    }

    #[test]
    fn the_first_and_the_last_hotpluggable_disk_do_not_replace_machines() {
        let (absent, empty) = (json!({"cpus": "2"}), json!({"cpus": "2", "secondaryDisks": []}));
        let (absent, empty) = (revisions(&absent), revisions(&empty));
        let one = revisions(&json!({"cpus": "2", "SecondaryDisks": [hot("a", "1Gi")]}));
        assert_eq!(one.replacing, absent.replacing);
        assert_eq!(one.equivalent.as_ref(), Some(&empty.replacing));
        assert_eq!(absent.equivalent.as_ref(), Some(&empty.replacing));
        assert_eq!(empty.equivalent.as_ref(), Some(&absent.replacing));
    }
}
