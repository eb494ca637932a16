//! Watch of pods. Pods on hosts use resources; pending pods of Berth's scheduler need a host.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_extender::{Extender, KubeletRefusal, ObservedPod};
use berth_kubevirt_render::launcher::kubelet_uid;
use berth_runtime::watch::{Config, Event, continue_after_error, watch_events};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::Api;

use super::service::ExtenderService;
use super::unlisted_kinds::ListedKind;
use super::volumes;

/// Passes pods to the extender after all other kinds have been listed; never ends.
pub(super) async fn watch_pods(service: Arc<ExtenderService>) {
    service.readiness_gate.wait_for_other_kinds().await;
    volumes::read_pending_volumes(&service).await;
    // The watch does not use the wrapper `DeserializeGuard` for objects that cannot be parsed, because it would parse
    // each of many thousands of pods twice. Pods are a built-in kind, so they can always be parsed.
    let api: Api<Pod> = Api::all(service.client.clone());
    let mut listed: HashSet<String> = HashSet::new();
    let mut unreported: Vec<(Pod, ObservedPod)> = Vec::new();
    // Pods that a kubelet has refused and that are counted in the metrics, so that each refusal is counted once. Pods
    // of the first list are not counted.
    let mut refused_uids: HashSet<String> = HashSet::new();
    let mut is_first = true;
    // Duration of counting the pods of the list, without the time to wait for pages of the list.
    let mut count_duration = Duration::ZERO;
    let handle = |event: Event<Pod>| match event {
        Event::Init => {
            service.readiness_gate.set_listed(ListedKind::Pods, false);
            listed.clear();
            unreported.clear();
            count_duration = Duration::ZERO;
        }
        Event::InitApply(object) => {
            let started_at = Instant::now();
            let Some((pod, observed)) = parse_and_trim(object) else { return };
            listed.insert(observed.uid().to_owned());
            if let Some(refusal) = berth_pod_refusal(&observed)
                && refused_uids.insert(observed.uid().to_owned())
                && !is_first
            {
                count_refusal(&service, &observed, refusal);
            }
            let mut extender = service.extender();
            if extender.is_unreported(&observed) {
                unreported.push((pod, observed));
            } else {
                count_pod(&mut extender, pod, &observed);
            }
            drop(extender);
            count_duration = count_duration.saturating_add(started_at.elapsed());
        }
        Event::InitDone => {
            let started_at = Instant::now();
            service.metrics.assignment.record_listed();
            unreported.sort_by_cached_key(|(pod, _)| {
                pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
            });
            service.update(|extender, now| {
                for (pod, observed) in unreported.drain(..) {
                    count_pod(extender, pod, &observed);
                }
                extender.handle_pod_list(now, &listed);
            });
            refused_uids.retain(|uid| listed.contains(uid));
            is_first = false;
            let pods = std::mem::take(&mut listed).len();
            service.readiness_gate.set_listed(ListedKind::Pods, true);
            count_duration = count_duration.saturating_add(started_at.elapsed());
            service.metrics.assignment.record_count_time("pods", count_duration);
            tracing::info!(
                pods,
                seconds = count_duration.as_secs_f64(),
                "listed and counted the pods"
            );
        }
        Event::Apply(object) => {
            let Some((pod, observed)) = parse_and_trim(object) else { return };
            if let Some(refusal) = berth_pod_refusal(&observed)
                && refused_uids.insert(observed.uid().to_owned())
            {
                count_refusal(&service, &observed, refusal);
            }
            service.update(|extender, _| count_pod(extender, pod, &observed));
        }
        Event::Delete(object) => {
            let uid = kubelet_uid(&object);
            refused_uids.remove(&uid);
            service.update(|extender, now| extender.delete_pod(now, &uid));
        }
    };
    watch_events(api, Config::default(), "pods", handle, continue_after_error).await;
}

/// Returns the reason why the kubelet has refused a pod; `None` if the kubelet has not refused the pod, or if the pod
/// uses another scheduler than Berth's.
fn berth_pod_refusal(observed: &ObservedPod) -> Option<KubeletRefusal> {
    observed.kubelet_refusal.filter(|_| observed.uses_berth_scheduler)
}

fn count_refusal(service: &ExtenderService, observed: &ObservedPod, refusal: KubeletRefusal) {
    let reason = refusal.metric_label();
    service.metrics.assignment.count_kubelet_refusal(reason);
    let existing = &observed.existing;
    let (namespace, name) = (existing.namespace.as_str(), existing.name.as_str());
    let node = existing.node_name.as_deref();
    tracing::warn!(namespace, name, node, reason, "the kubelet has refused a pod");
}

fn count_pod(extender: &mut Extender, pod: Pod, observed: &ObservedPod) {
    if let Err(error) = extender.update_pod(Instant::now(), pod, observed) {
        let existing = &observed.existing;
        let (namespace, name) = (existing.namespace.as_str(), existing.name.as_str());
        tracing::warn!(namespace, name, %error, "failed to compile the rules of a pod");
    }
}

fn parse_and_trim(mut pod: Pod) -> Option<(Pod, ObservedPod)> {
    match ObservedPod::read(&pod) {
        Ok(observed) => {
            trim_pod(&mut pod);
            Some((pod, observed))
        }
        Err(error) => {
            let metadata = &pod.metadata;
            let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
            tracing::warn!(namespace, name, %error, "failed to read a pod; its resources are not counted");
            None
        }
    }
}

/// Removes the fields that the extender does not use after it has read the pod. A pod on a host keeps only the fields
/// that rules use.
fn trim_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    let is_pending = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none());
    if is_pending {
        return;
    }
    let spec = pod.spec.take().unwrap_or_default();
    pod.spec = Some(PodSpec {
        node_selector: spec.node_selector,
        affinity: spec.affinity,
        tolerations: spec.tolerations,
        topology_spread_constraints: spec.topology_spread_constraints,
        ..PodSpec::default()
    });
}
