//! Last observed state of this host's Node and InfraNode, as the watches and responses of the API server report it.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use berth_api::InfraNodeStatus;
use berth_api::infra_node::{KvmState, UnknownFact, UnknownReason};
use berth_runtime::certificate::Validity;
use berth_runtime::credential::Credential;
use kube::ResourceExt as _;
use kube::core::{DynamicObject, ObjectMeta};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::objects::TrimmedNode;
use crate::document::Document;
use crate::{conditions, publish};

/// Last observed objects, which the watches write and the cycle and the publishers read.
#[derive(Debug, Default)]
pub struct Store {
    inner: Mutex<StoreState>,
    /// Notified when an object or a report changed, so that the publisher may have to write.
    pub(super) object_changed: Notify,
    /// Notified for the publisher of the NodeResourceTopology, which is a separate task.
    pub(super) topology_changed: Notify,
    server: OnceLock<(String, u16)>,
    credential: OnceLock<Option<Credential>>,
}

#[derive(Debug, Default)]
struct StoreState {
    desired: Option<DesiredState>,
    infra_node: ObservedObject<ObservedInfraNode>,
    node: ObservedObject<ObservedNode>,
}

/// State of one object, as the watches last observed it.
#[derive(Debug, Clone, Default)]
pub(super) enum ObservedObject<T> {
    /// The API server has not answered yet.
    #[default]
    Unknown,
    /// The object does not exist.
    Absent,
    /// The object exists.
    Present(T),
}

/// The last observed InfraNode, except its spec.
#[derive(Debug, Clone)]
pub(super) struct ObservedInfraNode {
    pub(super) uid: String,
    /// The status, with only the conditions that the agent writes; `None` if there is no status, or it cannot be
    /// parsed.
    pub(super) status: Option<InfraNodeStatus>,
}

/// The last observed Node.
#[derive(Debug, Clone)]
pub(super) struct ObservedNode {
    pub(super) uid: String,
    pub(super) published: publish::PublishedNode,
}

/// Desired state that the InfraNode specifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredState {
    /// The object without its status. The object is parsed like a manifest in a file, so that a fault in one part
    /// does not hide the other faults. `None` until a user or the controller has written a spec.
    pub document: Option<Document>,
    /// Generation of the object; `None` if the document was read from disk.
    pub generation: Option<Generation>,
}

/// Generation of one object. Another object of the same name has a separate counter, so the numbers of both may
/// be equal by chance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// UID of the object (`metadata.uid`).
    pub uid: String,
    /// Generation of the object (`metadata.generation`).
    pub number: i64,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the address of the API server.
    pub(super) fn set_server(&self, server: (String, u16)) {
        // The address is set only once, by `start_tasks`, so an error is impossible.
        drop(self.server.set(server));
    }

    /// Sets the credential of the kubeconfig.
    pub(super) fn set_credential(&self, credential: Option<Credential>) {
        drop(self.credential.set(credential));
    }

    /// Returns the validity of the client certificate, if the agent has one.
    #[must_use]
    pub fn certificate(&self) -> Option<Validity> {
        self.credential.get()?.as_ref()?.certificate()
    }

    /// Returns the addresses of the API server; empty if its name cannot be resolved now.
    #[must_use]
    pub fn server_addresses(&self) -> Vec<SocketAddr> {
        let server = self.server.get().map(|(host, port)| (host.as_str(), *port));
        server.and_then(|server| server.to_socket_addrs().ok()).into_iter().flatten().collect()
    }

    /// Returns the desired state; `None` while it is unknown.
    #[must_use]
    pub fn desired_state(&self) -> Option<DesiredState> {
        self.lock().desired.clone()
    }

    /// Sets the desired state that an earlier process saved to disk, unless the API server has answered already.
    pub fn restore_desired(&self, document: Document) {
        let desired = DesiredState { document: Some(document), generation: None };
        self.lock().desired.get_or_insert(desired);
    }

    /// Wakes the publishers of the InfraNode, the Node and the NodeResourceTopology.
    pub fn wake(&self) {
        self.object_changed.notify_one();
        self.topology_changed.notify_one();
    }

    /// Adds facts that only the cluster has to a status. A container cannot open `/dev/kvm`, but the device plugin of
    /// KubeVirt can, and the plugin advertises the device if it exists.
    pub fn add_cluster_facts(&self, status: &mut InfraNodeStatus) {
        const KVM_STATE_PATH: &str = "capabilities.kvm.state";
        let inner = self.lock();
        let ObservedObject::Present(node) = &inner.node else { return };
        let advertised = node
            .published
            .allocatable
            .get("devices.kubevirt.io/kvm")
            .is_some_and(|count| count.0 != "0");
        let is_forbidden = |unknown: &UnknownFact| {
            unknown.path == KVM_STATE_PATH && unknown.reason == UnknownReason::DeviceCgroup
        };
        if advertised && status.unknown.iter().any(is_forbidden) {
            status.capabilities.kvm.state = Some(KvmState::Ready);
            status.unknown.retain(|unknown| !is_forbidden(unknown));
        }
    }

    /// Returns the status of the InfraNode on the API server.
    #[must_use]
    pub fn status(&self) -> Option<InfraNodeStatus> {
        match &self.lock().infra_node {
            ObservedObject::Present(object) => object.status.clone(),
            ObservedObject::Absent | ObservedObject::Unknown => None,
        }
    }

    pub(super) fn observed_infra_node(&self) -> ObservedObject<ObservedInfraNode> {
        self.lock().infra_node.clone()
    }

    pub(super) fn observed_node(&self) -> ObservedObject<ObservedNode> {
        self.lock().node.clone()
    }

    /// Stores the Node of a watch event or a response.
    pub(super) fn update_node(&self, node: Option<TrimmedNode>) {
        let observed = node.map_or(ObservedObject::Absent, |node| {
            let status = node.status.unwrap_or_default();
            let published = publish::PublishedNode::new(
                &node.metadata,
                status.conditions,
                status.capacity,
                status.allocatable,
            );
            ObservedObject::Present(ObservedNode {
                uid: node.metadata.uid.unwrap_or_default(),
                published,
            })
        });
        self.lock().node = observed;
        self.wake();
    }

    /// Stores the status of a response. The spec of the response is ignored, because the watch reports the desired
    /// state and starts a cycle.
    pub(super) fn update_status(&self, object: &DynamicObject) {
        let updated = ObservedInfraNode::new(object);
        let mut inner = self.lock();
        if let ObservedObject::Present(current) = &mut inner.infra_node
            && current.uid == updated.uid
        {
            *current = updated;
        }
    }

    /// Stores the InfraNode of a watch event. Returns true if the desired state changed.
    pub(super) fn update_infra_node(&self, object: Option<DynamicObject>) -> bool {
        let mut inner = self.lock();
        let changed = match object {
            None => {
                // The object was deleted or never existed. The host keeps its last valid state.
                inner.infra_node = ObservedObject::Absent;
                let was_unknown = inner.desired.is_none();
                inner.desired.get_or_insert(DesiredState { document: None, generation: None });
                was_unknown
            }
            Some(object) => {
                let desired = DesiredState::new(&object);
                inner.infra_node = ObservedObject::Present(ObservedInfraNode::new(&object));
                // An empty object that an agent created does not replace an earlier spec.
                let had_spec = inner.desired.as_ref().is_some_and(|one| one.document.is_some());
                let keeps_earlier = desired.document.is_none() && had_spec;
                let changed = !keeps_earlier && inner.desired.as_ref() != Some(&desired);
                if changed {
                    inner.desired = Some(desired);
                }
                changed
            }
        };
        drop(inner);
        self.wake();
        changed
    }
}

impl ObservedInfraNode {
    fn new(object: &DynamicObject) -> Self {
        let status = object.data.get("status").cloned();
        let mut status: Option<InfraNodeStatus> =
            status.and_then(|status| serde_json::from_value(status).ok());
        if let Some(status) = &mut status {
            status
                .conditions
                .retain(|one| conditions::CONDITION_TYPES.contains(&one.type_.as_str()));
        }
        Self { uid: object.uid().unwrap_or_default(), status }
    }
}

impl DesiredState {
    fn new(object: &DynamicObject) -> Self {
        let spec = object.data.get("spec").cloned().unwrap_or_else(|| json!({}));
        let is_empty = spec.as_object().is_some_and(serde_json::Map::is_empty);
        let number = object.metadata.generation;
        // The first generation of an object that an agent created is not a spec of a user.
        let created_by_agent =
            object.annotations().contains_key(berth_api::names::CREATED_BY_ANNOTATION)
                && number == Some(1);
        // A deletion increments the generation too, which is not a change of the spec by a user.
        let is_deleted = object.metadata.deletion_timestamp.is_some();
        let document = (!(is_deleted || is_empty && created_by_agent))
            .then(|| Document::from_object(&to_manifest(&object.metadata, &spec)));
        let uid = object.uid().unwrap_or_default();
        Self { document, generation: number.map(|number| Generation { uid, number }) }
    }
}

fn to_manifest(metadata: &ObjectMeta, spec: &Value) -> Value {
    json!({
        "apiVersion": berth_api::names::API_VERSION,
        "kind": "InfraNode",
        "metadata": {"name": metadata.name},
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(generation: i64, created_by_agent: bool, spec: &Value) -> DynamicObject {
        let annotations = if created_by_agent {
            json!({"berth.dev/created-by": "berth-agent"})
        } else {
            json!({})
        };
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": "a", "generation": generation, "annotations": annotations},
            "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn deleted_and_recreated_object_keeps_the_desired_state() {
        let store = Store::default();
        assert_eq!(store.desired_state(), None);
        let ksm = json!({"ksm": {"mode": "Off"}});
        assert!(store.update_infra_node(Some(object(3, false, &ksm))));
        let desired = store.desired_state();
        let mut deleted = serde_json::to_value(object(4, false, &json!({}))).unwrap();
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(!store.update_infra_node(Some(serde_json::from_value(deleted).unwrap())));
        assert!(!store.update_infra_node(None));
        assert!(!store.update_infra_node(Some(object(1, true, &json!({})))));
        assert_eq!(store.desired_state(), desired);
        // A user who empties the spec, or creates an empty object, replaces the earlier spec.
        assert!(store.update_infra_node(Some(object(2, true, &json!({})))));
        assert!(store.desired_state().unwrap().document.is_some());
        assert!(store.update_infra_node(Some(object(1, false, &json!({})))));
    }

    #[test]
    fn saved_state_is_used_until_the_server_answers() {
        let store = Store::default();
        store.restore_desired(Document::parse("{}"));
        assert_eq!(store.desired_state().unwrap().generation, None);
        assert!(store.update_infra_node(Some(object(4, false, &json!({})))));
        let generation = |uid: &str| Some(Generation { uid: uid.to_owned(), number: 4 });
        assert_eq!(store.desired_state().unwrap().generation, generation(""));
        // A change of the status alone does not change the desired state.
        assert!(!store.update_infra_node(Some(object(4, false, &json!({})))));
        // Another object with the same spec and the same generation number must be reported on too.
        let mut another = object(4, false, &json!({}));
        another.metadata.uid = Some("b".to_owned());
        assert!(store.update_infra_node(Some(another)));
        assert_eq!(store.desired_state().unwrap().generation, generation("b"));
    }
}
