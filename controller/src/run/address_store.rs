//! Store of all AddressClaims, with an index by network. Several reconcilers share it.
//!
//! A tenant may have ten thousand machines, so the allocation of an address must not iterate over all claims. The
//! reconciler of MachineDeployments adds each claim that it creates to the index immediately, because the watch
//! delivers the claim only later, and the next machine must not request the same address.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use berth_api::AddressClaim;
use berth_runtime::watch::{Change, Informer, WatchHealth};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, ResourceExt as _};
use tokio::task::JoinSet;

use crate::tenants::addresses::claims::NetworkClaims;

/// All AddressClaims.
#[derive(Clone, Debug)]
pub struct AddressStore {
    informer: Informer<AddressClaim>,
    networks: Arc<RwLock<BTreeMap<String, NetworkClaims>>>,
}

impl AddressStore {
    /// Starts two tasks in `tasks`: one watches the claims, and one updates the index.
    pub fn start(client: &Client, tasks: &mut JoinSet<()>, health: &Arc<WatchHealth>) -> Self {
        let informer = Informer::start(client, tasks, health, trim_claim);
        let mut changes = informer.subscribe();
        let store = Self { informer, networks: Arc::default() };
        let index = store.clone();
        tasks.spawn(async move {
            while let Some(change) = changes.recv().await {
                index.handle(change);
            }
        });
        store
    }

    /// Waits until all claims have been listed.
    pub async fn wait_until_ready(&self) {
        self.informer.wait_until_ready().await;
        // Rebuilds the index, because the store may receive its first list before the task above has handled the
        // changes.
        self.rebuild();
    }

    /// Returns the informer of all claims.
    #[must_use]
    pub const fn informer(&self) -> &Informer<AddressClaim> {
        &self.informer
    }

    /// Calls a function with the claims of a network.
    pub fn read<T>(&self, network: &str, read: impl FnOnce(&NetworkClaims) -> T) -> T {
        let networks = self.networks.read().unwrap_or_else(PoisonError::into_inner);
        match networks.get(network) {
            Some(claims) => read(claims),
            None => read(&NetworkClaims::default()),
        }
    }

    /// Adds a claim from a response of the API server. The watch delivers the same claim soon.
    pub(super) fn record(&self, claim: AddressClaim) {
        let mut networks = self.networks.write().unwrap_or_else(PoisonError::into_inner);
        networks.entry(claim.spec.network.clone()).or_default().insert(Arc::new(claim));
    }

    /// Removes a claim that the API server no longer has. A later claim of the same name stays.
    pub(super) fn forget(&self, claim: &AddressClaim) {
        let mut networks = self.networks.write().unwrap_or_else(PoisonError::into_inner);
        remove(&mut networks, claim);
    }

    fn handle(&self, change: Change<AddressClaim>) {
        let (before, after) = match change {
            Change::Relisted => return self.rebuild(),
            Change::Object(before, after) => (before, after),
        };
        let Some(changed) = after.as_ref().or(before.as_ref()) else { return };
        // The object is read from the store, because the index then needs no memory for a copy.
        let current = self.informer.get(&changed.name_any());
        let mut networks = self.networks.write().unwrap_or_else(PoisonError::into_inner);
        for old in before.iter().chain(&after) {
            remove(&mut networks, old);
        }
        if let Some(current) = current {
            networks.entry(current.spec.network.clone()).or_default().insert(current);
        }
    }

    fn rebuild(&self) {
        let mut networks: BTreeMap<String, NetworkClaims> = BTreeMap::new();
        for claim in self.informer.all() {
            networks.entry(claim.spec.network.clone()).or_default().insert(claim);
        }
        *self.networks.write().unwrap_or_else(PoisonError::into_inner) = networks;
    }
}

/// Removes the metadata that no user of the store reads, because a cluster may have a hundred thousand claims.
fn trim_claim(claim: &mut AddressClaim) {
    let metadata = std::mem::take(&mut claim.metadata);
    claim.metadata = ObjectMeta {
        name: metadata.name,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        annotations: metadata.annotations,
        // The label `app.kubernetes.io/managed-by` identifies the claims that Berth created.
        labels: metadata.labels,
        ..ObjectMeta::default()
    };
}

/// Removes a claim. A later claim of the same name, which has another UID, stays.
fn remove(networks: &mut BTreeMap<String, NetworkClaims>, claim: &AddressClaim) {
    if let Some(claims) = networks.get_mut(&claim.spec.network) {
        claims.remove(claim);
        if claims.is_empty() {
            networks.remove(&claim.spec.network);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::managed_by::is_created_by_berth;

    fn claim(metadata: Value) -> AddressClaim {
        let spec = json!({
            "network": "cluster-a", "address": "10.0.0.2", "tenant": "a", "tenantUID": "u-1", "interface": "tenant",
            "machine": {"namespace": "cluster-a", "name": "web"}, "mac": "02:00:00:00:00:01",
        });
        let version = "berth.dev/v1alpha1";
        let object = json!({"apiVersion": version, "kind": "AddressClaim", "metadata": metadata, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn stored_claims_show_who_created_them() {
        let labels = json!({"app.kubernetes.io/managed-by": "berth"});
        let mut one = claim(json!({"name": "x", "labels": labels, "managedFields": []}));
        trim_claim(&mut one);
        assert!(is_created_by_berth(one.labels()));
        assert_eq!(one.metadata.managed_fields, None);
    }

    #[test]
    fn deletion_keeps_a_later_claim_of_the_same_name() {
        let (first, second) =
            (claim(json!({"name": "x", "uid": "1"})), claim(json!({"name": "x", "uid": "2"})));
        let mut networks: BTreeMap<String, NetworkClaims> = BTreeMap::new();
        let network = networks.entry("cluster-a".to_owned()).or_default();
        network.insert(Arc::new(second.clone()));
        remove(&mut networks, &first);
        assert_eq!(networks.len(), 1);
        remove(&mut networks, &second);
        assert!(networks.is_empty());
    }
}
