//! MachineDeployments: keeps as many VirtualMachines as each asks for, of the kind it asks for.
//!
//! What is to be done decides [`berth_kubevirt_render::machines`]. Everything that changes often is looked up in stores that watches
//! keep, so a MachineDeployment that is as it should be costs no request; Secrets and storage are asked for when a machine
//! is made.

mod deletion;
mod errors;
mod gather;
mod index;
mod keep;
mod make;
mod policies;
mod residence;
mod say;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::client::jittered;
use berth_runtime::reconcile::{Action, Options, run as run_reconciler};
use futures::stream::poll_fn;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::events::Events;
use super::metrics::Metrics;
use super::packed::pack;
use crate::fields::keep_whether_conditions_are_one;
use berth_kubevirt_render::machines::{GROUP, KIND};
use berth_runtime::watch::{OptionalInformer, OptionalKind};
use errors::Error;
use wake::Wake;

const OPTIONS: Options =
    Options { name: "machines", concurrency: 8, debounce: Duration::from_millis(200) };

/// What all looks share.
pub(super) struct Context {
    client: Client,
    events: Arc<Events>,
    deployments: OptionalInformer,
    machines: OptionalInformer,
    instances: OptionalInformer,
    tenants: OptionalInformer,
    configs: OptionalInformer,
    /// machine-controller's own objects, and webhooks, of which one is its own.
    foreign: OptionalInformer,
    webhooks: OptionalInformer,
    wake: Arc<Wake>,
    memory: Mutex<BTreeMap<String, Memory>>,
}

/// What is known of one MachineDeployment beyond its objects, by uid.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// Machines in a row that have failed, and until when none is made.
    failures: u32,
    hold: Option<Instant>,
    /// Machines of which it is known that their user data are there.
    equipped: BTreeSet<String>,
    /// It is left to machine-controller.
    is_off: bool,
    /// The numbers that were last seen, and since when they are the same.
    progress: Option<(berth_kubevirt_render::machines::rollout::Counts, Instant)>,
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

fn deployments() -> ApiResource {
    resource(GROUP, "v1alpha1", KIND, "machinedeployments")
}

/// What machine-controller makes of a MachineDeployment.
fn foreign_machines() -> ApiResource {
    resource(GROUP, "v1alpha1", "Machine", "machines")
}

fn machines() -> ApiResource {
    resource("kubevirt.io", "v1", "VirtualMachine", "virtualmachines")
}

/// Keeps machines for ever; ends when it is dropped, and may be at any moment. A deployment that is as it should be is
/// looked at again after the time of `resync`, in case an event was lost.
pub async fn run(client: Client, events: Arc<Events>, metrics: Arc<Metrics>, resync: Duration) {
    let (queue, mut requests) = unbounded_channel();
    let wake = Arc::new(Wake::new(queue));
    let with = |news: fn(&Wake, &DynamicObject, bool)| {
        let wake = Arc::clone(&wake);
        move |object: &DynamicObject, is_gone: bool| news(&wake, object, is_gone)
    };
    let manner = OptionalKind { resource: deployments(), labels: None, trim: without_managers };
    let (deployments, follow_deployments) =
        OptionalInformer::start(&client, manner, with(Wake::deployment));
    let manner =
        OptionalKind { resource: machines(), labels: Some("md".to_owned()), trim: trim_machine };
    let (machines, follow_machines) = OptionalInformer::start(&client, manner, with(Wake::machine));
    let instances =
        resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances");
    let manner =
        OptionalKind { resource: instances, labels: Some("md".to_owned()), trim: trim_instance };
    let (instances, follow_instances) =
        OptionalInformer::start(&client, manner, with(Wake::instance));
    let ours = |kind, plural| OptionalKind {
        resource: resource("berth.dev", "v1alpha1", kind, plural),
        labels: None,
        trim: without_managers,
    };
    // Its managers tell how its status is to be written.
    let trim = |object: &mut DynamicObject| keep_whether_conditions_are_one(&mut object.metadata);
    let manner = OptionalKind { trim, ..ours("TenantCluster", "tenantclusters") };
    let (tenants, follow_tenants) = OptionalInformer::start(&client, manner, with(Wake::tenant));
    let (configs, follow_configs) =
        OptionalInformer::start(&client, ours("InfraConfig", "infraconfigs"), |_, _| {});
    let manner = OptionalKind { resource: foreign_machines(), labels: None, trim: trim_all };
    let (foreign, follow_foreign) = OptionalInformer::start(&client, manner, with(Wake::foreign));
    let webhooks = OptionalKind {
        resource: resource(
            "admissionregistration.k8s.io",
            "v1",
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
        ),
        labels: None,
        trim: trim_all,
    };
    let (webhooks, follow_webhooks) = OptionalInformer::start(&client, webhooks, |_, _| {});
    wake.set(&deployments, &machines, &tenants);
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
        wake,
        memory: Mutex::default(),
    });
    let work = async {
        let store = context.deployments.listed().await;
        for kind in [
            &context.machines,
            &context.instances,
            &context.tenants,
            &context.configs,
            &context.foreign,
            &context.webhooks,
        ] {
            kind.ready().await;
        }
        for object in store.state() {
            context.wake.deployment(&object, false);
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
        follow_tenants,
        follow_configs,
        follow_foreign,
        follow_webhooks
    );
}

async fn reconcile(
    object: Arc<DynamicObject>,
    context: Arc<Context>,
    resync: Duration,
) -> Result<Action, Error> {
    let again = keep::keep(&context, &object).await?;
    let resync = jittered(resync);
    Ok(Action::requeue(again.map_or(resync, |again| again.min(resync))))
}

impl Context {
    fn remember<T>(&self, object: &DynamicObject, change: impl FnOnce(&mut Memory) -> T) -> T {
        let mut all = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(object.uid().unwrap_or_default()).or_default())
    }

    fn forget(&self, object: &DynamicObject) {
        let mut all = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&object.uid().unwrap_or_default());
    }
}

fn without_managers(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
}

/// Ten thousand of them are kept: only what decides.
fn trim_machine(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    let strategy = object.data.pointer("/spec/runStrategy").cloned().unwrap_or_default();
    object.data = json!({"spec": {"runStrategy": strategy}});
    pack(object);
}

fn trim_instance(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    object.metadata.annotations = None;
    let phase = object.data.pointer("/status/phase").cloned().unwrap_or_default();
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let ready: Vec<Value> =
        conditions.into_iter().flatten().filter(|one| one["type"] == "Ready").cloned().collect();
    object.data = json!({"status": {"phase": phase, "conditions": ready}});
    pack(object);
}

fn trim_all(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    object.data = Value::Null;
}
