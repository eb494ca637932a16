//! Simulations of programs that cannot run here or take too long. The simulations use a real API server in the same way
//! as the real programs.

mod fleet;
mod kubelets;
mod kubevirt;
mod machine_disks;
mod machine_nodes;
mod random;
mod vm_hosts;

use std::path::Path;

use anyhow::Result;
use k8s_openapi::jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::runtime::{Builder, Runtime};

pub use fleet::{Fleet, FleetBehaviour};
pub use kubelets::Kubelets;
pub use kubevirt::KubeVirt;
pub use machine_disks::{MachineDisks, data_volume_resource, instance_resource, vm_resource};
pub use machine_nodes::MachineNodes;
pub use random::Random;
pub use vm_hosts::VmHosts;

/// Creates a client with the permissions of a kubeconfig.
///
/// # Errors
/// Fails if the file is no kubeconfig.
pub async fn create_client(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Creates a runtime with one thread for background work during a test.
///
/// # Errors
/// Fails if the thread cannot be created.
pub fn create_runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// Returns the current time in the format of Kubernetes, in whole seconds.
fn current_time() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}
