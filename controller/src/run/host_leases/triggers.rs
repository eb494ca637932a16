//! Triggers reconciles of HostLeases: a change of an object triggers only the hosts that it affects, and each host at
//! most once per second.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use berth_api::{
    AddressClaim, AddressPool, ClaimingMachine, GrantedPrefix, HostLeases, InfraNode,
    TenantCluster, VlanId,
};
use futures::channel::mpsc::UnboundedSender;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::informers::LeaseInformers;
use crate::run::machine_instances::MachineInstances;
use crate::run::packed_content::unpack_content;
use crate::run::throttle::ReconcileThrottle;
use crate::tenants::lease_index::{LeaseIndex, hosts_of_instance};
use berth_runtime::watch::Change;

/// Index that the triggers update and the reconciles read.
pub(super) type SharedIndex = Arc<Mutex<LeaseIndex>>;

/// Handlers of changes, which update the index of machines and claims and add hosts to the queue of reconciles.
pub(super) struct HostLeaseTriggers {
    informers: LeaseInformers,
    instances: MachineInstances,
    index: SharedIndex,
    queue: UnboundedSender<ObjectRef<InfraNode>>,
}

/// Receivers of changes. A change only identifies the object; the current version is read from the store.
pub(super) struct ChangeReceivers {
    tenants: UnboundedReceiver<Change<TenantCluster>>,
    claims: UnboundedReceiver<Change<AddressClaim>>,
    host_leases: UnboundedReceiver<Change<HostLeases>>,
    infra_nodes: UnboundedReceiver<Change<InfraNode>>,
    nodes: UnboundedReceiver<Change<Node>>,
    instances: UnboundedReceiver<ClaimingMachine>,
}

enum AffectedHosts {
    All,
    Named(BTreeSet<String>),
}

impl HostLeaseTriggers {
    /// Returns the triggers, and the receivers of all changes from now on.
    pub(super) fn subscribe(
        informers: LeaseInformers,
        instances: MachineInstances,
        queue: UnboundedSender<ObjectRef<InfraNode>>,
    ) -> (Self, ChangeReceivers) {
        let (sender, changed_instances) = unbounded_channel();
        instances.subscribe(move |instance, _| {
            // The error is ignored: the receiver is dropped only if the reconciler is stopped.
            drop(sender.send(machine_of(instance)));
        });
        let changes = ChangeReceivers {
            tenants: informers.tenants.subscribe(),
            claims: informers.claims.subscribe(),
            host_leases: informers.host_leases.subscribe(),
            infra_nodes: informers.infra_nodes.subscribe(),
            nodes: informers.nodes.subscribe(),
            instances: changed_instances,
        };
        (Self { informers, instances, index: SharedIndex::default(), queue }, changes)
    }

    pub(super) fn index(&self) -> SharedIndex {
        Arc::clone(&self.index)
    }

    /// Fills the index from the stores.
    pub(super) fn fill_index(&self) {
        self.with_index(|index| {
            index.replace_claims(self.informers.claims.all());
            for instance in self.instances.informer().all() {
                let hosts = hosts_of_instance(&unpack_content(&instance).data);
                index.set_hosts(&machine_of(&instance), hosts);
            }
        });
    }

    /// Triggers all hosts, and then the hosts that changes affect, until the future is dropped.
    pub(super) async fn handle_changes(&self, mut changes: ChangeReceivers) {
        let mut throttle = ReconcileThrottle::default();
        self.add_affected(&mut throttle, AffectedHosts::All);
        loop {
            let due_at = throttle.due_at(Instant::now());
            tokio::select! {
                affected = self.next_change(&mut changes) => {
                    self.add_affected(&mut throttle, affected);
                }
                () = sleep_until(due_at.unwrap_or_else(Instant::now)), if due_at.is_some() => {
                    for host in throttle.take_due(Instant::now()) {
                        // The error is ignored: the queue has no receiver only if the reconciler is stopped.
                        self.queue.unbounded_send(ObjectRef::new(&host)).unwrap_or_default();
                    }
                }
            }
        }
    }

    async fn next_change(&self, changes: &mut ChangeReceivers) -> AffectedHosts {
        tokio::select! {
            Some(machine) = changes.instances.recv() => self.handle_instance(&machine),
            Some(change) = changes.claims.recv() => self.handle_claim(change),
            Some(change) = changes.tenants.recv() => self.handle_tenant(change),
            // The controller's own writes are changes too; the reconcile then finds no difference.
            Some(change) = changes.host_leases.recv() => changed_host_if(change, |_, _| true),
            Some(change) = changes.infra_nodes.recv() => {
                changed_host_if(change, |before, after| before.is_none() != after.is_none())
            }
            Some(change) = changes.nodes.recv() => changed_host_if(change, |before, after| {
                before.and_then(|node| node.metadata.uid.as_ref())
                    != after.and_then(|node| node.metadata.uid.as_ref())
            }),
            // The branch is never reached: the senders live as long as the reconciler.
            else => std::future::pending().await,
        }
    }

    fn add_affected(&self, throttle: &mut ReconcileThrottle, affected: AffectedHosts) {
        match affected {
            AffectedHosts::Named(hosts) => hosts.into_iter().for_each(|host| throttle.add(host)),
            AffectedHosts::All => {
                self.informers
                    .infra_nodes
                    .all()
                    .iter()
                    .for_each(|host| throttle.add(host.name_any()));
            }
        }
    }

    fn handle_instance(&self, machine: &ClaimingMachine) -> AffectedHosts {
        let instance = self.instances.informer().get(&machine.namespace, &machine.name);
        let hosts = instance.map(|instance| hosts_of_instance(&unpack_content(&instance).data));
        AffectedHosts::Named(
            self.with_index(|index| index.set_hosts(machine, hosts.unwrap_or_default())),
        )
    }

    fn handle_claim(&self, change: Change<AddressClaim>) -> AffectedHosts {
        let Change::Object(before, after) = change else {
            self.with_index(|index| index.replace_claims(self.informers.claims.all()));
            return AffectedHosts::All;
        };
        let versions = [before, after];
        let versions = || versions.iter().flatten();
        let Some(name) = versions().next().map(|claim| claim.name_any()) else {
            return AffectedHosts::Named(BTreeSet::new());
        };
        let current = self.informers.claims.get(&name);
        let machines = versions().map(|claim| &claim.spec.machine);
        let hosts = self.with_index(|index| index.set_claim(&name, machines, current.as_ref()));
        AffectedHosts::Named(hosts)
    }

    /// Handles a change of a tenant. The status of a tenant changes with every machine, but the fields that leases
    /// contain seldom change.
    fn handle_tenant(&self, change: Change<TenantCluster>) -> AffectedHosts {
        let Change::Object(before, after) = change else { return AffectedHosts::All };
        let [facts_before, facts_after] =
            [&before, &after].map(|one| one.as_deref().map(tenant_facts));
        let changed = before.as_ref().or(after.as_ref()).filter(|_| facts_before != facts_after);
        let hosts = changed
            .map(|tenant| self.with_index(|index| index.hosts_of_tenant(&tenant.name_any())));
        AffectedHosts::Named(hosts.unwrap_or_default())
    }

    fn with_index<T>(&self, change: impl FnOnce(&mut LeaseIndex) -> T) -> T {
        change(&mut self.index.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the machine to which a VirtualMachineInstance belongs; both have the same name.
fn machine_of(instance: &DynamicObject) -> ClaimingMachine {
    ClaimingMachine {
        namespace: instance.namespace().unwrap_or_default(),
        name: instance.name_any(),
    }
}

/// Returns the host with the name of the changed object if `is_relevant` accepts the change.
fn changed_host_if<K: kube::Resource<DynamicType = ()>>(
    change: Change<K>,
    is_relevant: impl Fn(Option<&K>, Option<&K>) -> bool,
) -> AffectedHosts {
    let Change::Object(before, after) = change else { return AffectedHosts::All };
    let object = before.as_ref().or(after.as_ref());
    let object = object.filter(|_| is_relevant(before.as_deref(), after.as_deref()));
    AffectedHosts::Named(object.map(|object| object.name_any()).into_iter().collect())
}

/// Fields of a tenant that its leases contain: UID, pools, prefixes, `dhcp`, VLAN, VNI and MTU.
#[derive(PartialEq)]
struct TenantFacts<'t> {
    uid: Option<&'t String>,
    pools: Option<[Option<&'t AddressPool>; 2]>,
    prefixes: Option<&'t [GrantedPrefix]>,
    dhcp: Option<bool>,
    vlan: Option<VlanId>,
    vni: Option<u32>,
    mtu: Option<u32>,
}

fn tenant_facts(tenant: &TenantCluster) -> TenantFacts<'_> {
    let (network, status) = (tenant.spec.network.as_ref(), tenant.status.as_ref());
    TenantFacts {
        uid: tenant.metadata.uid.as_ref(),
        pools: network.map(|network| [network.ipv4.as_ref(), network.ipv6.as_ref()]),
        prefixes: status.map(|status| status.prefixes.as_slice()),
        dhcp: network.and_then(|network| network.dhcp),
        vlan: status.and_then(|status| status.vlan),
        vni: status.and_then(|status| status.vni),
        mtu: status.and_then(|status| status.mtu),
    }
}
