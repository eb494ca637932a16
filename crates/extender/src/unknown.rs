//! Pods that name a VirtualMachineInstance that is not known: for how long the scheduler waits for it.
//!
//! The watch of instances may be a moment behind the watch of pods, so the first call is held. kube-scheduler asks about
//! one pod at a time and waits for each answer: were every call held, one pod whose VM never comes would take a second of
//! all others' time again and again. So a pod is held once, and a namespace where that was in vain is not waited for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A call is held for so long.
const HOLD: Duration = Duration::from_secs(1);
/// Pods of a namespace are not held for so long after one was held in vain.
const IN_VAIN: Duration = Duration::from_secs(60);

/// Pods whose VMs are unknown.
#[derive(Debug, Default)]
pub(super) struct Unknown {
    /// By uid: since when the pod is held, and the instance that it names.
    pods: HashMap<String, (Instant, String)>,
    /// Namespaces whose pods are not held, until when.
    in_vain: HashMap<String, Instant>,
}

impl Unknown {
    /// Returns whether a call about this pod is to be held now.
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

    /// Returns the pods that name such an instance.
    pub(super) fn naming(&self, is: impl Fn(&str) -> bool) -> Vec<String> {
        let pods = self.pods.iter().filter(|(_, (_, named))| is(named));
        pods.map(|(pod, _)| pod.clone()).collect()
    }

    /// The instance that a pod names is known.
    pub(super) fn remove(&mut self, pod: &str) {
        self.pods.remove(pod);
    }

    /// Forgets pods that no longer wait.
    pub(super) fn tick(&mut self, now: Instant, waits: impl Fn(&str) -> bool) {
        let is_new = |since: Instant| now.saturating_duration_since(since) < IN_VAIN;
        self.pods.retain(|pod, (since, _)| is_new(*since) || waits(pod));
        self.in_vain.retain(|_, until| now < *until);
    }
}
