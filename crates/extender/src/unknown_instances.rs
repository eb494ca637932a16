//! Pods that name a VirtualMachineInstance that is not known: for how long `filter` is held for it.
//!
//! The watch of instances may be a moment behind the watch of pods, so the first call is held. kube-scheduler asks about
//! one pod at a time and waits for each answer: if each call were held, one pod whose VM is never created would delay all
//! other pods by a second, again and again. So a pod is held once, and a namespace where that was in vain is not held.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time for which the calls about a pod are held.
const HOLD: Duration = Duration::from_secs(1);
/// Time for which the pods of a namespace are not held after one was held in vain.
const IN_VAIN: Duration = Duration::from_secs(60);

/// Pods whose VirtualMachineInstances are unknown.
#[derive(Debug, Default)]
pub(super) struct UnknownInstances {
    /// By pod: the time of the first call, and the instance that the pod names.
    pods: HashMap<String, (Instant, String)>,
    /// Namespaces whose pods are not held, each with the end of that time.
    in_vain: HashMap<String, Instant>,
}

impl UnknownInstances {
    /// Returns true if a call about this pod is to be held now.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        pod: &str,
        namespace: &str,
        instance: &str,
    ) -> bool {
        let is_in_vain = self.in_vain.get(namespace).is_some_and(|until| now < *until);
        if let Some((since, _)) = self.pods.get(pod) {
            let holds = now.saturating_duration_since(*since) < HOLD;
            if !holds && !is_in_vain {
                let until = now.checked_add(IN_VAIN).unwrap_or(now);
                self.in_vain.insert(namespace.to_owned(), until);
            }
            return holds && !is_in_vain;
        }
        self.pods.insert(pod.to_owned(), (now, instance.to_owned()));
        !is_in_vain
    }

    /// Returns the pods whose instance matches.
    pub(super) fn pods_of(&self, matches: impl Fn(&str) -> bool) -> Vec<String> {
        let pods = self.pods.iter().filter(|(_, (_, instance))| matches(instance));
        pods.map(|(pod, _)| pod.clone()).collect()
    }

    /// Removes a pod whose instance is known.
    pub(super) fn remove(&mut self, pod: &str) {
        self.pods.remove(pod);
    }

    /// Removes pods that no longer wait.
    pub(super) fn expire(&mut self, now: Instant, waits: impl Fn(&str) -> bool) {
        let is_new = |since: Instant| now.saturating_duration_since(since) < IN_VAIN;
        self.pods.retain(|pod, (since, _)| is_new(*since) || waits(pod));
        self.in_vain.retain(|_, until| now < *until);
    }
}
