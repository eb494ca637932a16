//! Binds a pod to its host: one binding at a time to each host, as its kubelet gives zones in the order of bindings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_runtime::client::CallError;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use kube::api::ObjectMeta;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::Sidecar;
use super::gate::{BRIEFLY, BUDGET, HOLD};
use crate::run::calls::made_by;
use berth_extender::wire::BindingArgs;
use berth_extender::{BindAnswer, SEND_TIMEOUT};

/// Sends bindings.
pub(super) struct Sender {
    sidecar: Arc<Sidecar>,
    /// Taken while a binding to a host is under way.
    hosts: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// With so many hosts those are forgotten to which nothing is being bound.
const IDLE: usize = 4096;
/// A look at one pod that takes longer is given up.
const LOOK: Duration = Duration::from_secs(2);

/// What a step may take of the time that is left for the whole call.
fn left(most: Duration, end: Instant) -> Duration {
    most.min(end.saturating_duration_since(Instant::now()))
}

impl Sender {
    pub(super) fn of(sidecar: &Arc<Sidecar>) -> Self {
        Self { sidecar: Arc::clone(sidecar), hosts: Mutex::default() }
    }

    /// Binds a pod, if it may go there.
    pub(super) async fn bind(&self, binding: &BindingArgs) -> Result<(), String> {
        let (sidecar, began) = (&self.sidecar, Instant::now());
        let after = |time| began.checked_add(time).unwrap_or(began);
        let (until, end) = (after(HOLD), after(BUDGET));
        let host = {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            if hosts.len() >= IDLE {
                hosts.retain(|_, host| Arc::strong_count(host) > 1);
            }
            Arc::clone(hosts.entry(binding.node.clone()).or_default())
        };
        let turn = tokio::time::timeout_at(until.into(), host.lock()).await;
        let _turn = turn.map_err(|_| "earlier bindings to this host are still under way")?;
        let mut brief: Option<Instant> = None;
        let mut pod: Option<Pod> = None;
        loop {
            let mut changed = sidecar.gate.watch();
            sidecar.gate.pass_by(until, end).await?;
            let (uid, node) = (&binding.pod_uid, &binding.node);
            let sending = tokio::time::timeout_at(end.into(), sidecar.sending.read()).await;
            let sending = sending.map_err(|_| "all is being listed again")?;
            let answer = sidecar.extender().bind(Instant::now(), uid, node, pod.as_ref());
            match answer {
                BindAnswer::AlreadyBound => return Ok(()),
                BindAnswer::Send => return self.send(binding, end).await,
                BindAnswer::Refused(error) => {
                    sidecar.stirred.notify_one();
                    return Err(error.to_string());
                }
                BindAnswer::PodNeeded if pod.is_none() => {
                    pod = Some(self.look(binding, end).await?)
                }
                BindAnswer::PodNeeded => return Err("nothing is known of it".to_owned()),
                BindAnswer::NotReady(why) => {
                    drop(sending);
                    let end = Instant::now().checked_add(BRIEFLY).unwrap_or(until).min(until);
                    let brief = *brief.get_or_insert(end);
                    let waited = tokio::time::timeout_at(brief.into(), changed.changed()).await;
                    waited.map_err(|_| why.to_string())?.unwrap_or_default();
                }
            }
        }
    }

    fn pods(&self, binding: &BindingArgs) -> Api<Pod> {
        Api::namespaced(self.sidecar.client.clone(), &binding.pod_namespace)
    }

    async fn look(&self, binding: &BindingArgs, end: Instant) -> Result<Pod, String> {
        let pods = self.pods(binding);
        let look = tokio::time::timeout(left(LOOK, end), pods.get(&binding.pod_name)).await;
        let look = look.map_err(|_| "no answer about it in time")?;
        look.map_err(|error| berth_runtime::cli::text::chain(&error))
    }

    async fn send(&self, binding: &BindingArgs, end: Instant) -> Result<(), String> {
        // The look at the Lease may have been a while ago.
        let (sidecar, uid) = (&self.sidecar, &binding.pod_uid);
        if let Err(why) = sidecar.gate.fence_by(end).await {
            sidecar.tell(|extender, now| extender.not_bound(now, uid));
            return Err(why);
        }
        let body = Binding {
            metadata: ObjectMeta {
                name: Some(binding.pod_name.clone()),
                namespace: Some(binding.pod_namespace.clone()),
                // Another pod of that name is refused.
                uid: Some(uid.clone()),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(binding.node.clone()),
                ..ObjectReference::default()
            },
        };
        let (pods, params) = (self.pods(binding), made_by());
        let call =
            pods.create_subresource::<_, Value>("binding", &binding.pod_name, &params, &body);
        let error = match tokio::time::timeout(left(SEND_TIMEOUT, end), call).await {
            Ok(Ok(_)) => {
                sidecar.tell(|extender, now| extender.bound(now, uid));
                return Ok(());
            }
            Ok(Err(error)) => CallError::from(error),
            Err(_) => CallError::TimedOut,
        };
        // An API server that says no has not bound it. Otherwise the pod itself tells.
        let is_refused = error.code().is_some_and(|code| (400..500).contains(&code));
        let there = if is_refused { None } else { Some(self.look(binding, end).await) };
        match there {
            None => sidecar.tell(|extender, now| extender.not_bound(now, uid)),
            Some(Ok(pod)) if pod.uid().as_ref() == Some(uid) => {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                if node == Some(binding.node.as_str()) {
                    sidecar.tell(|extender, now| extender.bound(now, uid));
                    return Ok(());
                }
                sidecar.tell(|extender, now| extender.not_bound(now, uid));
            }
            // The watch will tell; until then its place is its own.
            Some(_) => {}
        }
        Err(error.to_string())
    }
}
