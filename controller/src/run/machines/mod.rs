//! Reconciler of MachineDeployments: creates the desired number of VirtualMachines for each MachineDeployment.
//!
//! [`berth_kubevirt_render::machines`] computes the desired state. Objects that change often are read from informer
//! stores, so a reconcile without a difference sends no request. Secrets and storage classes are read when a machine
//! is created.

mod access;
mod address_gc;
mod address_restore;
mod addresses;
mod apply;
mod context;
mod deleted_machines;
mod deletion;
mod errors;
mod guest;
mod index;
mod machine;
mod machine_controller;
mod policies;
mod prefixes;
mod read;
mod readiness;
mod reconcile;
mod recorded_namespace;
mod references;
mod removal;
mod resources;
mod template;
mod tenant_status;
mod triggers;
mod update_status;
mod user_data;
mod validated;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::names::{MACHINE_LABEL, MANAGED_BY_LABEL};
use berth_api::{InfraConfig, TenantCluster};
use berth_runtime::backoff::add_jitter;
use berth_runtime::reconcile::{Action, ReconcilerOptions, run_reconciler};
use futures::stream::poll_fn;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::DynamicObject;
use tokio::sync::mpsc::unbounded_channel;

use super::address_store::AddressStore;
use super::events::EventEmitter;
use super::machine_instances::MachineInstances;
use super::metrics::Metrics;
use super::object_handlers::ObjectHandlers;
use super::removal::{self as removals, RemovalContext, RemovalTable, RemovalTriggers};
use super::removal_lock::RemovalLock;
use super::tenant_access::{Connections, TenantObjects};
use crate::api_resource::{api_resource, deployment_resource, machine_resource};
use crate::tenants::objects::ObjectKind;
use berth_runtime::watch::{Informer, OptionalInformer, OptionalKind};
use context::Context;
use errors::RequestError;
use resources::{
    foreign_machine_resource, keep_metadata_only, pack_service, remove_managed_fields, trim_machine,
};
use triggers::Triggers;

const OPTIONS: ReconcilerOptions =
    ReconcilerOptions { name: "machines", concurrency: 8, debounce: Duration::from_millis(200) };

/// Stores that the reconciler of MachineDeployments shares with other reconcilers.
#[derive(Clone, Debug)]
pub struct SharedInformers {
    /// All tenants. The store must keep the part of `managedFields` that `reduce_to_conditions` leaves, because it
    /// determines how a status is written.
    pub tenants: Informer<TenantCluster>,
    /// All InfraConfigs.
    pub configs: Informer<InfraConfig>,
    /// All claims of addresses.
    pub addresses: AddressStore,
    /// All Nodes of the infra cluster.
    pub nodes: Informer<Node>,
    /// All VirtualMachineInstances of machines.
    pub instances: MachineInstances,
    /// Functions of other reconcilers that are called with each changed MachineDeployment.
    pub deployment_handlers: ObjectHandlers,
    /// Lock between this reconciler and that of evacuations.
    pub removal_lock: RemovalLock,
    /// Reports of all removals.
    pub removals: Arc<RemovalTable>,
    /// Connections to the API servers of tenants.
    pub connections: Connections,
}

/// Reconciles MachineDeployments until the future is dropped, which may happen at any moment. Each MachineDeployment
/// is reconciled again after `resync`, in case an event was lost.
pub async fn run(
    client: Client,
    events: Arc<EventEmitter>,
    metrics: Arc<Metrics>,
    shared_informers: SharedInformers,
    resync: Duration,
) {
    let SharedInformers {
        tenants,
        configs,
        addresses,
        nodes,
        instances,
        deployment_handlers,
        removal_lock,
        removals: removal_table,
        connections,
    } = shared_informers;
    let (queue, mut requests) = unbounded_channel();
    let tenant_changes = tenants.subscribe();
    let claim_changes = addresses.informer().subscribe();
    let triggers = Arc::new(Triggers::new(queue, tenants.clone()));
    let (removal_queue, removal_requests) = unbounded_channel();
    let removal_triggers = Arc::new(RemovalTriggers::new(removal_queue, connections.clone()));
    let handler = |handle: fn(&Triggers, &DynamicObject, bool)| {
        let triggers = Arc::clone(&triggers);
        move |object: &DynamicObject, is_gone: bool| handle(&triggers, object, is_gone)
    };
    let kind = OptionalKind {
        resource: deployment_resource(),
        label_selector: None,
        trim: remove_managed_fields,
    };
    let handle = handler(Triggers::handle_deployment);
    let handle_deployment = move |object: &DynamicObject, is_gone: bool| {
        handle(object, is_gone);
        deployment_handlers.call(object, is_gone);
    };
    let (deployments, watch_deployments) =
        OptionalInformer::start(&client, kind, handle_deployment);
    let kind = OptionalKind {
        resource: machine_resource(),
        label_selector: Some("md".to_owned()),
        trim: trim_machine,
    };
    let handle_machine = {
        let (handle, removals) = (handler(Triggers::handle_machine), Arc::clone(&removal_triggers));
        let table = Arc::clone(&removal_table);
        move |object: &DynamicObject, is_gone: bool| {
            removals.handle_machine(object, is_gone);
            if is_gone {
                let (namespace, name) = index::object_key(object);
                table.remove(&namespace, &name);
            }
            handle(object, is_gone);
        }
    };
    let (machines, watch_machines) = OptionalInformer::start(&client, kind, handle_machine);
    let kind = OptionalKind {
        resource: foreign_machine_resource(),
        label_selector: None,
        trim: keep_metadata_only,
    };
    let (foreign_machines, watch_foreign_machines) =
        OptionalInformer::start(&client, kind, handler(Triggers::handle_foreign_machine));
    let webhooks = OptionalKind {
        resource: api_resource(
            "admissionregistration.k8s.io",
            "v1",
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
        ),
        label_selector: None,
        trim: keep_metadata_only,
    };
    let (webhooks, watch_webhooks) = OptionalInformer::start(&client, webhooks, |_, _| {});
    let kind = OptionalKind {
        resource: ObjectKind::Service.resource(),
        label_selector: Some(format!(
            "{}={},{MACHINE_LABEL}",
            MANAGED_BY_LABEL.0, MANAGED_BY_LABEL.1
        )),
        trim: pack_service,
    };
    let (services, watch_services) =
        OptionalInformer::start(&client, kind, handler(Triggers::handle_service));
    triggers.set_stores(&deployments, &machines);
    instances.subscribe(handler(Triggers::handle_instance));
    let (changed, node_triggers) = (Arc::clone(&triggers), Arc::clone(&triggers));
    let cordoned_machines = machines.clone();
    removal_table.subscribe(move |namespace, name| changed.handle_removal(namespace, name));
    connections.subscribe(TenantObjects::Nodes, move |tenant, changed| {
        node_triggers.handle_tenant_nodes(tenant);
        removal_triggers.handle_tenant(tenant, changed, &cordoned_machines);
    });
    let instances = instances.informer().clone();
    let (tenant_triggers, claim_triggers) = (Arc::clone(&triggers), Arc::clone(&triggers));
    let removal_context = RemovalContext {
        client: client.clone(),
        events: Arc::clone(&events),
        metrics: Arc::clone(&metrics),
        machines: machines.clone(),
        instances: instances.clone(),
        deployments: deployments.clone(),
        tenants: tenants.clone(),
        nodes,
        configs: configs.clone(),
        connections: connections.clone(),
        table: Arc::clone(&removal_table),
    };
    let context = Arc::new(Context {
        client,
        events,
        deployments,
        machines,
        instances,
        tenants,
        configs,
        addresses,
        connections,
        removals: removal_table,
        removal_lock,
        foreign_machines,
        webhooks,
        services,
        triggers,
        in_memory_states: Mutex::default(),
    });
    let work = async {
        let store = context.deployments.wait_until_listed().await;
        for kind in [
            &context.machines,
            &context.instances,
            &context.foreign_machines,
            &context.webhooks,
            &context.services,
        ] {
            kind.wait_until_ready().await;
        }
        tokio::join!(
            context.tenants.wait_until_ready(),
            context.configs.wait_until_ready(),
            context.addresses.wait_until_ready()
        );
        for object in store.state() {
            context.triggers.handle_deployment(&object, false);
        }
        let requests = poll_fn(|cx| requests.poll_recv(cx));
        let reconcile = |object| reconcile(object, Arc::clone(&context), resync);
        let reconciler =
            run_reconciler(OPTIONS, deployment_resource(), store, requests, metrics, reconcile);
        tokio::join!(reconciler, address_gc::run(&context));
    };
    tokio::join!(
        work,
        removals::run(removal_context, removal_requests),
        watch_deployments,
        watch_machines,
        watch_foreign_machines,
        watch_webhooks,
        watch_services,
        tenant_triggers.handle_tenant_changes(tenant_changes),
        claim_triggers.handle_claim_changes(claim_changes)
    );
}

async fn reconcile(
    object: Arc<DynamicObject>,
    context: Arc<Context>,
    resync: Duration,
) -> Result<Action, RequestError> {
    let requeue_after = reconcile::reconcile(&context, &object).await?;
    let resync = add_jitter(resync);
    Ok(Action::requeue(requeue_after.map_or(resync, |again| again.min(resync))))
}
