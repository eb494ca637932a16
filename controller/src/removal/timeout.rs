//! Time limit of the drain of a machine.

use berth_api::names::NODE_DRAIN_TIMEOUT_ANNOTATION;
use berth_api::{DrainTimeout, TenantClusterSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::DynamicObject;

/// Time limit of the drain of a machine, and the problems of annotations that specify another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedTimeout {
    /// The time limit.
    pub timeout: DrainTimeout,
    /// Malformed annotations, which are ignored: kind of the object, and the problem with the value.
    pub problems: Vec<String>,
}

/// Returns the time limit of a machine: that of its annotation, of its MachineDeployment's annotation, or of its tenant,
/// in this order.
#[must_use]
pub fn drain_timeout(
    machine: &DynamicObject,
    deployment: Option<&DynamicObject>,
    tenant: &TenantClusterSpec,
) -> ResolvedTimeout {
    let mut problems = Vec::new();
    let objects = [("VirtualMachine", Some(machine)), ("MachineDeployment", deployment)];
    for (kind, object) in objects {
        let annotations = object.map(|object| object.annotations());
        let value = annotations.and_then(|all| all.get(NODE_DRAIN_TIMEOUT_ANNOTATION));
        match value.map(|value| value.parse()) {
            Some(Ok(timeout)) => return ResolvedTimeout { timeout, problems },
            Some(Err(error)) => {
                problems
                    .push(format!("{kind}: annotation {NODE_DRAIN_TIMEOUT_ANNOTATION}: {error}"));
            }
            None => {}
        }
    }
    let timeout = tenant.node_drain_timeout.unwrap_or(DrainTimeout::DEFAULT);
    ResolvedTimeout { timeout, problems }
}

/// Returns the time at which a drain ends.
#[must_use]
pub fn deadline(since: Timestamp, timeout: DrainTimeout) -> Timestamp {
    let timeout = SignedDuration::try_from(timeout.duration()).unwrap_or(SignedDuration::ZERO);
    since.checked_add(timeout).unwrap_or(since)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(timeout: Option<&str>) -> DynamicObject {
        let annotations = timeout.map(|value| json!({NODE_DRAIN_TIMEOUT_ANNOTATION: value}));
        let metadata = json!({"name": "a", "annotations": annotations.unwrap_or_default()});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn the_closest_object_determines_the_time_limit() {
        let resolve = |machine: Option<&str>, deployment: Option<&str>, tenant: Option<&str>| {
            let spec = TenantClusterSpec {
                node_drain_timeout: tenant.map(|value| value.parse().unwrap()),
                ..TenantClusterSpec::default()
            };
            let deployment = object(deployment);
            let resolved = drain_timeout(&object(machine), Some(&deployment), &spec);
            (resolved.timeout.to_string(), resolved.problems.len())
        };
        assert_eq!(resolve(None, None, None), ("2h".to_owned(), 0));
        assert_eq!(resolve(None, None, Some("5m")), ("5m".to_owned(), 0));
        assert_eq!(resolve(None, Some("10m"), Some("5m")), ("10m".to_owned(), 0));
        assert_eq!(resolve(Some("0"), Some("10m"), Some("5m")), ("0".to_owned(), 0));
        assert_eq!(resolve(Some("soon"), Some("never"), Some("5m")), ("5m".to_owned(), 2));
    }

    #[test]
    fn the_deadline_follows_the_mark() {
        let since: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        let expected: Timestamp = "2026-05-01T14:00:00Z".parse().unwrap();
        assert_eq!(deadline(since, DrainTimeout::DEFAULT), expected);
        assert_eq!(deadline(Timestamp::MAX, DrainTimeout::DEFAULT), Timestamp::MAX);
    }
}
