//! Watches the KubeVirt object, which registers network binding plugins.

use std::sync::{Arc, PoisonError, RwLock};

use berth_runtime::watch::{OptionalInformer, OptionalKind};
use futures::future::{BoxFuture, FutureExt as _};
use kube::Client;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};

use crate::tenants::binding_plugins::BindingPlugins;

/// Binding plugins of the KubeVirt object.
#[derive(Debug)]
pub(super) struct KubevirtWatch {
    plugins: Arc<RwLock<BindingPlugins>>,
    informer: OptionalInformer,
}

impl KubevirtWatch {
    /// Starts the watch. `changed` is called if the plugins change; the status of the object changes more often. The
    /// returned future runs the watch and does not end.
    pub(super) fn start(
        client: &Client,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> (Self, BoxFuture<'static, ()>) {
        let kind = GroupVersionKind::gvk("kubevirt.io", "v1", "KubeVirt");
        let kind = OptionalKind {
            resource: ApiResource::from_gvk_with_plural(&kind, "kubevirts"),
            label_selector: None,
            trim: |object| object.metadata.managed_fields = None,
        };
        let plugins = Arc::<RwLock<BindingPlugins>>::default();
        let current = Arc::clone(&plugins);
        let handle = move |object: &DynamicObject, is_gone: bool| {
            let read = match is_gone {
                true => BindingPlugins::default(),
                false => BindingPlugins::from_kubevirt(&object.data),
            };
            let previous = {
                let mut current = current.write().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *current, read.clone())
            };
            if previous != read {
                changed();
            }
        };
        let (informer, watch) = OptionalInformer::start(client, kind, handle);
        (Self { plugins, informer }, watch.boxed())
    }

    /// Waits until the KubeVirt object is listed, or is known not to be installed.
    pub(super) async fn wait_until_ready(&self) {
        self.informer.wait_until_ready().await;
    }

    /// Returns the current plugins.
    pub(super) fn plugins(&self) -> BindingPlugins {
        self.plugins.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
