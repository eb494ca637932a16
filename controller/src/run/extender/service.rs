//! State shared by the tasks of the extender.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use berth_extender::{Extender, PendingVm};
use kube::Client;
use tokio::sync::{Notify, RwLock};

use super::readiness_gate::ReadinessGate;
use super::settings::Settings;
use super::unlisted_kinds::UnlistedKinds;
use crate::run::metrics::Metrics;

/// The extender with its readiness gate, its client and its metrics.
pub(super) struct ExtenderService {
    extender: Mutex<Extender>,
    pub(super) readiness_gate: ReadinessGate,
    /// VMs that had no host yet at the last list of VirtualMachineInstances.
    pending_vms: Mutex<Vec<PendingVm>>,
    /// Notified after a change that may make a waiting pod fit on a host.
    pub(super) state_changed: Notify,
    /// Each binding in progress holds the read lock. The daily rebuild of the state takes the write lock, because the
    /// rebuilt state would lack the outcome of a binding in progress.
    pub(super) bind_lock: RwLock<()>,
    pub(super) client: Client,
    pub(super) metrics: Arc<Metrics>,
}

impl ExtenderService {
    pub(super) fn new(
        settings: &Settings,
        client: &Client,
        metrics: &Arc<Metrics>,
        unlisted_kinds: &Arc<UnlistedKinds>,
    ) -> Self {
        Self {
            extender: Mutex::new(Extender::new_awaiting_pod_list()),
            readiness_gate: ReadinessGate::new(client, settings, Arc::clone(unlisted_kinds)),
            pending_vms: Mutex::default(),
            state_changed: Notify::new(),
            bind_lock: RwLock::new(()),
            client: client.clone(),
            metrics: Arc::clone(metrics),
        }
    }

    pub(super) fn extender(&self) -> MutexGuard<'_, Extender> {
        self.extender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pending_vms(&self) -> MutexGuard<'_, Vec<PendingVm>> {
        self.pending_vms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the extender, and notifies waiting calls and the waker.
    pub(super) fn update<T>(&self, update: impl FnOnce(&mut Extender, Instant) -> T) -> T {
        let result = update(&mut self.extender(), Instant::now());
        self.notify();
        result
    }

    /// Notifies waiting calls and the waker of a change. After several changes, for example from a list, one
    /// notification is sufficient.
    pub(super) fn notify(&self) {
        self.readiness_gate.notify();
        self.state_changed.notify_one();
    }
}
