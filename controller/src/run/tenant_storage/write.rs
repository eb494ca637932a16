//! Writes StorageClasses in a tenant's cluster, by server-side apply without force.

use berth_runtime::untrusted::UntrustedClient;

use crate::run::tenant_access::{WriteError, patch_object};
use crate::tenant_storage::class::ClassObject;
use crate::tenant_storage::plan::ClassChange;

/// Applies a StorageClass, and returns it as it is after the write.
pub(super) async fn apply_class(
    client: &UntrustedClient,
    change: &ClassChange,
) -> Result<ClassObject, WriteError> {
    let path = format!("/apis/storage.k8s.io/v1/storageclasses/{}", change.name);
    let body = change.body();
    patch_object(client, &path, "application/apply-patch+yaml", &body).await.map_err(|failure| {
        WriteError::Object { kind: "StorageClass", name: change.name.clone(), failure }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use hyper::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::tenant_storage::desired::{DesiredClass, DesiredClasses};
    use crate::tenant_storage::plan::plan_classes;

    #[tokio::test]
    async fn classes_are_applied_without_force() {
        let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let seen = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap();
                seen.lock().unwrap().push((format!("{} {}", parts.method, parts.uri), body));
                let answer = json!({"metadata": {"name": "kubevirt-a"}}).to_string();
                Response::builder().body(Body::from(answer.into_bytes()))
            }
        });
        let client = UntrustedClient::from_client(Client::new(service, "default"));
        let classes = BTreeMap::from([("kubevirt-a".to_owned(), DesiredClass::default())]);
        let desired = DesiredClasses { classes, ..DesiredClasses::default() };
        let plan = plan_classes(&desired, &BTreeMap::new());
        let class = apply_class(&client, &plan.changes[0]).await.unwrap();
        assert_eq!(class.name(), "kubevirt-a");
        let (request, body) = requests.lock().unwrap().remove(0);
        let path = "/apis/storage.k8s.io/v1/storageclasses/kubevirt-a";
        assert_eq!(request, format!("PATCH {path}?fieldManager=berth-controller"));
        assert_eq!(body, plan.changes[0].body());
    }
}
