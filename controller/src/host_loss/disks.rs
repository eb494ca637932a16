//! Disks of a machine whose content would be missing in a replacement.

use serde_json::Value;

/// Sources of a volume that are created again for each VM, or are read-only.
const DISPOSABLE_SOURCES: [&str; 11] = [
    "cloudInitNoCloud",
    "cloudInitConfigDrive",
    "configMap",
    "containerDisk",
    "downwardAPI",
    "downwardMetrics",
    "emptyDisk",
    // A temporary overlay on a PersistentVolumeClaim that is only read.
    "ephemeral",
    "secret",
    "serviceAccount",
    "sysprep",
];

/// Sources of a DataVolume that are images, so that a replacement gets the same content.
const IMAGE_SOURCES: [&str; 6] = ["http", "registry", "pvc", "snapshot", "s3", "gcs"];

/// Returns the names of the volumes of a VirtualMachine whose content would be missing in a replacement. `name` is the
/// name of the VirtualMachine, and `vm` the whole object. Any volume that is not known to be disposable is a data disk.
///
/// The root disk is disposable: a DataVolume with the name of the machine, which the machine's own template creates
/// from an image. Hotplugged volumes that the machine's template does not create are not data disks, because the tenant's
/// CSI driver attached them: the tenant's cluster attaches them to another machine when it has detached them from the Node
/// of this machine.
#[must_use]
pub fn data_disks(name: &str, vm: &Value) -> Vec<String> {
    match vm.pointer("/spec/template/spec/volumes") {
        Some(Value::Array(volumes)) => {
            let data = volumes.iter().filter(|volume| !is_disposable(volume, name, vm));
            data.map(volume_name).collect()
        }
        Some(Value::Null) | None => Vec::new(),
        Some(_) => vec!["spec.template.spec.volumes".to_owned()],
    }
}

fn volume_name(volume: &Value) -> String {
    volume["name"].as_str().unwrap_or("a volume without a name").to_owned()
}

fn is_disposable(volume: &Value, name: &str, vm: &Value) -> bool {
    let Some(fields) = volume.as_object() else { return false };
    let mut sources = fields.iter().filter(|(field, _)| *field != "name");
    let (Some((kind, source)), None) = (sources.next(), sources.next()) else { return false };
    match kind.as_str() {
        "persistentVolumeClaim" | "dataVolume" if source["hotpluggable"] == true => {
            own_template(source, vm).is_none()
        }
        "dataVolume" => source["name"] == name && is_from_image(name, vm),
        kind => DISPOSABLE_SOURCES.contains(&kind),
    }
}

/// Returns true if the VirtualMachine's own template creates the DataVolume from an image.
fn is_from_image(name: &str, vm: &Value) -> bool {
    let Some(template) = find_template(name, vm) else { return false };
    let spec = &template["spec"];
    let mut kinds = spec["source"].as_object().into_iter().flatten().map(|(kind, _)| kind);
    spec["sourceRef"].is_object() || kinds.any(|kind| IMAGE_SOURCES.contains(&kind.as_str()))
}

/// Returns the template of the VirtualMachine that creates the DataVolume of a volume.
fn own_template<'v>(source: &Value, vm: &'v Value) -> Option<&'v Value> {
    let name = source["name"].as_str().or_else(|| source["claimName"].as_str())?;
    find_template(name, vm)
}

fn find_template<'v>(name: &str, vm: &'v Value) -> Option<&'v Value> {
    let templates = vm.pointer("/spec/dataVolumeTemplates").and_then(Value::as_array);
    templates.into_iter().flatten().find(|one| one["metadata"]["name"] == name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn machine(volumes: Value) -> Value {
        json!({"spec": {
            "dataVolumeTemplates": [
                {"metadata": {"name": "web-1"}, "spec": {"source": {"http": {"url": "http://x"}}}},
                {"metadata": {"name": "web-1-secondarydisk0"}, "spec": {"source": {"blank": {}}}},
            ],
            "template": {"spec": {"volumes": volumes}},
        }})
    }

    #[test]
    fn a_machine_without_data_disks_has_only_a_root_disk_from_an_image() {
        let root = json!({"name": "datavolumedisk", "dataVolume": {"name": "web-1"}});
        let user_data =
            json!({"name": "cloudinitdisk", "cloudInitNoCloud": {"secretRef": {"name": "u"}}});
        let plain =
            machine(json!([root, user_data, {"name": "c", "containerDisk": {"image": "i"}}]));
        assert!(data_disks("web-1", &plain).is_empty());
        let plugged = json!({"name": "pvc-7", "persistentVolumeClaim": {"claimName": "pvc-7", "hotpluggable": true}});
        assert!(data_disks("web-1", &machine(json!([root, plugged]))).is_empty());
        let own = json!({"name": "disk-a", "dataVolume": {"name": "web-1-secondarydisk0", "hotpluggable": true}});
        assert_eq!(data_disks("web-1", &machine(json!([root, own]))), ["disk-a"]);
        let mut blank = machine(json!([root]));
        blank["spec"]["dataVolumeTemplates"][0]["spec"]["source"] = json!({"blank": {}});
        assert_eq!(data_disks("web-1", &blank), ["datavolumedisk"]);
        let mut foreign = machine(json!([root]));
        foreign["spec"]["dataVolumeTemplates"] = json!([]);
        assert_eq!(data_disks("web-1", &foreign), ["datavolumedisk"]);
    }

    #[test]
    fn other_volumes_are_data_disks() {
        for volume in [
            json!({"name": "d", "dataVolume": {"name": "web-1-secondarydisk0"}}),
            json!({"name": "d", "persistentVolumeClaim": {"claimName": "web-1"}}),
            json!({"name": "d", "hostDisk": {"path": "/x", "type": "Disk"}}),
            json!({"name": "d", "someNewSource": {}}),
            json!({"name": "d"}),
            json!({"name": "d", "secret": {}, "persistentVolumeClaim": {}}),
        ] {
            assert_eq!(data_disks("web-1", &machine(json!([volume]))), ["d"], "{volume}");
        }
        assert_eq!(data_disks("web-1", &machine(json!([7]))).len(), 1);
        assert_eq!(data_disks("web-1", &machine(json!("x"))).len(), 1);
    }

    proptest! {
        #[test]
        fn a_claim_of_any_name_and_place_is_a_data_disk(
            name in "[a-z0-9.-]{1,20}", before in 0_usize..4, extra in "[a-zA-Z]{1,12}",
        ) {
            let secret = json!({"name": "s", "secret": {"secretName": "s"}});
            let mut volumes = vec![secret; before];
            let mut source = json!({"claimName": name});
            if extra != "hotpluggable" {
                source[extra] = true.into();
            }
            volumes.push(json!({"name": "data", "persistentVolumeClaim": source}));
            prop_assert_eq!(data_disks(&name, &machine(volumes.into())), ["data"]);
        }
    }
}
