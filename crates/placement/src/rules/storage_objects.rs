//! Changes of StorageClasses, CSIDrivers, CSIStorageCapacities and PersistentVolumeClaims.

use super::capacity_pools::{ClaimSum, Pool};
use super::cluster_state::{ClusterState, HostId};
use super::field_path::{FieldPath, InvalidField};
use super::node_affinity::NodeRule;
use super::selector::Selector;
use super::storage_fields::{ClaimVolume, StorageCapacityFields, StorageClassFields, UnboundClaim};
use super::symbols::Symbol;
use super::volumes::{Claim, CompiledClass, VolumeChecks};

impl ClusterState {
    /// Sets which rules about volumes are evaluated.
    pub fn set_volume_checks(&mut self, checks: VolumeChecks) {
        self.volumes.checks = checks;
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
        let name = self.symbols.intern(name);
        self.volumes.classes.remove(&name);
        let result = class.map_or(Ok(()), |class| self.insert_class(name, class));
        self.volumes.update_all_counts(&self.symbols, &self.hosts);
        result
    }

    fn insert_class(
        &mut self,
        name: Symbol,
        class: &StorageClassFields,
    ) -> Result<(), InvalidField> {
        let path = FieldPath::root("allowedTopologies");
        let rule = NodeRule::from_topologies(&mut self.symbols, &path, &class.allowed_topologies)?;
        let compiled = CompiledClass {
            driver: self.symbols.intern(&class.provisioner),
            waits_for_consumer: class.waits_for_consumer,
            topologies: rule.map(|rule| self.hosts.intern_node_rule(&self.symbols, rule)),
        };
        self.volumes.classes.insert(name, compiled);
        Ok(())
    }

    /// Sets whether a CSI driver reports its storage (`spec.storageCapacity` of its CSIDriver). If it does not, its
    /// volumes may be provisioned on every host.
    pub fn set_csi_driver(&mut self, name: &str, reports_storage: bool) {
        let name = self.symbols.intern(name);
        let drivers = &mut self.volumes.reporting_drivers;
        let has_changed =
            if reports_storage { drivers.insert(name) } else { drivers.remove(&name) };
        if has_changed {
            self.volumes.update_all_counts(&self.symbols, &self.hosts);
        }
    }

    /// Sets or removes a CSIStorageCapacity. `id` is its namespace and name. Returns the hosts that may have more storage
    /// than before.
    ///
    /// # Errors
    /// Returns an error for a selector that the API server would have rejected. The storage is then removed, because
    /// kube-scheduler ignores it (volumebinding `nodeHasAccess`).
    pub fn set_storage_capacity(
        &mut self,
        id: &str,
        capacity: Option<&StorageCapacityFields>,
    ) -> Result<Vec<HostId>, InvalidField> {
        let id = self.symbols.intern(id);
        let old = self.volumes.remove_pool(id);
        let Some(capacity) = capacity else { return Ok(Vec::new()) };
        let path = FieldPath::root("nodeTopology");
        let selector = capacity.node_topology.as_ref();
        let topology = Selector::read(&mut self.symbols, &path, selector, [])?;
        let class = self.symbols.intern(&capacity.class);
        let mut pool = Pool {
            topology,
            capacity: capacity.capacity,
            maximum_volume_size: capacity.maximum_volume_size,
            reserved: ClaimSum::default(),
        };
        pool.reserved = self.volumes.sum_claims(&self.symbols, &self.hosts, class, &pool);
        let may_have_grown = old.is_none_or(|old| {
            old.capacity < pool.capacity
                || old.maximum_volume_size != pool.maximum_volume_size
                || old.topology != pool.topology
        });
        let hosts = if may_have_grown { self.hosts_of_pool(&pool) } else { Vec::new() };
        self.volumes.insert_pool(id, class, pool);
        Ok(hosts)
    }

    /// Returns the hosts that can use a pool.
    fn hosts_of_pool(&self, pool: &Pool) -> Vec<HostId> {
        let mut candidates = self.hosts.existing_hosts.clone();
        for label in pool.required_labels() {
            match self.hosts.hosts_with_label(label) {
                Some(hosts) => candidates.intersect_with(hosts),
                None => return Vec::new(),
            }
        }
        let matches = |number: &u32| {
            let host = self.hosts.get(*number);
            host.is_some_and(|host| pool.topology.matches(&self.symbols, &host.labels))
        };
        candidates.iter().filter(matches).map(HostId).collect()
    }

    /// Sets the volume of a PersistentVolumeClaim, or removes the claim. A claim that is not set restricts no hosts.
    /// Returns the host on which the claim used reported storage before, if it no longer does.
    ///
    /// # Errors
    /// Returns an error for a node affinity that the API server would have rejected. The claim then restricts no hosts.
    pub fn set_claim(
        &mut self,
        namespace: &str,
        name: &str,
        volume: Option<&ClaimVolume>,
    ) -> Result<Option<HostId>, InvalidField> {
        let name = (self.symbols.intern(namespace), self.symbols.intern(name));
        let result = volume.map_or(Ok(None), |volume| self.compile_claim(volume));
        let claim = result.as_ref().ok().copied().flatten();
        let host = self.volumes.set_claim(&self.symbols, &self.hosts, name, claim);
        result?;
        Ok(host.map(HostId))
    }

    /// Compiles the volume of a claim; returns `None` if the volume restricts no hosts.
    fn compile_claim(&mut self, volume: &ClaimVolume) -> Result<Option<Claim>, InvalidField> {
        Ok(match volume {
            ClaimVolume::Bound(None) => None,
            ClaimVolume::Bound(Some(affinity)) => {
                let spec = FieldPath::root("spec");
                let node_affinity = spec.field("nodeAffinity");
                let path = node_affinity.field("required");
                let rule = NodeRule::from_selector(&mut self.symbols, &path, affinity)?;
                let node_rule = self.hosts.intern_node_rule(&self.symbols, rule);
                Some(Claim::Bound { node_rule })
            }
            ClaimVolume::Unbound(UnboundClaim { class, bytes, selected_node }) => {
                let class = self.symbols.intern(class);
                let selected_node = selected_node.as_ref();
                let selected_node = selected_node.map(|node| self.symbols.intern(node));
                Some(Claim::Unbound { class, bytes: *bytes, selected_node })
            }
        })
    }
}
