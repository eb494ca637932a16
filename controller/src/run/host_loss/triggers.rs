//! Triggers reconciles of hosts that are down, and of the tenants with machines on them.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::names::TENANT_PREFIX;
use berth_api::names::condition::HOST_LOST;
use berth_api::{ConditionReason, InfraNode, TenantCluster};
use berth_runtime::watch::Change;
use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::UnboundedReceiver;

use super::state::LossState;
use crate::host_loss::away_host_limit::AwayHostLimit;
use crate::host_loss::evidence::HostEvidence;
use crate::host_loss::machine_hosts::MachineHost;
use crate::observation::Observation;
use crate::run::context::Context;
use crate::run::machine_instances::MachineInstances;
use crate::run::packed_content::unpack_content;

/// Queues of the reconcilers of hosts and of tenants.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    pub(super) hosts: UnboundedSender<ObjectRef<InfraNode>>,
    pub(super) tenants: UnboundedSender<ObjectRef<TenantCluster>>,
}

impl Queues {
    /// Triggers a host. A send error is ignored: the queue has no receiver only if the reconciler is stopped.
    fn trigger_host(&self, name: &str) {
        self.hosts.unbounded_send(ObjectRef::new(name)).unwrap_or_default();
    }

    fn trigger_tenant(&self, name: &str) {
        self.tenants.unbounded_send(ObjectRef::new(name)).unwrap_or_default();
    }

    /// Triggers the tenants with these namespaces, and the tenants that have a condition about lost hosts.
    pub(super) fn trigger_tenants(&self, namespaces: &BTreeSet<String>, context: &Context) {
        let named = namespaces.iter().filter_map(|one| one.strip_prefix(TENANT_PREFIX));
        named.for_each(|tenant| self.trigger_tenant(tenant));
        let has_condition = |tenant: &&Arc<TenantCluster>| {
            let mut all = tenant.status.iter().flat_map(|status| &status.conditions);
            all.any(|one| one.type_ == HOST_LOST)
        };
        let all = context.tenants.all();
        all.iter().filter(has_condition).for_each(|one| self.trigger_tenant(&one.name_any()));
    }
}

/// Handlers of changes, which update the state and add hosts and tenants to the queues.
pub(super) struct HostLossTriggers {
    context: Arc<Context>,
    instances: MachineInstances,
    state: Arc<LossState>,
    queues: Queues,
}

pub(super) struct ChangeReceivers {
    nodes: UnboundedReceiver<Change<Node>>,
    infra_nodes: UnboundedReceiver<Change<InfraNode>>,
    tenants: UnboundedReceiver<Change<TenantCluster>>,
}

impl HostLossTriggers {
    pub(super) const fn new(
        context: Arc<Context>,
        instances: MachineInstances,
        state: Arc<LossState>,
        queues: Queues,
    ) -> Self {
        Self { context, instances, state, queues }
    }

    /// Fills the state from the stores, and returns the receivers of all later changes.
    pub(super) async fn subscribe(&self) -> ChangeReceivers {
        let (state, queues) = (Arc::clone(&self.state), self.queues.clone());
        self.instances.subscribe(move |instance, is_deleted| {
            let host = if is_deleted { None } else { host_of(instance) };
            let mut facts = state.lock();
            let affected = facts.machines.set(&machine_of(instance), host);
            let down = affected.iter().filter(|host| facts.down_observation(host).is_some());
            down.for_each(|host| queues.trigger_host(host));
        });
        self.instances.informer().wait_until_ready().await;
        let changes = ChangeReceivers {
            nodes: self.context.nodes.subscribe(),
            infra_nodes: self.context.infra_nodes.subscribe(),
            tenants: self.context.tenants.subscribe(),
        };
        let mut facts = self.state.lock();
        for instance in self.instances.informer().all() {
            facts.machines.set(&machine_of(&instance), host_of(&instance));
        }
        let (clock, now) = (self.state.clock(), Timestamp::now());
        let mut was_exceeded = false;
        for infra_node in self.context.infra_nodes.all() {
            let host = infra_node.name_any();
            let evidence = self.evidence(&host);
            facts.set_evidence(&host, evidence, |since| Observation::resume(clock, since, now));
            was_exceeded |= has_exceeded_limit(&infra_node);
        }
        facts.away_host_limit = AwayHostLimit::resume(was_exceeded);
        facts.update_away_host_limit();
        drop(facts);
        changes
    }

    fn evidence(&self, host: &str) -> Option<HostEvidence> {
        let infra_node = self.context.infra_nodes.get(host)?;
        HostEvidence::read(self.context.nodes.get(host).as_deref(), &infra_node)
    }

    /// Triggers the hosts and tenants that changes affect, until the future is dropped.
    pub(super) async fn handle_changes(&self, mut changes: ChangeReceivers) {
        let facts = self.state.lock().down_hosts();
        facts.iter().for_each(|host| self.queues.trigger_host(host));
        // A previous leader may have left the condition on a host that is no longer down.
        for infra_node in self.context.infra_nodes.all() {
            let mut all = infra_node.status.iter().flat_map(|status| &status.conditions);
            if all.any(|one| one.type_ == HOST_LOST) {
                self.queues.trigger_host(&infra_node.name_any());
            }
        }
        self.queues.trigger_tenants(&BTreeSet::new(), &self.context);
        loop {
            tokio::select! {
                Some(change) = changes.nodes.recv() => self.handle_host(change),
                Some(change) = changes.infra_nodes.recv() => self.handle_host(change),
                Some(change) = changes.tenants.recv() => self.handle_tenant(&change),
                // The branch is never reached: the senders live as long as the program.
                else => std::future::pending().await,
            }
        }
    }

    fn handle_host<K: kube::Resource<DynamicType = ()>>(&self, change: Change<K>) {
        let hosts: BTreeSet<String> = match change {
            Change::Object(before, after) => {
                before.or(after).map(|object| object.name_any()).into_iter().collect()
            }
            Change::Relisted => {
                let known = self.state.lock().known_hosts().into_iter();
                let listed = self.context.infra_nodes.all();
                known.chain(listed.iter().map(|host| host.name_any())).collect()
            }
        };
        let clock = self.state.clock();
        let mut facts = self.state.lock();
        for host in hosts {
            let evidence = self.evidence(&host);
            if facts.set_evidence(&host, evidence, |_| Observation::new(clock)) {
                self.queues.trigger_host(&host);
            }
            // A deleted InfraNode is not reconciled, so its verdicts are removed here.
            if evidence.is_none()
                && let Some(namespaces) = facts.set_lost(&host, None)
            {
                self.queues.trigger_tenants(&namespaces, &self.context);
            }
        }
        if facts.update_away_host_limit() {
            let (away, all) = facts.away_hosts();
            let is_exceeded = facts.away_host_limit.is_exceeded();
            tracing::info!(
                away,
                all,
                is_exceeded,
                "the number of away hosts crossed the limit for replacements"
            );
            facts.down_hosts().iter().for_each(|host| self.queues.trigger_host(host));
        }
    }

    /// Handles a change of a tenant: its `replaceAfter` may have changed.
    fn handle_tenant(&self, change: &Change<TenantCluster>) {
        let is_relevant = match change {
            Change::Relisted => true,
            Change::Object(before, after) => {
                let time = |tenant: &Option<Arc<TenantCluster>>| {
                    tenant.as_ref().map(|tenant| tenant.spec.replace_after)
                };
                time(before) != time(after)
            }
        };
        if is_relevant {
            let down = self.state.lock().down_hosts();
            down.iter().for_each(|host| self.queues.trigger_host(host));
        }
    }
}

/// Returns true if the previous leader reported that too many hosts are away.
fn has_exceeded_limit(infra_node: &InfraNode) -> bool {
    let mut all = infra_node.status.iter().flat_map(|status| &status.conditions);
    all.any(|one| {
        one.type_ == HOST_LOST && one.reason.parse() == Ok(ConditionReason::TooManyHostsAway)
    })
}

fn machine_of(instance: &DynamicObject) -> (String, String) {
    (instance.namespace().unwrap_or_default(), instance.name_any())
}

fn host_of(instance: &DynamicObject) -> Option<MachineHost> {
    MachineHost::of_instance(&unpack_content(instance).data)
}
