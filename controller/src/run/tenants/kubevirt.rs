//! Watches the KubeVirt object, in which network binding plugins are registered.

use std::sync::{Mutex, PoisonError};

use berth_runtime::watch::{OptionalInformer, OptionalKind};
use futures::future::{BoxFuture, FutureExt as _};
use kube::Client;
use kube::api::DynamicObject;

use crate::run::api_requests::kubevirt_resource;
use crate::tenants::binding_plugins::BindingPlugins;

/// Store of the KubeVirt object.
#[derive(Debug)]
pub(super) struct KubevirtWatch {
    informer: OptionalInformer,
}

impl KubevirtWatch {
    /// Starts the watch. `changed` is called only if the plugins change, because the status of the object changes more
    /// often. The returned future runs the watch and never ends.
    pub(super) fn start(
        client: &Client,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> (Self, BoxFuture<'static, ()>) {
        let kind = OptionalKind {
            resource: kubevirt_resource(),
            label_selector: None,
            trim: |object| object.metadata.managed_fields = None,
        };
        let last_read = Mutex::new(BindingPlugins::default());
        let handle = move |object: &DynamicObject, is_deleted: bool| {
            let read = match is_deleted {
                true => BindingPlugins::default(),
                false => BindingPlugins::from_kubevirt(&object.data),
            };
            let mut last_read = last_read.lock().unwrap_or_else(PoisonError::into_inner);
            if *last_read != read {
                *last_read = read;
                changed();
            }
        };
        let (informer, watch) = OptionalInformer::start(client, kind, handle);
        (Self { informer }, watch.boxed())
    }

    /// Waits until the KubeVirt object is listed, or is known not to be installed.
    pub(super) async fn wait_until_ready(&self) {
        self.informer.wait_until_ready().await;
    }

    /// Returns the registered plugins. KubeVirt permits only one KubeVirt object; if there are several, the oldest one
    /// is used.
    pub(super) fn plugins(&self) -> BindingPlugins {
        let all = self.informer.all().into_iter();
        let oldest = all.min_by_key(|object| {
            object.metadata.creation_timestamp.as_ref().map(|created| created.0)
        });
        oldest.map_or_else(BindingPlugins::default, |it| BindingPlugins::from_kubevirt(&it.data))
    }
}
