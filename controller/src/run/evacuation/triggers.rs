//! Triggers reconciles of hosts: a change triggers only the hosts that it affects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::InfraNode;
use berth_api::names::EVACUATION_ANNOTATION;
use berth_api::names::condition::DRAINING;
use berth_runtime::watch::{Change, Informer, OptionalInformer};
use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use super::index::EvacuationIndex;
use crate::evacuation::record::EvacuationRecord;

/// Handlers of changes, which update the index and add hosts to the queue of reconciles.
pub(super) struct EvacuationTriggers {
    queue: UnboundedSender<ObjectRef<InfraNode>>,
    index: Arc<EvacuationIndex>,
}

impl EvacuationTriggers {
    pub(super) const fn new(
        queue: UnboundedSender<ObjectRef<InfraNode>>,
        index: Arc<EvacuationIndex>,
    ) -> Self {
        Self { queue, index }
    }

    /// Triggers a reconcile of a host. A send error is ignored: the queue has no receiver only if the program is
    /// ending.
    fn trigger(&self, host: &str) {
        self.queue.unbounded_send(ObjectRef::new(host)).unwrap_or_default();
    }

    /// Handles a change of a VirtualMachineInstance.
    pub(super) fn handle_instance(&self, instance: &DynamicObject, is_deleted: bool) {
        self.index.update(instance, is_deleted).iter().for_each(|host| self.trigger(host));
    }

    /// Handles a change of a MachineDeployment, whose status has the number of available machines: a replacement may be
    /// available long after its instance is ready.
    pub(super) fn handle_deployment(&self, deployment: &DynamicObject) {
        let hosts = self.index.hosts_of_deployment(&deployment.name_any());
        hosts.iter().for_each(|host| self.trigger(host));
    }

    /// Handles a change of a VirtualMachine with the label `berth.dev/evacuating`.
    pub(super) fn handle_machine(&self, machine: &DynamicObject) {
        recorded_host(machine).iter().for_each(|host| self.trigger(host));
        let key = (machine.namespace().unwrap_or_default(), machine.name_any());
        self.index.evacuated_host_of(&key).iter().for_each(|host| self.trigger(host));
    }

    /// Handles a change of a VirtualMachineInstanceMigration.
    pub(super) fn handle_migration(&self, migration: &DynamicObject) {
        let instance = migration.data.pointer("/spec/vmiName").and_then(Value::as_str);
        let key =
            (migration.namespace().unwrap_or_default(), instance.unwrap_or_default().to_owned());
        self.index.evacuated_host_of(&key).iter().for_each(|host| self.trigger(host));
    }

    /// Fills the index from the stores, and triggers all hosts with an evacuation.
    pub(super) fn fill(
        &self,
        instances: &OptionalInformer,
        machines: &OptionalInformer,
        infra_nodes: &Informer<InfraNode>,
    ) {
        self.index.fill(instances);
        self.index.hosts().iter().for_each(|host| self.trigger(host));
        for machine in machines.all() {
            self.handle_machine(&machine);
        }
        for host in infra_nodes.all() {
            let mut conditions = host.status.iter().flat_map(|status| &status.conditions);
            if conditions.any(|one| one.type_ == DRAINING) {
                self.trigger(&host.name_any());
            }
        }
    }

    /// Triggers each host for which the report of a removal has changed, at most once in `period`, until the future is
    /// dropped.
    pub(super) async fn handle_reports(
        &self,
        mut reports: UnboundedReceiver<String>,
        period: Duration,
    ) {
        loop {
            let Some(first) = reports.recv().await else {
                // The sender lives as long as the program.
                return std::future::pending().await;
            };
            tokio::time::sleep(period).await;
            let mut hosts = BTreeSet::from([first]);
            hosts.extend(std::iter::from_fn(|| reports.try_recv().ok()));
            hosts.iter().for_each(|host| self.trigger(host));
        }
    }

    /// Triggers each host that was cordoned or uncordoned, until the future is dropped.
    pub(super) async fn handle_node_changes(&self, mut changes: UnboundedReceiver<Change<Node>>) {
        loop {
            let Some(change) = changes.recv().await else {
                // The sender lives as long as the program.
                return std::future::pending().await;
            };
            match change {
                Change::Relisted => self.index.hosts().iter().for_each(|host| self.trigger(host)),
                Change::Object(before, after) => {
                    let is_cordoned = |node: &Option<Arc<Node>>| node.as_deref().map(is_cordoned);
                    if is_cordoned(&before) != is_cordoned(&after)
                        && let Some(node) = after
                    {
                        self.trigger(&node.name_any());
                    }
                }
            }
        }
    }
}

/// Returns true if no new pods are scheduled to the Node.
pub(super) fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

/// Returns the host in the record of an evacuation; `None` if there is no valid record.
pub(super) fn recorded_host(machine: &DynamicObject) -> Option<String> {
    let record = machine.annotations().get(EVACUATION_ANNOTATION)?;
    Some(EvacuationRecord::parse(record)?.host)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use futures::channel::mpsc::unbounded;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test]
    async fn many_reports_trigger_a_host_once() {
        let (queue, mut requests) = unbounded();
        let triggers = EvacuationTriggers::new(queue, Arc::default());
        let (sender, reports) = unbounded_channel();
        for host in ["a", "b", "a", "a"] {
            sender.send(host.to_owned()).unwrap();
        }
        let handle = triggers.handle_reports(reports, Duration::from_millis(1));
        let ended = tokio::time::timeout(Duration::from_millis(300), handle).await;
        assert!(ended.is_err(), "the future ends only when it is dropped");
        drop(triggers);
        let mut hosts = Vec::new();
        while let Some(host) = requests.next().await {
            hosts.push(host.name);
        }
        assert_eq!(hosts, ["a", "b"]);
    }
}
