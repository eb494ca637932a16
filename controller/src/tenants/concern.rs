//! Which tenants a change of a host concerns: of a thousand that it carries most often one.

use std::collections::BTreeSet;

use super::hosts::Host;
use super::ids::NetworkId;

/// Tenants that are to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Concern {
    /// All of them.
    All,
    /// These, by `cluster-<id>`; and those that are being deleted, if `going`, as they wait for hosts.
    Some {
        /// Their namespaces.
        tenants: BTreeSet<String>,
        /// Whether those in deletion are concerned too.
        going: bool,
    },
}

impl Default for Concern {
    fn default() -> Self {
        Self::Some { tenants: BTreeSet::new(), going: false }
    }
}

impl Concern {
    /// Of a host as it was and as it is; `None` where there is none.
    #[must_use]
    pub fn of(before: Option<&Host>, after: Option<&Host>) -> Self {
        let (Some(before), Some(after)) = (before, after) else { return Self::All };
        // What tenants' networks are resolved by, and what is said of no tenant by name.
        let shared = |host: &Host| {
            (
                host.labels.clone(),
                host.networks.clone(),
                host.mtus.clone(),
                host.silent_since,
                host.unnamed.clone(),
            )
        };
        if shared(before) != shared(after) {
            return Self::All;
        }
        let all = before.asked.keys().chain(after.asked.keys());
        let is_other = |tenant: &&String| part(before, tenant) != part(after, tenant);
        let tenants = all.filter(is_other).cloned().collect();
        let going = before.has_answered != after.has_answered || before.stuck != after.stuck;
        Self::Some { tenants, going }
    }

    /// This and another.
    pub fn add(&mut self, other: Self) {
        match (self, other) {
            (Self::All, _) => {}
            (this, Self::All) => *this = Self::All,
            (Self::Some { tenants, going }, Self::Some { tenants: more, going: too }) => {
                tenants.extend(more);
                *going |= too;
            }
        }
    }
}

/// What a host says of one tenant.
fn part<'a>(
    host: &'a Host,
    tenant: &str,
) -> Option<(&'a (String, NetworkId), bool, Option<&'a String>)> {
    let asked = host.asked.get(tenant)?;
    let why = host.not_ready.get(&(asked.0.clone(), tenant.to_owned()));
    Some((asked, host.answered.contains_key(tenant), why))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use berth_api::InfraNode;
    use serde_json::{Value, json};

    use super::*;

    fn host(tenants: &[(&str, u16)], answered: bool, not_ready: Value) -> Host {
        let asked: Vec<Value> = tenants
            .iter()
            .map(|(name, vlan)| json!({"name": name, "network": "trunk", "vlan": vlan}))
            .collect();
        let infra: InfraNode = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": "rack1-a", "generation": 4},
            "spec": {
                "networks": [{"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}}],
                "tenantNetworks": asked,
            },
            "status": {
                "observedGeneration": if answered { 4 } else { 3 },
                "networks": [{"name": "trunk", "ready": 1, "pending": 0, "failed": 1, "notReady": not_ready}],
            },
        }))
        .unwrap();
        Host::of(&infra, Some(&BTreeMap::new()))
    }

    fn some(tenants: &[&str], going: bool) -> Concern {
        Concern::Some { tenants: tenants.iter().map(|name| (*name).to_owned()).collect(), going }
    }

    fn failed(tenant: &str) -> Value {
        json!([{"tenant": tenant, "vlan": 7, "state": "Failed", "message": "no uplink"}])
    }

    #[test]
    fn a_tenant_that_comes_concerns_no_other() {
        let id = NetworkId::Vlan(100.try_into().unwrap());
        let first = host(&[("cluster-a", 100)], true, failed("cluster-x"));
        let asked = host(&[("cluster-a", 100), ("cluster-b", 101)], false, failed("cluster-x"));
        let asked = asked.after(&first);
        assert_eq!(Concern::of(Some(&first), Some(&asked)), some(&["cluster-b"], true));
        assert_eq!(asked.why_not("cluster-a", "trunk", id), None);
        let new = NetworkId::Vlan(101.try_into().unwrap());
        assert_eq!(
            asked.why_not("cluster-b", "trunk", new).unwrap(),
            "its agent has not answered yet"
        );
        let done = host(&[("cluster-a", 100), ("cluster-b", 101)], true, failed("cluster-x"));
        let done = done.after(&asked);
        assert_eq!(Concern::of(Some(&asked), Some(&done)), some(&["cluster-b"], true));
        assert_eq!(done.why_not("cluster-b", "trunk", new), None);
    }

    #[test]
    fn another_vlan_or_a_second_coming_is_in_doubt_until_the_answer() {
        let first = host(&[("cluster-a", 100)], true, json!([]));
        let other = host(&[("cluster-a", 102)], false, json!([])).after(&first);
        assert!(other.answered.is_empty());
        let gone = host(&[], false, json!([])).after(&first);
        let back = host(&[("cluster-a", 100)], false, json!([])).after(&gone);
        assert!(back.answered.is_empty());
        assert_eq!(Concern::of(Some(&gone), Some(&back)), some(&["cluster-a"], false));
    }

    #[test]
    fn what_all_share_concerns_all() {
        let first = host(&[("cluster-a", 100)], true, json!([]));
        let mut moved = first.clone();
        moved.labels = None;
        assert_eq!(Concern::of(Some(&first), Some(&moved)), Concern::All);
        assert_eq!(Concern::of(None, Some(&first)), Concern::All);
        let failing = host(&[("cluster-a", 100)], true, failed("cluster-a"));
        let named = host(&[("cluster-a", 100)], true, failed("cluster-x"));
        assert_eq!(Concern::of(Some(&failing), Some(&named)), some(&["cluster-a"], false));
    }

    #[test]
    fn concerns_add_up() {
        let mut all = Concern::default();
        all.add(some(&["a"], false));
        all.add(some(&["b"], true));
        assert_eq!(all, some(&["a", "b"], true));
        all.add(Concern::All);
        all.add(some(&["c"], false));
        assert_eq!(all, Concern::All);
    }
}
