//! Hotpluggable disks of a VirtualMachine.

use berth_api::{Problem, Quantity, names};
use serde_json::Value;

use super::fault::DiskFault;
use super::lists::{DISKS, TEMPLATES, VOLUMES, elements};
use crate::machines::deployment::MachineDeployment;
use crate::machines::disks::{DefaultedFields, RemovalPolicy};
use crate::machines::render::render_machine;
use crate::machines::render_context::RenderContext;
use crate::machines::renderer::RenderOptions;

/// A hotpluggable disk of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotplugDisk {
    /// Name of the disk in the MachineDeployment.
    pub name: String,
    /// Common name of the DataVolume and its PersistentVolumeClaim.
    pub claim: String,
    /// Element of `spec.dataVolumeTemplates`.
    pub(super) template: Value,
    /// Element of `spec.template.spec.volumes`.
    pub(super) volume: Value,
    /// Element of `spec.template.spec.domain.devices.disks`.
    pub(super) disk: Value,
    /// Fields that the MachineDeployment does not set; none for a disk that was read from a VirtualMachine.
    defaulted: DefaultedFields,
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
            defaulted: DefaultedFields::default(),
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
        let mut disks = Self::read(&rendered.machine);
        for disk in &mut disks {
            disk.defaulted = rendered.defaulted_disks.get(&disk.name).copied().unwrap_or_default();
        }
        Ok((disks, rendered.has_secrets))
    }

    /// Returns the description of the claim in the DataVolume.
    fn claim_spec(&self) -> &Value {
        let spec = &self.template["spec"];
        if spec["pvc"].is_object() { &spec["pvc"] } else { &spec["storage"] }
    }

    pub(super) fn size(&self) -> Option<Quantity> {
        self.claim_spec()["resources"]["requests"]["storage"].as_str()?.parse().ok()
    }

    pub(super) fn removal_policy(&self) -> RemovalPolicy {
        let recorded = &self.template["metadata"]["annotations"][names::REMOVAL_POLICY_ANNOTATION];
        recorded.as_str().and_then(RemovalPolicy::from_name).unwrap_or_default()
    }

    /// Returns the fields that cannot be changed, by their names in the MachineDeployment. `None` for a field that is absent
    /// or has the value of a default: another default, such as that of a StorageProfile, applies to new disks only.
    fn immutable_fields(&self) -> [(&'static str, Option<&str>); 3] {
        let claim = self.claim_spec();
        let DefaultedFields { storage_class, access_mode } = self.defaulted;
        let class = claim["storageClassName"].as_str().filter(|_| !storage_class);
        let mode = claim["accessModes"][0].as_str().filter(|_| !access_mode);
        [
            ("storageClassName", class),
            ("storageAccessType", mode),
            ("bus", self.disk["disk"]["bus"].as_str()),
        ]
    }

    pub(super) fn find_immutable_fault(&self, desired: &Self) -> Option<DiskFault> {
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

    /// Returns a copy whose fields `storageClassName` and `storageAccessType` count as defaults.
    #[cfg(test)]
    pub(super) fn with_defaults(mut self) -> Self {
        self.defaulted = DefaultedFields { storage_class: true, access_mode: true };
        self
    }
}

/// Copies the hotpluggable disks of the VirtualMachine `vm` to an object with a part of its fields, so that a
/// [`DiskPlan`](super::DiskPlan) of both is the same.
pub fn copy_disks(vm: &Value, copy: &mut Value) {
    let disks = HotplugDisk::read(vm);
    if disks.is_empty() {
        return;
    }
    let list = |element: fn(&HotplugDisk) -> &Value| -> Vec<Value> {
        disks.iter().map(|disk| element(disk).clone()).collect()
    };
    copy["spec"]["dataVolumeTemplates"] = list(|disk| &disk.template).into();
    let spec = &mut copy["spec"]["template"]["spec"];
    spec["volumes"] = list(|disk| &disk.volume).into();
    spec["domain"]["devices"]["disks"] = list(|disk| &disk.disk).into();
}
