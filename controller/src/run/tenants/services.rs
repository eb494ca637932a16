//! Watches the Services of type LoadBalancer in tenants' namespaces: NetworkPolicies permit traffic to the ports of
//! these Services, and the address of an existing Service must stay in an address pool.

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
use crate::tenants::pool_use::ServiceAddress;

/// Store of all Services. The content of Services of other types than LoadBalancer is not stored.
#[derive(Debug)]
pub(super) struct ServiceWatch {
    informer: OptionalInformer,
}

impl ServiceWatch {
    /// Starts the watch. When a Service of type LoadBalancer changes, `changed` is called with the tenant in whose
    /// namespace the Service is. The returned future runs the watch and never ends.
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

    /// Returns the addresses of the Services of all tenants, sorted.
    pub(super) fn addresses(&self) -> Vec<ServiceAddress> {
        let has_address = |object: &DynamicObject| {
            object.data["addresses"].as_array().is_some_and(|all| !all.is_empty())
        };
        let with_address = self.informer.filter(has_address);
        let mut all: Vec<ServiceAddress> =
            with_address.iter().flat_map(|one| service_addresses(one)).collect();
        all.sort();
        all
    }
}

/// Returns the addresses of a Service that is in a tenant's namespace. Addresses that cannot be parsed are ignored.
fn service_addresses(service: &DynamicObject) -> Vec<ServiceAddress> {
    let namespace = service.namespace().unwrap_or_default();
    let Some(tenant) = namespace.strip_prefix(TENANT_PREFIX) else { return Vec::new() };
    let addresses = service.data["addresses"].as_array().into_iter().flatten();
    let parsed = addresses.filter_map(|address| address.as_str()?.parse().ok());
    let one = |address| ServiceAddress {
        tenant: tenant.to_owned(),
        service: service.name_any(),
        address,
    };
    parsed.map(one).collect()
}

/// Removes the content of Services of other types than LoadBalancer, and unused metadata of all Services.
fn keep_load_balancers(object: &mut DynamicObject) {
    let (spec, status) = (object.data["spec"].take(), object.data["status"].take());
    let ingress = status["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    let addresses: Vec<&Value> = ingress.filter_map(|one| one.get("ip")).collect();
    object.data = if spec["type"] == "LoadBalancer" {
        json!({ "spec": spec, "addresses": addresses })
    } else {
        Value::Null
    };
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
        let addresses = ["192.0.2.9", "x"];
        let load_balancer = json!({"spec": {"type": "LoadBalancer"}, "addresses": addresses});
        for (type_, expected, count) in
            [("LoadBalancer", load_balancer, 1), ("NodePort", Value::Null, 0)]
        {
            let mut object: DynamicObject = serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "web", "namespace": "cluster-shop", "annotations": {"a": "b"}},
                "spec": {"type": type_}, "status": {"loadBalancer": {"ingress": [
                    {"ip": addresses[0]}, {"ip": addresses[1]}, {"hostname": "a"},
                ]}},
            }))
            .unwrap();
            keep_load_balancers(&mut object);
            assert_eq!(object.data, expected);
            let found = service_addresses(&object);
            assert_eq!(found.len(), count);
            assert!(found.iter().all(|one| one.tenant == "shop" && one.service == "web"));
            assert_eq!(object.metadata.annotations, None);
            assert_eq!(object.namespace().as_deref(), Some("cluster-shop"));
        }
    }
}
