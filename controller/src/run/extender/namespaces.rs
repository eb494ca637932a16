//! Watch of namespaces: rules select pods by the labels of namespaces.

use std::sync::Arc;

use berth_runtime::watch::{Config, Event, always, watch};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};

use super::listed::Kind;
use super::service::Service;

/// Watches namespaces; never ends.
pub(super) async fn watch_namespaces(service: Arc<Service>) {
    let api: Api<Namespace> = Api::all(service.client.clone());
    let handle = |event: Event<Namespace>| match event {
        Event::Init => service.gate.set_listed(Kind::Namespaces, false),
        Event::InitDone => service.gate.set_listed(Kind::Namespaces, true),
        Event::InitApply(namespace) => {
            service.extender().namespace(&namespace.name_any(), namespace.labels());
        }
        Event::Apply(namespace) => {
            service.update(|extender, _| {
                extender.namespace(&namespace.name_any(), namespace.labels())
            });
        }
        // The API server deletes the pods of a namespace before the namespace.
        Event::Delete(_) => {}
    };
    watch(api, Config::default(), "namespaces", handle, always).await;
}
