//! Pods that have no host yet, by uid and by the claims of their volumes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::seen::Seen;

/// Namespace and name.
type Claim = (String, String);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pods: BTreeMap<String, (Arc<Pod>, Vec<Claim>)>,
    by_claim: HashMap<Claim, BTreeSet<String>>,
}

impl Pending {
    /// One that waits, as it is now.
    pub(super) fn put(&mut self, pod: Arc<Pod>, seen: &Seen) {
        self.remove(seen.uid());
        let namespace = &seen.existing.namespace;
        let claims = seen.claims.iter().map(|claim| (namespace.clone(), claim.clone()));
        let claims: Vec<Claim> = claims.collect();
        for claim in &claims {
            self.by_claim.entry(claim.clone()).or_default().insert(seen.uid().to_owned());
        }
        self.pods.insert(seen.uid().to_owned(), (pod, claims));
    }

    /// It has a host, or has gone.
    pub(super) fn remove(&mut self, uid: &str) {
        let Some((_, claims)) = self.pods.remove(uid) else { return };
        for claim in claims {
            if let Some(pods) = self.by_claim.get_mut(&claim) {
                pods.remove(uid);
                if pods.is_empty() {
                    self.by_claim.remove(&claim);
                }
            }
        }
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Arc<Pod>> {
        Some(&self.pods.get(uid)?.0)
    }

    /// Their uids.
    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.pods.keys()
    }

    /// Those with a volume of this claim.
    pub(super) fn of(&self, claim: &Claim) -> Vec<Arc<Pod>> {
        let uids = self.by_claim.get(claim).into_iter().flatten();
        uids.filter_map(|uid| self.get(uid).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(uid: &str, claims: &[&str]) -> Seen {
        let mut seen = Seen::default();
        seen.existing.pod.uid = uid.to_owned();
        seen.existing.namespace = "a".to_owned();
        seen.claims = claims.iter().map(|claim| (*claim).to_owned()).collect();
        seen
    }

    #[test]
    fn they_are_found_by_claim_as_long_as_they_wait() {
        let mut pending = Pending::default();
        let of =
            |pending: &Pending, claim: &str| pending.of(&("a".to_owned(), claim.to_owned())).len();
        pending.put(Arc::default(), &seen("one", &["disk", "data"]));
        pending.put(Arc::default(), &seen("two", &["disk"]));
        assert_eq!((of(&pending, "disk"), of(&pending, "data")), (2, 1));
        // It has another volume now.
        pending.put(Arc::default(), &seen("two", &["data"]));
        assert_eq!((of(&pending, "disk"), of(&pending, "data")), (1, 2));
        pending.remove("one");
        pending.remove("one");
        assert!(pending.get("one").is_none() && pending.get("two").is_some());
        assert_eq!((of(&pending, "disk"), of(&pending, "data")), (0, 1));
        pending.remove("two");
        assert_eq!((pending.uids().count(), pending.by_claim.len()), (0, 0));
    }
}
