//! Pods that name an unknown VirtualMachineInstance, and the time for which `filter` calls for them are held.
//!
//! The watch of instances may lag behind the watch of pods, so the extender holds the first `filter` call for a pod.
//! kube-scheduler sends one call at a time and waits for each answer: if the extender held every call, a single pod
//! whose VM is never created would delay all other pods by a second again and again. Therefore a pod is held only once.
//! If its VM is still unknown afterwards, no pods of its namespace are held for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time after the first call for a pod during which its calls are held.
const HOLD_DURATION: Duration = Duration::from_secs(1);
/// Time for which no pod of a namespace is held after a pod of the namespace was held and its VM stayed unknown.
const HOLD_COOLDOWN: Duration = Duration::from_secs(60);

/// Pods whose VirtualMachineInstances are unknown.
#[derive(Debug, Default)]
pub(super) struct UnknownInstances {
    /// For each pod by UID, the time of the first call and the UID of the instance that the pod names.
    pods: HashMap<String, (Instant, String)>,
    /// Namespaces whose pods are not held, each with the time at which their pods may be held again.
    cooldown_ends: HashMap<String, Instant>,
}

impl UnknownInstances {
    /// Returns true if the extender should hold a `filter` call for this pod now. Records the pod at its first call. If
    /// the pod was held and its VM is still unknown, starts the cooldown of the namespace.
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

    /// Returns the UIDs of the pods that name an instance for whose UID `matches` returns true.
    pub(super) fn pods_with_instance(&self, matches: impl Fn(&str) -> bool) -> Vec<String> {
        let pods = self.pods.iter().filter(|(_, (_, instance))| matches(instance));
        pods.map(|(pod, _)| pod.clone()).collect()
    }

    /// Removes a pod whose instance is now known.
    pub(super) fn remove(&mut self, pod: &str) {
        self.pods.remove(pod);
    }

    /// Removes the pods for which `is_pending` returns false and whose first call is more than [`HOLD_COOLDOWN`] ago,
    /// and the namespaces whose cooldown has ended.
    pub(super) fn expire(&mut self, now: Instant, is_pending: impl Fn(&str) -> bool) {
        let is_new = |since: Instant| now.saturating_duration_since(since) < HOLD_COOLDOWN;
        self.pods.retain(|pod, (since, _)| is_new(*since) || is_pending(pod));
        self.cooldown_ends.retain(|_, until| now < *until);
    }
}
