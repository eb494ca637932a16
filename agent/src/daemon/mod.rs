//! The daemon: reconciles the host with its desired state, and publishes the actual state.
//!
//! The daemon is a single loop. Each cycle reads the desired state (a manifest in a file, or the InfraNode in the
//! cluster), converges the host (in a separate thread, because system calls may block), and publishes the result.
//! A cycle is triggered by a change of the desired state, by the kernel (hotplug of CPUs, memory and devices,
//! changes of links), by the kubelet's checkpoints, by SIGHUP, or by a timer. The daemon is healthy while this
//! loop makes progress.

mod cycle;
mod desired;
mod events;
mod http_pages;
mod kubelet_events;
mod last_report;
mod leases;
mod link_events;
mod metrics;
mod nftables_events;
mod problems;
mod publisher;
mod retries;
mod settings;
mod state;
mod status;
mod trigger;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::core::DynamicObject;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::cluster::{self, Store};
use crate::dhcp::{self, DhcpHandle};
use crate::trunk::TrunkMonitor;
use berth_host_facts::root::Root;
use berth_runtime::serve;
pub use berth_runtime::serve::ListenAddress;
use berth_runtime::token_bucket::TokenBucket;
use cycle::CycleRunner;
pub use settings::{Settings, Source};
use state::State;
use trigger::Trigger;

/// Debounce of triggers: a cycle starts when no trigger has arrived for this time.
const DEBOUNCE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum duration of the debounce, after which a cycle starts even if triggers continue to arrive.
const MAX_DEBOUNCE: Duration = Duration::from_secs(2);
/// Debounce of link events: time without an event after which a cycle starts, and the maximum duration of the debounce.
const LINK_DEBOUNCE_INTERVALS: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(200));
/// Rate limit of cycles that link events start: the number that starts at once, and the interval after which one more
/// cycle is allowed. Another program may revert each correction, which causes the next link event.
const LINK_EVENT_RATE_LIMIT: (u32, Duration) = (20, Duration::from_secs(1));
/// Time limit for the cycle in progress at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs until SIGTERM or SIGINT. The exit does not change the host.
///
/// # Errors
/// If the daemon cannot start: an address is in use, or inotify or netlink is unavailable.
pub fn run(root: Root, settings: &Settings) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // One thread runs the cycle and one thread answers a scrape; the remaining threads resolve the name of the API
        // server, which may block.
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(5))
        .build()?;
    let result = runtime.block_on(run_reconcile_loop(root, settings));
    // A change that blocks in the kernel must not delay the exit.
    runtime.shutdown_background();
    result
}

async fn run_reconcile_loop(root: Root, settings: &Settings) -> anyhow::Result<()> {
    let root = Arc::new(root);
    let state = Arc::new(State::new(settings.interval));
    let (sender, mut events) = mpsc::channel(64);
    let watched_links = Arc::default();
    let dhcp = DhcpHandle::default();
    let manifest = match &settings.source {
        Source::File(manifest) => Some(manifest.as_path()),
        Source::Cluster(_) => None,
    };
    let _watches = watch::start_watches(
        &root,
        manifest,
        Arc::clone(&watched_links),
        dhcp.clone(),
        sender.clone(),
    )?;
    for listen in &settings.listen {
        let server = serve::bind(listen).await.with_context(|| format!("--listen {listen}"))?;
        tokio::spawn(serve::serve(server, Arc::clone(&state)));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut reload = signal(SignalKind::hangup())?;
    tokio::spawn(notify_watchdog(Arc::clone(&state)));

    // An agent that only observes does not answer guests.
    if root.is_live() && !settings.observe {
        leases::restore(&root, settings, &dhcp);
        let events = sender.clone();
        // If the channel is full, a cycle starts anyway.
        let wake = move || events.try_send(Trigger::Links).unwrap_or_default();
        dhcp.conflicts().set_wake(Box::new(wake));
        tokio::spawn(dhcp::run_service(&dhcp, state.lock().metrics.dhcp.clone()));
    }
    tokio::spawn(leases::watch_guarded_leases(dhcp.clone(), sender.clone()));
    let mut worker = CycleRunner::new(
        Arc::clone(&root),
        settings.clone(),
        Arc::clone(&state),
        watched_links,
        dhcp.clone(),
    );
    // With `--observe`, another agent of this host may probe.
    if root.is_live() && !settings.observe {
        worker.set_trunk_monitor(start_trunk_monitor(settings, sender.clone()));
    }
    let _cluster_tasks = match &settings.source {
        Source::File(_) => None,
        Source::Cluster(cluster) => {
            let update_leases =
                leases::start_receiver(Arc::clone(&root), !settings.observe, dhcp.clone());
            let connection = (dhcp, update_leases);
            Some(connect_to_cluster(cluster, &mut worker, &state, sender, connection).await?)
        }
    };
    let mut trigger = Trigger::Start;
    let mut token_bucket = TokenBucket::new(LINK_EVENT_RATE_LIMIT.0, LINK_EVENT_RATE_LIMIT.1);
    let mut last_full_cycle = Instant::now();
    loop {
        let mut cycle = tokio::task::spawn_blocking(move || {
            worker.run(trigger);
            worker
        });
        let result = tokio::select! {
            done = &mut cycle => done,
            _ = terminate.recv() => return shut_down(&root, Some(cycle)).await,
            _ = interrupt.recv() => return shut_down(&root, Some(cycle)).await,
        };
        worker = result.context("the cycle panicked, which is a bug of berth-agent")?;
        if trigger == Trigger::Start {
            notify_systemd(&[sd_notify::NotifyState::Ready]);
        }
        notify_systemd(&[sd_notify::NotifyState::Status(&state.summary())]);
        // A cycle of link events reads only links, and must not delay the next full cycle.
        if trigger != Trigger::Links {
            last_full_cycle = Instant::now();
        }
        let next = worker.time_until_next_cycle(settings.interval, last_full_cycle.elapsed());
        let next = Instant::now() + next;
        trigger = tokio::select! {
            () = sleep_until(next) => Trigger::Timer,
            Some(event) = events.recv() => debounce(event, &mut events).await,
            _ = reload.recv() => Trigger::Manifest,
            _ = terminate.recv() => return shut_down(&root, None).await,
            _ = interrupt.recv() => return shut_down(&root, None).await,
        };
        if trigger == Trigger::Links {
            let wait_for_token = async {
                while let Err(wait) = token_bucket.take_token(std::time::Instant::now()) {
                    tokio::time::sleep(wait).await;
                }
            };
            tokio::select! {
                () = wait_for_token => {}
                _ = terminate.recv() => return shut_down(&root, None).await,
                _ = interrupt.recv() => return shut_down(&root, None).await,
            }
        }
    }
}

/// Starts the tasks that probe trunks. A new result starts a cycle, which publishes the result.
fn start_trunk_monitor(settings: &Settings, events: mpsc::Sender<Trigger>) -> TrunkMonitor {
    // If the channel is full, a cycle starts anyway.
    let wake = move || events.try_send(Trigger::Links).unwrap_or_default();
    TrunkMonitor::start(settings.trunk_key.clone(), Box::new(wake))
}

/// Connects the daemon to the cluster.
async fn connect_to_cluster(
    settings: &cluster::Settings,
    worker: &mut CycleRunner,
    state: &Arc<State>,
    events: mpsc::Sender<Trigger>,
    (dhcp, update_leases): (DhcpHandle, impl Fn(Option<DynamicObject>) + Send + Sync + 'static),
) -> anyhow::Result<cluster::ClusterTasks> {
    let store = Arc::new(Store::default());
    let (sender, events_to_emit) = mpsc::channel(64);
    dhcp.set_event_sender(sender.clone());
    worker.connect_to_cluster(Arc::clone(&store), sender.clone());
    let latest_report = {
        let state = Arc::clone(state);
        Arc::new(move || state.report())
    };
    let is_alive = {
        let state = Arc::clone(state);
        Arc::new(move || state.is_alive())
    };
    let wake = move || {
        let events = events.clone();
        // If the channel is full, the task waits until it has room.
        tokio::spawn(async move { events.send(Trigger::Manifest).await.unwrap_or_default() });
    };
    cluster::start_tasks(
        settings,
        &store,
        latest_report,
        (sender, events_to_emit),
        is_alive,
        wake,
        update_leases,
    )
    .await
}

/// Returns true if a uevent of the kernel starts a cycle.
#[must_use]
pub fn is_relevant_uevent(uevent: &[u8]) -> bool {
    watch::uevent_trigger(uevent).is_some()
}

/// Returns true if a netlink message is about the link with this index or name.
#[must_use]
pub fn is_about_link(message: &[u8], index: u32, name: &str) -> bool {
    link_events::is_about_watched_link(message, &link_events::WatchedLinks::for_link(index, name))
}

/// Waits until no trigger has arrived for the debounce time, and returns the greatest trigger, whose cycle does all
/// that the cycles of the other triggers would do.
async fn debounce(first: Trigger, events: &mut mpsc::Receiver<Trigger>) -> Trigger {
    let begin = Instant::now();
    let mut greatest = first;
    // Link events have a short debounce, because a tenant may be without a network until the next
    // cycle.
    let limits = |trigger| {
        if trigger == Trigger::Links {
            LINK_DEBOUNCE_INTERVALS
        } else {
            (DEBOUNCE_INTERVAL, MAX_DEBOUNCE)
        }
    };
    while begin.elapsed() < limits(greatest).1 {
        match timeout(limits(greatest).0, events.recv()).await {
            Ok(Some(event)) => greatest = greatest.max(event),
            Ok(None) | Err(_) => break,
        }
    }
    greatest
}

async fn shut_down(
    root: &Root,
    cycle: Option<tokio::task::JoinHandle<CycleRunner>>,
) -> anyhow::Result<()> {
    tracing::info!(signal = "SIGTERM or SIGINT", "stopping, the host is not changed");
    notify_systemd(&[sd_notify::NotifyState::Stopping]);
    if let Some(cycle) = cycle
        && timeout(SHUTDOWN_TIMEOUT, cycle).await.is_err()
    {
        tracing::warn!(timeout = ?SHUTDOWN_TIMEOUT, "a change is still in progress; the next start of the agent verifies it");
        // An unfinished trial is rolled back now, because the agent may not start again.
        let boot_id = berth_host_facts::kernel_files::boot_id(root).unwrap_or_default();
        match crate::apply::links::trial::roll_back_unfinished_trial(root, &boot_id) {
            Ok(recovered) => {
                if let Some(recovered) = recovered {
                    tracing::warn!(%recovered, "rolled back an unfinished trial");
                }
            }
            Err(error) => tracing::error!(%error, "failed to roll back an unfinished trial"),
        }
    }
    Ok(())
}

/// Notifies the watchdog of systemd while the daemon makes progress.
async fn notify_watchdog(state: Arc<State>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    loop {
        if state.is_alive() {
            notify_systemd(&[sd_notify::NotifyState::Watchdog]);
        }
        tokio::time::sleep(limit / 3).await;
    }
}

/// Notifies systemd; without systemd this is a no-op.
fn notify_systemd(states: &[sd_notify::NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "failed to notify systemd");
    }
}
