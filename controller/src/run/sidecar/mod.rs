//! The scheduler's sidecar at work: it runs on every replica, and the scheduler's own Lease says which one decides.
//!
//! Watches feed the desk ([`hosts`], [`pods`], [`others`]); the local kube-scheduler asks it over HTTP ([`calls`]); what
//! it decides is bound ([`send`]); pods that a change has made room for are woken ([`wake`]).

mod calls;
mod gate;
mod hosts;
mod metrics;
mod others;
mod pods;
mod send;
mod volumes;
mod wake;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_api::{HostProfile, InfraNode};
use berth_runtime::exchange::exchange;
use berth_runtime::serve::{self, Listen};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use tokio::sync::{Notify, RwLock};
use tokio::task::JoinSet;

use super::metrics::Metrics;
use berth_extender::{Extender, PendingVm};
use berth_runtime::watch::Informer;
use gate::Gate;
pub(super) use gate::Listed;
pub(super) use metrics::Assignment;
use wake::Wake;

/// What it is told on the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the local kube-scheduler asks.
    pub listen: Listen,
    /// Namespace and name of the scheduler's Lease; `None` if there is only one scheduler, without a Lease.
    pub lease: Option<(String, String)>,
    /// The host name of the pod, which the scheduler signs the Lease with.
    pub host: String,
}

/// Objects that reconcilers follow too.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) nodes: Informer<Node>,
    pub(super) infra_nodes: Informer<InfraNode>,
    pub(super) profiles: Informer<HostProfile>,
}

/// What all its parts share.
struct Sidecar {
    extender: Mutex<Extender>,
    gate: Gate,
    /// VMs that are on no host yet, as they were listed last.
    pending_vms: Mutex<Vec<PendingVm>>,
    /// Something has changed that a waiting pod may wait for.
    stirred: Notify,
    /// Had by each binding that is under way, of which a desk that is begun anew would know nothing.
    sending: RwLock<()>,
    client: Client,
    metrics: Arc<Metrics>,
}

/// Bytes of a body: 50,000 names, and the largest pod that an API server takes.
const MOST: usize = 8 << 20;
/// Between looks at what was promised for too long.
const TICK: Duration = Duration::from_secs(1);
/// After so long all is listed anew, in a quiet moment.
const AGE: Duration = Duration::from_secs(24 * 3600);
/// After so much longer it is done in any moment: a start at any moment must be right, too.
const LATE: Duration = Duration::from_secs(3600);

impl Sidecar {
    fn extender(&self) -> MutexGuard<'_, Extender> {
        self.extender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending_vms(&self) -> MutexGuard<'_, Vec<PendingVm>> {
        self.pending_vms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the desk of something, and those who may be waiting for it.
    fn tell<T>(&self, what: impl FnOnce(&mut Extender, Instant) -> T) -> T {
        let result = what(&mut self.extender(), Instant::now());
        self.stir();
        result
    }

    /// Who waits looks again. Of many changes at once only the last one is worth it: of a list each would begin two tasks.
    fn stir(&self) {
        self.gate.changed();
        self.stirred.notify_one();
    }
}

/// Begins; its parts go on for ever.
pub(super) async fn begin(
    settings: &Settings,
    client: &Client,
    shared: Shared,
    metrics: &Arc<Metrics>,
    listed: &Arc<Listed>,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let listen = &settings.listen;
    let server =
        serve::bind(listen).await.with_context(|| format!("--extender-listen {listen}"))?;
    let sidecar = Arc::new(Sidecar {
        extender: Mutex::new(Extender::unlisted()),
        gate: Gate::new(client, settings, Arc::clone(listed)),
        pending_vms: Mutex::default(),
        stirred: Notify::new(),
        sending: RwLock::new(()),
        client: client.clone(),
        metrics: Arc::clone(metrics),
    });
    tracing::info!("kube-scheduler is answered at http://{listen}");
    tasks.spawn(exchange(server, MOST, Arc::new(calls::Calls::of(&sidecar))));
    tasks.spawn(Wake::of(&sidecar).run());
    let gate = Arc::clone(&sidecar);
    tasks.spawn(async move { gate.gate.keep().await });
    tasks.spawn(live(sidecar, shared));
    Ok(())
}

/// Follows what decisions are made by. Once a day all of it is begun anew, in a quiet moment: what rules were compiled to
/// is kept for the next pod of its kind, and pods of other kinds never end.
async fn live(sidecar: Arc<Sidecar>, shared: Shared) {
    loop {
        let mut feeds = JoinSet::new();
        feeds.spawn(hosts::follow(Arc::clone(&sidecar), shared.clone()));
        feeds.spawn(others::namespaces(Arc::clone(&sidecar)));
        feeds.spawn(others::claims(Arc::clone(&sidecar)));
        feeds.spawn(others::instances(Arc::clone(&sidecar)));
        feeds.spawn(pods::follow(Arc::clone(&sidecar)));
        tokio::select! {
            () = tick(&sidecar) => {}
            // None of them ends by itself.
            _ = feeds.join_next() => return,
        }
        sidecar.gate.close();
        feeds.shutdown().await;
        let quiet = sidecar.sending.write().await;
        // From here on nobody opens it but those who begin anew.
        sidecar.gate.close();
        *sidecar.extender() = Extender::unlisted();
        drop(quiet);
        tracing::info!("hosts and pods are listed anew, as once a day");
    }
}

/// Looks at what was promised for too long, until all is to be begun anew.
async fn tick(sidecar: &Sidecar) {
    let mut ticks = tokio::time::interval(TICK);
    let began = Instant::now();
    let mut count = 0_u32;
    loop {
        ticks.tick().await;
        let (stages, figures) = {
            let mut extender = sidecar.extender();
            extender.tick(Instant::now());
            let late = began.elapsed().saturating_sub(AGE);
            if late > LATE || (!late.is_zero() && extender.is_quiet()) {
                return;
            }
            // All zones are looked at, so not every time.
            (extender.stage_counts(), count.is_multiple_of(10).then(|| extender.free_resources()))
        };
        count = count.wrapping_add(1);
        sidecar.metrics.assignment.staged(&stages);
        if let Some(figures) = figures {
            sidecar.metrics.assignment.figured(&figures);
        }
        sidecar.stirred.notify_one();
    }
}
