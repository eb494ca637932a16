//! VirtualMachineInstances, the PersistentVolumeClaims of their volumes, and the device plugin resources of their
//! networks, from the watches.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_kubelet_admission::pod::Pod;
use berth_kubevirt_render::launcher::ExistingPod;
use berth_placement::rules::{ClaimVolume, UnboundClaim};
use k8s_openapi::api::core::v1::NodeSelector;

use super::pending_vm::{ClaimKey, PendingVm};
use super::reservation::VmKey;
use super::vm_instance::VmInstance;

/// All VirtualMachineInstances, all PersistentVolumeClaims that are not bound to a volume, and all
/// NetworkAttachmentDefinitions that name a device plugin resource.
#[derive(Debug, Default)]
pub(super) struct VirtualMachines {
    /// VirtualMachineInstances by UID; `None` if KubeVirt is not installed.
    pub(super) instances: Option<HashMap<String, VmInstance>>,
    /// PersistentVolumeClaims that are not bound to a volume.
    unbound_claims: BTreeMap<ClaimKey, UnboundClaim>,
    /// Names of the bound claims with which populators provision and fill the volumes of other claims, by the other
    /// claim. A populator binds the volume to the other claim when the volume is filled.
    populator_claims: BTreeMap<ClaimKey, BTreeSet<String>>,
    /// Device plugin resources of NetworkAttachmentDefinitions, by `namespace/name`.
    network_resources: HashMap<String, Vec<String>>,
    /// VMs that have no pod on a host, and the node affinity of the volumes of their PersistentVolumeClaims. Empty
    /// after the first complete list of pods.
    pub(super) pending_vms: (Vec<PendingVm>, BTreeMap<ClaimKey, NodeSelector>),
}

impl VirtualMachines {
    /// Returns the VirtualMachineInstance of a VM; `None` if the instance is unknown, or if the pod that names the
    /// instance is in another namespace.
    pub(super) fn instance(&self, vm: &VmKey) -> Option<&VmInstance> {
        let instance = self.instances.as_ref()?.get(&vm.instance_uid)?;
        (*instance.namespace == *vm.namespace).then_some(instance)
    }

    /// Returns true if the VM's VirtualMachineInstance exists and has not ended. Returns true for every VM if KubeVirt
    /// is not installed.
    pub(super) fn is_alive(&self, vm: &VmKey) -> bool {
        match &self.instances {
            Some(_) => self.instance(vm).is_some_and(|instance| !instance.has_ended),
            None => true,
        }
    }

    /// Returns the pod as the engine counts it on a host: it also requests the device plugin resources of its networks.
    pub(super) fn placement_pod<'a>(&self, existing: &'a ExistingPod) -> Cow<'a, Pod> {
        existing.placement_pod(|network| {
            self.network_resources.get(network).map(Vec::as_slice).unwrap_or_default()
        })
    }

    /// Sets the device plugin resources of the NetworkAttachmentDefinition `network` (`namespace/name`). `resources` is
    /// empty if the NetworkAttachmentDefinition was deleted. Returns true if the resources have changed.
    pub(super) fn set_network_resources(&mut self, network: &str, resources: &[&str]) -> bool {
        let previous = if resources.is_empty() {
            self.network_resources.remove(network)
        } else {
            let resources = resources.iter().map(|name| (*name).to_owned()).collect();
            self.network_resources.insert(network.to_owned(), resources)
        };
        previous.unwrap_or_default() != resources
    }

    pub(super) fn insert_instance(&mut self, uid: &str, instance: VmInstance) {
        self.instances.get_or_insert_default().insert(uid.to_owned(), instance);
    }

    pub(super) fn remove_instance(&mut self, uid: &str) {
        if let Some(instances) = &mut self.instances {
            instances.remove(uid);
        }
    }

    /// Returns true if a PersistentVolumeClaim is known and is not bound to a volume.
    pub(super) fn is_unbound(&self, namespace: &str, claim: &str) -> bool {
        self.unbound_claims.contains_key(&(namespace.to_owned(), claim.to_owned()))
    }

    /// Returns the selected node of the first of these PersistentVolumeClaims that has one.
    pub(super) fn selected_node(&self, namespace: &str, claims: &[String]) -> Option<String> {
        claims.iter().find_map(|claim| {
            let claim = self.unbound_claims.get(&(namespace.to_owned(), claim.clone()))?;
            claim.selected_node.clone()
        })
    }

    /// Returns the volume of a claim, without a size if a populator has already provisioned the volume; `None` if the
    /// claim is bound or unknown.
    pub(super) fn claim_volume(&self, claim: &ClaimKey) -> Option<ClaimVolume> {
        let unbound = self.unbound_claims.get(claim)?;
        let is_provisioned = self.populator_claims.contains_key(claim);
        let bytes = unbound.bytes.filter(|_| !is_provisioned);
        Some(ClaimVolume::Unbound(UnboundClaim { bytes, ..unbound.clone() }))
    }

    pub(super) fn set_claim(&mut self, claim: ClaimKey, unbound_claim: UnboundClaim) {
        self.unbound_claims.insert(claim, unbound_claim);
    }

    pub(super) fn remove_unbound_claim(&mut self, claim: &ClaimKey) {
        self.unbound_claims.remove(claim);
        self.populator_claims.remove(claim);
    }

    /// Returns the unbound claims that are not listed.
    pub(super) fn missing_claims(&self, is_listed: impl Fn(&ClaimKey) -> bool) -> Vec<ClaimKey> {
        self.unbound_claims.keys().filter(|claim| !is_listed(claim)).cloned().collect()
    }

    /// Sets whether the claim `name`, with which a populator provisions the volume of the claim `owner`, is bound.
    pub(super) fn set_populator_claim(&mut self, owner: &ClaimKey, name: &str, is_bound: bool) {
        if is_bound {
            self.populator_claims.entry(owner.clone()).or_default().insert(name.to_owned());
        } else if let Some(names) = self.populator_claims.get_mut(owner) {
            names.remove(name);
            if names.is_empty() {
                self.populator_claims.remove(owner);
            }
        }
    }

    /// Removes all claims of populators, and returns the claims whose volumes they provisioned.
    pub(super) fn take_populator_claims(&mut self) -> Vec<ClaimKey> {
        std::mem::take(&mut self.populator_claims).into_keys().collect()
    }
}
