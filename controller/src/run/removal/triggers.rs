//! Triggers reconciles of removals at changes of marked machines, of their Nodes in the tenants' clusters, and of the
//! connections to tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_api::TenantCluster;
use berth_runtime::reconcile::ReconcileRequest;
use berth_runtime::watch::OptionalInformer;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::UnboundedSender;

use crate::api_resource::machine_resource;
use crate::removal::progress::is_in_removal;
use crate::run::tenant_access::{ChangedMachines, Connections};
use crate::tenant_nodes::node_match::named_machine;

/// Queue of reconciles, and an index of the machines with a mark by namespace.
pub(in crate::run) struct RemovalTriggers {
    queue: UnboundedSender<ReconcileRequest<DynamicObject>>,
    connections: Connections,
    marked: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

impl RemovalTriggers {
    pub(in crate::run) fn new(
        queue: UnboundedSender<ReconcileRequest<DynamicObject>>,
        connections: Connections,
    ) -> Self {
        Self { queue, connections, marked: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeSet<String>>> {
        self.marked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trigger(&self, namespace: &str, name: &str) {
        let reference = ObjectRef::new_with(name, machine_resource()).within(namespace);
        // The error is ignored: the queue has no receiver only if the program is ending.
        drop(self.queue.send(reference.into()));
    }

    /// Handles a change of a VirtualMachine. After its mark was removed, the machine is reconciled once more, to
    /// uncordon its Node.
    pub(in crate::run) fn handle_machine(&self, machine: &DynamicObject, is_deleted: bool) {
        let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
        let is_marked = !is_deleted && is_in_removal(machine);
        let was_marked = {
            let mut marked = self.lock();
            if is_marked {
                marked.entry(namespace.clone()).or_default().insert(name.clone());
                true
            } else {
                let names = marked.get_mut(&namespace);
                let was_marked = names.is_some_and(|names| names.remove(&name));
                marked.retain(|_, names| !names.is_empty());
                was_marked
            }
        };
        if was_marked && !is_deleted {
            self.trigger(&namespace, &name);
        }
    }

    /// Handles a change of a tenant's connection, or of the Nodes of the machines in `changed`. A machine whose Node
    /// Berth has cordoned is reconciled even without a mark: the mark may have been removed while the controller was
    /// stopped. Machines that do not exist are not added to the queue, because the tenant determines the names and
    /// annotations of its Nodes.
    pub(in crate::run) fn handle_tenant(
        &self,
        tenant: &str,
        changed: ChangedMachines<'_>,
        machines: &OptionalInformer,
    ) {
        let namespace = TenantCluster::namespace_of(tenant);
        let may_exist =
            |name: &str| !machines.is_listed() || machines.get(&namespace, name).is_some();
        let names = self.affected_machines(tenant, changed, may_exist);
        names.iter().for_each(|name| self.trigger(&namespace, name));
    }

    fn affected_machines(
        &self,
        tenant: &str,
        changed: ChangedMachines<'_>,
        may_exist: impl Fn(&str) -> bool,
    ) -> BTreeSet<String> {
        let namespace = TenantCluster::namespace_of(tenant);
        let mut names = self.lock().get(&namespace).cloned().unwrap_or_default();
        if let Some(state) = self.connections.state(tenant) {
            let state = state.lock();
            let cordoned = state.nodes.nodes().values().filter(|node| node.is_cordoned_by_berth);
            let cordoned = cordoned.map(|node| named_machine(node).unwrap_or(&node.name));
            names.extend(cordoned.filter(|&name| may_exist(name)).map(str::to_owned));
        }
        names.retain(|name| changed.is_none_or(|changed| changed.contains(name)));
        names
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::names::{CORDONED_ANNOTATION, REMOVAL_ANNOTATION};
    use berth_runtime::untrusted::CollectionEvent;
    use serde_json::{Value, json};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[test]
    fn a_node_affects_only_its_machine() {
        let connections = Connections::new(Arc::default());
        let triggers = RemovalTriggers::new(unbounded_channel().0, connections.clone());
        let namespace = TenantCluster::namespace_of("bank");
        for (name, reason) in [("a", Some("Rollout")), ("b", Some("Rollout")), ("c", None)] {
            let annotations = reason.map(|reason| json!({REMOVAL_ANNOTATION: reason}));
            let metadata =
                json!({"name": name, "namespace": namespace, "annotations": annotations});
            let machine: Value = json!({"metadata": metadata});
            triggers.handle_machine(&serde_json::from_value(machine).unwrap(), false);
        }
        let cordoned = json!({"name": "c", "annotations": {CORDONED_ANNOTATION: "removal"}});
        let cordoned = serde_json::from_value(json!({"metadata": cordoned})).unwrap();
        connections.handle_node_event("bank", CollectionEvent::Applied(cordoned));
        let affected = |changed: ChangedMachines<'_>, exist: bool| {
            let all = triggers.affected_machines("bank", changed, |_| exist);
            all.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(affected(None, true), "a b c");
        assert_eq!(affected(None, false), "a b");
        let changed = |name: &str| BTreeSet::from([name.to_owned()]);
        assert_eq!(affected(Some(&changed("a")), true), "a");
        assert_eq!(affected(Some(&changed("c")), true), "c");
        assert_eq!(affected(Some(&changed("d")), true), "");
    }
}
