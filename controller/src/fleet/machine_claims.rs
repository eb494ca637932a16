//! PersistentVolumeClaims of the volumes of machines and pods.

use berth_api::Quantity;
use berth_placement::rules::UnboundClaim;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::kinds::{string_at, value_at};

/// A PersistentVolumeClaim of a machine or pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineClaim {
    /// Name of the claim, in the namespace of the machine or pod.
    pub name: String,
    /// Claim that CDI creates from a template of the machine (`spec.dataVolumeTemplates`); `None` if there is no such
    /// template.
    pub template: Option<UnboundClaim>,
}

/// Returns the claims that the launcher pod of a VirtualMachine or VirtualMachineInstance mounts. Another pod attaches
/// hotplugged volumes.
pub(super) fn machine_claims(object: &Value) -> Vec<MachineClaim> {
    let volumes = ["/spec/template/spec/volumes", "/spec/volumes"];
    let volumes = volumes.into_iter().find_map(|path| value_at(object, path)?.as_array());
    let names = volumes.into_iter().flatten().filter_map(claim_name);
    names
        .map(|name| MachineClaim { name: name.to_owned(), template: template(object, name) })
        .collect()
}

/// Returns the claims that a pod mounts.
#[must_use]
pub fn pod_claims(pod: &Pod) -> Vec<MachineClaim> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let sources = volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    let names = sources.map(|source| source.claim_name.clone());
    names.map(|name| MachineClaim { name, template: None }).collect()
}

/// Returns the name of the claim of a volume (KubeVirt `PVCNameFromVirtVolume`). The claim of a DataVolume has the same
/// name as the DataVolume.
fn claim_name(volume: &Value) -> Option<&str> {
    let sources = [("/dataVolume", "name"), ("/persistentVolumeClaim", "claimName")];
    sources.into_iter().find_map(|(path, field)| {
        let source = value_at(volume, path).filter(|source| source["hotpluggable"] != true)?;
        source.get(field)?.as_str()
    })
}

/// Returns the claim of the machine's own DataVolume with this name. CDI adds the overhead of a file system to the size
/// of a DataVolume with `spec.storage`; the overhead is left out here, because it depends on CDI's configuration.
fn template(object: &Value, name: &str) -> Option<UnboundClaim> {
    let templates = value_at(object, "/spec/dataVolumeTemplates")?.as_array()?;
    let own = templates.iter().find(|template| string_at(template, "/metadata/name") == name)?;
    let claim = ["/spec/storage", "/spec/pvc"].into_iter().find_map(|path| value_at(own, path))?;
    let size: Option<Quantity> = string_at(claim, "/resources/requests/storage").parse().ok();
    Some(UnboundClaim {
        class: string_at(claim, "/storageClassName").to_owned(),
        bytes: size.and_then(|size| u64::try_from(size.whole_units_rounded_up()).ok()),
        selected_node: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_of_launcher_pods_are_read() {
        let volumes = json!([
            {"name": "root", "dataVolume": {"name": "web-1"}},
            {"name": "seed", "cloudInitNoCloud": {"userData": "x"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-1"}},
            {"name": "plugged", "persistentVolumeClaim": {"claimName": "plugged-1", "hotpluggable": true}},
            {"name": "block", "dataVolume": {"name": "block-1"}},
        ]);
        let claim = |class: &str, size: &str| json!({"storageClassName": class, "resources": {"requests": {"storage": size}}});
        let machine = json!({"spec": {
            "dataVolumeTemplates": [
                {"metadata": {"name": "web-1"}, "spec": {"storage": claim("local", "2Ki")}},
                {"metadata": {"name": "block-1"}, "spec": {"pvc": claim("", "much")}},
            ],
            "template": {"spec": {"volumes": volumes}},
        }});
        let expected = |name: &str, template| MachineClaim { name: name.to_owned(), template };
        let local =
            UnboundClaim { class: "local".to_owned(), bytes: Some(2048), selected_node: None };
        assert_eq!(
            machine_claims(&machine),
            [
                expected("web-1", Some(local)),
                expected("data-1", None),
                expected("block-1", Some(UnboundClaim::default())),
            ]
        );
        let instance = json!({"spec": {"volumes": volumes}});
        let names: Vec<String> =
            machine_claims(&instance).into_iter().map(|claim| claim.name).collect();
        assert_eq!(names, ["web-1", "data-1", "block-1"]);
        assert!(machine_claims(&json!({"spec": {}})).is_empty());
    }
}
