//! Triggers reconciles of the Nodes in tenants' clusters: a change triggers only the tenants that it affects.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::names::TENANT_PREFIX;
use berth_api::{InfraConfig, TenantCluster};
use berth_runtime::watch::Change;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::run::context::Context;
use crate::run::machine_instances::MachineInstances;
use crate::run::packed_content::unpack_content;
use crate::run::tenant_access::TenantQueue;
use crate::tenant_nodes::host_fields::ReplicationConfig;
use crate::tenant_nodes::machine_index::{MachineIndex, MachineState};

/// Index of the hosts on which all machines run. The triggers update it, and the reconciles read it.
pub(super) type SharedMachines = Arc<Mutex<MachineIndex>>;

/// Handlers of changes, which add tenants to the queue of reconciles.
pub(super) struct TenantNodeTriggers {
    context: Arc<Context>,
    queue: TenantQueue,
    instances: MachineInstances,
    machines: SharedMachines,
}

/// Receivers of the changes of the watched objects.
pub(super) struct ChangeReceivers {
    tenants: UnboundedReceiver<Change<TenantCluster>>,
    configs: UnboundedReceiver<Change<InfraConfig>>,
    nodes: UnboundedReceiver<Change<Node>>,
}

impl TenantNodeTriggers {
    pub(super) fn new(
        context: Arc<Context>,
        queue: TenantQueue,
        instances: MachineInstances,
    ) -> Self {
        Self { context, queue, instances, machines: SharedMachines::default() }
    }

    /// Returns the index of the hosts on which all machines run.
    pub(super) fn machines(&self) -> SharedMachines {
        Arc::clone(&self.machines)
    }

    /// Fills the index of machines, and returns the receivers of all changes from then on.
    pub(super) async fn subscribe(&self) -> ChangeReceivers {
        let (machines, queue) = (self.machines(), self.queue.clone());
        self.instances.subscribe(move |instance, is_deleted| {
            if set_machine(&mut lock(&machines), instance, is_deleted)
                && let Some(tenant) = tenant_of(&instance.namespace().unwrap_or_default())
            {
                queue.trigger(tenant);
            }
        });
        self.instances.informer().wait_until_ready().await;
        {
            // The lock is held until all machines are set. Otherwise a stored state could overwrite a newer state that
            // the handler above has set meanwhile.
            let mut machines = lock(&self.machines);
            for instance in self.instances.informer().all() {
                set_machine(&mut machines, &instance, false);
            }
        }
        ChangeReceivers {
            tenants: self.context.tenants.subscribe(),
            configs: self.context.configs.subscribe(),
            nodes: self.context.nodes.subscribe(),
        }
    }

    /// Triggers all tenants once, and then the tenants that are affected by changes, until this future is dropped.
    pub(super) async fn handle_changes(&self, mut changes: ChangeReceivers) {
        self.queue.trigger_all(&self.context);
        let mut replication = ReplicationConfig::from_config(&self.context.config().spec);
        loop {
            tokio::select! {
                Some(change) = changes.tenants.recv() => self.queue.handle_tenant(&change, &self.context),
                Some(change) = changes.nodes.recv() => self.handle_node(&change, &replication),
                Some(_) = changes.configs.recv() => {
                    let current = ReplicationConfig::from_config(&self.context.config().spec);
                    if current != replication {
                        replication = current;
                        self.queue.trigger_all(&self.context);
                    }
                }
                // Unreachable: the senders exist until the program ends.
                else => std::future::pending().await,
            }
        }
    }

    fn handle_node(&self, change: &Change<Node>, replication: &ReplicationConfig) {
        let Change::Object(before, after) = change else {
            return self.queue.trigger_all(&self.context);
        };
        let fields = |node: &Option<Arc<Node>>| node.as_ref().map(|node| replication.select(node));
        if fields(before) == fields(after) {
            return;
        }
        let Some(node) = after.as_ref().or(before.as_ref()) else { return };
        let machines = lock(&self.machines);
        for namespace in machines.namespaces_on(&node.name_any()) {
            tenant_of(&namespace).into_iter().for_each(|tenant| self.queue.trigger(tenant));
        }
    }
}

fn lock(machines: &SharedMachines) -> MutexGuard<'_, MachineIndex> {
    machines.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tenant_of(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(TENANT_PREFIX)
}

/// Sets the host of a machine. Returns true if the host has changed. During a live migration, `status.nodeName` names
/// the source host until the VM runs on the target.
fn set_machine(machines: &mut MachineIndex, instance: &DynamicObject, is_deleted: bool) -> bool {
    let data = unpack_content(instance).data;
    let host = data.pointer("/status/nodeName").and_then(Value::as_str).unwrap_or_default();
    let state = match host {
        _ if is_deleted => MachineState::Deleted,
        "" => MachineState::Pending,
        host => MachineState::On(host),
    };
    let namespace = instance.namespace().unwrap_or_default();
    machines.set(&namespace, &instance.name_any(), state)
}
