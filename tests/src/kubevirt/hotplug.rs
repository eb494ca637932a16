//! Steps of virt-handler for hotplugged volumes, in `status.volumeStatus` of the VirtualMachineInstance
//! (`updateHotplugVolumeStatus` of pkg/virt-handler/vm.go). virt-controller waits for each of these steps
//! (pkg/virt-controller/watch/vmi/volume-hotplug.go): it creates and deletes the attachment pods.

use std::collections::BTreeSet;

use serde_json::Value;

/// Advances each hotplugged volume of an instance by one step: a volume whose attachment pod runs is mounted in the
/// launcher pod, and then attached to the guest. A volume that is not in the spec any more is unmounted, unless the
/// guest does not release its disks. Returns false if nothing changes.
pub(super) fn advance(instance: &mut Value, releases_disks: bool) -> bool {
    let in_spec: BTreeSet<String> =
        names(&instance["spec"]["volumes"]).map(str::to_owned).collect();
    let is_running = instance["status"]["phase"] == "Running";
    let mut has_changed = false;
    let statuses = instance["status"]["volumeStatus"].as_array_mut().into_iter().flatten();
    for status in statuses.filter(|status| status["hotplugVolume"].is_object()) {
        let is_in_spec = status["name"].as_str().is_some_and(|name| in_spec.contains(name));
        let pod_uid = status["hotplugVolume"]["attachPodUID"].as_str().unwrap_or_default();
        let has_pod = !pod_uid.is_empty();
        let next = match status["phase"].as_str() {
            Some("AttachedToNode") if is_in_spec && has_pod => "MountedToPod",
            Some("MountedToPod") if is_in_spec && is_running => "Ready",
            Some("AttachedToNode" | "MountedToPod" | "Ready") if !is_in_spec && releases_disks => {
                "UnMountedFromPod"
            }
            _ => continue,
        };
        status["phase"] = next.into();
        // The name of the device in the guest. KubeVirt's Go type serializes an unset name as an empty string.
        status["target"] = if next == "Ready" { "sda" } else { "" }.into();
        has_changed = true;
    }
    has_changed
}

/// Returns true if all hotplugged volumes of an instance are mounted in the launcher pod (`hotplugVolumesReady`). Before,
/// virt-handler does not start the guest.
pub(super) fn are_volumes_mounted(instance: &Value) -> bool {
    let volumes = instance["spec"]["volumes"].as_array().into_iter().flatten();
    let is_hotplugged = |volume: &&Value| volume["dataVolume"]["hotpluggable"] == true;
    let statuses = instance["status"]["volumeStatus"].as_array();
    volumes.filter(is_hotplugged).all(|volume| {
        let mut statuses = statuses.into_iter().flatten();
        statuses.any(|status| {
            let is_mounted =
                ["MountedToPod", "Ready"].iter().any(|phase| status["phase"] == *phase);
            status["name"] == volume["name"] && is_mounted
        })
    })
}

/// Returns the names of the objects of a list.
fn names(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(phase: &str, volumes: &Value, status: &Value) -> Value {
        json!({"spec": {"volumes": volumes}, "status": {"phase": phase, "volumeStatus": [status]}})
    }

    #[test]
    fn volumes_are_mounted_attached_and_released() {
        let volume =
            json!([{"name": "data", "dataVolume": {"name": "a-data", "hotpluggable": true}}]);
        let status = |phase: &str, uid: &str| json!({"name": "data", "phase": phase, "target": "", "hotplugVolume": {"attachPodUID": uid}});
        let mut waiting = instance("Scheduled", &volume, &status("AttachedToNode", ""));
        assert!(!advance(&mut waiting, true), "the attachment pod does not run");
        assert!(!are_volumes_mounted(&waiting));
        let mut vmi = instance("Scheduled", &volume, &status("AttachedToNode", "u1"));
        assert!(advance(&mut vmi, true));
        assert_eq!(vmi["status"]["volumeStatus"][0]["phase"], "MountedToPod");
        assert!(are_volumes_mounted(&vmi));
        assert!(!advance(&mut vmi, true), "the guest does not run");
        vmi["status"]["phase"] = "Running".into();
        assert!(advance(&mut vmi, true));
        assert_eq!(vmi["status"]["volumeStatus"][0]["target"], "sda");
        vmi["spec"]["volumes"] = json!([]);
        assert!(!advance(&mut vmi, false), "the guest has not released the disk");
        assert!(advance(&mut vmi, true));
        assert_eq!(vmi["status"]["volumeStatus"][0]["phase"], "UnMountedFromPod");
        assert_eq!(vmi["status"]["volumeStatus"][0]["target"], "");
        assert!(!advance(&mut vmi, true));
        // Volumes that were mounted when the VM started are not changed.
        let permanent = json!({"name": "disk", "phase": "Ready", "target": "vda"});
        assert!(!advance(&mut instance("Running", &json!([]), &permanent), true));
    }
}
