//! Pods on a tenant's Node, reduced to the fields that a drain needs. The pods that a drain skips are those that
//! `kubectl drain` skips.

use berth_runtime::object_name::is_valid_name;
use berth_runtime::untrusted::BoundedVec;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Largest number of owners of a pod that are read.
const MAX_OWNERS: usize = 16;
/// Largest length of a UID in bytes; the API server writes UUIDs of 36 bytes.
const MAX_UID_LENGTH: usize = 64;
/// Kind of the owners whose pods a drain skips, because the DaemonSet controller would create these pods again on the
/// same Node.
const DAEMON_SET: &str = "DaemonSet";
/// Phases of pods that have ended.
const FINISHED_PHASES: [&str; 2] = ["Succeeded", "Failed"];

/// A pod in an answer of a tenant's API server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodObject {
    metadata: Metadata,
    status: Option<Status>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    deletion_timestamp: Option<IgnoredAny>,
    deletion_grace_period_seconds: Option<i64>,
    annotations: Option<Annotations>,
    owner_references: Option<BoundedVec<Owner, MAX_OWNERS>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Annotations {
    /// Annotation of mirror pods, which represent the static pods that a kubelet reads from files.
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Owner {
    kind: String,
    controller: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

/// A pod that must leave a Node before the Node is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainPod {
    /// Namespace of the pod, which is valid as a part of a URL.
    pub namespace: String,
    /// Name of the pod, which is valid as a part of a URL.
    pub name: String,
    /// UID of the pod: another pod of the same name must not be evicted.
    pub uid: String,
    /// End of the pod's grace period if it is being deleted. It is measured with the controller's clock, because the
    /// tenant's clock may be wrong: the grace period begins when the controller first sees the deletion.
    pub terminating: Option<Timestamp>,
}

impl DrainPod {
    /// Reads a pod; `None` if a drain skips it: pods of DaemonSets, pods that a kubelet reads from files, and pods that
    /// have ended. A pod without a valid name, or with a UID that is too long, is skipped too: no API server stores
    /// such a pod. So a pod needs less than 1 KiB of memory.
    #[must_use]
    pub fn from_object(object: PodObject, now: Timestamp) -> Option<Self> {
        let PodObject { metadata, status } = object;
        let is_mirror = metadata.annotations.is_some_and(|all| all.mirror.is_some());
        let mut owners = metadata.owner_references.iter().flat_map(|owners| &owners.items);
        let is_of_daemon_set =
            owners.any(|owner| owner.controller == Some(true) && owner.kind == DAEMON_SET);
        let has_ended =
            status.is_some_and(|status| FINISHED_PHASES.contains(&status.phase.as_str()));
        let is_valid = is_valid_name(&metadata.name)
            && is_valid_name(&metadata.namespace)
            && metadata.uid.len() <= MAX_UID_LENGTH;
        if is_mirror || is_of_daemon_set || has_ended || !is_valid {
            return None;
        }
        let grace_period = metadata.deletion_grace_period_seconds.unwrap_or_default().max(0);
        let end = now.checked_add(SignedDuration::from_secs(grace_period));
        let terminating = metadata.deletion_timestamp.map(|_| end.unwrap_or(Timestamp::MAX));
        let Metadata { name, namespace, uid, .. } = metadata;
        Some(Self { namespace, name, uid, terminating })
    }

    /// Returns the namespace and the name, for messages.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn read(metadata: Value, status: Value) -> Option<DrainPod> {
        let mut object = json!({"metadata": metadata, "status": status, "spec": {"nodeName": "a"}});
        for (key, value) in [("name", "web-1"), ("namespace", "shop"), ("uid", "u")] {
            if object["metadata"].get(key).is_none() {
                object["metadata"][key] = value.into();
            }
        }
        DrainPod::from_object(serde_json::from_value(object).unwrap(), now())
    }

    fn now() -> Timestamp {
        "2026-05-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn pods_are_skipped_as_by_kubectl_drain() {
        let running = || json!({"phase": "Running"});
        let owner = |kind: &str, controller: bool| json!({"ownerReferences": [{"kind": kind, "name": "x", "controller": controller}]});
        assert_eq!(read(json!({}), running()).unwrap().qualified_name(), "shop/web-1");
        assert!(read(json!({}), json!(null)).is_some());
        assert!(read(owner("ReplicaSet", true), running()).is_some());
        assert!(read(owner("DaemonSet", false), running()).is_some());
        assert!(read(owner("DaemonSet", true), running()).is_none());
        let mirror = json!({"annotations": {"kubernetes.io/config.mirror": "hash", "a": "b"}});
        assert!(read(mirror, running()).is_none());
        for phase in FINISHED_PHASES {
            assert!(read(json!({}), json!({"phase": phase})).is_none());
        }
        // The tenant's clock is not used.
        let end = |seconds: Option<i64>| {
            let time = "2020-01-01T00:00:00Z";
            let deletion =
                json!({"deletionTimestamp": time, "deletionGracePeriodSeconds": seconds});
            read(deletion, running()).unwrap().terminating
        };
        assert_eq!(end(Some(60)), Some("2026-05-01T12:01:00Z".parse().unwrap()));
        assert_eq!((end(None), end(Some(-9))), (Some(now()), Some(now())));
        assert_eq!(end(Some(i64::MAX)), Some(Timestamp::MAX));
        assert_eq!(read(json!({"deletionTimestamp": null}), running()).unwrap().terminating, None);
    }

    #[test]
    fn names_that_are_no_part_of_a_url_are_skipped() {
        for name in ["../x", "a/b", "a?b", "", "A"] {
            assert!(read(json!({"name": name}), json!({})).is_none(), "{name}");
            assert!(read(json!({"namespace": name}), json!({})).is_none(), "{name}");
        }
    }

    #[test]
    fn long_texts_are_skipped() {
        assert!(read(json!({"uid": "u".repeat(MAX_UID_LENGTH)}), json!({})).is_some());
        assert!(read(json!({"uid": "u".repeat(MAX_UID_LENGTH + 1)}), json!({})).is_none());
        assert!(read(json!({"name": "n".repeat(254)}), json!({})).is_none());
    }

    proptest! {
        #[test]
        fn any_text_gives_a_pod_or_nothing(text in "\\PC{0,80}") {
            if let Ok(object) = serde_json::from_str::<PodObject>(&text) {
                drop(DrainPod::from_object(object, now()));
            }
        }
    }
}
