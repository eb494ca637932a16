//! Reconciler of MachineDeployments: creates the desired number of VirtualMachines for each MachineDeployment.
//!
//! [`berth_kubevirt_render::machines`] computes the desired state. Objects that change often are read from informer
//! stores, so a reconcile without a difference sends no request. Secrets and storage classes are read when a machine
//! is created.

mod apply;
mod context;
mod deletion;
mod errors;
mod index;
mod machine;
mod machine_controller;
mod policies;
mod read;
mod reconcile;
mod recorded_namespace;
mod references;
mod resources;
mod tenant_status;
mod triggers;
mod update_status;
mod user_data;
mod validated;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::{InfraConfig, TenantCluster};
use berth_runtime::backoff::jittered;
use berth_runtime::reconcile::{Action, Options, run as run_reconciler};
use futures::stream::poll_fn;
use kube::Client;
use kube::api::DynamicObject;
use tokio::sync::mpsc::unbounded_channel;

use super::events::Events;
use super::metrics::Metrics;
use berth_runtime::watch::{Informer, OptionalInformer, OptionalKind};
use context::Context;
use errors::Error;
use resources::{
    deployments, foreign_machines, keep_metadata_only, machines, resource, trim_instance,
    trim_machine, without_managed_fields,
};
use triggers::Triggers;

const OPTIONS: Options =
    Options { name: "machines", concurrency: 8, debounce: Duration::from_millis(200) };

/// Reconciles MachineDeployments until the future is dropped, which may happen at any moment. Each MachineDeployment
/// is reconciled again after `resync`, in case an event was lost. `tenants` must keep the part of `managedFields`
/// that `reduce_to_conditions` leaves, because it determines how a status is written.
pub async fn run(
    client: Client,
    events: Arc<Events>,
    metrics: Arc<Metrics>,
    tenants: Informer<TenantCluster>,
    configs: Informer<InfraConfig>,
    resync: Duration,
) {
    let (queue, mut requests) = unbounded_channel();
    let tenant_changes = tenants.changes();
    let triggers = Arc::new(Triggers::new(queue, tenants.clone()));
    let with = |handle: fn(&Triggers, &DynamicObject, bool)| {
        let triggers = Arc::clone(&triggers);
        move |object: &DynamicObject, is_gone: bool| handle(&triggers, object, is_gone)
    };
    let manner =
        OptionalKind { resource: deployments(), labels: None, trim: without_managed_fields };
    let (deployments, follow_deployments) =
        OptionalInformer::start(&client, manner, with(Triggers::deployment));
    let manner =
        OptionalKind { resource: machines(), labels: Some("md".to_owned()), trim: trim_machine };
    let (machines, follow_machines) =
        OptionalInformer::start(&client, manner, with(Triggers::machine));
    let instances =
        resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances");
    let manner =
        OptionalKind { resource: instances, labels: Some("md".to_owned()), trim: trim_instance };
    let (instances, follow_instances) =
        OptionalInformer::start(&client, manner, with(Triggers::instance));
    let manner =
        OptionalKind { resource: foreign_machines(), labels: None, trim: keep_metadata_only };
    let (foreign, follow_foreign) =
        OptionalInformer::start(&client, manner, with(Triggers::handle_foreign_machine));
    let webhooks = OptionalKind {
        resource: resource(
            "admissionregistration.k8s.io",
            "v1",
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
        ),
        labels: None,
        trim: keep_metadata_only,
    };
    let (webhooks, follow_webhooks) = OptionalInformer::start(&client, webhooks, |_, _| {});
    triggers.set(&deployments, &machines);
    let tenant_triggers = Arc::clone(&triggers);
    let context = Arc::new(Context {
        client,
        events,
        deployments,
        machines,
        instances,
        tenants,
        configs,
        foreign,
        webhooks,
        triggers,
        memory: Mutex::default(),
    });
    let work = async {
        let store = context.deployments.listed().await;
        for kind in [&context.machines, &context.instances, &context.foreign, &context.webhooks] {
            kind.ready().await;
        }
        tokio::join!(context.tenants.ready(), context.configs.ready());
        for object in store.state() {
            context.triggers.deployment(&object, false);
        }
        let requests = poll_fn(|cx| requests.poll_recv(cx));
        let reconcile = |object| reconcile(object, Arc::clone(&context), resync);
        run_reconciler(OPTIONS, self::deployments(), store, requests, metrics, reconcile).await;
    };
    tokio::join!(
        work,
        follow_deployments,
        follow_machines,
        follow_instances,
        follow_foreign,
        follow_webhooks,
        tenant_triggers.handle_tenant_changes(tenant_changes)
    );
}

async fn reconcile(
    object: Arc<DynamicObject>,
    context: Arc<Context>,
    resync: Duration,
) -> Result<Action, Error> {
    let again = reconcile::reconcile(&context, &object).await?;
    let resync = jittered(resync);
    Ok(Action::requeue(again.map_or(resync, |again| again.min(resync))))
}
