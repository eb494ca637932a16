//! Triggers reconciles of MachineDeployments: a change of an object triggers only the MachineDeployments that it
//! affects.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use berth_api::{AddressClaim, GrantedPrefix, TenantCluster, names};
use berth_runtime::reconcile::ReconcileRequest;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::deleted_machines::DeletedMachines;
use super::index::{Index, ObjectKey, Ownership, deployment_name, object_key};
use super::prefixes::{PrefixFacts, prefix_facts};
use crate::api_resource::deployment_resource;
use crate::machine_owner::is_owned_by;
use crate::tenants::policies_ready::policies_not_ready_reason;
use berth_runtime::watch::{Change, Informer, OptionalInformer};

/// Queue of MachineDeployments that must be reconciled.
pub(super) type ReconcileQueue = UnboundedSender<ReconcileRequest<DynamicObject>>;

/// Handlers of changes, which update the indexes and add MachineDeployments to the queue of reconciles.
pub(super) struct MachineTriggers {
    queue: ReconcileQueue,
    /// Stores of MachineDeployments and VirtualMachines. The stores call these triggers, so the stores are set after
    /// the construction.
    stores: OnceLock<[OptionalInformer; 2]>,
    tenants: Informer<TenantCluster>,
    deployments_by_name: Index<String>,
    deployments_by_namespace: Index<String>,
    /// VirtualMachines by namespace and name of their MachineDeployment.
    machines: Index<ObjectKey>,
    /// Machines that were deleted, and whose AddressClaims are to be released.
    pub(super) deleted_machines: DeletedMachines,
    /// Facts of each tenant at its last change.
    tenant_facts: Mutex<BTreeMap<String, TenantFacts>>,
}

/// Facts of a tenant that affect its machines.
#[derive(Clone, PartialEq)]
struct TenantFacts {
    uid: Option<String>,
    generation: Option<i64>,
    /// Other tenants whose networks can be attached to machines.
    additional_networks: Vec<String>,
    /// True if the tenant is being deleted, so that no further machine is attached to its network.
    is_deleting: bool,
    /// Name of the tenant's NetworkAttachmentDefinition; if the tenant has none, the tenant's namespace, which is in
    /// the status after the first reconcile of the tenant.
    attachment: Option<String>,
    /// True if the tenant's NetworkPolicies are in force.
    is_isolated: bool,
    prefixes: Vec<GrantedPrefix>,
    prefix_facts: PrefixFacts,
}

impl MachineTriggers {
    pub(super) fn new(queue: ReconcileQueue, tenants: Informer<TenantCluster>) -> Self {
        Self {
            queue,
            stores: OnceLock::new(),
            tenants,
            deployments_by_name: Index::default(),
            deployments_by_namespace: Index::default(),
            machines: Index::default(),
            deleted_machines: DeletedMachines::default(),
            tenant_facts: Mutex::default(),
        }
    }

    /// Sets the stores. The caller must do this before the stores receive changes.
    pub(super) fn set_stores(&self, deployments: &OptionalInformer, machines: &OptionalInformer) {
        let stores = [deployments, machines].map(Clone::clone);
        // `set` fails only if the stores are already set, which does not occur.
        self.stores.set(stores).unwrap_or_default();
    }

    fn trigger(&self, (namespace, name): ObjectKey) {
        let mut reference = ObjectRef::new_with(&name, deployment_resource());
        reference.namespace = Some(namespace);
        // The error is ignored: the queue has no receiver only if the program is ending.
        drop(self.queue.send(reference.into()));
    }

    fn trigger_all(&self, keys: Vec<ObjectKey>) {
        keys.into_iter().for_each(|key| self.trigger(key));
    }

    /// Handles a change of a MachineDeployment.
    pub(super) fn handle_deployment(&self, object: &DynamicObject, is_deleted: bool) {
        let key = object_key(object);
        self.deployments_by_name.update(key.1.clone(), key.clone(), !is_deleted);
        self.deployments_by_namespace.update(key.0.clone(), key.clone(), !is_deleted);
        self.trigger(key);
    }

    /// Handles a change of the golden images of a MachineDeployment.
    pub(super) fn handle_images(&self, deployment: &ObjectKey) {
        self.trigger(deployment.clone());
    }

    /// Handles a change of a VirtualMachine.
    pub(super) fn handle_machine(&self, machine: &DynamicObject, is_deleted: bool) {
        let Some(deployment) = deployment_name(machine) else { return };
        let key = object_key(machine);
        self.deleted_machines.update(key.clone(), is_deleted);
        self.machines.update((key.0.clone(), deployment.clone()), key, !is_deleted);
        self.trigger_owners(machine, deployment);
    }

    /// Handles a change of a VirtualMachineInstance.
    pub(super) fn handle_instance(&self, instance: &DynamicObject, _: bool) {
        let (namespace, name) = object_key(instance);
        self.handle_change_of_machine(&namespace, &name);
    }

    /// Handles a change of the Service of a machine.
    pub(super) fn handle_service(&self, service: &DynamicObject, _: bool) {
        let Some(name) = service.labels().get(names::MACHINE_LABEL) else { return };
        self.handle_change_of_machine(&service.namespace().unwrap_or_default(), name);
    }

    /// Handles the changes of AddressClaims; never ends. If the claim of an existing machine is deleted, its
    /// MachineDeployment is reconciled. After a relist, all MachineDeployments are reconciled, because it is unknown
    /// which claims were deleted.
    pub(super) async fn handle_claim_changes(
        &self,
        mut changes: UnboundedReceiver<Change<AddressClaim>>,
    ) {
        while let Some(change) = changes.recv().await {
            match change {
                Change::Relisted => {
                    self.trigger_all(self.deployments_by_namespace.objects_matching(|_| true));
                }
                Change::Object(Some(claim), None) => {
                    let machine = &claim.spec.machine;
                    self.handle_change_of_machine(&machine.namespace, &machine.name);
                }
                Change::Object(..) => {}
            }
        }
        // The watch ends only if the program is ending.
        std::future::pending().await
    }

    /// Handles a change of the report about the removal of a machine.
    pub(super) fn handle_removal(&self, namespace: &str, name: &str) {
        self.handle_change_of_machine(namespace, name);
    }

    /// Handles a change of the Nodes of a tenant, on which the readiness of its machines depends.
    pub(super) fn handle_tenant_nodes(&self, tenant: &str) {
        let is_used = |tenant: &TenantCluster| tenant.spec.uses_node_readiness();
        if !self.tenants.get(tenant).is_some_and(|tenant| is_used(&tenant)) {
            return;
        }
        let own = TenantCluster::namespace_of(tenant);
        for (namespace, name) in
            self.machines.one_object_per_key(|(namespace, _)| *namespace == own)
        {
            self.handle_change_of_machine(&namespace, &name);
        }
    }

    /// Handles a change of an object with the namespace and name of a machine. If no VirtualMachine has this name, the
    /// change affects no MachineDeployment.
    fn handle_change_of_machine(&self, namespace: &str, name: &str) {
        let Some([_, machines]) = self.stores.get() else { return };
        let machine = machines.get(namespace, name);
        if let Some((machine, deployment)) =
            machine.as_deref().and_then(|machine| Some((machine, deployment_name(machine)?)))
        {
            self.trigger_owners(machine, deployment);
        }
    }

    fn trigger_owners(&self, machine: &DynamicObject, deployment: &String) {
        match Ownership::from_metadata(machine) {
            Ownership::Deployment(key) => self.trigger(key),
            Ownership::Uid(uid) => {
                let Some([deployments, ..]) = self.stores.get() else { return };
                let mut all = self.deployments_by_name.objects_with_key(deployment);
                all.retain(|(namespace, name)| {
                    deployments.get(namespace, name).and_then(|one| one.uid()) == Some(uid.clone())
                });
                self.trigger_all(all);
            }
            Ownership::Unknown => {
                self.trigger_all(self.deployments_by_name.objects_with_key(deployment))
            }
        }
    }

    /// Handles the changes of tenants; never ends.
    pub(super) async fn handle_tenant_changes(
        &self,
        mut changes: UnboundedReceiver<Change<TenantCluster>>,
    ) {
        self.tenants.wait_until_ready().await;
        self.handle_all_tenants();
        while let Some(change) = changes.recv().await {
            match change {
                Change::Relisted => self.handle_all_tenants(),
                Change::Object(_, Some(tenant)) => self.handle_tenant(&tenant, false),
                Change::Object(Some(tenant), None) => self.handle_tenant(&tenant, true),
                Change::Object(None, None) => {}
            }
        }
        // The watch ends only if the program is ending.
        std::future::pending().await
    }

    fn handle_all_tenants(&self) {
        self.tenants.all().iter().for_each(|tenant| self.handle_tenant(tenant, false));
    }

    /// Handles a change of a tenant. Triggers reconciles only if the [`TenantFacts`] have changed: the status of a
    /// tenant changes with every machine, but these facts seldom change.
    fn handle_tenant(&self, tenant: &TenantCluster, is_deleted: bool) {
        let name = tenant.name_any();
        let status = tenant.status.as_ref();
        // A tenant without a NetworkAttachmentDefinition is compared by its namespace, which is in the status after the
        // first reconcile of the tenant.
        let attachment = status.and_then(|status| {
            status.network_attachment_definition.clone().or_else(|| status.namespace.clone())
        });
        let is_isolated = policies_not_ready_reason(tenant).is_none();
        let facts = TenantFacts {
            uid: tenant.uid(),
            generation: tenant.metadata.generation,
            additional_networks: status
                .map(|status| status.additional_networks.clone())
                .unwrap_or_default(),
            is_deleting: tenant.metadata.deletion_timestamp.is_some(),
            attachment,
            is_isolated,
            prefixes: status.map(|status| status.prefixes.clone()).unwrap_or_default(),
            prefix_facts: prefix_facts(tenant),
        };
        let is_same = {
            let mut known = self.tenant_facts.lock().unwrap_or_else(PoisonError::into_inner);
            if is_deleted {
                known.remove(&name);
                false
            } else {
                known.insert(name.clone(), facts.clone()) == Some(facts)
            }
        };
        if is_same {
            return;
        }
        // In the namespace of an existing other tenant, all MachineDeployments belong to that tenant; their machines may
        // be attached to the network of the changed tenant. In any other namespace, MachineDeployments may name the
        // changed tenant.
        let may_attach =
            |other: &TenantCluster| other.additional_tenants().any(|listed| listed == name);
        let is_affected = |namespace: &String| match namespace.strip_prefix("cluster-") {
            Some(other) => {
                other == name || self.tenants.get(other).is_none_or(|other| may_attach(&other))
            }
            None => true,
        };
        self.trigger_all(self.deployments_by_namespace.objects_matching(is_affected));
    }

    /// Handles a change of a Machine of machine-controller.
    pub(super) fn handle_machine_controller_machine(&self, machine: &DynamicObject, _: bool) {
        self.trigger_all(
            self.deployments_by_namespace
                .objects_with_key(&machine.namespace().unwrap_or_default()),
        );
    }

    /// Returns the VirtualMachines in a namespace whose label names the MachineDeployment.
    pub(super) fn machines_of(&self, namespace: &str, deployment: &str) -> Vec<ObjectKey> {
        self.machines.objects_with_key(&(namespace.to_owned(), deployment.to_owned()))
    }

    /// Returns the namespaces that contain VirtualMachines of a MachineDeployment. The VirtualMachines are found by the
    /// UID of their owner. The function searches all namespaces, so it should be called rarely.
    pub(super) fn namespaces_of(&self, object: &DynamicObject) -> Vec<String> {
        let Some([_, machines]) = self.stores.get() else { return Vec::new() };
        let name = object.name_any();
        let all = self.machines.objects_matching(|(_, deployment)| *deployment == name);
        let owned_namespace = |(namespace, name): &ObjectKey| {
            let machine = machines.get(namespace, name)?;
            is_owned_by(&machine, object.metadata.uid.as_deref()).then(|| namespace.clone())
        };
        all.iter().filter_map(owned_namespace).collect()
    }

    /// Returns the MachineDeployments in a namespace.
    pub(super) fn deployments_in(&self, namespace: &str) -> Vec<ObjectKey> {
        self.deployments_by_namespace.objects_with_key(&namespace.to_owned())
    }
}
