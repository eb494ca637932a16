//! Tests of the scheduler extender without a cluster: watch events and calls in any order, and simulated kubelets that
//! must admit the pods that the extender binds.

#![expect(clippy::expect_used, reason = "tests fail by panicking")]

#[path = "../../../controller/tests/engine/allocation.rs"]
mod allocation;
#[path = "extender/cluster.rs"]
mod cluster;
#[path = "../../../controller/tests/engine/host.rs"]
mod host;
#[path = "extender/leaving.rs"]
mod leaving;
#[path = "extender/many.rs"]
mod many;
#[path = "extender/migration_targets.rs"]
mod migration_targets;
#[path = "extender/networks.rs"]
mod networks;
#[path = "extender/orders.rs"]
mod orders;
#[path = "extender/pod.rs"]
mod pod;
#[path = "extender/pod_groups.rs"]
mod pod_groups;
#[path = "extender/random.rs"]
mod random;
#[path = "extender/resource_claims.rs"]
mod resource_claims;
#[path = "extender/scenarios.rs"]
mod scenarios;
#[path = "extender/stale.rs"]
mod stale;
#[path = "extender/tenants.rs"]
mod tenants;
#[path = "extender/unreported.rs"]
mod unreported;
#[path = "extender/volumes.rs"]
mod volumes;
