//! VirtualMachineInstances, and the PersistentVolumeClaims of their volumes, from the watches.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::NodeSelector;

use super::instance::Instance;
use super::pending_vm::{Claim, PendingVm};
use super::reservation::VmKey;

/// All VirtualMachineInstances, and all claims that are not bound to a volume.
#[derive(Debug, Default)]
pub(super) struct VirtualMachines {
    /// VirtualMachineInstances by uid; `None` if KubeVirt is not installed.
    pub(super) instances: Option<HashMap<String, Instance>>,
    /// Claims that are not bound to a volume, each with its selected node.
    claims: BTreeMap<Claim, Option<String>>,
    /// VMs that have no pod on a host, and the node selectors of the volumes of their claims; kept until pods are
    /// listed.
    pub(super) pending: (Vec<PendingVm>, BTreeMap<Claim, NodeSelector>),
}

impl VirtualMachines {
    /// Returns the VirtualMachineInstance of a VM; `None` if it is unknown, or in another namespace than the pod that
    /// names it.
    pub(super) fn instance(&self, vm: &VmKey) -> Option<&Instance> {
        let instance = self.instances.as_ref()?.get(&vm.instance)?;
        (*instance.namespace == *vm.namespace).then_some(instance)
    }

    /// Returns true if the VM's instance exists and has not ended. Always true if KubeVirt is not installed.
    pub(super) fn is_alive(&self, vm: &VmKey) -> bool {
        match &self.instances {
            Some(_) => self.instance(vm).is_some_and(|instance| !instance.is_final),
            None => true,
        }
    }

    pub(super) fn insert(&mut self, uid: &str, instance: Instance) {
        self.instances.get_or_insert_default().insert(uid.to_owned(), instance);
    }

    pub(super) fn remove(&mut self, uid: &str) {
        if let Some(instances) = &mut self.instances {
            instances.remove(uid);
        }
    }

    /// Returns true if a claim is known and is not bound to a volume.
    pub(super) fn is_unbound(&self, namespace: &str, claim: &str) -> bool {
        self.claims.contains_key(&(namespace.to_owned(), claim.to_owned()))
    }

    /// Returns the node that was selected for the first of these claims that has a selected node.
    pub(super) fn selected_node(&self, namespace: &str, claims: &[String]) -> Option<String> {
        claims.iter().find_map(|claim| {
            self.claims.get(&(namespace.to_owned(), claim.clone())).cloned().flatten()
        })
    }

    pub(super) fn set_claim(&mut self, claim: Claim, selected_node: Option<String>) {
        self.claims.insert(claim, selected_node);
    }

    pub(super) fn remove_claim(&mut self, claim: &Claim) {
        self.claims.remove(claim);
    }

    pub(super) fn retain_claims(&mut self, is_listed: impl Fn(&Claim) -> bool) {
        self.claims.retain(|claim, _| is_listed(claim));
    }
}
