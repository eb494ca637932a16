//! Ends of the grace periods of a Node's pods, computed from the time at which the deletion of each pod was first seen.
//! After a restart, the grace periods begin again, which only prolongs the wait.
//!
//! Tenants choose the number of their pods, so the number of stored ends is limited for all machines together. A pod
//! beyond the limit begins its grace period again with each list of pods: the machine waits until the pod has stopped
//! or until its own time limit, and its Node is never deleted earlier.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use k8s_openapi::jiff::Timestamp;

use super::pod::DrainPod;

/// Maximum number of ends of grace periods that are stored for all machines together. They need less than 5 MB.
const MAX_ENDS: usize = 100_000;
/// Half of the stored ends are divided equally among the tenants. A tenant may exceed its share as long as fewer ends
/// than this are stored in total.
const SHARED_ENDS: usize = MAX_ENDS / 2;

/// Ends of the grace periods of all machines, by namespace and name of the machine.
#[derive(Debug, Default)]
pub struct GracePeriodTable {
    machines: BTreeMap<(String, String), GracePeriods>,
}

/// Ends of grace periods, by a hash of the pod's UID: 2,000 pods need less than 100 KiB.
#[derive(Debug, Default)]
struct GracePeriods {
    ends: BTreeMap<u64, Timestamp>,
}

impl GracePeriodTable {
    /// Sets the end of the grace period of each listed pod of a machine to the earliest end that was seen. Removes
    /// the ends of the other pods of the machine.
    pub fn update(&mut self, namespace: &str, name: &str, pods: &mut [DrainPod]) {
        let key = (namespace.to_owned(), name.to_owned());
        let mut periods = self.machines.remove(&key).unwrap_or_default();
        periods.update(pods, self.limit(namespace));
        if !periods.ends.is_empty() {
            self.machines.insert(key, periods);
        }
    }

    /// Removes the stored ends of the grace periods of a machine's pods.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        self.machines.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Returns the maximum number of ends that may be stored for one more machine of a tenant.
    fn limit(&self, namespace: &str) -> usize {
        let (mut total, mut own, mut tenants, mut last) = (0_usize, 0_usize, 1_usize, None);
        for ((other, _), periods) in &self.machines {
            let count = periods.ends.len();
            total = total.saturating_add(count);
            if other == namespace {
                own = own.saturating_add(count);
            } else if last != Some(other) {
                tenants = tenants.saturating_add(1);
                last = Some(other);
            }
        }
        let share = SHARED_ENDS.checked_div(tenants).unwrap_or_default().saturating_sub(own);
        let unused = SHARED_ENDS.saturating_sub(total);
        share.max(unused).min(MAX_ENDS.saturating_sub(total))
    }
}

impl GracePeriods {
    /// Sets the end of the grace period of each listed pod to the earliest end that was seen. Removes the ends of
    /// other pods. The ends of new pods are stored only up to `limit` pods.
    fn update(&mut self, pods: &mut [DrainPod], limit: usize) {
        let mut ends = BTreeMap::new();
        let mut new = Vec::new();
        for pod in pods {
            let Some(end) = pod.terminating else { continue };
            let mut hasher = DefaultHasher::new();
            pod.uid.hash(&mut hasher);
            let hash = hasher.finish();
            let Some(known) = self.ends.get(&hash) else {
                new.push((hash, end));
                continue;
            };
            let earliest = end.min(*known);
            pod.terminating = Some(earliest);
            ends.insert(hash, earliest);
        }
        let rest = limit.saturating_sub(ends.len());
        ends.extend(new.into_iter().take(rest));
        self.ends = ends;
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
        let mut table = GracePeriodTable::default();
        let mut update = |pods: &[(&str, Option<i64>)]| {
            let mut pods: Vec<_> = pods.iter().map(|(uid, end)| pod(uid, *end)).collect();
            table.update("shop", "web-1", &mut pods);
            let ends = pods.iter().map(|pod| pod.terminating.map(Timestamp::as_second));
            (ends.collect::<Vec<_>>(), table.machines.is_empty())
        };
        assert_eq!(update(&[("a", Some(30)), ("b", None)]), (vec![Some(30), None], false));
        assert_eq!(update(&[("a", Some(60)), ("b", Some(60))]), (vec![Some(30), Some(60)], false));
        // The grace period of b is shortened.
        assert_eq!(update(&[("b", Some(40))]), (vec![Some(40)], false));
        assert_eq!(update(&[("a", Some(90))]), (vec![Some(90)], false));
        assert_eq!(update(&[]), (vec![], true));
    }
    /// Updates the table with `count` pods of a machine whose grace periods end at `end`. Returns the stored end of the
    /// last pod.
    fn list(
        table: &mut GracePeriodTable,
        (tenant, machine): (&str, usize),
        count: usize,
        end: i64,
    ) -> Option<i64> {
        let mut pods: Vec<_> =
            (0..count).map(|one| pod(&format!("{machine}-{one}"), Some(end))).collect();
        table.update(tenant, &machine.to_string(), &mut pods);
        pods.last()?.terminating.map(Timestamp::as_second)
    }

    fn total(table: &GracePeriodTable) -> usize {
        table.machines.values().map(|periods| periods.ends.len()).sum()
    }

    #[test]
    fn all_machines_have_a_limit() {
        let mut table = GracePeriodTable::default();
        for machine in 0..100 {
            list(&mut table, ("hostile", machine), 2000, 30);
        }
        assert_eq!(total(&table), SHARED_ENDS, "one tenant has no more than the shared ends");
        // Pods with a stored end keep it. The grace periods of other pods begin again, which prolongs the wait.
        assert_eq!(list(&mut table, ("hostile", 0), 2000, 60), Some(30));
        assert_eq!(list(&mut table, ("hostile", 99), 2000, 60), Some(60));
        assert_eq!(list(&mut table, ("hostile", 99), 2000, 90), Some(90));
        // Another tenant has its share.
        assert_eq!(list(&mut table, ("shop", 0), 2000, 30), Some(30));
        assert_eq!(list(&mut table, ("shop", 0), 2000, 60), Some(30));
        for tenant in 0..50 {
            let tenant = format!("tenant-{tenant}");
            list(&mut table, (tenant.as_str(), 0), 2000, 30);
            list(&mut table, (tenant.as_str(), 1), 2000, 30);
        }
        assert!(total(&table) <= MAX_ENDS, "{}", total(&table));
        for machine in 0..100 {
            table.remove("hostile", &machine.to_string());
        }
        assert_eq!(list(&mut table, ("other", 0), 100, 30), Some(30));
        assert_eq!(list(&mut table, ("other", 0), 100, 60), Some(30), "the ends are released");
    }
}
