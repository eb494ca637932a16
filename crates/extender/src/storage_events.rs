//! Watch events of StorageClasses, CSIDrivers, CSIStorageCapacities and the PersistentVolumeClaims of populators.
//!
//! kube-scheduler has compared each claim of a pod with the storage that CSI drivers report before it calls the extender.
//! The extender counts in addition the claims of pods with a reservation: kube-scheduler does not count them, and a
//! driver reports less free storage only after it has provisioned a volume.

use berth_placement::rules::{StorageCapacityFields, StorageClassFields};

use super::error::InvalidField;
use super::extender::Extender;
use super::pending_vm::ClaimKey;

impl Extender {
    /// Sets a StorageClass, or removes a deleted one.
    ///
    /// # Errors
    /// Returns an error if a field is invalid. Volumes of the class are then not counted.
    pub fn update_storage_class(
        &mut self,
        name: &str,
        class: Option<&StorageClassFields>,
    ) -> Result<(), InvalidField> {
        let result = self.reservations.engine.set_storage_class(name, class);
        result.map_err(|invalid| InvalidField::new(format!("StorageClass {name}"), invalid))
    }

    /// Sets whether a CSI driver reports its storage; false for a deleted CSIDriver.
    pub fn update_csi_driver(&mut self, name: &str, reports_storage: bool) {
        self.reservations.engine.set_csi_driver(name, reports_storage);
    }

    /// Sets a CSIStorageCapacity (`namespace/name`), or removes a deleted one. Refused pods are checked again for the
    /// hosts with more storage.
    ///
    /// # Errors
    /// Returns an error if the selector of hosts is invalid. The storage is then removed.
    pub fn update_storage_capacity(
        &mut self,
        name: &str,
        capacity: Option<&StorageCapacityFields>,
    ) -> Result<(), InvalidField> {
        let result = self.reservations.engine.set_storage_capacity(name, capacity);
        let hosts = result
            .map_err(|invalid| InvalidField::new(format!("CSIStorageCapacity {name}"), invalid))?;
        self.queue.refused_pods.mark_storage_changed(hosts);
        Ok(())
    }

    /// Sets whether the claim `name` of a populator is bound. CDI provisions and fills the volume of the claim `owner`
    /// with a second claim in the same namespace, and then binds the volume to `owner`. While the volume is filled, it
    /// uses storage that its driver no longer reports as free, although `owner` has no volume yet.
    pub fn update_populator_claim(&mut self, owner: &ClaimKey, name: &str, is_bound: bool) {
        self.virtual_machines.set_populator_claim(owner, name, is_bound);
        self.update_reserved_storage(owner);
    }

    /// Replaces all bound claims of populators by the result of a list request. Each has the claim for whose volume it
    /// was created.
    pub fn replace_populator_claims(&mut self, all: Vec<(ClaimKey, String)>) {
        let mut owners = self.virtual_machines.take_populator_claims();
        for (owner, name) in all {
            self.virtual_machines.set_populator_claim(&owner, &name, true);
            owners.push(owner);
        }
        for owner in owners {
            self.update_reserved_storage(&owner);
        }
    }

    /// Passes a changed claim to the engine, which counts the storage that the claim will use. Refused pods are checked
    /// again for the host on which the claim no longer counts.
    pub(super) fn update_reserved_storage(&mut self, claim: &ClaimKey) {
        let volume = self.virtual_machines.claim_volume(claim);
        let (namespace, name) = claim;
        let released = self.reservations.engine.set_claim(namespace, name, volume.as_ref());
        // Only the node affinity of a volume can be invalid, and none is passed here.
        self.queue.refused_pods.mark_storage_changed(released.ok().flatten());
    }
}
