//! Ends of the grace periods of a Node's pods, from the time at which each pod was first seen to be deleted. After a
//! restart, the grace periods begin again, which only prolongs the wait.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use k8s_openapi::jiff::Timestamp;

use super::pod::DrainPod;

/// Ends of grace periods, by a hash of the pod's UID: 2,000 pods need less than 100 KiB.
#[derive(Debug, Default)]
pub struct GracePeriods {
    ends: BTreeMap<u64, Timestamp>,
}

impl GracePeriods {
    /// Sets the ends of the grace periods of listed pods to the earliest ones that were seen. Forgets other pods.
    pub fn update(&mut self, pods: &mut [DrainPod]) {
        let mut ends = BTreeMap::new();
        for pod in pods {
            let Some(end) = pod.terminating else { continue };
            let mut hasher = DefaultHasher::new();
            pod.uid.hash(&mut hasher);
            let hash = hasher.finish();
            let earliest = self.ends.get(&hash).map_or(end, |known| end.min(*known));
            pod.terminating = Some(earliest);
            ends.insert(hash, earliest);
        }
        self.ends = ends;
    }

    /// Returns true if no pod is being deleted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, end: Option<i64>) -> DrainPod {
        DrainPod {
            namespace: "shop".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            terminating: end.map(|end| Timestamp::from_second(end).unwrap()),
        }
    }

    #[test]
    fn a_grace_period_begins_once() {
        let mut periods = GracePeriods::default();
        let mut update = |pods: &[(&str, Option<i64>)]| {
            let mut pods: Vec<_> = pods.iter().map(|(uid, end)| pod(uid, *end)).collect();
            periods.update(&mut pods);
            let ends = pods.iter().map(|pod| pod.terminating.map(Timestamp::as_second));
            (ends.collect::<Vec<_>>(), periods.is_empty())
        };
        assert_eq!(update(&[("a", Some(30)), ("b", None)]), (vec![Some(30), None], false));
        assert_eq!(update(&[("a", Some(60)), ("b", Some(60))]), (vec![Some(30), Some(60)], false));
        // The grace period of b is shortened.
        assert_eq!(update(&[("b", Some(40))]), (vec![Some(40)], false));
        assert_eq!(update(&[("a", Some(90))]), (vec![Some(90)], false));
        assert_eq!(update(&[]), (vec![], true));
    }
}
