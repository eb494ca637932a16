//! Volumes of the VMs of a plan: the storage of hosts, and the claims of VMs that have no host yet.

use berth_api::Problem;
use berth_placement::rules::{ClaimVolume, StorageCapacityFields};

use super::build::Simulation;
use crate::fleet::{MachineClaim, StorageObjects};

impl Simulation {
    /// Adds StorageClasses, and the storage that CSI drivers report.
    pub(super) fn add_storage(&mut self, storage: &StorageObjects) {
        for (name, class) in &storage.classes {
            if let Err(invalid) = self.engine.set_storage_class(name, Some(class)) {
                let object = format!("StorageClass {name}");
                let message = format!("{}; the class restricts no hosts", invalid.problem);
                self.problems.push(Problem::new(object, invalid.field, invalid.value, message));
            }
        }
        for name in &storage.reporting_drivers {
            self.engine.set_csi_driver(name, true);
        }
        for (name, capacity) in &storage.capacities {
            self.add_capacity(name, capacity);
        }
    }

    /// Adds storage for the host `to`, which the option `--add` creates as a copy of the host `from`: copies of the
    /// storage that only `from` can use.
    pub(super) fn add_copied_storage(&mut self, storage: &StorageObjects, from: &str, to: &str) {
        for (name, capacity) in &storage.capacities {
            let mut copy = capacity.clone();
            let labels = copy.node_topology.as_mut().and_then(|own| own.match_labels.as_mut());
            let Some(labels) = labels else { continue };
            if labels.values().any(|value| value == from) {
                let copied = labels.values_mut().filter(|value| value.as_str() == from);
                copied.for_each(|value| to.clone_into(value));
                self.add_capacity(&format!("{name} of {to}"), &copy);
            }
        }
    }

    fn add_capacity(&mut self, name: &str, capacity: &StorageCapacityFields) {
        if let Err(invalid) = self.engine.set_storage_capacity(name, Some(capacity)) {
            let object = format!("CSIStorageCapacity {name}");
            let problem = Problem::new(object, invalid.field, invalid.value, invalid.problem);
            self.problems.push(problem.into_fatal("left out"));
        }
    }

    /// Adds the claims of a VM that has no host yet, and returns their names.
    pub(super) fn add_claims(
        &mut self,
        storage: &StorageObjects,
        namespace: &str,
        claims: &[MachineClaim],
    ) -> Vec<String> {
        for MachineClaim { name, template } in claims {
            let volume = storage.claim_volume(namespace, name, template.as_ref());
            let Some(volume) = volume else { continue };
            self.set_claim(namespace, name, &volume);
        }
        claims.iter().map(|claim| claim.name.clone()).collect()
    }

    fn set_claim(&mut self, namespace: &str, name: &str, volume: &ClaimVolume) {
        if let Err(invalid) = self.engine.set_claim(namespace, name, Some(volume)) {
            let object = format!("PersistentVolume of PersistentVolumeClaim {namespace}/{name}");
            let message = format!("{}; the volume restricts no hosts", invalid.problem);
            self.problems.push(Problem::new(object, invalid.field, invalid.value, message));
        }
    }
}
