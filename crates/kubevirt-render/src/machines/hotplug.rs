//! Updates the hotpluggable disks of an existing machine: attaches, detaches and expands them without a restart.
//!
//! KubeVirt attaches and detaches the volumes with `hotpluggable: true` that are added to and removed from the
//! VirtualMachine (KubeVirt: `pkg/storage/hotplug/hotplug.go`). A DataVolume stays until the VirtualMachineInstance does not
//! use it any more, because its deletion would remove the storage of a running guest. CDI permits no change of a DataVolume,
//! so an expansion changes the request of its PersistentVolumeClaim.

use std::collections::BTreeSet;

use berth_api::{Problem, Quantity, names};
use serde_json::{Value, json};

use super::deployment::MachineDeployment;
use super::render::render_machine;
use super::render_context::RenderContext;
use super::renderer::RenderOptions;
use super::storage::{hotplug_claim_prefix, hotplug_volume_name};

/// A hotpluggable disk of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotplugDisk {
    /// Name of the disk in the MachineDeployment.
    pub name: String,
    /// Common name of the DataVolume and its PersistentVolumeClaim.
    pub claim: String,
    /// Element of `spec.dataVolumeTemplates`.
    template: Value,
    /// Element of `spec.template.spec.volumes`.
    volume: Value,
    /// Element of `spec.template.spec.domain.devices.disks`.
    disk: Value,
}

/// Reason why a disk of an existing machine is not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskFault {
    /// KubeVirt and CDI permit no change of the field.
    #[error(
        "{field} of disk {disk} cannot be changed from `{current}` to `{desired}`: remove the disk, and add a disk with another \
         name"
    )]
    Immutable {
        /// Name of the disk.
        disk: String,
        /// Field of the disk in the MachineDeployment.
        field: &'static str,
        /// Value of the existing disk.
        current: String,
        /// Value in the MachineDeployment.
        desired: String,
    },
    /// Kubernetes does not shrink volumes.
    #[error(
        "disk {disk} cannot be shrunk from {current} to {desired}: set its size to {current} or more"
    )]
    Shrunk {
        /// Name of the disk.
        disk: String,
        /// Size of the existing disk.
        current: Quantity,
        /// Size in the MachineDeployment.
        desired: Quantity,
    },
    /// A removed disk with the same name is not deleted yet.
    #[error("disk {disk} waits for the deletion of the removed disk with the same name")]
    NameInUse {
        /// Name of the disk.
        disk: String,
    },
}

impl DiskFault {
    /// Returns true if the fault ends without a change of the MachineDeployment.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::NameInUse { .. })
    }

    /// Returns the message without the values of fields, which may come from Secrets.
    #[must_use]
    pub fn redacted(&self) -> String {
        match self {
            Self::Immutable { disk, field, .. } => format!(
                "{field} of disk {disk} cannot be changed: remove the disk, and add a disk with another name"
            ),
            Self::Shrunk { disk, .. } => {
                format!("disk {disk} cannot be shrunk: set its size to the former size or more")
            }
            Self::NameInUse { .. } => self.to_string(),
        }
    }
}

/// An expansion of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskExpansion {
    /// Name of the disk.
    pub disk: String,
    /// Name of the PersistentVolumeClaim.
    pub claim: String,
    /// Desired size.
    pub size: Quantity,
}

/// Changes of the hotpluggable disks of a VirtualMachine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskPlan {
    /// Disks to expand, before the VirtualMachine is changed.
    pub expansions: Vec<DiskExpansion>,
    /// Disks that are not changed as desired.
    pub faults: Vec<DiskFault>,
    attached: Vec<HotplugDisk>,
    detached: Vec<HotplugDisk>,
}

impl HotplugDisk {
    /// Reads the hotpluggable disks that Berth has added to a VirtualMachine. Other volumes with `hotpluggable: true` belong to
    /// the tenant's CSI driver.
    #[must_use]
    pub fn read(vm: &Value) -> Vec<Self> {
        let templates = elements(vm, TEMPLATES);
        templates.filter_map(|template| Self::from_template(vm, template)).collect()
    }

    fn from_template(vm: &Value, template: &Value) -> Option<Self> {
        let name = template["metadata"]["labels"][names::HOTPLUG_DISK_LABEL].as_str()?;
        let claim = template["metadata"]["name"].as_str()?;
        let volume = elements(vm, VOLUMES).find(|volume| volume["dataVolume"]["name"] == claim)?;
        let disk = elements(vm, DISKS).find(|disk| disk["name"] == volume["name"])?;
        Some(Self {
            name: name.to_owned(),
            claim: claim.to_owned(),
            template: template.clone(),
            volume: volume.clone(),
            disk: disk.clone(),
        })
    }

    /// Renders the hotpluggable disks of a machine. Also returns true if the machine contains values from Secrets; messages
    /// must then not quote its fields.
    ///
    /// # Errors
    /// Returns all problems of the MachineDeployment that prevent rendering.
    pub fn render(
        deployment: &MachineDeployment,
        context: &RenderContext,
        options: &RenderOptions,
    ) -> Result<(Vec<Self>, bool), Vec<Problem>> {
        let rendered = render_machine(deployment, context, options)?;
        Ok((Self::read(&rendered.machine), rendered.has_secrets))
    }

    /// Returns the description of the claim in the DataVolume.
    fn claim_spec(&self) -> &Value {
        let spec = &self.template["spec"];
        if spec["pvc"].is_object() { &spec["pvc"] } else { &spec["storage"] }
    }

    fn size(&self) -> Option<Quantity> {
        self.claim_spec()["resources"]["requests"]["storage"].as_str()?.parse().ok()
    }

    /// Returns the fields that cannot be changed, by their names in the MachineDeployment. A field that is absent has the
    /// value of a default that may change.
    fn immutable_fields(&self) -> [(&'static str, Option<&str>); 3] {
        let claim = self.claim_spec();
        [
            ("storageClassName", claim["storageClassName"].as_str()),
            ("storageAccessType", claim["accessModes"][0].as_str()),
            ("bus", self.disk["disk"]["bus"].as_str()),
        ]
    }

    fn find_immutable_fault(&self, desired: &Self) -> Option<DiskFault> {
        let mut pairs = self.immutable_fields().into_iter().zip(desired.immutable_fields());
        pairs.find_map(|((field, current), (_, desired))| {
            let (current, desired) = (current?, desired?);
            (current != desired).then(|| DiskFault::Immutable {
                disk: self.name.clone(),
                field,
                current: current.to_owned(),
                desired: desired.to_owned(),
            })
        })
    }
}

impl DiskPlan {
    /// Compares the disks of a VirtualMachine with the desired ones.
    #[must_use]
    pub fn new(vm: &Value, desired: &[HotplugDisk]) -> Self {
        let current = HotplugDisk::read(vm);
        let detached_claims = detached_claims(vm);
        let mut plan = Self::default();
        for disk in desired {
            match current.iter().find(|one| one.claim == disk.claim) {
                Some(existing) => plan.compare(existing, disk),
                None if detached_claims.contains(&disk.claim) => {
                    plan.faults.push(DiskFault::NameInUse { disk: disk.name.clone() });
                }
                None => plan.attached.push(disk.clone()),
            }
        }
        let is_desired = |one: &HotplugDisk| desired.iter().any(|disk| disk.claim == one.claim);
        plan.detached = current.into_iter().filter(|one| !is_desired(one)).collect();
        plan
    }

    fn compare(&mut self, existing: &HotplugDisk, desired: &HotplugDisk) {
        self.faults.extend(existing.find_immutable_fault(desired));
        // A size that is not a quantity is an error of the MachineDeployment, for which nothing is rendered.
        let (Some(current), Some(size)) = (existing.size(), desired.size()) else { return };
        let disk = existing.name.clone();
        if size < current {
            self.faults.push(DiskFault::Shrunk { disk, current, desired: size });
        } else if size > current {
            self.expansions.push(DiskExpansion { disk, claim: existing.claim.clone(), size });
        }
    }

    /// Returns true if disks are attached or detached, for which KubeVirt needs the feature gate `DeclarativeHotplugVolumes`.
    #[must_use]
    pub fn changes_volumes(&self) -> bool {
        !self.attached.is_empty() || !self.detached.is_empty()
    }

    /// Returns the merge patch of the VirtualMachine `vm`. The API server refuses the patch if the VirtualMachine has changed
    /// since it was read. `expanded` are the claims that have the desired size. `revision` is the hash of the desired disks;
    /// it is recorded if the VirtualMachine has all of them as desired, so that the next reconcile does not compare them
    /// again.
    #[must_use]
    pub fn patch(&self, vm: &Value, expanded: &BTreeSet<String>, revision: Option<&str>) -> Value {
        let is_detached = |claim: &Value| self.detached.iter().any(|disk| *claim == *disk.claim);
        let is_removed = |list: &str, element: &Value| match list {
            TEMPLATES => is_detached(&element["metadata"]["name"]),
            VOLUMES => is_detached(&element["dataVolume"]["name"]),
            _ => self.detached.iter().any(|disk| element["name"] == disk.disk["name"]),
        };
        let list = |list: &str, new: fn(&HotplugDisk) -> &Value| -> Vec<Value> {
            let kept = elements(vm, list).filter(|element| !is_removed(list, element)).cloned();
            kept.chain(self.attached.iter().map(|disk| new(disk).clone())).collect()
        };
        let mut templates = list(TEMPLATES, |disk| &disk.template);
        for expansion in self.expansions.iter().filter(|one| expanded.contains(&one.claim)) {
            set_size(&mut templates, expansion);
        }
        let mut patch = json!({
            "metadata": {"resourceVersion": vm["metadata"]["resourceVersion"]},
            "spec": {"dataVolumeTemplates": templates},
        });
        if self.changes_volumes() {
            patch["spec"]["template"]["spec"] = json!({
                "domain": {"devices": {"disks": list(DISKS, |disk| &disk.disk)}},
                "volumes": list(VOLUMES, |disk| &disk.volume),
            });
        }
        // An `annotations: null` would remove all annotations, so the field is set only with its entries.
        let metadata = &mut patch["metadata"];
        if self.is_complete(expanded) {
            metadata["annotations"][names::HOTPLUG_REVISION_ANNOTATION] = revision.into();
        }
        if !self.detached.is_empty() {
            let mut claims = detached_claims(vm);
            claims.extend(self.detached.iter().map(|disk| disk.claim.clone()));
            metadata["annotations"][names::DETACHED_DISKS_ANNOTATION] = join_claims(&claims);
        }
        patch
    }

    /// Returns true if [`Self::patch`] changes the VirtualMachine.
    #[must_use]
    pub fn needs_patch(&self, expanded: &BTreeSet<String>) -> bool {
        self.is_complete(expanded) || self.changes_volumes() || !expanded.is_empty()
    }

    /// Returns true if the VirtualMachine has all disks as desired after the patch.
    fn is_complete(&self, expanded: &BTreeSet<String>) -> bool {
        self.faults.is_empty() && self.expansions.iter().all(|one| expanded.contains(&one.claim))
    }
}

const TEMPLATES: &str = "/spec/dataVolumeTemplates";
const VOLUMES: &str = "/spec/template/spec/volumes";
const DISKS: &str = "/spec/template/spec/domain/devices/disks";

fn elements<'v>(vm: &'v Value, list: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    vm.pointer(list).and_then(Value::as_array).into_iter().flatten()
}

fn set_size(templates: &mut [Value], expansion: &DiskExpansion) {
    let own = templates.iter_mut().find(|one| one["metadata"]["name"] == *expansion.claim);
    let Some(spec) = own.and_then(|template| template.get_mut("spec")) else { return };
    // An expansion has a size that was read from this path, so that no step of the path is another type.
    let field = if spec["pvc"].is_object() { "pvc" } else { "storage" };
    if let Some(claim) = spec.get_mut(field) {
        claim["resources"]["requests"]["storage"] = expansion.size.to_string().into();
    }
}

/// Returns the names of the DataVolumes that were removed from a VirtualMachine and are not deleted yet.
#[must_use]
pub fn detached_claims(vm: &Value) -> BTreeSet<String> {
    let text = vm["metadata"]["annotations"][names::DETACHED_DISKS_ANNOTATION].as_str();
    let names = text.unwrap_or_default().split(',').filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// Returns the merge patch of the VirtualMachine `vm` that records the DataVolumes that are not deleted yet.
#[must_use]
pub fn detached_patch(vm: &Value, remaining: &BTreeSet<String>) -> Value {
    json!({"metadata": {
        "resourceVersion": vm["metadata"]["resourceVersion"],
        "annotations": {names::DETACHED_DISKS_ANNOTATION: join_claims(remaining)},
    }})
}

/// Returns the value of the annotation: `null`, which removes it, if there are no claims.
fn join_claims(claims: &BTreeSet<String>) -> Value {
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
    let owner = super::reconcile_steps::controller_reference(data_volume);
    data_volume["metadata"]["labels"][names::HOTPLUG_DISK_LABEL].is_string()
        && uid.is_string()
        && owner.is_some_and(|owner| owner["uid"] == *uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a VirtualMachine with a first disk, a volume of the tenant's CSI driver, and hotpluggable disks of these names
    /// and sizes.
    fn machine(disks: &[(&str, &str)]) -> Value {
        let mut templates = vec![json!({"metadata": {"name": "web-1"}, "spec": {}})];
        let mut volumes = vec![
            json!({"name": "datavolumedisk", "dataVolume": {"name": "web-1"}}),
            json!({"name": "pvc-7", "dataVolume": {"name": "pvc-7", "hotpluggable": true}}),
        ];
        let mut devices = vec![json!({"name": "datavolumedisk"}), json!({"name": "pvc-7"})];
        for (name, size) in disks {
            let claim = format!("web-1-disk-{name}");
            let storage = json!({
                "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": {"requests": {"storage": size}},
            });
            templates.push(json!({
                "metadata": {"name": claim, "labels": {names::HOTPLUG_DISK_LABEL: name}},
                "spec": {"pvc": storage, "source": {"blank": {}}},
            }));
            let volume = format!("disk-{name}");
            volumes
                .push(json!({"name": volume, "dataVolume": {"name": claim, "hotpluggable": true}}));
            devices.push(json!({"name": volume, "serial": name, "disk": {"bus": "scsi"}}));
        }
        json!({
            "metadata": {"name": "web-1", "uid": "u-1", "resourceVersion": "7"},
            "spec": {"dataVolumeTemplates": templates, "template": {"spec": {
                "domain": {"devices": {"disks": devices}}, "volumes": volumes,
            }}},
        })
    }

    fn desired(disks: &[(&str, &str)]) -> Vec<HotplugDisk> {
        HotplugDisk::read(&machine(disks))
    }

    fn apply(vm: &Value, plan: &DiskPlan, expanded: &[&str], revision: Option<&str>) -> Value {
        let expanded = expanded.iter().map(|&claim| claim.to_owned()).collect();
        let mut patched = vm.clone();
        merge(&mut patched, &plan.patch(vm, &expanded, revision));
        patched
    }

    /// Applies a merge patch (RFC 7396).
    fn merge(target: &mut Value, patch: &Value) {
        let Some(fields) = patch.as_object() else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        for (key, value) in fields {
            if value.is_null() {
                target.as_object_mut().unwrap().remove(key);
            } else {
                merge(&mut target[key], value);
            }
        }
    }

    #[test]
    fn a_disk_is_attached_and_other_volumes_stay() {
        let vm = machine(&[]);
        let plan = DiskPlan::new(&vm, &desired(&[("data", "1Gi")]));
        assert!(plan.changes_volumes() && plan.faults.is_empty() && plan.expansions.is_empty());
        assert!(plan.needs_patch(&BTreeSet::new()));
        let patched = apply(&vm, &plan, &[], Some("r2"));
        assert_eq!(patched["spec"], machine(&[("data", "1Gi")])["spec"]);
        assert_eq!(
            patched["metadata"]["annotations"],
            json!({names::HOTPLUG_REVISION_ANNOTATION: "r2"})
        );
        assert_eq!(plan.patch(&vm, &BTreeSet::new(), None)["metadata"]["resourceVersion"], "7");
        let same = DiskPlan::new(&patched, &desired(&[("data", "1Gi")]));
        assert!(!same.changes_volumes());
    }

    #[test]
    fn a_removed_disk_is_recorded_until_it_is_deleted() {
        let vm = machine(&[("a", "1Gi"), ("b", "1Gi")]);
        let plan = DiskPlan::new(&vm, &desired(&[("b", "1Gi")]));
        let patched = apply(&vm, &plan, &[], Some("r2"));
        assert_eq!(patched["spec"], machine(&[("b", "1Gi")])["spec"]);
        assert_eq!(detached_claims(&patched), BTreeSet::from(["web-1-disk-a".to_owned()]));
        // The disk is desired again before it is deleted.
        let plan = DiskPlan::new(&patched, &desired(&[("a", "1Gi"), ("b", "1Gi")]));
        assert_eq!(plan.faults, [DiskFault::NameInUse { disk: "a".to_owned() }]);
        assert!(plan.faults[0].is_temporary() && !plan.needs_patch(&BTreeSet::new()));
        assert_eq!(
            plan.patch(&patched, &BTreeSet::new(), None)["metadata"].get("annotations"),
            None
        );
        // The last disk is removed too.
        let plan = DiskPlan::new(&patched, &[]);
        let last = apply(&patched, &plan, &[], None);
        assert_eq!(last["spec"], machine(&[])["spec"]);
        let recorded = json!({names::DETACHED_DISKS_ANNOTATION: "web-1-disk-a,web-1-disk-b"});
        assert_eq!(last["metadata"]["annotations"], recorded);
        let mut done = last.clone();
        merge(&mut done, &detached_patch(&last, &BTreeSet::new()));
        assert_eq!(done["metadata"]["annotations"], json!({}));
        assert!(detached_claims(&done).is_empty());
    }

    #[test]
    fn a_disk_is_expanded_but_never_shrunk() {
        let vm = machine(&[("data", "1Gi")]);
        let plan = DiskPlan::new(&vm, &desired(&[("data", "2048Mi")]));
        assert!(!plan.changes_volumes());
        let expansion = DiskExpansion {
            disk: "data".to_owned(),
            claim: "web-1-disk-data".to_owned(),
            size: "2Gi".parse().unwrap(),
        };
        assert_eq!(plan.expansions, [expansion]);
        assert!(!plan.needs_patch(&BTreeSet::new()), "the claim is not expanded yet");
        let patched = apply(&vm, &plan, &["web-1-disk-data"], Some("r2"));
        let size = &patched["spec"]["dataVolumeTemplates"][1]["spec"]["pvc"]["resources"]["requests"]
            ["storage"];
        let size: Quantity = size.as_str().unwrap().parse().unwrap();
        assert_eq!(size, "2Gi".parse().unwrap());
        assert_eq!(patched["metadata"]["annotations"][names::HOTPLUG_REVISION_ANNOTATION], "r2");
        assert_eq!(patched["spec"]["template"], vm["spec"]["template"]);
        let plan = DiskPlan::new(&patched, &desired(&[("data", "1Gi")]));
        assert!(plan.expansions.is_empty() && !plan.needs_patch(&BTreeSet::new()));
        assert!(plan.faults[0].to_string().contains("cannot be shrunk"), "{:?}", plan.faults);
        assert!(!plan.faults[0].redacted().contains("Gi"), "{:?}", plan.faults);
        assert!(!plan.faults[0].is_temporary());
    }

    #[test]
    fn only_the_claim_with_the_size_is_changed() {
        let mut vm = machine(&[("data", "1Gi")]);
        vm["spec"]["dataVolumeTemplates"][1]["spec"]["storage"] = json!(7);
        let plan = DiskPlan::new(&vm, &desired(&[("data", "2Gi")]));
        let patched = apply(&vm, &plan, &["web-1-disk-data"], Some("r2"));
        let spec = &patched["spec"]["dataVolumeTemplates"][1]["spec"];
        assert_eq!(spec["storage"], 7);
        assert_eq!(spec["pvc"]["resources"]["requests"]["storage"], "2Gi");
    }

    #[test]
    fn immutable_fields_are_reported() {
        let vm = machine(&[("data", "1Gi")]);
        for (pointer, value, field) in [
            (
                "/spec/dataVolumeTemplates/1/spec/pvc/storageClassName",
                json!("slow"),
                "storageClassName",
            ),
            (
                "/spec/dataVolumeTemplates/1/spec/pvc/accessModes",
                json!(["ReadWriteMany"]),
                "storageAccessType",
            ),
            ("/spec/template/spec/domain/devices/disks/2/disk/bus", json!("virtio"), "bus"),
        ] {
            let mut changed = vm.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            let plan = DiskPlan::new(&vm, &HotplugDisk::read(&changed));
            let [DiskFault::Immutable { field: reported, .. }] = plan.faults.as_slice() else {
                panic!("{:?}", plan.faults)
            };
            assert_eq!(*reported, field);
            let redacted = plan.faults[0].redacted();
            assert!(redacted.contains(field) && !redacted.contains('`'), "{redacted}");
            assert!(!plan.changes_volumes());
        }
    }

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
