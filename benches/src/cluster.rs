//! Client of the API server that sends one request for each object, with a limit of parallel requests.
//!
//! The client counts its own requests, so that a benchmark can subtract them from the counters of the API server.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Request};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::{Api, Client, Config, Resource};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::counts::RequestCounts;

/// Time between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Number of objects on one page of a list.
const PAGE_SIZE: u32 = 500;

/// An object to create.
#[derive(Debug)]
pub(crate) struct NewObject {
    /// URL path of the collection.
    pub(crate) path: String,
    body: Vec<u8>,
}

impl NewObject {
    pub(crate) fn new(path: impl Into<String>, object: &Value) -> Self {
        Self { path: path.into(), body: object.to_string().into_bytes() }
    }
}

/// API client with the rights of an administrator.
#[derive(Debug)]
pub(crate) struct Cluster {
    runtime: Runtime,
    client: CountingClient,
    concurrency: usize,
}

/// Sends and counts requests. Clones share the counter, so that background tasks are counted too.
#[derive(Clone)]
pub(crate) struct CountingClient {
    client: Client,
    sent_requests: Arc<Mutex<RequestCounts>>,
}

impl std::fmt::Debug for CountingClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountingClient").finish_non_exhaustive()
    }
}

impl Cluster {
    /// Creates a client. The constructor sends no request.
    pub(crate) fn new(kubeconfig: &Path, concurrency: usize) -> Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(async {
            let read = Kubeconfig::read_from(kubeconfig)?;
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(read, &options).await?;
            anyhow::Ok(Client::try_from(config)?)
        });
        let client = client.with_context(|| kubeconfig.display().to_string())?;
        Ok(Self {
            runtime,
            client: CountingClient { client, sent_requests: Arc::default() },
            concurrency,
        })
    }

    /// Runs a task in the background until the client is dropped.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    pub(crate) fn counting_client(&self) -> CountingClient {
        self.client.clone()
    }

    /// Returns the requests that this client has sent.
    pub(crate) fn sent_requests(&self) -> RequestCounts {
        self.client.sent_requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Creates new objects in parallel and returns the elapsed time. Fails if an object exists.
    pub(crate) fn create(&self, objects: &[NewObject]) -> Result<Duration> {
        let begin = Instant::now();
        self.runtime.block_on(async {
            let each = objects.iter().map(|new| async { self.client.create(new).await.map(drop) });
            stream::iter(each).buffer_unordered(self.concurrency).try_collect::<()>().await
        })?;
        Ok(begin.elapsed())
    }

    /// Creates objects as [`Self::create`] does, and returns their UIDs in the order of the objects.
    pub(crate) fn create_returning_uids(&self, objects: &[NewObject]) -> Result<Vec<String>> {
        self.runtime.block_on(async {
            let each = objects.iter().map(|new| async {
                let created: PartialObjectMeta =
                    serde_json::from_str(&self.client.create(new).await?)?;
                created.metadata.uid.with_context(|| {
                    format!("the API server returned an object without uid in {}", new.path)
                })
            });
            stream::iter(each).buffered(self.concurrency).try_collect().await
        })
    }

    /// Applies merge patches to objects of a collection, by name. A non-empty `subresource` is patched instead of
    /// the object.
    pub(crate) fn merge(
        &self,
        path: &str,
        subresource: &str,
        changes: &[(String, Value)],
    ) -> Result<()> {
        self.runtime.block_on(async {
            let each = changes
                .iter()
                .map(|(name, change)| self.client.merge(path, name, subresource, change));
            stream::iter(each).buffer_unordered(self.concurrency).try_collect().await
        })
    }

    /// Deletes all objects of a collection without a grace period.
    pub(crate) fn delete_all(&self, path: &str) -> Result<()> {
        self.runtime.block_on(self.client.delete_all(path))
    }

    /// Runs a future, which may send further requests, and blocks until it is complete.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Returns the typed API for objects of a namespace.
    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.client.clone(), namespace)
    }

    /// Returns the number of objects of a collection.
    pub(crate) fn count(&self, path: &str) -> Result<u64> {
        let params = ListParams::default().limit(1);
        let list = self.runtime.block_on(self.client.list(path, &params))?;
        let listed = list["items"].as_array().map_or(0, Vec::len) as u64;
        Ok(listed + list["metadata"]["remainingItemCount"].as_u64().unwrap_or_default())
    }

    /// Returns the first object of a collection.
    pub(crate) fn first(&self, path: &str) -> Result<Value> {
        let mut list = self.block_on(self.client.list(path, &ListParams::default().limit(1)))?;
        Ok(list["items"][0].take())
    }

    /// Returns all objects of a collection that match a label selector.
    pub(crate) fn list_all(&self, path: &str, labels: &str) -> Result<Vec<Value>> {
        let mut params = ListParams::default().limit(PAGE_SIZE).labels(labels);
        let mut all = Vec::new();
        loop {
            let mut list = self.runtime.block_on(self.client.list(path, &params))?;
            if let Value::Array(items) = list["items"].take() {
                all.extend(items);
            }
            match list["metadata"]["continue"].as_str() {
                Some(next) if !next.is_empty() => params.continue_token = Some(next.to_owned()),
                _ => return Ok(all),
            }
        }
    }

    /// Returns all objects of a collection from the watch cache of the API server (resourceVersion 0), which is the
    /// cheapest list for the server.
    pub(crate) fn list_from_cache(&self, path: &str) -> Result<Vec<Value>> {
        let params = ListParams::default().match_any();
        let mut list = self.runtime.block_on(self.client.list(path, &params))?;
        Ok(serde_json::from_value(list["items"].take())?)
    }

    /// Calls `answer` repeatedly until it returns [`ControlFlow::Break`], and returns the value in it. Fails after
    /// the timeout.
    pub(crate) fn wait_until<T>(
        &self,
        description: &str,
        timeout: Duration,
        mut answer: impl FnMut(&Self) -> Result<ControlFlow<T, String>>,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            let progress = match answer(self)? {
                ControlFlow::Break(answer) => return Ok(answer),
                ControlFlow::Continue(progress) => progress,
            };
            ensure!(
                begin.elapsed() < timeout,
                "timeout after {} s: {description}: {progress}",
                timeout.as_secs()
            );
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl CountingClient {
    fn record_request(&self, verb: &str, path: &str) {
        let resource = path.rsplit('/').next().unwrap_or_default();
        let mut own = self.sent_requests.lock().unwrap_or_else(PoisonError::into_inner);
        own.add(verb, resource, 1.0);
    }

    async fn create(&self, new: &NewObject) -> Result<String> {
        self.record_request("POST", &new.path);
        let request = Request::new(&new.path).create(&PostParams::default(), new.body.clone())?;
        let response = self.client.request_text(request).await;
        response.with_context(|| format!("create an object in {}", new.path))
    }

    async fn delete_all(&self, path: &str) -> Result<()> {
        self.record_request("DELETECOLLECTION", path);
        let now = DeleteParams::default().grace_period(0);
        let request = Request::new(path).delete_collection(&now, &ListParams::default())?;
        let response = self.client.request_text(request).await;
        response.map(drop).with_context(|| format!("delete all objects in {path}"))
    }

    async fn list(&self, path: &str, params: &ListParams) -> Result<Value> {
        self.record_request("LIST", path);
        let request = Request::new(path).list(params)?;
        self.client.request(request).await.with_context(|| format!("list {path}"))
    }

    /// Returns an object.
    pub(crate) async fn get(&self, path: &str, name: &str) -> Result<Value> {
        self.record_request("GET", path);
        let request = Request::new(path).get(name, &kube::api::GetParams::default())?;
        self.client.request(request).await.with_context(|| format!("get {path}/{name}"))
    }

    /// Applies a merge patch to the status of an object.
    pub(crate) async fn update_status(&self, path: &str, name: &str, status: &Value) -> Result<()> {
        self.merge(path, name, "status", &serde_json::json!({"status": status})).await
    }

    async fn merge(&self, path: &str, name: &str, subresource: &str, change: &Value) -> Result<()> {
        let plural = path.rsplit('/').next().unwrap_or_default();
        let (params, patch) = (PatchParams::default(), Patch::Merge(change));
        let request = if subresource.is_empty() {
            self.record_request("PATCH", plural);
            Request::new(path).patch(name, &params, &patch)?
        } else {
            self.record_request("PATCH", &format!("{plural}/{subresource}"));
            Request::new(path).patch_subresource(subresource, name, &params, &patch)?
        };
        let response = self.client.request_text(request).await;
        response.map(drop).with_context(|| format!("patch {path}/{name} {subresource}"))
    }
}

/// Returns the object as a user would create it, without the fields that the API server adds.
pub(crate) fn strip_server_fields(mut object: Value, kind: (&str, &str)) -> Value {
    let kept_fields =
        ["name", "namespace", "labels", "annotations", "ownerReferences", "finalizers"];
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|key, _| kept_fields.contains(&key.as_str()));
    }
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
        fields.insert("apiVersion".to_owned(), kind.0.into());
        fields.insert("kind".to_owned(), kind.1.into());
    }
    object
}

/// Returns the URL path of a collection, in a namespace if `namespace` is not empty.
pub(crate) fn collection_path(api_version: &str, namespace: &str, plural: &str) -> String {
    let root = if api_version.contains('/') { "/apis" } else { "/api" };
    if namespace.is_empty() {
        format!("{root}/{api_version}/{plural}")
    } else {
        format!("{root}/{api_version}/namespaces/{namespace}/{plural}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn server_fields_are_stripped() {
        let object = json!({
            "metadata": {"name": "a", "uid": "1", "resourceVersion": "7", "managedFields": [], "labels": {"b": "c"}},
            "spec": {"x": 1}, "status": {"y": 2},
        });
        assert_eq!(
            strip_server_fields(object, ("v1", "Thing")),
            json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "a", "labels": {"b": "c"}}, "spec": {"x": 1}})
        );
    }

    #[test]
    fn collections_have_paths() {
        assert_eq!(collection_path("v1", "", "namespaces"), "/api/v1/namespaces");
        assert_eq!(collection_path("a.b/v1", "c", "things"), "/apis/a.b/v1/namespaces/c/things");
    }
}
