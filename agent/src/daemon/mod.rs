//! The daemon: keeps the host as asked, and says how it is.
//!
//! One loop. Each cycle reads what is asked for (a manifest in a file, or the InfraNode in the cluster), converges
//! the host (a thread of its own, as the kernel may take its time), and publishes what came of it. A cycle is
//! begun by a change of what is asked for, by the kernel (CPU, memory and device hotplug, links), by the kubelet's
//! checkpoints, by SIGHUP, or by a slow timer. Health is the progress of this loop.

mod cycle;
mod desired;
mod events;
mod filter_events;
mod kubelet_events;
mod last_report;
mod link_events;
mod metrics;
mod site;
mod state;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::cluster::{self, Store};
use crate::root::Root;
use berth_runtime::pace::Pace;
use berth_runtime::serve;
pub use berth_runtime::serve::Listen;
use cycle::Worker;
use state::State;
use watch::Event;

/// What the daemon is told on its command line.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Who says what the host is to be.
    pub source: Source,
    /// The Node's name, if it is neither the host's nor the kubelet's.
    pub node_name: Option<String>,
    /// Whether it only looks and tells, and changes nothing.
    pub observe: bool,
    /// Where it answers.
    pub listen: Vec<Listen>,
    /// The slow timer.
    pub interval: Duration,
}

/// Who says what the host is to be.
#[derive(Debug, Clone)]
pub enum Source {
    /// A manifest, an absolute path.
    File(PathBuf),
    /// The InfraNode in a cluster.
    Cluster(cluster::Settings),
}

/// After a change of the manifest or an event more of the same are waited for, this long.
const SETTLE: Duration = Duration::from_millis(100);
/// But not longer than this.
const SETTLE_AT_MOST: Duration = Duration::from_secs(2);
/// The same for events of links.
const LINKS_SETTLE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));
/// Cycles that events of links may begin at once, and one more in each second: somebody may keep undoing what is
/// repaired.
const REPAIRS: (u32, Duration) = (20, Duration::from_secs(1));
/// How long the end waits for a change that is being made.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs until SIGTERM or SIGINT, and then leaves the host as it is.
///
/// # Errors
/// If it cannot start: an address in use, no inotify, no netlink.
pub fn run(root: Root, settings: &Settings) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // The cycle and a scrape beside it; the rest are look-ups of the API server's name, which may hang.
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(5))
        .build()?;
    let result = runtime.block_on(keep(root, settings));
    // A change that hangs in the kernel must not hold up the end.
    runtime.shutdown_background();
    result
}

async fn keep(root: Root, settings: &Settings) -> anyhow::Result<()> {
    let root = Arc::new(root);
    let state = Arc::new(State::new(settings.interval));
    let (sender, mut events) = mpsc::channel(64);
    let interest = Arc::default();
    let manifest = match &settings.source {
        Source::File(manifest) => Some(manifest.as_path()),
        Source::Cluster(_) => None,
    };
    let _watches = watch::begin(&root, manifest, Arc::clone(&interest), sender.clone())?;
    for listen in &settings.listen {
        let server = serve::bind(listen).await.with_context(|| format!("--listen {listen}"))?;
        tokio::spawn(serve::serve(server, Arc::clone(&state)));
    }
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut reload = signal(SignalKind::hangup())?;
    tokio::spawn(watchdog(Arc::clone(&state)));

    let mut worker = Worker::new(Arc::clone(&root), settings.clone(), Arc::clone(&state), interest);
    let _joined = match &settings.source {
        Source::File(_) => None,
        Source::Cluster(cluster) => Some(join(cluster, &mut worker, &state, sender).await?),
    };
    let mut begun_by = Event::Start;
    let mut pace = Pace::new(REPAIRS.0, REPAIRS.1);
    let mut whole = Instant::now();
    loop {
        let mut cycle = tokio::task::spawn_blocking(move || {
            worker.run(begun_by);
            worker
        });
        let done = tokio::select! {
            done = &mut cycle => done,
            _ = end.recv() => return stop(&root, Some(cycle)).await,
            _ = interrupt.recv() => return stop(&root, Some(cycle)).await,
        };
        worker = done.context("the cycle ended by a mistake of berth-agent's own")?;
        if begun_by == Event::Start {
            tell_systemd(&[sd_notify::NotifyState::Ready]);
        }
        tell_systemd(&[sd_notify::NotifyState::Status(&state.summary())]);
        // Events of links look at links alone, and must not put off the look at everything.
        if begun_by != Event::Links {
            whole = Instant::now();
        }
        let next = worker.next_in(settings.interval, whole.elapsed());
        let next = Instant::now() + next;
        begun_by = tokio::select! {
            () = sleep_until(next) => Event::Timer,
            Some(event) = events.recv() => settled(event, &mut events).await,
            _ = reload.recv() => Event::Manifest,
            _ = end.recv() => return stop(&root, None).await,
            _ = interrupt.recv() => return stop(&root, None).await,
        };
        if begun_by == Event::Links {
            let turn = async {
                while let Err(wait) = pace.take(std::time::Instant::now()) {
                    tokio::time::sleep(wait).await;
                }
            };
            tokio::select! {
                () = turn => {}
                _ = end.recv() => return stop(&root, None).await,
                _ = interrupt.recv() => return stop(&root, None).await,
            }
        }
    }
}

/// Ties the loop to the cluster.
async fn join(
    settings: &cluster::Settings,
    worker: &mut Worker,
    state: &Arc<State>,
    events: mpsc::Sender<Event>,
) -> anyhow::Result<cluster::Joined> {
    let store = Arc::new(Store::default());
    let (sender, events_to_emit) = mpsc::channel(64);
    worker.join(Arc::clone(&store), sender.clone());
    let reports = {
        let state = Arc::clone(state);
        Arc::new(move || state.report())
    };
    let alive = {
        let state = Arc::clone(state);
        Arc::new(move || state.is_alive())
    };
    let wake = move || {
        let events = events.clone();
        // With as many events waiting already, this one waits for its place.
        tokio::spawn(async move { events.send(Event::Manifest).await.unwrap_or_default() });
    };
    cluster::join(settings, &store, reports, (sender, events_to_emit), alive, wake).await
}

/// Whether a uevent of the kernel begins a cycle.
#[must_use]
pub fn is_relevant(uevent: &[u8]) -> bool {
    watch::judge(uevent).is_some()
}

/// Whether a netlink message is about the link of this number or name.
#[must_use]
pub fn concerns_link(message: &[u8], index: u32, name: &str) -> bool {
    link_events::concerns(message, &link_events::Interest::in_one(index, name))
}

/// Waits until events stop coming, and says what the most telling of them was.
async fn settled(first: Event, events: &mut mpsc::Receiver<Event>) -> Event {
    let begin = Instant::now();
    let mut most = first;
    // A tenant without a network waits for no burst to end.
    let patience =
        |most| if most == Event::Links { LINKS_SETTLE } else { (SETTLE, SETTLE_AT_MOST) };
    while begin.elapsed() < patience(most).1 {
        match timeout(patience(most).0, events.recv()).await {
            Ok(Some(event)) => most = most.max(event),
            Ok(None) | Err(_) => break,
        }
    }
    most
}

async fn stop(root: &Root, cycle: Option<tokio::task::JoinHandle<Worker>>) -> anyhow::Result<()> {
    tracing::info!("stopping; the host stays as it is");
    tell_systemd(&[sd_notify::NotifyState::Stopping]);
    if let Some(cycle) = cycle
        && timeout(PATIENCE, cycle).await.is_err()
    {
        tracing::warn!("a change is still being made; it is looked at again at the next start");
        // But one on trial is not left to a start that may not come.
        let boot_id = crate::observe::boot_id(root).unwrap_or_default();
        match crate::apply::links::trial::recover(root, &boot_id) {
            Ok(said) => said.iter().for_each(|said| tracing::warn!("{said}")),
            Err(error) => tracing::error!("{error}"),
        }
    }
    Ok(())
}

/// Tells systemd that we live, as long as the loop goes on.
async fn watchdog(state: Arc<State>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    loop {
        if state.is_alive() {
            tell_systemd(&[sd_notify::NotifyState::Watchdog]);
        }
        tokio::time::sleep(limit / 3).await;
    }
}

/// Without systemd there is nobody to tell.
fn tell_systemd(what: &[sd_notify::NotifyState]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::debug!("systemd was not told: {error}");
    }
}
