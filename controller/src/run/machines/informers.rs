//! Stores of the reconciler of MachineDeployments, and the triggers that are called with their changes.

use std::sync::Arc;

use berth_api::names::{MACHINE_LABEL, MANAGED_BY_LABEL};
use berth_api::{InfraConfig, TenantCluster};
use berth_runtime::watch::{Informer, OptionalInformer, OptionalKind, WatchHealth};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::DynamicObject;

use super::index::object_key;
use super::resources::{
    keep_metadata_only, machine_controller_machine_resource, pack_service, remove_managed_fields,
    trim_machine,
};
use super::triggers::MachineTriggers;
use crate::api_resource::{api_resource, deployment_resource, machine_resource};
use crate::run::address_store::AddressStore;
use crate::run::image_table::ImageTable;
use crate::run::machine_instances::MachineInstances;
use crate::run::object_handlers::ObjectHandlers;
use crate::run::removal::{RemovalTable, RemovalTriggers};
use crate::run::removal_lock::RemovalLock;
use crate::run::tenant_access::{Connections, TenantObjects};
use crate::tenants::objects::ObjectKind;

/// Stores that the reconciler of MachineDeployments shares with other reconcilers.
#[derive(Clone, Debug)]
pub struct MachineInformers {
    /// All tenants. The store must keep the part of `managedFields` that `reduce_to_conditions` leaves, because it
    /// determines how a status is written.
    pub tenants: Informer<TenantCluster>,
    pub configs: Informer<InfraConfig>,
    /// All claims of addresses.
    pub addresses: AddressStore,
    /// All Nodes of the infra cluster.
    pub nodes: Informer<Node>,
    /// All VirtualMachineInstances of machines.
    pub instances: MachineInstances,
    /// Functions of other reconcilers that are called with each changed MachineDeployment.
    pub deployment_handlers: ObjectHandlers,
    /// Lock that this reconciler shares with the reconciler of evacuations.
    pub removal_lock: RemovalLock,
    /// Reports of all removals.
    pub removals: Arc<RemovalTable>,
    /// Connections to the API servers of tenants.
    pub connections: Connections,
    /// Golden images that machines need, and their states.
    pub images: Arc<ImageTable>,
    /// Health of the watches, with the objects that cannot be parsed.
    pub watch_health: Arc<WatchHealth>,
}

impl MachineInformers {
    /// Calls the triggers with the changes of the shared stores. `machines` is the store of VirtualMachines.
    pub(super) fn subscribe(
        &self,
        triggers: &Arc<MachineTriggers>,
        removal_triggers: &Arc<RemovalTriggers>,
        machines: &OptionalInformer,
    ) {
        let changed = Arc::clone(triggers);
        self.instances
            .subscribe(move |object, is_deleted| changed.handle_instance(object, is_deleted));
        let changed = Arc::clone(triggers);
        self.images.subscribe(move |deployment| changed.handle_images(deployment));
        let changed = Arc::clone(triggers);
        self.removals.subscribe(move |namespace, name| changed.handle_removal(namespace, name));
        let (node_triggers, removal_triggers) =
            (Arc::clone(triggers), Arc::clone(removal_triggers));
        let cordoned_machines = machines.clone();
        self.connections.subscribe(TenantObjects::Nodes, move |tenant, changed| {
            node_triggers.handle_tenant_nodes(tenant);
            removal_triggers.handle_tenant(tenant, changed, &cordoned_machines);
        });
    }
}

/// Stores that only the reconcilers of MachineDeployments and of removals use.
pub(super) struct OwnInformers {
    pub(super) deployments: OptionalInformer,
    pub(super) machines: OptionalInformer,
    pub(super) machine_controller_machines: OptionalInformer,
    pub(super) webhooks: OptionalInformer,
    pub(super) services: OptionalInformer,
}

impl OwnInformers {
    /// Returns the stores, and a future that updates them and never ends.
    pub(super) fn start(
        client: &Client,
        shared: &MachineInformers,
        triggers: &Arc<MachineTriggers>,
        removal_triggers: &Arc<RemovalTriggers>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let handler = |handle: fn(&MachineTriggers, &DynamicObject, bool)| {
            let triggers = Arc::clone(triggers);
            move |object: &DynamicObject, is_deleted: bool| handle(&triggers, object, is_deleted)
        };
        let (handle, others) =
            (handler(MachineTriggers::handle_deployment), shared.deployment_handlers.clone());
        let images = Arc::clone(&shared.images);
        let handle_deployment = move |object: &DynamicObject, is_deleted: bool| {
            images.handle_deployment(&object_key(object), is_deleted);
            handle(object, is_deleted);
            others.call(object, is_deleted);
        };
        let (handle, table) =
            (handler(MachineTriggers::handle_machine), Arc::clone(&shared.removals));
        let removal_triggers = Arc::clone(removal_triggers);
        let handle_machine = move |object: &DynamicObject, is_deleted: bool| {
            removal_triggers.handle_machine(object, is_deleted);
            if is_deleted {
                let (namespace, name) = object_key(object);
                table.remove(&namespace, &name);
            }
            handle(object, is_deleted);
        };
        let (deployments, watch_deployments) =
            OptionalInformer::start(client, deployment_kind(), handle_deployment);
        let (machines, watch_machines) =
            OptionalInformer::start(client, machine_kind(), handle_machine);
        let (machine_controller_machines, watch_machine_controller_machines) =
            OptionalInformer::start(
                client,
                machine_controller_machine_kind(),
                handler(MachineTriggers::handle_machine_controller_machine),
            );
        let (webhooks, watch_webhooks) = OptionalInformer::start(client, webhook_kind(), |_, _| {});
        let (services, watch_services) = OptionalInformer::start(
            client,
            service_kind(),
            handler(MachineTriggers::handle_service),
        );
        let watches = async move {
            tokio::join!(
                watch_deployments,
                watch_machines,
                watch_machine_controller_machines,
                watch_webhooks,
                watch_services
            );
        };
        (Self { deployments, machines, machine_controller_machines, webhooks, services }, watches)
    }
}

fn deployment_kind() -> OptionalKind {
    OptionalKind {
        resource: deployment_resource(),
        label_selector: None,
        trim: remove_managed_fields,
    }
}

fn machine_kind() -> OptionalKind {
    OptionalKind {
        resource: machine_resource(),
        label_selector: Some("md".to_owned()),
        trim: trim_machine,
    }
}

fn machine_controller_machine_kind() -> OptionalKind {
    OptionalKind {
        resource: machine_controller_machine_resource(),
        label_selector: None,
        trim: keep_metadata_only,
    }
}

fn webhook_kind() -> OptionalKind {
    let resource = api_resource(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    );
    OptionalKind { resource, label_selector: None, trim: keep_metadata_only }
}

fn service_kind() -> OptionalKind {
    let (label, value) = MANAGED_BY_LABEL;
    OptionalKind {
        resource: ObjectKind::Service.resource(),
        label_selector: Some(format!("{label}={value},{MACHINE_LABEL}")),
        trim: pack_service,
    }
}
