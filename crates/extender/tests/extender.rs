//! Tests of the scheduler extender without a cluster: watch events and calls in any order, and simulated kubelets that
//! must admit the pods that the extender binds.

#![expect(clippy::expect_used, reason = "tests fail by panicking")]

#[path = "extender/admission_orders.rs"]
mod admission_orders;
#[path = "../../../controller/tests/engine/allocation.rs"]
mod allocation;
#[path = "extender/cluster.rs"]
mod cluster;
#[path = "extender/deletions.rs"]
mod deletions;
#[path = "../../../controller/tests/engine/host.rs"]
mod host;
#[path = "extender/many_hosts.rs"]
mod many_hosts;
#[path = "extender/migration_targets.rs"]
mod migration_targets;
#[path = "extender/networks.rs"]
mod networks;
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
#[path = "extender/stale_memory.rs"]
mod stale_memory;
#[path = "extender/storage.rs"]
mod storage;
#[path = "extender/tenants.rs"]
mod tenants;
#[path = "extender/unreported_nodes.rs"]
mod unreported_nodes;
#[path = "extender/volumes.rs"]
mod volumes;
