//! Watches the Services of type LoadBalancer in tenants' namespaces, whose ports NetworkPolicies open.

use std::sync::Arc;

use berth_api::TenantCluster;
use berth_api::names::TENANT_PREFIX;
use berth_runtime::watch::{OptionalInformer, OptionalKind};
use futures::future::{BoxFuture, FutureExt as _};
use kube::api::{DynamicObject, ObjectMeta};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::tenants::load_balancer_service::LoadBalancerService;
use crate::tenants::objects::ObjectKind;

/// Store of all Services. Only those of type LoadBalancer have content.
#[derive(Debug)]
pub(super) struct ServiceWatch {
    informer: OptionalInformer,
}

impl ServiceWatch {
    /// Starts the watch. `changed` is called with the tenant in whose namespace a Service of type LoadBalancer changes.
    /// The returned future runs the watch and does not end.
    pub(super) fn start(
        client: &Client,
        changed: impl Fn(&str) + Send + Sync + 'static,
    ) -> (Self, BoxFuture<'static, ()>) {
        // The watch has no label selector, because cloud controller managers choose the labels of Services.
        let kind = OptionalKind {
            resource: ObjectKind::Service.resource(),
            label_selector: None,
            trim: keep_load_balancers,
        };
        let handle = move |object: &DynamicObject, _: bool| {
            let namespace = object.namespace().unwrap_or_default();
            if let Some(tenant) = namespace.strip_prefix(TENANT_PREFIX) {
                changed(tenant);
            }
        };
        let (informer, watch) = OptionalInformer::start(client, kind, handle);
        (Self { informer }, watch.boxed())
    }

    /// Waits until the Services are listed.
    pub(super) async fn wait_until_ready(&self) {
        self.informer.wait_until_ready().await;
    }

    /// Returns the Services of type LoadBalancer in a tenant's namespace, sorted by name.
    pub(super) fn load_balancers(&self, tenant: &str) -> Vec<LoadBalancerService> {
        let namespace = TenantCluster::namespace_of(tenant);
        let is_own = |object: &DynamicObject| {
            object.metadata.namespace.as_ref() == Some(&namespace) && !object.data.is_null()
        };
        let own: Vec<Arc<DynamicObject>> = self.informer.filter(is_own);
        let service =
            |one: &Arc<DynamicObject>| LoadBalancerService::new(&one.name_any(), &one.data["spec"]);
        let mut all: Vec<LoadBalancerService> = own.iter().filter_map(service).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }
}

/// Removes the content of Services of other types, and metadata that is not used.
fn keep_load_balancers(object: &mut DynamicObject) {
    let spec = object.data["spec"].take();
    object.data =
        if spec["type"] == "LoadBalancer" { json!({ "spec": spec }) } else { Value::Null };
    let metadata = std::mem::take(&mut object.metadata);
    object.metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        resource_version: metadata.resource_version,
        ..ObjectMeta::default()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_load_balancers_keep_their_content() {
        for (type_, expected) in
            [("LoadBalancer", json!({"spec": {"type": "LoadBalancer"}})), ("NodePort", Value::Null)]
        {
            let mut object: DynamicObject = serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "web", "namespace": "cluster-shop", "annotations": {"a": "b"}},
                "spec": {"type": type_}, "status": {"loadBalancer": {}},
            }))
            .unwrap();
            keep_load_balancers(&mut object);
            assert_eq!(object.data, expected);
            assert_eq!(object.metadata.annotations, None);
            assert_eq!(object.namespace().as_deref(), Some("cluster-shop"));
        }
    }
}
