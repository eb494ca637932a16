//! Watch of namespaces, whose labels determine which pods the affinity rules of other pods select.

use std::sync::Arc;

use berth_runtime::watch::{Config, Event, continue_after_error, watch_events};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};

use super::service::ExtenderService;
use super::unlisted_kinds::ListedKind;

/// Passes the labels of namespaces to the extender; never ends.
pub(super) async fn watch_namespaces(service: Arc<ExtenderService>) {
    let api: Api<Namespace> = Api::all(service.client.clone());
    let handle = |event: Event<Namespace>| match event {
        Event::Init => service.readiness_gate.set_listed(ListedKind::Namespaces, false),
        Event::InitDone => service.readiness_gate.set_listed(ListedKind::Namespaces, true),
        Event::InitApply(namespace) => {
            service.extender().update_namespace(&namespace.name_any(), namespace.labels());
        }
        Event::Apply(namespace) => {
            service.update(|extender, _| {
                extender.update_namespace(&namespace.name_any(), namespace.labels())
            });
        }
        // A deleted namespace may stay in the state, because Kubernetes deletes the pods of a namespace before the
        // namespace.
        Event::Delete(_) => {}
    };
    watch_events(api, Config::default(), "namespaces", handle, continue_after_error).await;
}
