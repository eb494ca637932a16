//! The tenant in whose cluster the Nodes of a namespace's machines are drained.

use std::sync::Arc;

use berth_api::TenantCluster;
use berth_api::names::TENANT_PREFIX;
use kube::{Api, Client};

use crate::removal::drains_machines;
use crate::run::api_requests::none_if_not_found;

/// Tenant in whose cluster the Nodes of a namespace's machines are drained.
#[derive(Clone, Debug)]
pub(in crate::run) enum DrainingTenant {
    /// No Node is drained before a machine is deleted.
    None,
    /// The TenantCluster exists, but is not in the store, because the controller has been unable to parse it since the
    /// start.
    Malformed,
    Known(Arc<TenantCluster>),
}

impl DrainingTenant {
    /// Finds the tenant of a namespace. `stored` returns a TenantCluster from the store. Only if the store lacks the
    /// TenantCluster, a request is sent to the API server.
    pub(in crate::run) async fn find(
        client: &Client,
        namespace: &str,
        stored: impl FnOnce(&str) -> Option<Arc<TenantCluster>>,
    ) -> kube::Result<Self> {
        let Some(name) = namespace.strip_prefix(TENANT_PREFIX) else { return Ok(Self::None) };
        if let Some(tenant) = stored(name) {
            return Ok(if drains_machines(&tenant) { Self::Known(tenant) } else { Self::None });
        }
        let api: Api<TenantCluster> = Api::all(client.clone());
        let found = none_if_not_found(api.get_metadata(name).await)?;
        let is_kept = found.is_some_and(|found| found.metadata.deletion_timestamp.is_none());
        Ok(if is_kept { Self::Malformed } else { Self::None })
    }
}

#[cfg(test)]
mod tests {
    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    async fn find(namespace: &str, code: u16, answer: Value) -> DrainingTenant {
        let service = tower::service_fn(move |_: Request<Body>| {
            let body = Body::from(answer.to_string().into_bytes());
            async move { Response::builder().status(code).body(body) }
        });
        let client = Client::new(service, "default");
        DrainingTenant::find(&client, namespace, |_| None).await.unwrap()
    }

    #[tokio::test]
    async fn a_tenant_that_cannot_be_parsed_is_not_absent() {
        let namespace = TenantCluster::namespace_of("bank");
        let object = |metadata: Value| {
            let version = "meta.k8s.io/v1";
            json!({"apiVersion": version, "kind": "PartialObjectMetadata", "metadata": metadata})
        };
        let found = find(&namespace, 200, object(json!({"name": "bank"}))).await;
        assert!(matches!(found, DrainingTenant::Malformed), "{found:?}");
        let time = "2026-05-01T12:00:00Z";
        let deleting = object(json!({"name": "bank", "deletionTimestamp": time}));
        let found = find(&namespace, 200, deleting).await;
        assert!(matches!(found, DrainingTenant::None), "{found:?}");
        let absent = json!({"kind": "Status", "status": "Failure", "reason": "NotFound",
            "message": "not found", "code": 404});
        let found = find(&namespace, 404, absent).await;
        assert!(matches!(found, DrainingTenant::None), "{found:?}");
        let found = find("shop", 500, json!({})).await;
        assert!(matches!(found, DrainingTenant::None), "{found:?}");
    }
}
