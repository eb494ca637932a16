//! Sends bindings. Bindings to the same host are sent one after the other, because its kubelet allocates zones in the
//! order of the bindings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_extender::wire::BindingArgs;
use berth_extender::{BindAnswer, SEND_TIMEOUT};
use berth_runtime::call::CallError;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use kube::api::ObjectMeta;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::error::BindFailure;
use super::readiness_gate::{CALL_TIMEOUT, HOLD_TIMEOUT, OBJECT_TIMEOUT};
use super::service::Service;
use crate::run::calls::post_params;

/// Sends the bindings of pods to the API server.
pub(super) struct Binder {
    service: Arc<Service>,
    /// Lock for each host, held while a binding to the host is in progress.
    hosts: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Number of locks above which the locks of hosts without a binding in progress are removed.
const IDLE_HOSTS: usize = 4096;
/// Timeout of the read of a pod after a failed binding.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns `timeout`, shortened to the time that remains until the end of the whole call.
fn limit_to_call(timeout: Duration, end: Instant) -> Duration {
    timeout.min(end.saturating_duration_since(Instant::now()))
}

impl Binder {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        Self { service: Arc::clone(service), hosts: Mutex::default() }
    }

    /// Handles a `bind` call: sends the binding of a pod if the extender permits it.
    pub(super) async fn bind(&self, args: &BindingArgs) -> Result<(), BindFailure> {
        let (service, began) = (&self.service, Instant::now());
        let after = |time| began.checked_add(time).unwrap_or(began);
        let (until, end) = (after(HOLD_TIMEOUT), after(CALL_TIMEOUT));
        let host = self.host(&args.node);
        let turn = tokio::time::timeout_at(until.into(), host.lock()).await;
        let _turn = turn.map_err(|_| BindFailure::HostBusy)?;
        let mut object_until: Option<Instant> = None;
        let mut pod: Option<Pod> = None;
        loop {
            let mut changed = service.gate.subscribe();
            service.gate.wait_until_allowed_before(until, end).await?;
            let (uid, node) = (&args.pod_uid, &args.node);
            let sending = tokio::time::timeout_at(end.into(), service.sending.read()).await;
            let sending = sending.map_err(|_| BindFailure::Relisting)?;
            let answer = service.extender().bind(Instant::now(), uid, node, pod.as_ref());
            match answer {
                BindAnswer::AlreadyBound => return Ok(()),
                BindAnswer::Send => return self.send(args, end).await,
                BindAnswer::Refused(error) => {
                    service.changed.notify_one();
                    return Err(error.into());
                }
                BindAnswer::PodNeeded if pod.is_none() => pod = Some(self.read(args, end).await?),
                BindAnswer::PodNeeded => return Err(BindFailure::UnknownPod),
                BindAnswer::NotReady(error) => {
                    drop(sending);
                    let now = Instant::now();
                    let end = now.checked_add(OBJECT_TIMEOUT).unwrap_or(until).min(until);
                    let end = *object_until.get_or_insert(end);
                    let waited = tokio::time::timeout_at(end.into(), changed.changed()).await;
                    waited.map_err(|_| error)?.unwrap_or_default();
                }
            }
        }
    }

    /// Returns the lock of a host; creates it if there is none.
    fn host(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= IDLE_HOSTS {
            hosts.retain(|_, host| Arc::strong_count(host) > 1);
        }
        Arc::clone(hosts.entry(name.to_owned()).or_default())
    }

    fn pods(&self, args: &BindingArgs) -> Api<Pod> {
        Api::namespaced(self.service.client.clone(), &args.pod_namespace)
    }

    async fn read(&self, args: &BindingArgs, end: Instant) -> Result<Pod, BindFailure> {
        let pods = self.pods(args);
        let read = pods.get(&args.pod_name);
        let read = tokio::time::timeout(limit_to_call(READ_TIMEOUT, end), read).await;
        Ok(read.map_err(|_| BindFailure::ReadPodTimeout)??)
    }

    async fn send(&self, args: &BindingArgs, end: Instant) -> Result<(), BindFailure> {
        let (service, uid) = (&self.service, &args.pod_uid);
        // The Lease is checked again, because the last read may be too old by now.
        if let Err(error) = service.gate.check_lease_before(end).await {
            service.update(|extender, now| extender.not_bound(now, uid));
            return Err(error.into());
        }
        let body = binding(args);
        let (pods, params) = (self.pods(args), post_params());
        let call = pods.create_subresource::<_, Value>("binding", &args.pod_name, &params, &body);
        let error = match tokio::time::timeout(limit_to_call(SEND_TIMEOUT, end), call).await {
            Ok(Ok(_)) => {
                service.update(|extender, now| extender.bound(now, uid));
                return Ok(());
            }
            Ok(Err(error)) => CallError::from(error),
            Err(_) => CallError::TimedOut,
        };
        // If the API server refuses the binding, the pod is not bound. After any other error, the pod is read to find
        // out if it is bound.
        let is_refused = error.code().is_some_and(|code| (400..500).contains(&code));
        let pod = if is_refused { None } else { Some(self.read(args, end).await) };
        match pod {
            None => service.update(|extender, now| extender.not_bound(now, uid)),
            Some(Ok(pod)) if pod.uid().as_ref() == Some(uid) => {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                if node == Some(args.node.as_str()) {
                    service.update(|extender, now| extender.bound(now, uid));
                    return Ok(());
                }
                service.update(|extender, now| extender.not_bound(now, uid));
            }
            // The outcome is unknown until the watch shows it. Until then the reservation stays.
            Some(_) => {}
        }
        Err(BindFailure::Api(error))
    }
}

/// Returns the body of the binding request.
fn binding(args: &BindingArgs) -> Binding {
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
