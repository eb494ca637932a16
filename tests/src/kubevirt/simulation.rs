//! Simulation of the programs that would run on the Nodes and of the storage: kubelets and their agents, virt-handler,
//! CDI, and provisioners. The simulated programs read and write the same objects as the real programs.

use std::future::Future;
use std::io::Write as _;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::jiff::Timestamp;
use tokio::runtime::Runtime;

use super::cdi::Cdi;
use super::kubelet::{Kubelets, SimulatedHost};
use super::virt_handler::VirtHandlers;
use super::{KubeVirt, provisioner};
use crate::cluster::ControlPlane;
use crate::simulated::{create_client, create_runtime};

/// Time between two iterations of a simulated program.
const INTERVAL: Duration = Duration::from_millis(200);

/// Running simulation, stopped on drop.
#[derive(Debug)]
pub struct Simulation {
    runtime: Option<Runtime>,
    /// True while live migrations complete. Otherwise both pods of a migrating VM keep running.
    pub completes_migrations: Arc<AtomicBool>,
    /// True while guests release the disks that are removed from their instance. Otherwise the disks stay attached, as
    /// with a mounted file system.
    pub releases_disks: Arc<AtomicBool>,
    /// True while CDI starts imports. Otherwise a DataVolume stays in phase `WaitForFirstConsumer` or
    /// `PendingPopulation`, as with a slow CDI.
    pub starts_imports: Arc<AtomicBool>,
    /// True while imports complete. Otherwise a DataVolume stays in phase `ImportInProgress`.
    pub completes_imports: Arc<AtomicBool>,
    refusals: Arc<Mutex<Vec<String>>>,
}

impl Simulation {
    /// Starts the simulation of these hosts, whose Nodes and InfraNodes exist.
    ///
    /// # Errors
    /// Fails if there is no thread or no kubeconfig.
    pub fn start(
        plane: &ControlPlane,
        kubevirt: &KubeVirt,
        hosts: Vec<SimulatedHost>,
    ) -> Result<Self> {
        Self::start_programs(plane, kubevirt, Some(hosts))
    }

    /// Starts the simulation of virt-handler, CDI and provisioners only, for hosts that have real kubelets and agents.
    ///
    /// # Errors
    /// Fails like [`Self::start`].
    pub fn start_without_kubelets(plane: &ControlPlane, kubevirt: &KubeVirt) -> Result<Self> {
        Self::start_programs(plane, kubevirt, None)
    }

    fn start_programs(
        plane: &ControlPlane,
        kubevirt: &KubeVirt,
        hosts: Option<Vec<SimulatedHost>>,
    ) -> Result<Self> {
        let runtime = create_runtime()?;
        let client = runtime.block_on(create_client(&plane.kubeconfig()))?;
        let handler = runtime.block_on(create_client(kubevirt.kubeconfig()))?;
        let [completes_migrations, releases_disks, starts_imports, completes_imports] =
            std::array::from_fn(|_| Arc::new(AtomicBool::new(true)));
        let refusals = Arc::new(Mutex::new(Vec::new()));
        if let Some(hosts) = hosts {
            let mut kubelets = Kubelets::new(client.clone(), hosts, Arc::clone(&refusals));
            runtime.spawn(async move {
                loop {
                    finish_round("kubelet", kubelets.sync()).await;
                }
            });
        }
        let handlers = VirtHandlers::new(
            handler,
            Arc::clone(&completes_migrations),
            Arc::clone(&releases_disks),
        );
        runtime.spawn(async move {
            loop {
                finish_round("virt-handler", handlers.sync()).await;
            }
        });
        let cdi =
            Cdi::new(client.clone(), Arc::clone(&starts_imports), Arc::clone(&completes_imports));
        runtime.spawn(async move {
            loop {
                finish_round("CDI", cdi.sync()).await;
            }
        });
        runtime.spawn(async move {
            loop {
                finish_round("provisioner", provisioner::sync(&client)).await;
            }
        });
        Ok(Self {
            runtime: Some(runtime),
            completes_migrations,
            releases_disks,
            starts_imports,
            completes_imports,
            refusals,
        })
    }

    /// Returns a message for each pod that a simulated kubelet has refused.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.runtime.take().map(Runtime::shutdown_background).unwrap_or_default();
    }
}

/// Waits until `round`, one iteration of a simulated program, has ended, and then until the next iteration is due. An
/// error, such as a conflict, is printed, and the next iteration tries again.
pub(crate) async fn finish_round(program: &str, round: impl Future<Output = Result<()>>) {
    if let Err(error) = round.await {
        writeln!(std::io::stderr(), "simulated {program}: {error:#}").unwrap_or_default();
    }
    tokio::time::sleep(INTERVAL).await;
}

/// Returns the current time in the format of Kubernetes, in whole seconds.
pub(crate) fn current_time() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}
