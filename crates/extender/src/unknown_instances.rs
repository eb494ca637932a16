//! Pods that name a VirtualMachineInstance which the extender does not know, and the time for which the extender delays
//! its answers to `filter` calls for these pods.
//!
//! The watch of instances may lag behind the watch of pods, so the extender delays the answer to the first `filter`
//! call for such a pod. kube-scheduler sends one call at a time and waits for each answer: if the extender delayed
//! every answer, a single pod whose VM is never created would delay all other pods by a second again and again.
//! Therefore answers for a pod are delayed only during one second ([`HOLD_DURATION`]). If the pod's VM is still unknown
//! afterwards, no answers for pods of the same namespace are delayed for a minute ([`HOLD_COOLDOWN`]).

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time after the first `filter` call for a pod during which the answers to calls for this pod are delayed.
const HOLD_DURATION: Duration = Duration::from_secs(1);
/// Time for which no answer is delayed in a namespace, after an answer for a pod of this namespace was delayed and the
/// pod's VM stayed unknown.
const HOLD_COOLDOWN: Duration = Duration::from_secs(60);

/// Pods whose VirtualMachineInstances are unknown.
#[derive(Debug, Default)]
pub(super) struct UnknownInstances {
    /// For each pod by UID, the time of the first `filter` call and the UID of the instance that the pod names.
    pods: HashMap<String, (Instant, String)>,
    /// Namespaces in which no answer is delayed now, each with the time at which answers may be delayed again.
    cooldown_ends: HashMap<String, Instant>,
}

impl UnknownInstances {
    /// Returns true if the extender should delay the answer to a `filter` call for this pod. Records the pod at its
    /// first call. If an answer for the pod was delayed and the pod's VM is still unknown, starts the cooldown of the
    /// namespace ([`HOLD_COOLDOWN`]).
    pub(super) fn should_hold(
        &mut self,
        now: Instant,
        pod: &str,
        namespace: &str,
        instance: &str,
    ) -> bool {
        let is_cooling_down = self.cooldown_ends.get(namespace).is_some_and(|until| now < *until);
        if let Some((since, _)) = self.pods.get(pod) {
            let holds = now.saturating_duration_since(*since) < HOLD_DURATION;
            if !holds && !is_cooling_down {
                let until = now.checked_add(HOLD_COOLDOWN).unwrap_or(now);
                self.cooldown_ends.insert(namespace.to_owned(), until);
            }
            return holds && !is_cooling_down;
        }
        self.pods.insert(pod.to_owned(), (now, instance.to_owned()));
        !is_cooling_down
    }

    /// Returns the UIDs of the pods that name a VirtualMachineInstance for which `matches` returns true. `matches`
    /// receives the UID of the instance.
    pub(super) fn pods_with_instance(&self, matches: impl Fn(&str) -> bool) -> Vec<String> {
        let pods = self.pods.iter().filter(|(_, (_, instance))| matches(instance));
        pods.map(|(pod, _)| pod.clone()).collect()
    }

    /// Removes a pod whose VirtualMachineInstance is now known.
    pub(super) fn remove(&mut self, pod: &str) {
        self.pods.remove(pod);
    }

    /// Removes pods whose first `filter` call is more than [`HOLD_COOLDOWN`] ago, unless `is_pending` returns true for
    /// the pod's UID, and namespaces whose cooldown has ended.
    pub(super) fn expire(&mut self, now: Instant, is_pending: impl Fn(&str) -> bool) {
        let is_new = |since: Instant| now.saturating_duration_since(since) < HOLD_COOLDOWN;
        self.pods.retain(|pod, (since, _)| is_new(*since) || is_pending(pod));
        self.cooldown_ends.retain(|_, until| now < *until);
    }
}
