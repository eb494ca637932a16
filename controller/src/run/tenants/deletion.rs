//! Finalizes a tenant that is being deleted: takes those steps of [`crate::tenants::deletion`] that are possible now.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::names::{ACCESS_REVOKED_ANNOTATION, FINALIZER, TENANT_PREFIX};
use berth_api::{AddressClaim, EventReason, TenantCluster};
use berth_runtime::call::CallError;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Preconditions};
use serde_json::{Value, json};

use super::context::TenantContext;
use super::error::{Error, none_if_not_found, with_request};
use crate::api_resource::api_resource;
use crate::list::list_objects;
use crate::managed_by::is_created_by_berth;
use crate::run::tenant_data::list_tenant_data;
use crate::tenants::deletion::{
    DeletionAction, DeletionState, MachineObject, NamespaceState, network_users_step, next_step,
    parse_lenient, remaining_data_step,
};
use crate::tenants::fault::join_names_limited;
use crate::tenants::host_leases::is_active;
use crate::tenants::network_id::NetworkId;
use crate::tenants::network_users::DeletedNetwork;
use crate::tenants::objects::ObjectKind;
use crate::tenants::status;

/// Delay before the next reconcile while the deletion waits for another controller or a host.
const RETRY_DELAY: Duration = Duration::from_secs(3);
/// Delay before the pods and VirtualMachines are listed again while some of them use the tenant's network.
const USERS_DELAY: Duration = Duration::from_secs(30);
/// Maximum number of pages in a list of pods or VirtualMachines.
const MAX_PAGES: usize = 1000;
/// Maximum number of pods and VirtualMachines that are reported.
const MAX_USERS: usize = 100;
/// Maximum number of steps in one reconcile; a complete deletion has fewer steps.
const MAX_STEPS: usize = 12;

/// Kinds of objects that count as machines, regardless of their creator.
const MACHINE_KINDS: [(&str, &str, &str, &str); 3] = [
    ("cluster.k8s.io", "v1alpha1", "MachineDeployment", "machinedeployments"),
    ("kubevirt.io", "v1", "VirtualMachine", "virtualmachines"),
    ("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances"),
];

/// Continues the deletion of a tenant. Returns the delay before the next reconcile; `None` if the deletion is complete.
pub(super) async fn finalize(
    context: &TenantContext,
    tenant: &TenantCluster,
) -> Result<Option<Duration>, Error> {
    let name = tenant.name_any();
    if !tenant.finalizers().iter().any(|one| one == FINALIZER) {
        return Ok(None);
    }
    for _ in 0..MAX_STEPS {
        // The tenant is read from the API server, because the store may be stale, and a step must not be taken twice.
        let fresh = context.get_tenant(&name).await?;
        let Some(tenant) = fresh.filter(|one| one.uid() == tenant.uid()) else { return Ok(None) };
        let namespace_state = context.find_namespace(&tenant).await?;
        let machines = context.list_machines(&tenant, namespace_state).await?;
        let all = context.stores.shared_informers.vlan_claims.all();
        let own = all.iter().filter(|claim| {
            let released = claim.status.as_ref().is_some_and(|status| status.released_at.is_some());
            Some(&claim.spec.tenant_uid) == tenant.uid().as_ref() && !released
        });
        let claims: Vec<(String, NetworkId)> = own
            .filter_map(|claim| Some((claim.name_any(), NetworkId::from_claim(claim)?)))
            .collect();
        let objects: usize =
            ObjectKind::ALL.iter().map(|kind| context.owned_objects(*kind, &name).len()).sum();
        let now = Timestamp::now();
        let attached = context.attached_machines(&name);
        let mut step = next_step(DeletionState {
            tenant: &tenant,
            namespace: namespace_state,
            machines: &machines,
            attached_machines: &attached,
            claims: &claims,
            object_count: objects,
            hosts: &context.stores.hosts(),
            now,
        });
        let mut delay = RETRY_DELAY;
        if step.action == DeletionAction::ClearNetworkId {
            let users = context.network_users(&name, namespace_state).await?;
            if !users.is_empty() {
                step = network_users_step(&tenant, &users);
                delay = USERS_DELAY;
            }
        }
        if step.action.destroys_data() {
            let data = context.remaining_data(&tenant).await?;
            if !data.is_empty() {
                step = remaining_data_step(&tenant, &data);
                delay = USERS_DELAY;
            }
        }
        let id = tenant.status.as_ref().and_then(NetworkId::from_status);
        let id = id.filter(|_| step.action != DeletionAction::ClearNetworkId);
        let desired = status::deleting_status(&tenant, id, step.reason, &step.message, now);
        let is_new = status::differs(&desired, &tenant);
        context.update_status(&tenant, &desired).await?;
        if is_new && step.action == DeletionAction::Wait {
            context.warn_attached_tenants(&name, &attached).await;
        }
        match step.action {
            DeletionAction::Wait => return Ok(Some(delay)),
            // The status update above has already removed the VLAN or VNI.
            DeletionAction::ClearNetworkId => {}
            DeletionAction::DeleteMachines(machines) => {
                for machine in &machines {
                    context.delete_machine(&tenant, machine).await?;
                }
            }
            DeletionAction::ReleaseClaims(names) => {
                for claim in all.iter().filter(|claim| names.contains(&claim.name_any())) {
                    context.set_released_at(claim, json!(now)).await?;
                }
                return Ok(Some(Duration::from_millis(300)));
            }
            DeletionAction::DeleteObjects => {
                for kind in ObjectKind::ALL {
                    for object in context.owned_objects(kind, &name) {
                        context.delete_object(kind, &object).await?;
                    }
                }
                return Ok(Some(RETRY_DELAY));
            }
            DeletionAction::DeleteNamespace => {
                context.delete_namespace(&tenant).await?;
                return Ok(Some(RETRY_DELAY));
            }
            DeletionAction::RemoveFinalizer => {
                let Some(tenant) = context.get_tenant(&name).await? else { return Ok(None) };
                let others: Vec<String> =
                    tenant.finalizers().iter().filter(|one| *one != FINALIZER).cloned().collect();
                context.set_finalizers(&tenant, &others).await?;
                tracing::info!(tenant = %name, result = %step.message, "finalized TenantCluster");
                return Ok(None);
            }
        }
    }
    Ok(Some(RETRY_DELAY))
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn machine_resource(kind: &str) -> Option<ApiResource> {
    let (group, version, kind, plural) =
        *MACHINE_KINDS.iter().find(|(_, _, known, _)| *known == kind)?;
    Some(api_resource(group, version, kind, plural))
}

impl TenantContext {
    /// Reads a tenant from the API server, even if its spec cannot be parsed.
    pub(super) async fn get_tenant(&self, name: &str) -> Result<Option<TenantCluster>, Error> {
        let object = with_request(
            format!("get TenantCluster {name}"),
            none_if_not_found(self.tenants_api().get(name).await),
        )?;
        let object = object.and_then(|object| serde_json::to_value(object).ok());
        Ok(object.as_ref().and_then(parse_lenient))
    }

    /// Returns the machines in other namespaces that have addresses in a tenant's network, as namespace/name.
    fn attached_machines(&self, tenant: &str) -> Vec<String> {
        let network = TenantCluster::namespace_of(tenant);
        let attached = self.stores.shared_informers.addresses.read(&network, |claims| {
            // An administrator may have created a claim for a machine that does not exist.
            let is_held =
                |claim: &AddressClaim| is_active(claim) && is_created_by_berth(claim.labels());
            let held = claims.iter().filter(|claim| is_held(claim));
            let machines = held.map(|claim| &claim.spec.machine);
            let of_others = machines.filter(|machine| machine.namespace != network);
            of_others.map(|one| format!("{}/{}", one.namespace, one.name)).collect::<BTreeSet<_>>()
        });
        attached.into_iter().collect()
    }

    /// Returns namespaces and names of the NetworkAttachmentDefinitions that Berth created.
    fn network_definitions(&self) -> BTreeSet<(String, String)> {
        let known = self.stores.store_of_kind(ObjectKind::NetworkAttachmentDefinition);
        let own = known.map(|known| known.filter(|object| is_created_by_berth(object.labels())));
        let own = own.unwrap_or_default();
        own.iter()
            .map(|object| (object.namespace().unwrap_or_default(), object.name_any()))
            .collect()
    }

    /// Returns the pods and VirtualMachines that use a tenant's network and are not deleted with its namespace.
    async fn network_users(
        &self,
        tenant: &str,
        namespace: NamespaceState,
    ) -> Result<Vec<String>, Error> {
        let definitions = self.network_definitions();
        let network = DeletedNetwork { tenant, namespace, definitions: &definitions };
        let mut users = Vec::new();
        let kinds = [
            api_resource("", "v1", "Pod", "pods"),
            api_resource("kubevirt.io", "v1", "VirtualMachine", "virtualmachines"),
        ];
        for resource in &kinds {
            let add = |object: Value| {
                if users.len() < MAX_USERS {
                    users.extend(network.find_user(&resource.kind, &object));
                }
            };
            let listed = list_objects(&self.client, resource, "", None, MAX_PAGES, add).await;
            match listed {
                Ok(true) => {}
                // The first users are sufficient.
                Ok(false) if !users.is_empty() => {}
                Ok(false) => {
                    let message = format!("{} in more than {MAX_PAGES} pages", resource.plural);
                    return Err(Error::NotApplied(message));
                }
                // The kind is not installed.
                Err(CallError::Kube(error)) if is_not_found(&error) => {}
                Err(error) => {
                    return Err(Error::List {
                        request: format!("list {}", resource.plural),
                        error,
                    });
                }
            }
        }
        Ok(users)
    }

    /// Emits an Event about each tenant whose machines are in the network of a tenant that is being deleted.
    async fn warn_attached_tenants(&self, deleted: &str, attached: &[String]) {
        let namespaces = attached.iter().filter_map(|machine| machine.split_once('/'));
        let names = namespaces.filter_map(|(namespace, _)| namespace.strip_prefix(TENANT_PREFIX));
        for name in names.collect::<BTreeSet<_>>() {
            let Some(tenant) = self.stores.shared_informers.tenants.get(name) else { continue };
            let prefix = format!("{}/", TenantCluster::namespace_of(name));
            let own = attached.iter().filter(|machine| machine.starts_with(&prefix)).cloned();
            let message = format!(
                "TenantCluster {deleted} is being deleted and waits for machines that are attached to its network: {}; remove \
                 the network from their MachineDeployments",
                join_names_limited(&own.collect::<Vec<_>>())
            );
            self.warn(&tenant, EventReason::AttachedNetworkDeleting.as_str(), &message).await;
        }
    }

    /// Lists all machines in a tenant's namespace, regardless of their creator.
    async fn list_machines(
        &self,
        tenant: &TenantCluster,
        namespace_state: NamespaceState,
    ) -> Result<Vec<MachineObject>, Error> {
        let mut all = Vec::new();
        if namespace_state == NamespaceState::Absent {
            return Ok(all);
        }
        let namespace = TenantCluster::namespace_of(&tenant.name_any());
        for (_, _, kind, _) in MACHINE_KINDS {
            let Some(resource) = machine_resource(kind) else { continue };
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &namespace, &resource);
            let list = none_if_not_found(api.list_metadata(&ListParams::default()).await);
            // If the kind is not installed, there are no objects of this kind.
            let Some(list) = with_request(format!("list {kind} in {namespace}"), list)? else {
                continue;
            };
            all.extend(list.items.iter().map(|object| MachineObject {
                kind: kind.to_owned(),
                name: object.name_any(),
                is_owned: is_created_by_berth(object.labels()),
                is_deleting: object.metadata.deletion_timestamp.is_some(),
            }));
        }
        Ok(all)
    }

    async fn delete_machine(
        &self,
        tenant: &TenantCluster,
        machine: &MachineObject,
    ) -> Result<(), Error> {
        let Some(resource) = machine_resource(&machine.kind) else { return Ok(()) };
        let namespace = TenantCluster::namespace_of(&tenant.name_any());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &resource);
        let request = format!("delete {} {namespace}/{}", machine.kind, machine.name);
        with_request(
            request,
            none_if_not_found(api.delete(&machine.name, &DeleteParams::background()).await),
        )
        .map(drop)
    }

    /// Returns the machines, volumes and snapshots in the namespace of a tenant whose request was deleted. Its requester has deleted
    /// them before, and those that another user has created since may not be deleted.
    async fn remaining_data(&self, tenant: &TenantCluster) -> Result<Vec<String>, Error> {
        if !tenant.annotations().contains_key(ACCESS_REVOKED_ANNOTATION) {
            return Ok(Vec::new());
        }
        let namespace = TenantCluster::namespace_of(&tenant.name_any());
        let listed = list_tenant_data(&self.client, &namespace).await;
        listed.map_err(|(request, error)| Error::List { request, error })
    }

    async fn delete_namespace(&self, tenant: &TenantCluster) -> Result<(), Error> {
        let name = TenantCluster::namespace_of(&tenant.name_any());
        let resource = ObjectKind::Namespace.resource();
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let request = format!("delete Namespace {name}");
        let existing =
            with_request(request.clone(), none_if_not_found(api.get_metadata(&name).await))?;
        // The namespace contains all data of the tenant. Directly before the deletion, the namespace is therefore read
        // again, to check that Berth created it.
        let Some(existing) = existing.filter(|existing| is_created_by_berth(existing.labels()))
        else {
            return Ok(());
        };
        let preconditions = Preconditions { uid: existing.uid(), resource_version: None };
        let params =
            DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        with_request(request, none_if_not_found(api.delete(&name, &params).await)).map(drop)
    }
}
