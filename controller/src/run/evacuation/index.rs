//! Index of the VirtualMachineInstances that must leave their hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_runtime::watch::OptionalInformer;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::evacuation::machine::{EXTERNAL_STRATEGY, instance_ready_since, migration_obstacle};
use crate::run::packed_content::unpack_content;

/// Namespace and name of an instance, which equal namespace and name of its VirtualMachine.
pub(super) type MachineKey = (String, String);

/// Instances that must leave their hosts, and instances that are ready.
#[derive(Debug, Default)]
pub(super) struct EvacuationIndex(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    evacuating: BTreeMap<MachineKey, InstanceFacts>,
    ready: BTreeSet<MachineKey>,
}

/// Fields of an instance that an evacuation reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InstanceFacts {
    /// Host that the instance must leave, because its pod there was evicted.
    pub(super) evacuated_host: Option<String>,
    /// Time since which the instance is ready, in seconds since the epoch; `None` if it is not ready.
    pub(super) ready_since: Option<i64>,
    /// Name of the machine's MachineDeployment, which may be in another namespace.
    deployment: Option<String>,
    /// The message of the condition LiveMigratable if the VM cannot be migrated.
    pub(super) migration_obstacle: Option<String>,
}

impl InstanceFacts {
    /// Reads a stored instance. Fields of a wrong type count as absent.
    pub(super) fn read(instance: &DynamicObject) -> Self {
        let data = unpack_content(instance).data;
        let text =
            |pointer: &str| data.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (host, evacuated) = (text("/status/nodeName"), text("/status/evacuationNodeName"));
        // virt-handler clears `evacuationNodeName` when the VM runs on the target host. The comparison with `nodeName`
        // prevents a second move if the field was not cleared.
        let must_leave = text("/spec/evictionStrategy") == EXTERNAL_STRATEGY
            && !evacuated.is_empty()
            && host == evacuated;
        Self {
            evacuated_host: must_leave.then(|| evacuated.to_owned()),
            ready_since: instance_ready_since(&data),
            deployment: instance.labels().get("md").cloned(),
            migration_obstacle: migration_obstacle(&data),
        }
    }
}

impl EvacuationIndex {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates an instance, and returns the hosts that the change affects: the host that the instance must leave and,
    /// if its readiness has changed, all hosts that machines of its namespace must leave.
    pub(super) fn update(&self, instance: &DynamicObject, is_deleted: bool) -> BTreeSet<String> {
        let facts =
            if is_deleted { InstanceFacts::default() } else { InstanceFacts::read(instance) };
        let key = (instance.namespace().unwrap_or_default(), instance.name_any());
        self.lock().update(key, facts)
    }

    /// Adds all stored instances.
    pub(super) fn fill(&self, instances: &OptionalInformer) {
        // Holds the lock until all instances are added. Otherwise an older stored state could overwrite a newer state
        // that the handler of changes has set.
        let mut state = self.lock();
        for instance in instances.all() {
            let key = (instance.namespace().unwrap_or_default(), instance.name_any());
            state.update(key, InstanceFacts::read(&instance));
        }
    }

    /// Returns the host that an instance must leave.
    pub(super) fn evacuated_host_of(&self, key: &MachineKey) -> Option<String> {
        self.lock().evacuating.get(key)?.evacuated_host.clone()
    }

    /// Returns the instances that must leave a host.
    pub(super) fn machines_on(&self, host: &str) -> Vec<MachineKey> {
        let state = self.lock();
        let on_host = state
            .evacuating
            .iter()
            .filter(|(_, facts)| facts.evacuated_host.as_deref() == Some(host));
        on_host.map(|(key, _)| key.clone()).collect()
    }

    /// Returns all hosts that instances must leave.
    pub(super) fn hosts(&self) -> BTreeSet<String> {
        let state = self.lock();
        state.evacuating.values().filter_map(|facts| facts.evacuated_host.clone()).collect()
    }

    /// Returns the hosts that instances in this namespace must leave.
    pub(super) fn hosts_of_namespace(&self, namespace: &str) -> BTreeSet<String> {
        let state = self.lock();
        let own = state.evacuating.iter().filter(|((one, _), _)| one == namespace);
        own.filter_map(|(_, facts)| facts.evacuated_host.clone()).collect()
    }

    /// Returns the hosts that machines of MachineDeployments with this name must leave.
    pub(super) fn hosts_of_deployment(&self, name: &str) -> BTreeSet<String> {
        let state = self.lock();
        let all = state.evacuating.values();
        let own = all.filter(|facts| facts.deployment.as_deref() == Some(name));
        own.filter_map(|facts| facts.evacuated_host.clone()).collect()
    }

    /// Returns the number of instances that must leave their hosts.
    pub(super) fn len(&self) -> usize {
        self.lock().evacuating.len()
    }
}

impl State {
    fn update(&mut self, key: MachineKey, facts: InstanceFacts) -> BTreeSet<String> {
        let namespace = key.0.clone();
        let is_readiness_changed = match facts.ready_since {
            Some(_) => self.ready.insert(key.clone()),
            None => self.ready.remove(&key),
        };
        let host = |facts: &Option<InstanceFacts>| {
            facts.as_ref().and_then(|facts| facts.evacuated_host.clone())
        };
        let after = facts.evacuated_host.is_some().then_some(facts);
        let before = match after.clone() {
            Some(facts) => self.evacuating.insert(key, facts),
            None => self.evacuating.remove(&key),
        };
        let mut affected = BTreeSet::new();
        if before != after {
            affected.extend([host(&before), host(&after)].into_iter().flatten());
        }
        if is_readiness_changed {
            let same = self.evacuating.iter().filter(|((other, _), _)| *other == namespace);
            affected.extend(same.filter_map(|(_, facts)| facts.evacuated_host.clone()));
        }
        affected
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn instance(strategy: &str, host: &str, evacuated: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "cluster-a", "labels": {"md": "web"}},
            "spec": {"evictionStrategy": strategy},
            "status": {"phase": "Running", "nodeName": host, "evacuationNodeName": evacuated,
                "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap()
    }

    #[test]
    fn only_evicted_external_vms_must_leave() {
        let host = |strategy, host, evacuated| {
            InstanceFacts::read(&instance(strategy, host, evacuated)).evacuated_host
        };
        assert_eq!(host("External", "a", "a").as_deref(), Some("a"));
        assert_eq!(host("External", "a", ""), None);
        assert_eq!(host("External", "b", "a"), None, "the VM has left the host");
        assert_eq!(host("LiveMigrate", "a", "a"), None, "KubeVirt moves the VM");
    }

    #[test]
    fn changes_affect_hosts() {
        let index = EvacuationIndex::default();
        let affected = |object: &DynamicObject, is_deleted| {
            index.update(object, is_deleted).into_iter().collect::<Vec<_>>()
        };
        assert!(affected(&instance("External", "a", ""), false).is_empty());
        assert_eq!(affected(&instance("External", "a", "a"), false), ["a"]);
        assert!(affected(&instance("External", "a", "a"), false).is_empty(), "nothing has changed");
        assert_eq!(index.machines_on("a").len(), 1);
        let hosts = |name: &str| index.hosts_of_deployment(name).into_iter().collect::<Vec<_>>();
        assert_eq!((hosts("web"), hosts("db")), (vec!["a".to_owned()], Vec::new()));
        assert_eq!(index.hosts_of_namespace("cluster-a"), ["a".to_owned()].into());
        assert!(index.hosts_of_namespace("cluster-b").is_empty());
        let mut other = instance("External", "b", "");
        other.metadata.name = Some("web-2".to_owned());
        assert_eq!(affected(&other, false), ["a"], "a replacement has become ready");
        assert!(affected(&other, false).is_empty());
        assert_eq!(affected(&instance("External", "a", "a"), true), ["a"]);
        assert_eq!((index.len(), index.hosts().len()), (0, 0));
    }
}
