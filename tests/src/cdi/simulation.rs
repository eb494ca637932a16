//! Simulation of the programs that would run on hosts and in the storage. The simulated programs read and write the same
//! objects as the real programs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::runtime::Runtime;

use super::kubelet::Kubelets;
use super::machines::Machines;
use super::storage::{Storage, Volume};
use crate::cluster::ControlPlane;
use crate::kubevirt::finish_round;
use crate::simulated::{create_client, create_runtime};

/// Running simulation, stopped on drop.
pub struct Simulation {
    runtime: Option<Runtime>,
    storage: Arc<Storage>,
    imports: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Simulation {
    /// Starts the simulation.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig.
    pub fn start(plane: &ControlPlane) -> Result<Self> {
        let runtime = create_runtime()?;
        let client = runtime.block_on(create_client(&plane.kubeconfig()))?;
        let storage = Arc::new(Storage::new(client.clone()));
        let imports = Arc::default();
        let drivers = Arc::clone(&storage);
        runtime.spawn(async move {
            loop {
                finish_round("CSI driver", drivers.sync()).await;
            }
        });
        let kubelets = Kubelets::new(client.clone(), Arc::clone(&storage), Arc::clone(&imports));
        runtime.spawn(async move {
            loop {
                finish_round("kubelet", kubelets.sync()).await;
            }
        });
        let machines = Machines::new(client);
        runtime.spawn(async move {
            loop {
                finish_round("virt-controller", machines.sync()).await;
            }
        });
        Ok(Self { runtime: Some(runtime), storage, imports })
    }

    /// Returns a volume, by the name of its PersistentVolume.
    #[must_use]
    pub fn volume(&self, name: &str) -> Option<Volume> {
        self.storage.volume(name)
    }

    /// Returns the images that importer pods have downloaded, one for each pod, in no particular order.
    #[must_use]
    pub fn imports(&self) -> Vec<String> {
        let imports = self.imports.lock().unwrap_or_else(PoisonError::into_inner);
        imports.values().cloned().collect()
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").finish_non_exhaustive()
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.runtime.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}
