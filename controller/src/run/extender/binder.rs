//! Sends bindings. Bindings to the same host are sent one after the other, because its kubelet allocates zones in the
//! order of the bindings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_extender::scheduler_api::BindingArgs;
use berth_extender::{BindAnswer, SEND_TIMEOUT};
use berth_runtime::call::CallError;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use kube::api::ObjectMeta;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::error::BindFailure;
use super::readiness_gate::{CALL_TIMEOUT, HOLD_TIMEOUT, OBJECT_TIMEOUT};
use super::service::ExtenderService;
use crate::run::api_requests::post_params;

/// Sends the bindings of pods to the API server.
pub(super) struct Binder {
    service: Arc<ExtenderService>,
    /// Lock for each host, held while a binding to the host is in progress.
    host_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Number of locks above which the locks of hosts without a binding in progress are removed.
const MAX_HOST_LOCKS: usize = 4096;
/// Timeout of the read of a pod after a failed binding.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns `timeout`, shortened to the time that remains until the end of the whole call.
fn limit_to_deadline(timeout: Duration, deadline: Instant) -> Duration {
    timeout.min(deadline.saturating_duration_since(Instant::now()))
}

impl Binder {
    pub(super) fn new(service: &Arc<ExtenderService>) -> Self {
        Self { service: Arc::clone(service), host_locks: Mutex::default() }
    }

    /// Handles a `bind` call: sends the binding of a pod if the extender permits it.
    pub(super) async fn bind(&self, args: &BindingArgs) -> Result<(), BindFailure> {
        let (service, started_at) = (&self.service, Instant::now());
        let after = |time| started_at.checked_add(time).unwrap_or(started_at);
        let (hold_deadline, call_deadline) = (after(HOLD_TIMEOUT), after(CALL_TIMEOUT));
        let host = self.host_lock(&args.node);
        let host_guard = tokio::time::timeout_at(hold_deadline.into(), host.lock()).await;
        let _host_guard = host_guard.map_err(|_| BindFailure::HostBusy)?;
        let mut object_deadline: Option<Instant> = None;
        let mut pod: Option<Pod> = None;
        loop {
            let mut changed = service.readiness_gate.subscribe();
            service.readiness_gate.wait_until_allowed_before(hold_deadline, call_deadline).await?;
            let (uid, node) = (&args.pod_uid, &args.node);
            let bind_guard =
                tokio::time::timeout_at(call_deadline.into(), service.bind_lock.read()).await;
            let bind_guard = bind_guard.map_err(|_| BindFailure::Relisting)?;
            let answer = service.extender().answer_bind(Instant::now(), uid, node, pod.as_ref());
            match answer {
                BindAnswer::AlreadyBound => return Ok(()),
                BindAnswer::SendBinding => return self.send_binding(args, call_deadline).await,
                BindAnswer::Refused(error) => {
                    service.state_changed.notify_one();
                    return Err(error.into());
                }
                BindAnswer::PodRequired if pod.is_none() => {
                    pod = Some(self.read_pod(args, call_deadline).await?)
                }
                BindAnswer::PodRequired => return Err(BindFailure::UnknownPod),
                BindAnswer::NotReady(error) => {
                    drop(bind_guard);
                    let now = Instant::now();
                    let deadline =
                        now.checked_add(OBJECT_TIMEOUT).unwrap_or(hold_deadline).min(hold_deadline);
                    let deadline = *object_deadline.get_or_insert(deadline);
                    let waited = tokio::time::timeout_at(deadline.into(), changed.changed()).await;
                    waited.map_err(|_| error)?.unwrap_or_default();
                }
            }
        }
    }

    /// Returns the lock of a host; creates it if there is none.
    fn host_lock(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut host_locks = self.host_locks.lock().unwrap_or_else(PoisonError::into_inner);
        if host_locks.len() >= MAX_HOST_LOCKS {
            host_locks.retain(|_, host| Arc::strong_count(host) > 1);
        }
        Arc::clone(host_locks.entry(name.to_owned()).or_default())
    }

    fn pods_api(&self, args: &BindingArgs) -> Api<Pod> {
        Api::namespaced(self.service.client.clone(), &args.pod_namespace)
    }

    async fn read_pod(&self, args: &BindingArgs, deadline: Instant) -> Result<Pod, BindFailure> {
        let pods = self.pods_api(args);
        let read = pods.get(&args.pod_name);
        let read = tokio::time::timeout(limit_to_deadline(READ_TIMEOUT, deadline), read).await;
        Ok(read.map_err(|_| BindFailure::ReadPodTimeout)??)
    }

    async fn send_binding(&self, args: &BindingArgs, deadline: Instant) -> Result<(), BindFailure> {
        let (service, uid) = (&self.service, &args.pod_uid);
        // The Lease is checked again, because the last read may be too old by now.
        if let Err(error) = service.readiness_gate.check_lease_before(deadline).await {
            service.update(|extender, now| extender.record_binding_failure(now, uid));
            return Err(error.into());
        }
        let body = binding_body(args);
        let (pods, params) = (self.pods_api(args), post_params());
        let call = pods.create_subresource::<_, Value>("binding", &args.pod_name, &params, &body);
        let error =
            match tokio::time::timeout(limit_to_deadline(SEND_TIMEOUT, deadline), call).await {
                Ok(Ok(_)) => {
                    service.update(|extender, now| extender.record_binding_success(now, uid));
                    return Ok(());
                }
                Ok(Err(error)) => CallError::from(error),
                Err(_) => CallError::CallerTimeout,
            };
        // If the API server refuses the binding, the pod is not bound. After any other error, the pod is read to find
        // out if it is bound.
        let is_refused = error.status_code().is_some_and(|code| (400..500).contains(&code));
        let pod = if is_refused { None } else { Some(self.read_pod(args, deadline).await) };
        match pod {
            None => service.update(|extender, now| extender.record_binding_failure(now, uid)),
            Some(Ok(pod)) if pod.uid().as_ref() == Some(uid) => {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                if node == Some(args.node.as_str()) {
                    service.update(|extender, now| extender.record_binding_success(now, uid));
                    return Ok(());
                }
                service.update(|extender, now| extender.record_binding_failure(now, uid));
            }
            // The outcome of the binding is unknown until the watch delivers the pod. The reservation stays until then.
            Some(_) => {}
        }
        Err(BindFailure::Api(error))
    }
}

/// Returns the body of the binding request.
fn binding_body(args: &BindingArgs) -> Binding {
    Binding {
        metadata: ObjectMeta {
            name: Some(args.pod_name.clone()),
            namespace: Some(args.pod_namespace.clone()),
            // With the UID, the API server refuses the binding if another pod has the same name.
            uid: Some(args.pod_uid.clone()),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(args.node.clone()),
            ..ObjectReference::default()
        },
    }
}
