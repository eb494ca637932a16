//! Watch events of VirtualMachineInstances, PersistentVolumeClaims, NetworkAttachmentDefinitions and namespaces.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use berth_placement::rules::UnboundClaim;

use super::extender::Extender;
use super::observed_pod::ObservedPod;
use super::pending_vm::ClaimKey;
use super::vm_instance::VmInstance;

impl Extender {
    /// Sets the labels of a namespace.
    pub fn update_namespace(&mut self, name: &str, labels: &BTreeMap<String, String>) {
        self.reservations.engine.set_namespace(name, labels);
    }

    /// Records whether KubeVirt is installed. If KubeVirt is installed, the launcher pod of a VM is placed only after
    /// its VirtualMachineInstance is known.
    pub fn set_kubevirt_installed(&mut self, is_installed: bool) {
        if is_installed {
            self.virtual_machines.instances.get_or_insert_default();
        } else {
            self.virtual_machines.instances = None;
        }
    }

    /// Updates a VirtualMachineInstance.
    pub fn update_instance(&mut self, uid: &str, instance: VmInstance) {
        let is_final = instance.has_ended;
        self.virtual_machines.insert_instance(uid, instance);
        if is_final {
            self.release_kept_reservations(|vm| vm == uid);
        }
        let pods = self.queue.unknown_instances.pods_with_instance(|instance| instance == uid);
        self.retry_pods(&pods);
    }

    /// Removes a deleted VirtualMachineInstance, and releases its reservations in the stage `Kept`.
    pub fn delete_instance(&mut self, uid: &str) {
        self.virtual_machines.remove_instance(uid);
        self.release_kept_reservations(|vm| vm == uid);
    }

    /// Replaces all VirtualMachineInstances by the result of a list request.
    pub fn replace_instances(&mut self, all: HashMap<String, VmInstance>) {
        let is_alive = |uid: &str| all.get(uid).is_some_and(|instance| !instance.has_ended);
        self.release_kept_reservations(|vm| !is_alive(vm));
        let pods =
            self.queue.unknown_instances.pods_with_instance(|instance| all.contains_key(instance));
        self.virtual_machines.instances = Some(all);
        self.retry_pods(&pods);
    }

    /// Sets the resources that a NetworkAttachmentDefinition (`namespace/name`) requires; none if the object was
    /// deleted. Only a host with all of these resources can attach a pod to the network. For pods that are already on
    /// hosts, the previous resources are counted until the state is rebuilt.
    pub fn update_network_resources(&mut self, network: &str, resources: &[&str]) {
        if self.virtual_machines.set_network_resources(network, resources) {
            let attached = self.queue.unassigned_pods.uids_with_network(network);
            let refused: Vec<String> =
                attached.filter(|uid| self.queue.refused_pods.contains(uid)).cloned().collect();
            self.retry_pods(&refused);
        }
    }

    /// Compiles the requests of pods again, and marks the pods for a retry. Ignores pods whose VirtualMachineInstance
    /// is still unknown or in another namespace.
    fn retry_pods(&mut self, pods: &[String]) {
        for pod in pods {
            let Some(pod) = self.queue.unassigned_pods.get(pod).cloned() else { continue };
            if let Ok(observed) = ObservedPod::read(&pod)
                && let Ok(request) = self.compile_request(&pod, &observed)
            {
                self.queue.unknown_instances.remove(observed.uid());
                self.queue.refused_pods.insert_unscanned(&request);
            }
        }
    }

    /// Updates a PersistentVolumeClaim. `unbound_claim` is `None` if the claim was bound to a volume or deleted.
    pub fn update_claim(
        &mut self,
        now: Instant,
        namespace: &str,
        name: &str,
        unbound_claim: Option<UnboundClaim>,
    ) {
        let claim = (namespace.to_owned(), name.to_owned());
        let Some(unbound_claim) = unbound_claim else {
            self.virtual_machines.remove_unbound_claim(&claim);
            self.update_reserved_storage(&claim);
            return;
        };
        let pods = match unbound_claim.selected_node {
            Some(_) => self.queue.unassigned_pods.pods_with_claim(&claim),
            None => Vec::new(),
        };
        self.virtual_machines.set_claim(claim.clone(), unbound_claim);
        self.update_reserved_storage(&claim);
        for pod in pods {
            if let Ok(observed) = ObservedPod::read(&pod) {
                self.reserve_selected_node(now, &pod, &observed);
            }
        }
    }

    /// Replaces all PersistentVolumeClaims without a volume by the result of a list request.
    pub fn replace_claims(&mut self, now: Instant, all: Vec<(ClaimKey, UnboundClaim)>) {
        let listed: HashSet<&ClaimKey> = all.iter().map(|(claim, _)| claim).collect();
        let missing = self.virtual_machines.missing_claims(|claim| listed.contains(claim));
        for (namespace, name) in missing {
            self.update_claim(now, &namespace, &name, None);
        }
        for ((namespace, name), unbound_claim) in all {
            self.update_claim(now, &namespace, &name, Some(unbound_claim));
        }
    }
}
