//! Simulations of programs that cannot run here or take too long: they act on a real API server as the real ones do.

mod fleet;
mod kubevirt;

use std::path::Path;

use anyhow::Result;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::runtime::{Builder, Runtime};

pub use fleet::{Fleet, Part};
pub use kubevirt::KubeVirt;

/// A client with the rights of a kubeconfig.
///
/// # Errors
/// If the file is no kubeconfig.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// A thread of its own for what goes on beside a test.
///
/// # Errors
/// If there is none to be had.
pub fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}
