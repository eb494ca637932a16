//! The scheduler's sidecar without a cluster: what it is told and asked in any order, and kubelets that take what it binds.

#![expect(clippy::expect_used, reason = "tests fail by panicking")]

#[path = "engine/allocation.rs"]
mod allocation;
#[path = "sidecar/cluster.rs"]
mod cluster;
#[path = "engine/host.rs"]
mod host;
#[path = "sidecar/leaving.rs"]
mod leaving;
#[path = "sidecar/many.rs"]
mod many;
#[path = "sidecar/orders.rs"]
mod orders;
#[path = "sidecar/pod.rs"]
mod pod;
#[path = "sidecar/random.rs"]
mod random;
#[path = "sidecar/scenes.rs"]
mod scenes;
#[path = "sidecar/tenants.rs"]
mod tenants;
#[path = "sidecar/unreported.rs"]
mod unreported;
#[path = "sidecar/volumes.rs"]
mod volumes;
