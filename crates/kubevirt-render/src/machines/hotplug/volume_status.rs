//! State of hotpluggable disks in the status of a VirtualMachineInstance.

use std::fmt;

use serde_json::Value;

use super::lists::elements;
use crate::machines::storage::hotplug_volume_name;

/// Phases of a volume that is attached, or is being detached (KubeVirt: `VolumePhase`).
const OTHER_PHASES: [&str; 3] = ["Ready", "Detaching", "UnMountedFromPod"];
/// Maximum length of a text of KubeVirt in a message, in characters.
const MAX_TEXT_LENGTH: usize = 200;

/// A hotpluggable disk that KubeVirt has not attached to a running guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnattachedDisk {
    /// Name of the disk in the MachineDeployment.
    pub disk: String,
    /// Field `phase` in `status.volumeStatus` of the VirtualMachineInstance.
    pub phase: String,
    /// Field `reason`.
    pub reason: String,
    /// Field `message`.
    pub message: String,
}

impl fmt::Display for UnattachedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { disk, phase, reason, message } = self;
        write!(f, "disk {disk} is not attached: phase `{phase}`")?;
        for text in [reason, message].into_iter().filter(|text| !text.is_empty()) {
            write!(f, ", {text}")?;
        }
        Ok(())
    }
}

/// Returns true if an element of `status.volumeStatus` is that of a hotpluggable disk that is not attached.
#[must_use]
pub fn is_unattached(status: &Value) -> bool {
    let phase = status["phase"].as_str().unwrap_or_default();
    status["hotplugVolume"].is_object()
        && disk_name(status).is_some()
        && !OTHER_PHASES.contains(&phase)
}

/// Returns the hotpluggable disks of a running VirtualMachineInstance that are not attached.
#[must_use]
pub fn unattached_disks(instance: &Value) -> Vec<UnattachedDisk> {
    if instance["status"]["phase"] != "Running" {
        return Vec::new();
    }
    let unattached = elements(instance, "/status/volumeStatus").filter(|one| is_unattached(one));
    unattached.filter_map(UnattachedDisk::from_status).collect()
}

impl UnattachedDisk {
    fn from_status(status: &Value) -> Option<Self> {
        let text = |field: &str| {
            let text = status[field].as_str().unwrap_or_default();
            text.chars().take(MAX_TEXT_LENGTH).collect::<String>()
        };
        Some(Self {
            disk: disk_name(status)?.to_owned(),
            phase: text("phase"),
            reason: text("reason"),
            message: text("message"),
        })
    }
}

fn disk_name(status: &Value) -> Option<&str> {
    status["name"].as_str()?.strip_prefix(hotplug_volume_name("").as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn disks_that_are_not_attached_are_reported() {
        let status = |name: &str, phase: &str| {
            json!({"name": name, "phase": phase, "reason": "PVCNotReady", "message": "PVC is in phase Lost",
                "hotplugVolume": {"attachPodName": "hp-volume-x"}})
        };
        let mut cold = status("disk-cold", "Pending");
        cold["hotplugVolume"] = Value::Null;
        let volumes = json!([
            status("disk-data", "Pending"),
            status("disk-log", "Ready"),
            status("disk-old", "Detaching"),
            status("pvc-7", "Pending"),
            cold,
            7,
        ]);
        let instance = |phase: &str| json!({"status": {"phase": phase, "volumeStatus": volumes}});
        let unattached = unattached_disks(&instance("Running"));
        let [one] = unattached.as_slice() else { panic!("{unattached:?}") };
        assert_eq!(
            one.to_string(),
            "disk data is not attached: phase `Pending`, PVCNotReady, PVC is in phase Lost"
        );
        assert!(unattached_disks(&instance("Scheduling")).is_empty());
        let mut long = status("disk-data", "Pending");
        long["message"] = "ä".repeat(9_000).into();
        let long = UnattachedDisk::from_status(&long).unwrap();
        assert_eq!(long.message.chars().count(), MAX_TEXT_LENGTH);
        assert!(
            unattached_disks(&json!({"status": {"phase": "Running", "volumeStatus": 7}}))
                .is_empty()
        );
    }
}
