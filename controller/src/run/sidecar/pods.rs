//! All pods: those on hosts take room, those of ours that have none wait for it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::Api;

use super::Sidecar;
use super::gate::Kind;
use super::volumes;
use berth_extender::{Extender, ObservedPod};
use berth_kubevirt_render::launcher::kubelet_uid;
use berth_runtime::watch::{Config, Event, always, watch};

/// Follows pods for ever, as soon as all is known that they are counted by.
pub(super) async fn follow(sidecar: Arc<Sidecar>) {
    sidecar.gate.all_but_pods().await;
    volumes::look(&sidecar).await;
    // A guard against objects that cannot be understood would read each of many thousands twice; pods are the server's own.
    let api: Api<Pod> = Api::all(sidecar.client.clone());
    let mut listed: HashSet<String> = HashSet::new();
    let mut late: Vec<(Pod, ObservedPod)> = Vec::new();
    // Those that a kubelet has refused, each counted once, and none of before the first list.
    let mut refused: HashSet<String> = HashSet::new();
    let mut is_first = true;
    // Without the wait for pages.
    let mut counting = Duration::ZERO;
    let take = |event: Event<Pod>| match event {
        Event::Init => {
            sidecar.gate.listed(Kind::Pods, false);
            listed.clear();
            late.clear();
            counting = Duration::ZERO;
        }
        Event::InitApply(object) => {
            let began = Instant::now();
            let Some((pod, seen)) = read(object) else { return };
            listed.insert(seen.uid().to_owned());
            if let Some(name) = refusal(&seen)
                && refused.insert(seen.uid().to_owned())
                && !is_first
            {
                tell_refusal(&sidecar, &seen, name);
            }
            let mut extender = sidecar.extender();
            if extender.is_unreported(&seen) {
                late.push((pod, seen));
            } else {
                count(&mut extender, pod, &seen);
            }
            drop(extender);
            counting = counting.saturating_add(began.elapsed());
        }
        Event::InitDone => {
            let began = Instant::now();
            sidecar.metrics.assignment.listed();
            late.sort_by_cached_key(|(pod, _)| {
                pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
            });
            sidecar.tell(|extender, now| {
                for (pod, seen) in late.drain(..) {
                    count(extender, pod, &seen);
                }
                extender.pods_listed(now, &listed);
            });
            refused.retain(|uid| listed.contains(uid));
            is_first = false;
            let count = std::mem::take(&mut listed).len();
            sidecar.gate.listed(Kind::Pods, true);
            counting = counting.saturating_add(began.elapsed());
            sidecar.metrics.assignment.counted("pods", counting);
            tracing::info!(
                "{count} pods are listed, and counted in {:.2} s",
                counting.as_secs_f64()
            );
        }
        Event::Apply(object) => {
            let Some((pod, seen)) = read(object) else { return };
            if let Some(name) = refusal(&seen)
                && refused.insert(seen.uid().to_owned())
            {
                tell_refusal(&sidecar, &seen, name);
            }
            sidecar.tell(|extender, _| count(extender, pod, &seen));
        }
        Event::Delete(object) => {
            let uid = kubelet_uid(&object);
            refused.remove(&uid);
            sidecar.tell(|extender, now| extender.pod_deleted(now, &uid));
        }
    };
    watch(api, Config::default(), "pods", take, always).await;
}

/// Why the kubelet has refused one of ours.
fn refusal(seen: &ObservedPod) -> Option<&'static str> {
    seen.kubelet.filter(|_| seen.is_ours).map(|refusal| refusal.name())
}

fn tell_refusal(sidecar: &Sidecar, seen: &ObservedPod, name: &str) {
    sidecar.metrics.assignment.kubelet_refused(name);
    tracing::warn!("{}: its kubelet has refused it: {name}", seen.title());
}

fn count(extender: &mut Extender, pod: Pod, seen: &ObservedPod) {
    if let Err(why) = extender.pod(Instant::now(), pod, seen) {
        tracing::warn!("{why}");
    }
}

fn read(mut pod: Pod) -> Option<(Pod, ObservedPod)> {
    match ObservedPod::read(&pod) {
        Ok(seen) => {
            trim(&mut pod);
            Some((pod, seen))
        }
        Err(invalid) => {
            tracing::warn!("{invalid}; it is not counted");
            None
        }
    }
}

/// What is looked at once it has been read: what rules are made of; all of it only of a pod that waits.
fn trim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    let waits = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none());
    if waits {
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
