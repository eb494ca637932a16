//! Time limit of the drain of a machine.

use std::fmt;

use berth_api::names::NODE_DRAIN_TIMEOUT_ANNOTATION;
use berth_api::{DrainTimeout, InfraConfigSpec, TenantClusterSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::DynamicObject;

/// Time limit of the drain of a machine, and the problems of the annotations that specify a time limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedTimeout {
    /// The time limit.
    pub timeout: DrainTimeout,
    /// Problems of malformed annotations, which are ignored, and of annotations that exceed the limit. Each names the
    /// kind of the object and the value.
    pub problems: Vec<String>,
}

/// Longest time limit that an annotation may specify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutLimit {
    /// There is no limit.
    None,
    /// `spec.maxNodeDrainTimeout` of the InfraConfig.
    Config(DrainTimeout),
    /// No version of the InfraConfig could be parsed since the controller started, so its limit is not known.
    Fallback,
}

impl TimeoutLimit {
    /// Returns the limit of the last valid InfraConfig. `is_malformed` is true if the current InfraConfig cannot be
    /// parsed.
    #[must_use]
    pub fn new(last_valid: Option<&InfraConfigSpec>, is_malformed: bool) -> Self {
        match last_valid {
            Some(config) => config.max_node_drain_timeout.map_or(Self::None, Self::Config),
            None if is_malformed => Self::Fallback,
            None => Self::None,
        }
    }

    const fn longest(self) -> Option<DrainTimeout> {
        match self {
            Self::None => None,
            Self::Config(longest) => Some(longest),
            Self::Fallback => Some(DrainTimeout::FALLBACK_LIMIT),
        }
    }
}

impl fmt::Display for TimeoutLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("there is no limit"),
            Self::Config(longest) => {
                write!(f, "spec.maxNodeDrainTimeout of the InfraConfig is {longest}")
            }
            Self::Fallback => write!(
                f,
                "the limit is {} until the InfraConfig can be parsed",
                DrainTimeout::FALLBACK_LIMIT
            ),
        }
    }
}

/// Returns the time limit of a machine: that of its annotation, of its MachineDeployment's annotation, or of its
/// tenant, in this order. Values of annotations are limited, because tenants may write them.
#[must_use]
pub fn drain_timeout(
    machine: &DynamicObject,
    deployment: Option<&DynamicObject>,
    tenant: &TenantClusterSpec,
    limit: TimeoutLimit,
) -> ResolvedTimeout {
    let mut problems = Vec::new();
    let objects = [("VirtualMachine", Some(machine)), ("MachineDeployment", deployment)];
    for (kind, object) in objects {
        let annotations = object.map(|object| object.annotations());
        let value = annotations.and_then(|all| all.get(NODE_DRAIN_TIMEOUT_ANNOTATION));
        match value.map(|value| value.parse::<DrainTimeout>()) {
            Some(Ok(timeout)) => {
                let longest = limit.longest().filter(|&longest| timeout > longest);
                if longest.is_some() {
                    problems.push(format!(
                        "{kind}: annotation {NODE_DRAIN_TIMEOUT_ANNOTATION}: `{timeout}` is not used: {limit}"
                    ));
                }
                return ResolvedTimeout { timeout: longest.unwrap_or(timeout), problems };
            }
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
            let resolved =
                drain_timeout(&object(machine), Some(&deployment), &spec, TimeoutLimit::None);
            (resolved.timeout.to_string(), resolved.problems.len())
        };
        assert_eq!(resolve(None, None, None), ("2h".to_owned(), 0));
        assert_eq!(resolve(None, None, Some("5m")), ("5m".to_owned(), 0));
        assert_eq!(resolve(None, Some("10m"), Some("5m")), ("10m".to_owned(), 0));
        assert_eq!(resolve(Some("0"), Some("10m"), Some("5m")), ("0".to_owned(), 0));
        assert_eq!(resolve(Some("soon"), Some("never"), Some("5m")), ("5m".to_owned(), 2));
    }

    #[test]
    fn annotations_are_limited() {
        let day: DrainTimeout = "24h".parse().unwrap();
        let resolve = |annotation: Option<&str>, tenant: &str| {
            let node_drain_timeout = Some(tenant.parse().unwrap());
            let spec = TenantClusterSpec { node_drain_timeout, ..TenantClusterSpec::default() };
            let deployment = object(annotation);
            let limit = TimeoutLimit::Config(day);
            let resolved = drain_timeout(&object(None), Some(&deployment), &spec, limit);
            (resolved.timeout.to_string(), resolved.problems)
        };
        let (timeout, problems) = resolve(Some("8760h"), "1h");
        assert_eq!(timeout, "24h");
        assert_eq!(
            problems,
            ["MachineDeployment: annotation berth.dev/node-drain-timeout: `8760h` is not used: \
                 spec.maxNodeDrainTimeout of the InfraConfig is 24h"]
        );
        assert_eq!(resolve(Some("24h"), "1h"), ("24h".to_owned(), Vec::new()));
        assert_eq!(resolve(None, "48h"), ("48h".to_owned(), Vec::new()));
    }

    #[test]
    fn annotations_are_limited_while_the_infra_config_cannot_be_parsed() {
        let hour: DrainTimeout = "1h".parse().unwrap();
        let config =
            InfraConfigSpec { max_node_drain_timeout: Some(hour), ..InfraConfigSpec::default() };
        assert_eq!(TimeoutLimit::new(None, false), TimeoutLimit::None);
        assert_eq!(TimeoutLimit::new(Some(&InfraConfigSpec::default()), true), TimeoutLimit::None);
        // The last valid value stays in use.
        assert_eq!(TimeoutLimit::new(Some(&config), true), TimeoutLimit::Config(hour));
        // The controller started with a malformed InfraConfig.
        let limit = TimeoutLimit::new(None, true);
        let spec = TenantClusterSpec::default();
        let resolve = |value| drain_timeout(&object(Some(value)), None, &spec, limit);
        assert_eq!(resolve("24h").problems, Vec::<String>::new());
        let resolved = resolve("8760h");
        assert_eq!(resolved.timeout, DrainTimeout::FALLBACK_LIMIT);
        assert_eq!(
            resolved.problems,
            [
                "VirtualMachine: annotation berth.dev/node-drain-timeout: `8760h` is not used: the limit is 24h \
                 until the InfraConfig can be parsed"
            ]
        );
    }

    #[test]
    fn the_deadline_depends_on_the_mark() {
        let since: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        let expected: Timestamp = "2026-05-01T14:00:00Z".parse().unwrap();
        assert_eq!(deadline(since, DrainTimeout::DEFAULT), expected);
        assert_eq!(deadline(Timestamp::MAX, DrainTimeout::DEFAULT), Timestamp::MAX);
    }
}
