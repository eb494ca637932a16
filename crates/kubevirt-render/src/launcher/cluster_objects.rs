//! Objects of the cluster on which a launcher pod depends: instance types, preferences, networks, namespaces.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::Value;

use super::amounts;
use super::instancetype_spec::{Instancetype, Preference};
use super::invalid::{self, Invalid};
use super::machine::Machine;
use super::namespace::{or_default, split_network_name};
use super::spec::Amounts;
use berth_kubelet_admission::pod::Resources;

/// Objects of a cluster, other than the VMs themselves, on which launcher pods depend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterObjects {
    /// Instance types by namespace (`None` for cluster instance types) and name.
    pub(super) instancetypes: BTreeMap<(Option<String>, String), Instancetype>,
    pub(super) preferences: BTreeMap<(Option<String>, String), Preference>,
    /// The device plugin resource that each NetworkAttachmentDefinition names, by `namespace/name` of the
    /// NetworkAttachmentDefinition. A launcher pod requests one unit of this resource for the network. The string is
    /// empty if the NetworkAttachmentDefinition names no resource.
    pub networks: BTreeMap<String, String>,
    /// `overhead.podFixed` of each runtime class, by name.
    pub runtime_classes: BTreeMap<String, Resources>,
    /// Labels of each namespace, by name.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Names of the namespaces in which a ResourceQuota limits the sum of CPU limits.
    pub cpu_limited_namespaces: BTreeSet<String>,
    /// Names of the namespaces in which a ResourceQuota limits the sum of memory limits.
    pub memory_limited_namespaces: BTreeSet<String>,
    /// Lowest TSC frequency of the cluster's nodes in Hz, for guests that need a fixed TSC frequency; `None` if it is
    /// unknown.
    pub lowest_tsc_frequency: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object<T> {
    kind: String,
    metadata: Metadata,
    spec: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ignored {}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Quota {
    hard: Amounts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeClass {
    metadata: Metadata,
    overhead: Overhead,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Overhead {
    pod_fixed: Amounts,
}

/// Annotation with which a NetworkAttachmentDefinition names a device plugin resource. KubeVirt requests one unit of
/// this resource for the launcher pod, so that the pod is scheduled to a node that has the resource.
pub const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";

impl ClusterObjects {
    /// Adds an object of the cluster. Returns false if launcher pods do not depend on objects of this kind.
    ///
    /// # Errors
    ///
    /// Returns the first malformed field. A malformed object is not added.
    pub fn add(&mut self, object: &Value) -> Result<bool, Invalid> {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        match kind {
            "VirtualMachineInstancetype" | "VirtualMachineClusterInstancetype" => {
                let read: Object<Instancetype> = invalid::deserialize(object)?;
                self.instancetypes.insert(object_key(object, &read)?, read.spec);
            }
            "VirtualMachinePreference" | "VirtualMachineClusterPreference" => {
                let read: Object<Preference> = invalid::deserialize(object)?;
                self.preferences.insert(object_key(object, &read)?, read.spec);
            }
            "NetworkAttachmentDefinition" => {
                let read: Object<Ignored> = invalid::deserialize(object)?;
                let Metadata { namespace, name, annotations, .. } = read.metadata;
                let resource = annotations.get(RESOURCE_NAME).cloned().unwrap_or_default();
                self.networks.insert(format!("{}/{name}", or_default(&namespace)), resource);
            }
            "Namespace" => {
                let read: Object<Ignored> = invalid::deserialize(object)?;
                self.namespaces.insert(read.metadata.name, read.metadata.labels);
            }
            "ResourceQuota" => {
                let read: Object<Quota> = invalid::deserialize(object)?;
                let namespace = or_default(&read.metadata.namespace).to_owned();
                if read.spec.hard.contains_key("limits.cpu") {
                    self.cpu_limited_namespaces.insert(namespace.clone());
                }
                if read.spec.hard.contains_key("limits.memory") {
                    self.memory_limited_namespaces.insert(namespace);
                }
            }
            "RuntimeClass" => {
                let read: RuntimeClass = invalid::deserialize(object)?;
                let (fixed, _) =
                    amounts::convert_resources(&read.overhead.pod_fixed).map_err(|error| {
                        let field = format!("overhead.podFixed.{}", error.field);
                        Invalid::new(
                            invalid::qualified_name(object),
                            field,
                            error.problem.to_string(),
                        )
                    })?;
                self.runtime_classes.insert(read.metadata.name, fixed);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Adds the NetworkAttachmentDefinitions that a machine names, as if they named no device plugin resources.
    pub fn add_networks_without_resource(&mut self, machine: &Machine) {
        let multus = machine.spec.networks.iter().filter_map(|network| network.multus.as_ref());
        let names = multus.map(|it| split_network_name(&machine.namespace, &it.network_name));
        let names = names.map(|(namespace, name)| format!("{namespace}/{name}"));
        self.networks.extend(names.map(|name| (name, String::new())));
    }

    /// Returns true if KubeVirt sets a CPU limit for pods of a namespace (`doesVMIRequireAutoCPULimits`).
    pub(super) fn requires_cpu_limits(
        &self,
        namespace: &str,
        selector: Option<&LabelSelector>,
    ) -> bool {
        let labels = self.namespaces.get(namespace);
        let selected = selector
            .zip(labels)
            .is_some_and(|(selector, labels)| selector_matches(selector, labels));
        self.cpu_limited_namespaces.contains(namespace) || selected
    }

    /// Returns the factor by which the memory request is multiplied to get the memory limit in a namespace
    /// (`getMemoryLimitsRatio`).
    pub(super) fn memory_limit_ratio(&self, namespace: &str) -> f64 {
        let labels = self.namespaces.get(namespace);
        let ratio =
            labels.and_then(|labels| labels.get("alpha.kubevirt.io/auto-memory-limits-ratio"));
        // If the configured ratio is invalid, KubeVirt logs a warning and uses its default, 2.0.
        ratio.and_then(|text| text.parse().ok()).filter(|r| (1.0..=1e6).contains(r)).unwrap_or(2.0)
    }
}

fn object_key<T>(object: &Value, read: &Object<T>) -> Result<(Option<String>, String), Invalid> {
    let name = read.metadata.name.clone();
    if name.is_empty() {
        return Err(Invalid::new(invalid::qualified_name(object), "metadata.name", "is missing"));
    }
    let is_cluster_scoped = read.kind.contains("Cluster");
    let namespace = (!is_cluster_scoped).then(|| or_default(&read.metadata.namespace).to_owned());
    Ok((namespace, name))
}

/// Returns true if a selector matches these labels. As in KubeVirt's controller, an empty selector matches
/// everything, and a selector with an unknown operator matches nothing.
fn selector_matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let pairs = selector.match_labels.iter().flatten();
    let terms = selector.match_expressions.iter().flatten();
    pairs.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && terms.into_iter().all(|term| {
            let found = labels.get(&term.key);
            let listed =
                found.is_some_and(|value| term.values.iter().flatten().any(|v| v == value));
            match term.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}
