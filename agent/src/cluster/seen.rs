//! What the cluster was seen to say of this host.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use berth_api::InfraNodeStatus;
use berth_api::infra_node::{KvmState, Unknown, UnknownReason};
use berth_runtime::certificate::Validity;
use berth_runtime::credential::Credential;
use kube::ResourceExt as _;
use kube::core::{DynamicObject, ObjectMeta};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::SlimNode;
use crate::{conditions, publish};

/// Shared between what watches and what acts.
#[derive(Debug, Default)]
pub struct Seen {
    inner: Mutex<Inner>,
    /// Something that may want publishing was seen.
    pub(super) changed: Notify,
    /// The same, for the NodeResourceTopology, whose writer waits by itself.
    pub(super) topology: Notify,
    server: OnceLock<(String, u16)>,
    credential: OnceLock<Option<Credential>>,
}

/// What is known.
#[derive(Debug, Default)]
struct Inner {
    asked: Option<Asked>,
    infra_node: Sight<InfraNodeSeen>,
    node: Sight<NodeSeen>,
}

/// An object.
#[derive(Debug, Clone, Default)]
pub(super) enum Sight<T> {
    /// The server has not said yet.
    #[default]
    Unknown,
    /// It is not there.
    Missing,
    /// It is there.
    There(T),
}

/// The InfraNode, apart from its spec.
#[derive(Debug, Clone)]
pub(super) struct InfraNodeSeen {
    pub(super) uid: String,
    /// As far as the agent writes it; `None` if it has none, or one that is none of ours.
    pub(super) status: Option<InfraNodeStatus>,
}

/// The Node.
#[derive(Debug, Clone)]
pub(super) struct NodeSeen {
    pub(super) uid: String,
    pub(super) told: publish::Told,
}

/// What the InfraNode asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The object without its status, as JSON: it is read like a manifest in a file, so that a mistake in one part
    /// does not hide the rest. `None` as long as nobody has asked for anything.
    pub manifest: Option<Arc<str>>,
    /// Where it comes from; `None` if that is the disk.
    pub generation: Option<Generation>,
}

/// A generation of one object. Another object of the same name counts its own, so that numbers may meet by chance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub number: i64,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers where the API server is.
    pub(super) fn remember_server(&self, server: (String, u16)) {
        // It is said once.
        drop(self.server.set(server));
    }

    /// Remembers the credential of a kubeconfig.
    pub(super) fn remember_credential(&self, credential: Option<Credential>) {
        drop(self.credential.set(credential));
    }

    /// Returns the validity of the client certificate, if the agent has one.
    #[must_use]
    pub fn certificate(&self) -> Option<Validity> {
        self.credential.get()?.as_ref()?.certificate()
    }

    /// Addresses of the API server; none where its name cannot be looked up just now.
    #[must_use]
    pub fn server_addresses(&self) -> Vec<SocketAddr> {
        let known = self.server.get().map(|(host, port)| (host.as_str(), *port));
        known.and_then(|known| known.to_socket_addrs().ok()).into_iter().flatten().collect()
    }

    /// What is asked for; `None` as long as that is not known.
    #[must_use]
    pub fn asked(&self) -> Option<Asked> {
        self.lock().asked.clone()
    }

    /// What was asked for before this program began; what the server says counts more.
    pub fn remember(&self, manifest: &str) {
        let asked = Asked { manifest: Some(manifest.into()), generation: None };
        self.lock().asked.get_or_insert(asked);
    }

    /// Something is there to publish.
    pub fn wake(&self) {
        self.changed.notify_one();
        self.topology.notify_one();
    }

    /// Adds to a status what only the cluster knows: from within a container `/dev/kvm` cannot be tried, but KubeVirt's
    /// device plugin can, and offers the device where it is there.
    pub fn complete(&self, status: &mut InfraNodeStatus) {
        const STATE: &str = "capabilities.kvm.state";
        let inner = self.lock();
        let Sight::There(node) = &inner.node else { return };
        let offered = node
            .told
            .allocatable
            .get("devices.kubevirt.io/kvm")
            .is_some_and(|count| count.0 != "0");
        let forbidden = |unknown: &Unknown| {
            unknown.path == STATE && unknown.reason == UnknownReason::DeviceCgroup
        };
        if offered && status.unknown.iter().any(forbidden) {
            status.capabilities.kvm.state = Some(KvmState::Ready);
            status.unknown.retain(|unknown| !forbidden(unknown));
        }
    }

    /// The InfraNode's status as the server has it.
    #[must_use]
    pub fn status(&self) -> Option<InfraNodeStatus> {
        match &self.lock().infra_node {
            Sight::There(object) => object.status.clone(),
            Sight::Missing | Sight::Unknown => None,
        }
    }

    pub(super) fn infra_node(&self) -> Sight<InfraNodeSeen> {
        self.lock().infra_node.clone()
    }

    pub(super) fn node(&self) -> Sight<NodeSeen> {
        self.lock().node.clone()
    }

    pub(super) fn see_node(&self, node: Option<SlimNode>) {
        let sight = node.map_or(Sight::Missing, |node| {
            let status = node.status.unwrap_or_default();
            let told = publish::Told::of(
                &node.metadata,
                status.conditions,
                status.capacity,
                status.allocatable,
            );
            Sight::There(NodeSeen { uid: node.metadata.uid.unwrap_or_default(), told })
        });
        self.lock().node = sight;
        self.wake();
    }

    /// The status that was written. What is asked for is the watch's to tell, which begins a cycle.
    pub(super) fn see_status(&self, object: &DynamicObject) {
        let written = InfraNodeSeen::of(object);
        let mut inner = self.lock();
        if let Sight::There(known) = &mut inner.infra_node
            && known.uid == written.uid
        {
            *known = written;
        }
    }

    /// Whether it asks for something else than before.
    pub(super) fn see_infra_node(&self, object: Option<DynamicObject>) -> bool {
        let mut inner = self.lock();
        let asks_anew = match object {
            None => {
                // Deleted, or never there: the host keeps its last good shape.
                inner.infra_node = Sight::Missing;
                if inner.asked.is_none() {
                    inner.asked = Some(Asked { manifest: None, generation: None });
                    true
                } else {
                    false
                }
            }
            Some(object) => {
                let asked = asked(&object);
                inner.infra_node = Sight::There(InfraNodeSeen::of(&object));
                // An empty object that an agent made does not take back what was asked for before.
                let known = inner.asked.as_ref().is_some_and(|known| known.manifest.is_some());
                let keeps = asked.manifest.is_none() && known;
                let differs = inner.asked.as_ref() != Some(&asked);
                if differs && !keeps {
                    inner.asked = Some(asked);
                }
                differs && !keeps
            }
        };
        drop(inner);
        self.wake();
        asks_anew
    }
}

impl InfraNodeSeen {
    fn of(object: &DynamicObject) -> Self {
        let status = object.data.get("status").cloned();
        let mut status: Option<InfraNodeStatus> =
            status.and_then(|status| serde_json::from_value(status).ok());
        if let Some(status) = &mut status {
            status.conditions.retain(|one| conditions::TYPES.contains(&one.type_.as_str()));
        }
        Self { uid: object.uid().unwrap_or_default(), status }
    }
}

/// What an InfraNode asks for.
fn asked(object: &DynamicObject) -> Asked {
    let spec = object.data.get("spec").cloned().unwrap_or_else(|| json!({}));
    let empty = spec.as_object().is_some_and(serde_json::Map::is_empty);
    let number = object.metadata.generation;
    // The first generation of an object that an agent made is nobody's wish.
    let made_by_agent =
        object.annotations().contains_key(berth_api::names::CREATED_BY) && number == Some(1);
    // Nor is one that is on its way out: its deletion is a generation of its own.
    let leaves = object.metadata.deletion_timestamp.is_some();
    let manifest = (!(leaves || empty && made_by_agent)).then(|| manifest(&object.metadata, spec));
    let uid = object.uid().unwrap_or_default();
    Asked { manifest, generation: number.map(|number| Generation { uid, number }) }
}

fn manifest(metadata: &ObjectMeta, spec: Value) -> Arc<str> {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "InfraNode",
        "metadata": {"name": metadata.name},
        "spec": spec,
    });
    object.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(generation: i64, by_agent: bool, spec: &Value) -> DynamicObject {
        let annotations =
            if by_agent { json!({"berth.dev/created-by": "berth-agent"}) } else { json!({}) };
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": "a", "generation": generation, "annotations": annotations},
            "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn an_object_that_was_deleted_and_made_anew_takes_nothing_back() {
        let seen = Seen::default();
        assert_eq!(seen.asked(), None);
        let ksm = json!({"ksm": {"mode": "Off"}});
        assert!(seen.see_infra_node(Some(object(3, false, &ksm))));
        let asked = seen.asked();
        let mut leaves = serde_json::to_value(object(4, false, &json!({}))).unwrap();
        leaves["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(!seen.see_infra_node(Some(serde_json::from_value(leaves).unwrap())));
        assert!(!seen.see_infra_node(None));
        assert!(!seen.see_infra_node(Some(object(1, true, &json!({})))));
        assert_eq!(seen.asked(), asked);
        // But a person who empties the spec means it, and so does one who writes an empty object.
        assert!(seen.see_infra_node(Some(object(2, true, &json!({})))));
        assert!(seen.asked().unwrap().manifest.is_some());
        assert!(seen.see_infra_node(Some(object(1, false, &json!({})))));
    }

    #[test]
    fn what_was_asked_before_counts_until_the_server_speaks() {
        let seen = Seen::default();
        seen.remember("{}");
        assert_eq!(seen.asked().unwrap().generation, None);
        assert!(seen.see_infra_node(Some(object(4, false, &json!({})))));
        let generation = |uid: &str| Some(Generation { uid: uid.to_owned(), number: 4 });
        assert_eq!(seen.asked().unwrap().generation, generation(""));
        // A status alone asks for nothing.
        assert!(!seen.see_infra_node(Some(object(4, false, &json!({})))));
        // Another object asks for the same, with a generation of the same number: it has to be answered too.
        let mut another = object(4, false, &json!({}));
        another.metadata.uid = Some("b".to_owned());
        assert!(seen.see_infra_node(Some(another)));
        assert_eq!(seen.asked().unwrap().generation, generation("b"));
    }
}
