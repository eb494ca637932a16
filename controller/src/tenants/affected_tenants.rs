//! Computes which tenants are affected by a change of a host. A host may carry a thousand tenants, but most changes
//! affect only one of them.

use std::collections::BTreeSet;

use super::hosts::TenantHostState;
use super::network_id::NetworkId;

/// Tenants that must be reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffectedTenants {
    All,
    Some {
        /// Namespaces of the affected tenants.
        tenants: BTreeSet<String>,
        /// True if, in addition, all tenants that are being deleted are affected, because their deletion waits for
        /// hosts.
        includes_deleting: bool,
    },
}

impl Default for AffectedTenants {
    fn default() -> Self {
        Self::Some { tenants: BTreeSet::new(), includes_deleting: false }
    }
}

impl AffectedTenants {
    /// Returns the tenants that are affected by the change of a host's state from `before` to `after`. `None` for a
    /// state means that the host does not exist.
    #[must_use]
    pub fn from_difference(
        before: Option<&TenantHostState>,
        after: Option<&TenantHostState>,
    ) -> Self {
        let (Some(before), Some(after)) = (before, after) else { return Self::All };
        // Fields on which all tenants of the host depend. The numbers of tenants that the report counts without naming
        // them are included, because any tenant may be among them.
        let shared = |host: &TenantHostState| {
            (
                host.labels.clone(),
                host.networks.clone(),
                host.mtus.clone(),
                host.reported_mtus.clone(),
                host.unresponsive_since,
                host.unnamed_counts.clone(),
            )
        };
        if shared(before) != shared(after) {
            return Self::All;
        }
        let all = before.desired_networks.keys().chain(after.desired_networks.keys());
        let is_other =
            |tenant: &&String| tenant_fields(before, tenant) != tenant_fields(after, tenant);
        let mut tenants: BTreeSet<String> = all.filter(is_other).cloned().collect();
        let (old, new) = (&before.address_conflicts, &after.address_conflicts);
        let ended = old.iter().filter(|conflict| !new.contains(conflict));
        let begun = new.iter().filter(|conflict| !old.contains(conflict));
        tenants.extend(ended.chain(begun).map(|conflict| conflict.network.clone()));
        let deleting = before.has_reported != after.has_reported
            || before.failed_removals != after.failed_removals;
        Self::Some { tenants, includes_deleting: deleting }
    }

    /// Adds the tenants in `other` to this set.
    pub fn merge(&mut self, other: Self) {
        match (self, other) {
            (Self::All, _) => {}
            (this, Self::All) => *this = Self::All,
            (
                Self::Some { tenants, includes_deleting: deleting },
                Self::Some { tenants: other_tenants, includes_deleting: other_deleting },
            ) => {
                tenants.extend(other_tenants);
                *deleting |= other_deleting;
            }
        }
    }
}

/// Returns those fields of a host's state on which one tenant depends; `None` if the host need not carry the tenant's
/// network.
fn tenant_fields<'a>(
    host: &'a TenantHostState,
    tenant: &str,
) -> Option<(&'a (String, NetworkId), bool, Option<&'a String>)> {
    let desired = host.desired_networks.get(tenant)?;
    let reason = host.not_ready_reasons.get(&(desired.0.clone(), tenant.to_owned()));
    Some((desired, host.reported_networks.contains_key(tenant), reason))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use berth_api::InfraNode;
    use berth_api::infra_node::AddressConflictStatus;
    use serde_json::{Value, json};

    use super::*;

    fn host(tenants: &[(&str, u16)], has_reported: bool, not_ready: Value) -> TenantHostState {
        let tenant_networks: Vec<Value> = tenants
            .iter()
            .map(|(name, vlan)| json!({"name": name, "network": "trunk", "vlan": vlan}))
            .collect();
        let infra: InfraNode = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": "rack1-a", "generation": 4},
            "spec": {
                "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}}],
                "tenantNetworks": tenant_networks,
            },
            "status": {
                "observedGeneration": if has_reported { 4 } else { 3 },
                "networks": [{"name": "trunk", "ready": 1, "pending": 0, "failed": 1, "notReady": not_ready}],
            },
        }))
        .unwrap();
        TenantHostState::new(&infra, Some(&BTreeMap::new()))
    }

    fn some_tenants(tenants: &[&str], deleting: bool) -> AffectedTenants {
        AffectedTenants::Some {
            tenants: tenants.iter().map(|name| (*name).to_owned()).collect(),
            includes_deleting: deleting,
        }
    }

    fn failed_network(tenant: &str) -> Value {
        json!([{"tenant": tenant, "vlan": 7, "state": "Failed", "message": "no uplink"}])
    }

    #[test]
    fn a_new_tenant_affects_no_other() {
        let id = NetworkId::Vlan(100.try_into().unwrap());
        let first = host(&[("cluster-a", 100)], true, failed_network("cluster-x"));
        let added =
            host(&[("cluster-a", 100), ("cluster-b", 101)], false, failed_network("cluster-x"));
        let added = added.with_previous(&first);
        assert_eq!(
            AffectedTenants::from_difference(Some(&first), Some(&added)),
            some_tenants(&["cluster-b"], true)
        );
        assert_eq!(added.not_ready_reason("cluster-a", "trunk", id), None);
        let new = NetworkId::Vlan(101.try_into().unwrap());
        assert_eq!(
            added.not_ready_reason("cluster-b", "trunk", new).unwrap(),
            "its agent has not reported yet"
        );
        let done =
            host(&[("cluster-a", 100), ("cluster-b", 101)], true, failed_network("cluster-x"));
        let done = done.with_previous(&added);
        assert_eq!(
            AffectedTenants::from_difference(Some(&added), Some(&done)),
            some_tenants(&["cluster-b"], true)
        );
        assert_eq!(done.not_ready_reason("cluster-b", "trunk", new), None);
    }

    #[test]
    fn a_changed_vlan_or_a_returning_tenant_is_unknown_until_the_next_report() {
        let first = host(&[("cluster-a", 100)], true, json!([]));
        let other = host(&[("cluster-a", 102)], false, json!([])).with_previous(&first);
        assert!(other.reported_networks.is_empty());
        let gone = host(&[], false, json!([])).with_previous(&first);
        let back = host(&[("cluster-a", 100)], false, json!([])).with_previous(&gone);
        assert!(back.reported_networks.is_empty());
        assert_eq!(
            AffectedTenants::from_difference(Some(&gone), Some(&back)),
            some_tenants(&["cluster-a"], false)
        );
    }

    #[test]
    fn shared_state_affects_all_tenants() {
        let first = host(&[("cluster-a", 100)], true, json!([]));
        let mut moved = first.clone();
        moved.labels = None;
        assert_eq!(
            AffectedTenants::from_difference(Some(&first), Some(&moved)),
            AffectedTenants::All
        );
        assert_eq!(AffectedTenants::from_difference(None, Some(&first)), AffectedTenants::All);
        let failing = host(&[("cluster-a", 100)], true, failed_network("cluster-a"));
        let named = host(&[("cluster-a", 100)], true, failed_network("cluster-x"));
        assert_eq!(
            AffectedTenants::from_difference(Some(&failing), Some(&named)),
            some_tenants(&["cluster-a"], false)
        );
    }

    #[test]
    fn an_address_conflict_affects_only_its_tenant() {
        let first = host(&[("cluster-a", 100), ("cluster-b", 101)], true, json!([]));
        let conflict = |network: &str, number: u8| AddressConflictStatus {
            network: network.to_owned(),
            address: [10, 0, 0, number].into(),
            machine: format!("{network}/web-1"),
            mac: None,
        };
        let mut begun = first.clone();
        begun.address_conflicts = vec![conflict("cluster-a", 1), conflict("cluster-b", 1)];
        let mut changed = begun.clone();
        changed.address_conflicts = vec![conflict("cluster-a", 1), conflict("cluster-b", 2)];
        let affected = |before, after| AffectedTenants::from_difference(Some(before), Some(after));
        let both = some_tenants(&["cluster-a", "cluster-b"], false);
        assert_eq!(affected(&first, &begun), both);
        assert_eq!(affected(&begun, &changed), some_tenants(&["cluster-b"], false));
        assert_eq!(affected(&changed, &first), both);
    }

    #[test]
    fn affected_tenants_merge() {
        let mut all = AffectedTenants::default();
        all.merge(some_tenants(&["a"], false));
        all.merge(some_tenants(&["b"], true));
        assert_eq!(all, some_tenants(&["a", "b"], true));
        all.merge(AffectedTenants::All);
        all.merge(some_tenants(&["c"], false));
        assert_eq!(all, AffectedTenants::All);
    }
}
