//! Metrics of the TenantCluster conditions about access to tenants' API servers. The cardinality is constant, because
//! no label contains the tenant.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use berth_api::ConditionReason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    condition: &'static str,
    reason: &'static str,
}

/// Number of tenants, by condition and reason.
#[derive(Debug)]
pub(super) struct TenantConditionMetrics {
    counts: Family<ConditionLabels, Gauge>,
    /// Conditions that are counted, by tenant and field manager.
    known: Mutex<BTreeMap<(String, &'static str), Vec<ConditionLabels>>>,
}

impl TenantConditionMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let counts = Family::default();
        registry.register(
            "berth_controller_tenant_conditions",
            "Tenants by the reason of their conditions TenantAccessReady, NodeLabelsReady and StorageClassesReady",
            Clone::clone(&counts),
        );
        Self { counts, known: Mutex::default() }
    }

    /// Sets the types and reasons of the conditions of a tenant that `manager` writes; no conditions if the tenant is
    /// deleted, or has no kubeconfig.
    pub(super) fn set(
        &self,
        tenant: &str,
        manager: &'static str,
        conditions: impl Iterator<Item = (&'static str, ConditionReason)>,
    ) {
        let labels = |(condition, reason): (&'static str, ConditionReason)| {
            let reason = reason.as_str();
            ConditionLabels { condition, reason }
        };
        let current: Vec<ConditionLabels> = conditions.map(labels).collect();
        let key = (tenant.to_owned(), manager);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for labels in &current {
            self.counts.get_or_create(labels).inc();
        }
        let before =
            if current.is_empty() { known.remove(&key) } else { known.insert(key, current) };
        for labels in before.iter().flatten() {
            self.counts.get_or_create(labels).dec();
        }
    }

    /// Removes the conditions of all tenants.
    pub(super) fn clear(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_counted_by_reason() {
        let metrics = TenantConditionMetrics::register(&mut Registry::default());
        let set = |tenant: &str, reasons: &[ConditionReason]| {
            metrics.set(
                tenant,
                "nodes",
                reasons.iter().map(|reason| ("TenantAccessReady", *reason)),
            );
        };
        let count = |reason: ConditionReason| {
            let (condition, reason) = ("TenantAccessReady", reason.as_str());
            metrics.counts.get_or_create(&ConditionLabels { condition, reason }).get()
        };
        set("a", &[ConditionReason::Connected]);
        set("b", &[ConditionReason::Connected]);
        set("b", &[ConditionReason::TenantUnreachable]);
        set("b", &[ConditionReason::TenantUnreachable]);
        assert_eq!(count(ConditionReason::Connected), 1);
        assert_eq!(count(ConditionReason::TenantUnreachable), 1);
        let pending = [("StorageClassesReady", ConditionReason::TenantUnreachable)];
        metrics.set("b", "storage", pending.into_iter());
        assert_eq!(
            count(ConditionReason::TenantUnreachable),
            1,
            "a manager does not replace conditions of another manager"
        );
        set("b", &[]);
        assert_eq!(count(ConditionReason::TenantUnreachable), 0);
        metrics.clear();
        assert!(metrics.known.lock().unwrap().is_empty());
        assert_eq!(count(ConditionReason::Connected), 0);
    }
}
