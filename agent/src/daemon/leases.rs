//! Leases of the VMs on this host from the cluster: passes them to the service that answers DHCP requests, and saves
//! them on disk for a start while the API server is unreachable.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_host_facts::kernel_files::boot_id;
use berth_host_facts::ledger::Ledger;
use berth_host_facts::root::Root;
use kube::core::DynamicObject;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};

use super::settings::{Settings, Source};
use super::trigger::Trigger;
use crate::dhcp::DhcpHandle;
use crate::fault::Fault;
use crate::host_leases;
use crate::state_folder;

/// Interval of retries while the leases cannot be saved, for example because the disk is full.
const SAVE_RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Restores the host networks and the leases that an earlier process saved, so that VMs get answers before the first
/// cycle of this process has ended.
pub(super) fn restore(root: &Root, settings: &Settings, dhcp: &DhcpHandle) {
    // An unreadable ledger is reported by the first cycle.
    if let Ok(ledger) = Ledger::read(root, boot_id(root).as_deref()) {
        dhcp.set_host_networks(&ledger);
    }
    let Source::Cluster(cluster) = &settings.source else { return };
    match root.read_large(state_folder::LEASES_FILE) {
        Ok(text) => {
            let tree = serde_json::from_str(&text).unwrap_or(Value::Null);
            let (leases, faults) = host_leases::read(&tree, Some(&cluster.node));
            log_faults(&faults);
            // The leases stay unknown if the file has no HostLeases of this node.
            if let Some(leases) = leases {
                dhcp.set_leases(&Arc::new(leases));
            }
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => tracing::warn!(%error, "failed to read the saved leases"),
    }
}

/// Starts a cycle when the leases change while a network has source guard, because the rules of the source guard contain
/// the leases.
pub(super) async fn watch_guarded_leases(dhcp: DhcpHandle, events: mpsc::Sender<Trigger>) {
    loop {
        dhcp.guarded_leases_changed().await;
        if events.send(Trigger::Links).await.is_err() {
            return;
        }
    }
}

/// Returns the function that receives each state of the HostLeases, and starts the task that saves the leases.
pub(super) fn start_receiver(
    root: Arc<Root>,
    save_to_disk: bool,
    dhcp: DhcpHandle,
) -> impl Fn(Option<DynamicObject>) + Send + Sync + 'static {
    let pending = save_to_disk.then(|| Arc::new(PendingSave::default()));
    if let Some(pending) = &pending {
        tokio::spawn(save_leases(root, Arc::clone(pending)));
    }
    let last_faults = Mutex::new(Vec::new());
    move |object| {
        let spec = object.as_ref().and_then(|object| object.data.get("spec"));
        let (leases, faults) = spec.map(host_leases::read_spec).unwrap_or_default();
        let mut last_faults = last_faults.lock().unwrap_or_else(PoisonError::into_inner);
        if *last_faults != faults {
            log_faults(&faults);
            *last_faults = faults;
        }
        dhcp.set_leases(&Arc::new(leases));
        if let Some(pending) = &pending {
            pending.replace(object.as_ref().map(to_document));
        }
    }
}

/// The last state that is not yet saved. It is removed when it is saved, so that the agent does not keep the text of
/// thousands of leases.
#[derive(Debug, Default)]
struct PendingSave {
    /// `Some(None)` if the object does not exist.
    document: Mutex<Option<Option<String>>>,
    changed: Notify,
}

impl PendingSave {
    fn replace(&self, document: Option<String>) {
        *self.document.lock().unwrap_or_else(PoisonError::into_inner) = Some(document);
        self.changed.notify_one();
    }

    fn take(&self) -> Option<Option<String>> {
        self.document.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns the text of the object as it is saved, without the fields that change with each write. The spec is not
/// copied, because it may contain thousands of leases.
fn to_document(object: &DynamicObject) -> String {
    let version = Value::from(berth_api::names::API_VERSION);
    let name = Value::from(object.metadata.name.clone());
    let spec = object.data.get("spec").unwrap_or(&Value::Null);
    format!(
        r#"{{"apiVersion":{version},"kind":"HostLeases","metadata":{{"name":{name}}},"spec":{spec}}}"#
    )
}

/// Saves each new state. If the object does not exist, removes the file. While the disk is full, the leases are only in
/// memory.
async fn save_leases(root: Arc<Root>, pending: Arc<PendingSave>) {
    let mut is_failure_logged = false;
    loop {
        pending.changed.notified().await;
        let Some(document) = pending.take() else { continue };
        let mut document = Arc::new(document);
        loop {
            let (root, leases) = (Arc::clone(&root), Arc::clone(&document));
            let save = move || state_folder::save_leases(&root, leases.as_deref());
            match tokio::task::spawn_blocking(save).await {
                Ok(Ok(())) => {
                    is_failure_logged = false;
                    break;
                }
                Ok(Err(error)) if !is_failure_logged => {
                    is_failure_logged = true;
                    tracing::warn!(%error, "failed to persist the leases, which are needed after a restart without the API server; trying again");
                }
                Ok(Err(_)) => {}
                // The runtime is shutting down.
                Err(_) => return,
            }
            tokio::time::sleep(SAVE_RETRY_INTERVAL).await;
            document = pending.take().map_or(document, Arc::new);
        }
    }
}

fn log_faults(faults: &[Fault]) {
    if let Some(first) = faults.first() {
        tracing::warn!(count = faults.len(), %first, "ignored leases with faults; their VMs get no address");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_last_state_is_saved_and_then_freed() {
        let pending = PendingSave::default();
        assert_eq!(pending.take(), None);
        pending.replace(Some("first".to_owned()));
        pending.replace(None);
        assert_eq!(pending.take(), Some(None), "the file is removed");
        assert_eq!(pending.take(), None);
    }

    #[test]
    fn a_saved_object_is_restored() {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "HostLeases",
            "metadata": {"name": "a", "resourceVersion": "7", "managedFields": []},
            "spec": {"networks": [{"name": "cluster-a", "vlan": 7, "leases": []}]},
        }))
        .unwrap();
        let text = to_document(&object);
        assert!(!text.contains("resourceVersion"));
        let (leases, faults) = host_leases::read(&serde_json::from_str(&text).unwrap(), Some("a"));
        assert_eq!(leases.unwrap().networks[0].name, "cluster-a");
        assert_eq!(faults, []);
    }
}
