//! Heartbeat: a Lease with the name of the Node, which is renewed while the daemon makes progress. The Lease is the
//! only object that the agent writes even if nothing has changed.

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::AGENT_FIELD_MANAGER;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::objects::owner_reference;
use super::settings::Settings;
use super::store::{ObservedObject, Store};
use berth_runtime::backoff::{add_jitter, compensate_jitter};
use berth_runtime::call::with_timeout;

/// Renewal interval, with a jitter of a quarter, so that a thousand agents do not renew at the same time.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(30);
/// Retry interval after an error.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Lease duration in seconds, after which readers regard the agent as unresponsive: three renewals may fail.
const LEASE_DURATION_SECONDS: i32 = 120;

/// Renews the Lease until the task is aborted.
pub(super) async fn renew_lease(
    client: Client,
    settings: Settings,
    store: Arc<Store>,
    is_alive: Arc<dyn Fn() -> bool + Send + Sync>,
) {
    let leases: Api<Lease> = Api::namespaced(client, &settings.namespace);
    let params = PatchParams::apply(AGENT_FIELD_MANAGER).force();
    let mut last_error = String::new();
    loop {
        let ObservedObject::Present(node) = store.observed_node() else {
            // The Lease is owned by the Node, so the UID of the Node must be known.
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        if !is_alive() {
            // The daemon makes no progress, which `/healthz` also reports, so the Lease is not renewed.
            tokio::time::sleep(RETRY_INTERVAL).await;
            continue;
        }
        let name = &settings.node;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "ownerReferences": [owner_reference(name, &node.uid)],
            },
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": LEASE_DURATION_SECONDS,
                // MicroTime has exactly six digits.
                "renewTime": format!("{:.6}", Timestamp::now()),
            },
        });
        match with_timeout(leases.patch(name, &params, &Patch::Apply(&lease))).await {
            Ok(_) => {
                last_error.clear();
                tokio::time::sleep(add_jitter(RENEWAL_INTERVAL)).await;
            }
            Err(error) => {
                let retry_delay = RETRY_INTERVAL.max(compensate_jitter(error.retry_after()));
                let error = error.to_string();
                if error != last_error {
                    tracing::warn!(
                        kind = "Lease",
                        namespace = %settings.namespace,
                        name = %name,
                        %error,
                        "failed to renew the Lease"
                    );
                    last_error = error;
                }
                tokio::time::sleep(add_jitter(retry_delay)).await;
            }
        }
    }
}
