//! Pods without a host, indexed by UID and by the PersistentVolumeClaims of their volumes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::observed_pod::ObservedPod;

/// Namespace and name of a PersistentVolumeClaim.
type ClaimKey = (String, String);

/// Pods without `spec.nodeName`.
#[derive(Debug, Default)]
pub(super) struct UnassignedPods {
    pods: BTreeMap<String, UnassignedPod>,
    pods_by_claim: HashMap<ClaimKey, BTreeSet<String>>,
}

#[derive(Debug)]
struct UnassignedPod {
    pod: Arc<Pod>,
    claims: Vec<ClaimKey>,
    /// NetworkAttachmentDefinitions to which the pod is attached, as `namespace/name`.
    networks: Vec<String>,
}

impl UnassignedPods {
    /// Inserts a pod, or replaces the pod with the same UID.
    pub(super) fn insert(&mut self, pod: Arc<Pod>, observed: &ObservedPod) {
        self.remove(observed.uid());
        let namespace = &observed.existing.namespace;
        let claims = observed.claims.iter().map(|claim| (namespace.clone(), claim.clone()));
        let claims: Vec<ClaimKey> = claims.collect();
        for claim in &claims {
            self.pods_by_claim.entry(claim.clone()).or_default().insert(observed.uid().to_owned());
        }
        let networks = observed.existing.networks.clone();
        self.pods.insert(observed.uid().to_owned(), UnassignedPod { pod, claims, networks });
    }

    /// Removes a pod that has a host or was deleted.
    pub(super) fn remove(&mut self, uid: &str) {
        let Some(removed) = self.pods.remove(uid) else { return };
        for claim in removed.claims {
            if let Some(pods) = self.pods_by_claim.get_mut(&claim) {
                pods.remove(uid);
                if pods.is_empty() {
                    self.pods_by_claim.remove(&claim);
                }
            }
        }
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Arc<Pod>> {
        Some(&self.pods.get(uid)?.pod)
    }

    /// Returns the UIDs of the pods that are attached to the NetworkAttachmentDefinition `network` (`namespace/name`).
    pub(super) fn uids_with_network(&self, network: &str) -> impl Iterator<Item = &String> {
        let is_attached = move |pod: &UnassignedPod| pod.networks.iter().any(|it| it == network);
        self.pods.iter().filter(move |(_, pod)| is_attached(pod)).map(|(uid, _)| uid)
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    /// Returns the pods that have a volume of this PersistentVolumeClaim.
    pub(super) fn pods_with_claim(&self, claim: &ClaimKey) -> Vec<Arc<Pod>> {
        let uids = self.pods_by_claim.get(claim).into_iter().flatten();
        uids.filter_map(|uid| self.get(uid).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed_pod(uid: &str, claims: &[&str]) -> ObservedPod {
        let mut observed = ObservedPod::default();
        observed.existing.pod.uid = uid.to_owned();
        observed.existing.namespace = "a".to_owned();
        observed.claims = claims.iter().map(|claim| (*claim).to_owned()).collect();
        observed
    }

    #[test]
    fn pods_are_found_by_claim_until_they_are_removed() {
        let mut pods = UnassignedPods::default();
        let count = |pods: &UnassignedPods, claim: &str| {
            pods.pods_with_claim(&("a".to_owned(), claim.to_owned())).len()
        };
        pods.insert(Arc::default(), &observed_pod("one", &["disk", "data"]));
        pods.insert(Arc::default(), &observed_pod("two", &["disk"]));
        assert_eq!((count(&pods, "disk"), count(&pods, "data")), (2, 1));
        // The pod `two` now uses another PersistentVolumeClaim.
        pods.insert(Arc::default(), &observed_pod("two", &["data"]));
        assert_eq!((count(&pods, "disk"), count(&pods, "data")), (1, 2));
        pods.remove("one");
        pods.remove("one");
        assert!(pods.get("one").is_none() && pods.get("two").is_some());
        assert_eq!((count(&pods, "disk"), count(&pods, "data")), (0, 1));
        pods.remove("two");
        assert_eq!((pods.uids().count(), pods.pods_by_claim.len()), (0, 0));
    }
}
