//! Watches the StorageClasses of a tenant's cluster while the reconciler of StorageClasses needs them.

use berth_api::names::CONTROLLER_FIELD_MANAGER;
use berth_runtime::untrusted::{
    CollectionEvent, CollectionLimits, UntrustedClient, UntrustedError,
};
use tokio::sync::watch::Receiver;

use super::collection_watch::watch_repeatedly;
use super::connections::{Connections, SharedState};
use super::faults::class_fault_of;
use crate::tenant_storage::class::ClassObject;
use crate::tenant_storage::class_store::ClassStore;

/// Path of the StorageClasses in the Kubernetes API.
const CLASSES_PATH: &str = "/apis/storage.k8s.io/v1/storageclasses";
/// Limits for the list of StorageClasses. A StorageClass usually has 2 KiB; the API server permits 1.5 MiB.
const CLASS_LIMITS: CollectionLimits = CollectionLimits {
    page_size: 50,
    max_pages: 20,
    max_page_length: 1 << 22,
    max_event_length: 1 << 21,
};

/// Watches the StorageClasses of a tenant's cluster while they are needed. Never returns.
///
/// The reconciler requests this watch only after the Nodes have been listed, and have shown that the kubeconfig does
/// not refer to the infra cluster.
pub(super) async fn watch_classes(
    tenant: &str,
    connections: &Connections,
    client: &UntrustedClient,
) {
    // This watch uses one state for its whole life: if the tenant gets a new kubeconfig, a new watch starts with a new
    // state.
    let Some(state) = connections.state(tenant) else {
        return std::future::pending().await;
    };
    let mut needed = state.lock().classes.needs_watch.subscribe();
    let mut unneeded = needed.clone();
    loop {
        wait_for(&mut needed, true).await;
        tokio::select! {
            () = watch_class_collection(tenant, connections, client, &state) => {}
            () = wait_for(&mut unneeded, false) => {}
        }
        let mut state = state.lock();
        state.classes.listed = None;
        state.classes.store = ClassStore::default();
    }
}

async fn wait_for(needs_watch: &mut Receiver<bool>, value: bool) {
    if needs_watch.wait_for(|current| *current == value).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn watch_class_collection(
    tenant: &str,
    connections: &Connections,
    client: &UntrustedClient,
    state: &SharedState,
) {
    let handle = |event: CollectionEvent<ClassObject>| {
        let is_complete = matches!(event, CollectionEvent::ListCompleted);
        let mut state = state.lock();
        let mut is_changed = state.classes.store.handle(event, CONTROLLER_FIELD_MANAGER);
        if is_complete {
            is_changed |= state.classes.listed != Some(Ok(()));
            state.classes.listed = Some(Ok(()));
        }
        drop(state);
        if is_changed {
            connections.notify_classes(tenant);
        }
        Ok(())
    };
    let report = |error: UntrustedError| {
        tracing::debug!(tenant, %error, "failed to watch the StorageClasses of a tenant");
        let Some(fault) = class_fault_of(error) else { return };
        let fault = Some(Err(fault));
        let mut state = state.lock();
        let is_new = state.classes.listed != fault;
        state.classes.listed = fault;
        drop(state);
        if is_new {
            connections.notify_classes(tenant);
        }
    };
    watch_repeatedly(client, (CLASSES_PATH, CLASS_LIMITS), handle, report).await;
}
