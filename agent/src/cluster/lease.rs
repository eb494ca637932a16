//! The sign of life: a Lease of the Node's name, renewed while the daemon's loop goes on. The only thing that is
//! written though nothing changed.

use std::sync::Arc;
use std::time::Duration;

use berth_api::names::AGENT;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::seen::{Seen, Sight};
use super::{Settings, owner};
use berth_runtime::client::{at_least, jittered, within};

/// Between renewals; each is up to a quarter earlier or later, so that a thousand agents do not come at once.
const RENEWAL: Duration = Duration::from_secs(30);
/// After an error.
const SOON: Duration = Duration::from_secs(5);
/// Whoever reads the Lease takes an agent for gone after so long, in seconds: three renewals may fail.
const DURATION: i32 = 120;

/// Renews for ever.
pub(super) async fn renew(
    client: Client,
    settings: Settings,
    seen: Arc<Seen>,
    alive: Arc<dyn Fn() -> bool + Send + Sync>,
) {
    let leases: Api<Lease> = Api::namespaced(client, &settings.namespace);
    let params = PatchParams::apply(AGENT).force();
    let mut said = String::new();
    loop {
        let Sight::There(node) = seen.node() else {
            // Whose it is must be known first: it goes with its Node.
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        if !alive() {
            // Said by /healthz, and by whoever watches it.
            tokio::time::sleep(SOON).await;
            continue;
        }
        let name = &settings.node;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "ownerReferences": [owner(name, &node.uid)],
            },
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": DURATION,
                // MicroTime: six digits, no more.
                "renewTime": format!("{:.6}", Timestamp::now()),
            },
        });
        match within(leases.patch(name, &params, &Patch::Apply(&lease))).await {
            Ok(_) => {
                said.clear();
                tokio::time::sleep(jittered(RENEWAL)).await;
            }
            Err(error) => {
                let pause = SOON.max(at_least(error.rest()));
                let error = error.to_string();
                if error != said {
                    tracing::warn!("Lease {}/{name} was not renewed: {error}", settings.namespace);
                    said = error;
                }
                tokio::time::sleep(jittered(pause)).await;
            }
        }
    }
}
