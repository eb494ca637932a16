//! Changes of the hotpluggable disks of a VirtualMachine.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{Quantity, names};
use serde_json::{Value, json};

use super::claims::{detached_claims, join_claims, retained_claims};
use super::disk::HotplugDisk;
use super::fault::DiskFault;
use super::lists::{DISKS, TEMPLATES, VOLUMES, elements};
use crate::machines::disks::RemovalPolicy;

/// An expansion of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskExpansion {
    /// Name of the disk.
    pub disk: String,
    /// Name of the PersistentVolumeClaim.
    pub claim: String,
    /// Desired size.
    pub size: Quantity,
    /// True if the claim is that of a removed disk, which is attached again after the expansion.
    pub is_retained: bool,
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
    /// New removal policies of existing disks, by claim.
    policies: BTreeMap<String, RemovalPolicy>,
    /// True if volumes are neither attached nor detached, although they differ.
    leaves_volumes: bool,
}

impl DiskPlan {
    /// Compares the disks of a VirtualMachine with the desired ones.
    #[must_use]
    pub fn new(vm: &Value, desired: &[HotplugDisk]) -> Self {
        let current = HotplugDisk::read(vm);
        let (detached, retained) = (detached_claims(vm), retained_claims(vm));
        let mut plan = Self::default();
        for disk in desired {
            match current.iter().find(|one| one.claim == disk.claim) {
                Some(existing) => plan.compare(existing, disk),
                None if detached.contains(&disk.claim) => {
                    plan.faults.push(DiskFault::NameInUse { disk: disk.name.clone() });
                }
                None => plan.attach(disk, retained.contains(&disk.claim)),
            }
        }
        let is_desired = |one: &HotplugDisk| desired.iter().any(|disk| disk.claim == one.claim);
        plan.detached = current.into_iter().filter(|one| !is_desired(one)).collect();
        plan
    }

    fn compare(&mut self, existing: &HotplugDisk, desired: &HotplugDisk) {
        self.faults.extend(existing.find_immutable_fault(desired));
        if existing.removal_policy() != desired.removal_policy() {
            self.policies.insert(existing.claim.clone(), desired.removal_policy());
        }
        // A size that is not a quantity is an error of the MachineDeployment, for which nothing is rendered.
        let (Some(current), Some(size)) = (existing.size(), desired.size()) else { return };
        if size < current {
            let disk = existing.name.clone();
            self.faults.push(DiskFault::Shrunk { disk, current, desired: size });
        } else if size > current {
            self.expand(existing, size, false);
        }
    }

    /// Attaches a disk. A retained claim may be smaller than the disk, so it is expanded before.
    fn attach(&mut self, disk: &HotplugDisk, is_retained: bool) {
        if let Some(size) = disk.size().filter(|_| is_retained) {
            self.expand(disk, size, true);
        }
        self.attached.push(disk.clone());
    }

    fn expand(&mut self, disk: &HotplugDisk, size: Quantity, is_retained: bool) {
        let (disk, claim) = (disk.name.clone(), disk.claim.clone());
        self.expansions.push(DiskExpansion { disk, claim, size, is_retained });
    }

    /// Returns true if disks are to be attached or detached, for which KubeVirt needs the feature gate
    /// `DeclarativeHotplugVolumes`.
    #[must_use]
    pub fn changes_volumes(&self) -> bool {
        !self.attached.is_empty() || !self.detached.is_empty()
    }

    /// Returns true if no difference can be changed, so that the VirtualMachine need not be read. `can_hotplug` is true if
    /// KubeVirt attaches and detaches volumes of running machines.
    #[must_use]
    pub fn is_refused(&self, can_hotplug: bool) -> bool {
        let is_temporary = self.faults.iter().any(DiskFault::is_temporary);
        // A retained claim is expanded only to be attached.
        let is_expanded = |one: &DiskExpansion| can_hotplug || !one.is_retained;
        let is_changed = self.expansions.iter().any(is_expanded)
            || !self.policies.is_empty()
            || (can_hotplug && self.changes_volumes());
        !is_temporary && !is_changed && (self.changes_volumes() || !self.faults.is_empty())
    }

    /// Returns the plan without the disks to attach and detach, and without the expansions of retained claims, which stay
    /// detached.
    #[must_use]
    pub fn without_volumes(mut self) -> Self {
        self.leaves_volumes |= self.changes_volumes();
        self.attached.clear();
        self.detached.clear();
        self.expansions.retain(|one| !one.is_retained);
        self
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
        let attached: Vec<&HotplugDisk> = self.attachable(expanded).collect();
        let list = |list: &str, new: fn(&HotplugDisk) -> &Value| -> Vec<Value> {
            let kept = elements(vm, list).filter(|element| !is_removed(list, element)).cloned();
            kept.chain(attached.iter().map(|disk| new(disk).clone())).collect()
        };
        let mut templates = list(TEMPLATES, |disk| &disk.template);
        for expansion in self.expansions.iter().filter(|one| expanded.contains(&one.claim)) {
            set_size(&mut templates, expansion);
        }
        for (claim, policy) in &self.policies {
            set_policy(&mut templates, claim, *policy);
        }
        let mut patch = json!({
            "metadata": {"resourceVersion": vm["metadata"]["resourceVersion"]},
            "spec": {"dataVolumeTemplates": templates},
        });
        if !attached.is_empty() || !self.detached.is_empty() {
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
        for (annotation, before, after) in [
            (names::DETACHED_DISKS_ANNOTATION, detached_claims(vm), self.detached_after(vm)),
            (
                names::RETAINED_DISKS_ANNOTATION,
                retained_claims(vm),
                self.retained_after(vm, &attached),
            ),
        ] {
            if before != after {
                metadata["annotations"][annotation] = join_claims(&after);
            }
        }
        patch
    }

    /// Returns true if [`Self::patch`] changes the VirtualMachine.
    #[must_use]
    pub fn needs_patch(&self, expanded: &BTreeSet<String>) -> bool {
        let is_expanded = |one: &DiskExpansion| !one.is_retained && expanded.contains(&one.claim);
        self.is_complete(expanded)
            || self.attachable(expanded).next().is_some()
            || !self.detached.is_empty()
            || !self.policies.is_empty()
            || self.expansions.iter().any(is_expanded)
    }

    /// Returns true if the VirtualMachine has all disks as desired after the patch.
    fn is_complete(&self, expanded: &BTreeSet<String>) -> bool {
        self.faults.is_empty()
            && !self.leaves_volumes
            && self.expansions.iter().all(|one| expanded.contains(&one.claim))
    }

    /// Returns the disks to attach whose claims have the desired size, if they exist already.
    fn attachable(&self, expanded: &BTreeSet<String>) -> impl Iterator<Item = &HotplugDisk> {
        let waits = move |disk: &HotplugDisk| {
            let mut expansions = self.expansions.iter();
            expansions.any(|one| one.claim == disk.claim) && !expanded.contains(&disk.claim)
        };
        self.attached.iter().filter(move |disk| !waits(disk))
    }

    /// Returns the claims whose DataVolumes are to be deleted after the patch.
    fn detached_after(&self, vm: &Value) -> BTreeSet<String> {
        let mut claims = detached_claims(vm);
        claims.extend(self.removed_claims(RemovalPolicy::Delete));
        claims
    }

    /// Returns the claims that are retained after the patch, which attaches the disks in `attached`.
    fn retained_after(&self, vm: &Value, attached: &[&HotplugDisk]) -> BTreeSet<String> {
        let mut claims = retained_claims(vm);
        claims.extend(self.removed_claims(RemovalPolicy::Retain));
        claims.retain(|claim| attached.iter().all(|disk| disk.claim != *claim));
        claims
    }

    fn removed_claims(&self, policy: RemovalPolicy) -> impl Iterator<Item = String> {
        let removed = self.detached.iter().filter(move |disk| disk.removal_policy() == policy);
        removed.map(|disk| disk.claim.clone())
    }
}

fn find_template<'t>(templates: &'t mut [Value], claim: &str) -> Option<&'t mut Value> {
    templates.iter_mut().find(|one| one["metadata"]["name"] == *claim)
}

fn set_size(templates: &mut [Value], expansion: &DiskExpansion) {
    let own = find_template(templates, &expansion.claim);
    let Some(spec) = own.and_then(|template| template.get_mut("spec")) else { return };
    // An expansion has a size that was read from this path, so that no step of the path is another type.
    let field = if spec["pvc"].is_object() { "pvc" } else { "storage" };
    if let Some(claim) = spec.get_mut(field) {
        claim["resources"]["requests"]["storage"] = expansion.size.to_string().into();
    }
}

fn set_policy(templates: &mut [Value], claim: &str, policy: RemovalPolicy) {
    // The metadata has the label of the disk, so it is an object.
    let own = find_template(templates, claim);
    let Some(metadata) = own.and_then(|template| template["metadata"].as_object_mut()) else {
        return;
    };
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    match policy {
        RemovalPolicy::Delete => {
            if !annotations.is_object() {
                *annotations = json!({});
            }
            annotations[names::REMOVAL_POLICY_ANNOTATION] = policy.name().into();
        }
        RemovalPolicy::Retain => {
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.remove(names::REMOVAL_POLICY_ANNOTATION);
            }
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;
