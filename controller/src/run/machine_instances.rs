//! Watch of the VirtualMachineInstances of MachineDeployments, which several reconcilers share.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

use super::object_handlers::ObjectHandlers;
use super::packed_content::pack_content;
use crate::api_resource::api_resource;
use berth_kubevirt_render::machines::hotplug::is_unattached;
use berth_runtime::watch::{OptionalInformer, OptionalKind};

/// VirtualMachineInstances of MachineDeployments. The store keeps only the phase, the condition Ready, the hosts and the
/// hotpluggable disks that are not attached of each instance and, if the instance must leave its host, the condition
/// LiveMigratable and the eviction strategy.
#[derive(Clone)]
pub struct MachineInstances {
    informer: OptionalInformer,
    handlers: ObjectHandlers,
}

impl std::fmt::Debug for MachineInstances {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MachineInstances").finish_non_exhaustive()
    }
}

impl MachineInstances {
    /// Returns the store, and a future that updates the store and never ends.
    pub fn start(client: &Client) -> (Self, BoxFuture<'static, ()>) {
        let kind = OptionalKind {
            resource: api_resource(
                "kubevirt.io",
                "v1",
                "VirtualMachineInstance",
                "virtualmachineinstances",
            ),
            label_selector: Some("md".to_owned()),
            trim: trim_instance,
        };
        let handlers = ObjectHandlers::default();
        let subscribed = handlers.clone();
        let (informer, watch) = OptionalInformer::start(client, kind, move |object, is_deleted| {
            subscribed.call(object, is_deleted)
        });
        (Self { informer, handlers }, watch.boxed())
    }

    /// Calls `handle` with each object that changes from now on, after the store has been updated, and with true if the
    /// object is deleted.
    pub(super) fn subscribe(&self, handle: impl Fn(&DynamicObject, bool) + Send + Sync + 'static) {
        self.handlers.subscribe(handle);
    }

    /// Returns the store.
    pub(super) const fn informer(&self) -> &OptionalInformer {
        &self.informer
    }
}

/// Removes the fields that are not used, because the store contains tens of thousands of objects.
fn trim_instance(object: &mut DynamicObject) {
    object.metadata.managed_fields = None;
    object.metadata.annotations = None;
    let field = |path: &str| object.data.pointer(path).cloned();
    let mut status =
        Map::from_iter([("phase".to_owned(), field("/status/phase").unwrap_or_default())]);
    let evacuated = field("/status/evacuationNodeName").filter(|host| *host != "");
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    let is_read = |one: &&Value| {
        one["type"] == "Ready" || (evacuated.is_some() && one["type"] == "LiveMigratable")
    };
    let read: Vec<Value> = conditions.into_iter().flatten().filter(is_read).cloned().collect();
    status.insert("conditions".to_owned(), read.into());
    // These are the fields that `hosts_of_instance` reads.
    match field("/status/nodeName").filter(|host| *host != "") {
        Some(host) => status.insert("nodeName".to_owned(), host),
        None => {
            status.insert("activePods".to_owned(), field("/status/activePods").unwrap_or_default())
        }
    };
    if let Some(target) = field("/status/migrationState/targetNode") {
        let failed = field("/status/migrationState/failed").unwrap_or_default();
        let migration = json!({"targetNode": target, "failed": failed});
        status.insert("migrationState".to_owned(), migration);
    }
    let volumes = object.data.pointer("/status/volumeStatus").and_then(Value::as_array);
    let volumes = volumes.into_iter().flatten().filter(|one| is_unattached(one));
    let unattached: Vec<Value> = volumes.cloned().collect();
    if !unattached.is_empty() {
        status.insert("volumeStatus".to_owned(), unattached.into());
    }
    let strategy = field("/spec/evictionStrategy");
    object.data = match evacuated {
        Some(host) => {
            status.insert("evacuationNodeName".to_owned(), host);
            json!({"spec": {"evictionStrategy": strategy}, "status": status})
        }
        None => json!({"status": status}),
    };
    pack_content(object);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::packed_content::unpack_content;
    use crate::tenants::lease_index::hosts_of_instance;

    #[test]
    fn trimmed_instance_keeps_its_evacuation() {
        let fields = json!({
            "metadata": {"name": "x"}, "spec": {"evictionStrategy": "External", "domain": {}},
            "status": {"phase": "Running", "nodeName": "a", "evacuationNodeName": "a", "conditions": [
                {"type": "LiveMigratable", "status": "True"}, {"type": "AgentConnected", "status": "True"}]},
        });
        let mut object: DynamicObject = serde_json::from_value(fields).unwrap();
        trim_instance(&mut object);
        let trimmed = unpack_content(&object).data;
        assert_eq!(trimmed["spec"], json!({"evictionStrategy": "External"}));
        assert_eq!(trimmed["status"]["evacuationNodeName"], "a");
        let kept = json!([{"type": "LiveMigratable", "status": "True"}]);
        assert_eq!(trimmed["status"]["conditions"], kept);
    }

    #[test]
    fn trimmed_instance_keeps_disks_that_are_not_attached() {
        let volume =
            |name: &str, phase: &str| json!({"name": name, "phase": phase, "hotplugVolume": {}});
        let fields = json!({
            "metadata": {"name": "x"}, "spec": {},
            "status": {"phase": "Running", "nodeName": "a", "volumeStatus": [
                {"name": "datavolumedisk", "target": "vda"}, volume("disk-a", "Ready"), volume("disk-b", "Pending")]},
        });
        let mut object: DynamicObject = serde_json::from_value(fields).unwrap();
        trim_instance(&mut object);
        let kept = &unpack_content(&object).data["status"]["volumeStatus"];
        assert_eq!(*kept, json!([volume("disk-b", "Pending")]));
    }

    #[test]
    fn trimmed_instance_keeps_phase_readiness_and_hosts() {
        let migration = json!({"targetNode": "b", "failed": true, "sourceNode": "a"});
        for status in [
            json!({"phase": "Running", "nodeName": "a", "migrationState": migration}),
            json!({"phase": "Running", "nodeName": "a", "migrationState": {"targetNode": "b"}}),
            json!({"phase": "Scheduling", "activePods": {"uid": "c"}}),
            json!({"phase": "Scheduling", "nodeName": "", "activePods": {"uid": "c"}}),
            json!({"phase": "Failed", "nodeName": "a", "interfaces": [{}]}),
            json!("Running"),
            json!(null),
        ] {
            let fields =
                json!({"metadata": {"name": "x"}, "spec": {"domain": {}}, "status": status});
            let mut object: DynamicObject = serde_json::from_value(fields).unwrap();
            let hosts = hosts_of_instance(&object.data);
            trim_instance(&mut object);
            let trimmed = unpack_content(&object).data;
            assert_eq!(hosts_of_instance(&trimmed), hosts, "{status}");
            assert_eq!(trimmed["status"]["phase"], status["phase"]);
            assert_eq!(trimmed.get("spec"), None);
        }
    }
}
