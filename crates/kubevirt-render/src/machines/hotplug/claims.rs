//! PersistentVolumeClaims of removed disks, which annotations of the VirtualMachine record, and their DataVolumes.

use std::collections::BTreeSet;

use berth_api::names;
use serde_json::{Value, json};

use super::lists::{VOLUMES, elements};
use crate::machines::controller_reference::controller_reference;
use crate::machines::storage::{hotplug_claim_prefix, hotplug_volume_name};

/// Returns the names of the DataVolumes that were removed from a VirtualMachine and are not deleted yet.
#[must_use]
pub fn detached_claims(vm: &Value) -> BTreeSet<String> {
    recorded_claims(vm, names::DETACHED_DISKS_ANNOTATION)
}

/// Returns the names of the DataVolumes of removed disks that are retained.
#[must_use]
pub fn retained_claims(vm: &Value) -> BTreeSet<String> {
    let machine = vm["metadata"]["name"].as_str().unwrap_or_default();
    own_claims(recorded_claims(vm, names::RETAINED_DISKS_ANNOTATION), machine)
}

/// Returns those of the recorded claims that have a name of a disk of the machine. Tenants may write the annotation.
pub(in crate::machines) fn own_claims(
    mut claims: BTreeSet<String>,
    machine: &str,
) -> BTreeSet<String> {
    let prefix = hotplug_claim_prefix(machine);
    claims.retain(|claim| claim.starts_with(prefix.as_str()));
    claims
}

fn recorded_claims(vm: &Value, annotation: &str) -> BTreeSet<String> {
    split_claims(vm["metadata"]["annotations"][annotation].as_str().unwrap_or_default())
}

/// Returns the claims in the value of an annotation.
pub(in crate::machines) fn split_claims(text: &str) -> BTreeSet<String> {
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Returns the merge patch of the VirtualMachine `vm` that records the DataVolumes that are not deleted yet.
#[must_use]
pub fn detached_patch(vm: &Value, remaining: &BTreeSet<String>) -> Value {
    annotation_patch(vm, names::DETACHED_DISKS_ANNOTATION, remaining)
}

/// Returns the merge patch of the VirtualMachine `vm` that records the retained DataVolumes.
#[must_use]
pub fn retained_patch(vm: &Value, remaining: &BTreeSet<String>) -> Value {
    annotation_patch(vm, names::RETAINED_DISKS_ANNOTATION, remaining)
}

fn annotation_patch(vm: &Value, annotation: &str, claims: &BTreeSet<String>) -> Value {
    json!({"metadata": {
        "resourceVersion": vm["metadata"]["resourceVersion"],
        "annotations": {annotation: join_claims(claims)},
    }})
}

/// Returns the value of an annotation: `null`, which removes it, if there are no claims.
pub(super) fn join_claims(claims: &BTreeSet<String>) -> Value {
    match claims.is_empty() {
        true => Value::Null,
        false => claims.iter().map(String::as_str).collect::<Vec<_>>().join(",").into(),
    }
}

/// Returns true if a VirtualMachine or its VirtualMachineInstance uses a removed DataVolume. KubeVirt removes a volume from
/// `status.volumeStatus` after the guest has released the disk and the volume is unmounted (KubeVirt:
/// `pkg/virt-controller/watch/vmi/volume-hotplug.go`).
#[must_use]
pub fn is_claim_in_use(vm: &Value, instance: Option<&Value>, claim: &str) -> bool {
    let is_source = |volume: &Value| {
        volume["dataVolume"]["name"] == claim
            || volume["persistentVolumeClaim"]["claimName"] == claim
    };
    let machine = vm["metadata"]["name"].as_str().unwrap_or_default();
    let disk = claim.strip_prefix(hotplug_claim_prefix(machine).as_str());
    let volume_name = disk.map(hotplug_volume_name).unwrap_or_default();
    let is_status = |status: &Value| {
        status["persistentVolumeClaimInfo"]["claimName"] == claim || status["name"] == *volume_name
    };
    elements(vm, VOLUMES).any(is_source)
        || instance.is_some_and(|instance| {
            elements(instance, "/spec/volumes").any(is_source)
                || elements(instance, "/status/volumeStatus").any(is_status)
        })
}

/// Returns true if a DataVolume is that of a hotpluggable disk of a VirtualMachine, so that Berth may delete it.
#[must_use]
pub fn is_own_volume(data_volume: &Value, vm: &Value) -> bool {
    let uid = &vm["metadata"]["uid"];
    let owner = controller_reference(data_volume);
    data_volume["metadata"]["labels"][names::HOTPLUG_DISK_LABEL].is_string()
        && uid.is_string()
        && owner.is_some_and(|owner| owner["uid"] == *uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::hotplug::plan::tests::machine;

    #[test]
    fn a_claim_is_in_use_until_the_instance_has_released_it() {
        let vm = machine(&[]);
        let claim = "web-1-disk-data";
        let is_used = |instance: Value| is_claim_in_use(&vm, Some(&instance), claim);
        assert!(!is_claim_in_use(&vm, None, claim));
        assert!(is_claim_in_use(&machine(&[("data", "1Gi")]), None, claim));
        let volume = json!({"name": "disk-data", "dataVolume": {"name": claim}});
        assert!(is_used(json!({"spec": {"volumes": [volume]}})));
        let status =
            |status: Value| json!({"spec": {"volumes": []}, "status": {"volumeStatus": [status]}});
        assert!(is_used(status(json!({"name": "disk-data", "phase": "Detaching"}))));
        let info = json!({"name": "x", "persistentVolumeClaimInfo": {"claimName": claim}});
        assert!(is_used(status(info)));
        assert!(!is_used(status(json!({"name": "disk-database"}))));
        assert!(!is_used(json!({"status": 7})));
    }

    #[test]
    fn retained_claims_of_other_names_are_ignored() {
        let mut vm = machine(&[]);
        let recorded = "web-1-disk-data,web-2-disk-data,web-1,x";
        vm["metadata"]["annotations"] = json!({names::RETAINED_DISKS_ANNOTATION: recorded});
        assert_eq!(retained_claims(&vm), BTreeSet::from(["web-1-disk-data".to_owned()]));
    }

    #[test]
    fn only_own_data_volumes_are_deleted() {
        let vm = machine(&[]);
        let volume = |labels: Value, uid: &str| {
            let owner = json!({"uid": uid, "controller": true, "kind": "VirtualMachine"});
            json!({"metadata": {"labels": labels, "ownerReferences": [owner]}})
        };
        let label = json!({names::HOTPLUG_DISK_LABEL: "data"});
        assert!(is_own_volume(&volume(label.clone(), "u-1"), &vm));
        assert!(!is_own_volume(&volume(label.clone(), "u-2"), &vm));
        assert!(!is_own_volume(&volume(json!({}), "u-1"), &vm));
        assert!(!is_own_volume(&volume(label, "u-1"), &json!({})));
    }
}
