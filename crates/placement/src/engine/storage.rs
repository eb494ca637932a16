//! Storage objects of the engine: StorageClasses, CSI drivers with their storage, and PersistentVolumeClaims.

use super::state::Engine;
use crate::rules::{
    ClaimVolume, HostId, InvalidField, StorageCapacityFields, StorageClassFields, VolumeChecks,
};

impl Engine {
    /// Sets which rules about volumes are evaluated; by default all.
    pub fn set_volume_checks(&mut self, checks: VolumeChecks) {
        self.cluster.set_volume_checks(checks);
    }

    /// Sets or removes a StorageClass.
    ///
    /// # Errors
    /// Returns an error for topologies that the API server would have rejected. The class then restricts no hosts.
    pub fn set_storage_class(
        &mut self,
        name: &str,
        class: Option<&StorageClassFields>,
    ) -> Result<(), InvalidField> {
        self.cluster.set_storage_class(name, class)
    }

    /// Sets whether a CSI driver reports its storage (`spec.storageCapacity` of its CSIDriver).
    pub fn set_csi_driver(&mut self, name: &str, reports_storage: bool) {
        self.cluster.set_csi_driver(name, reports_storage);
    }

    /// Sets or removes a CSIStorageCapacity. `id` is its namespace and name. Returns the hosts that may have more storage
    /// than before.
    ///
    /// # Errors
    /// Returns an error for a selector that the API server would have rejected. The storage is then removed.
    pub fn set_storage_capacity(
        &mut self,
        id: &str,
        capacity: Option<&StorageCapacityFields>,
    ) -> Result<Vec<HostId>, InvalidField> {
        self.cluster.set_storage_capacity(id, capacity)
    }

    /// Sets the volume of a PersistentVolumeClaim, or removes the claim, which then restricts no hosts. Returns the host
    /// on which the claim used reported storage before, if it no longer does.
    ///
    /// # Errors
    /// Returns an error for a node affinity that the API server would have rejected. The claim then restricts no hosts.
    pub fn set_claim(
        &mut self,
        namespace: &str,
        name: &str,
        volume: Option<&ClaimVolume>,
    ) -> Result<Option<HostId>, InvalidField> {
        self.cluster.set_claim(namespace, name, volume)
    }
}
