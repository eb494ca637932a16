//! HostProfile: what the hosts that it selects are asked to be, and what they are for.

#![expect(clippy::duplicated_attributes, reason = "printcolumn(..) repeats its keys by design")]
#![expect(
    unreachable_pub,
    reason = "KubeSchema copies each type into a function to build its rules"
)]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Condition;
use crate::infra_node::{CpuSpec, HugepagesSpec, KsmSpec, NetworkSpec, TransparentHugepages};

/// What the hosts that it selects are asked to be. The highest priority that selects a Node wins; a tie is a conflict and
/// applied by neither.
#[derive(
    CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq,
)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "HostProfile",
    plural = "hostprofiles",
    shortname = "hprof",
    category = "berth",
    status = "HostProfileStatus",
    derive = "PartialEq",
    doc = "What a kind of host is asked to be, and what it is for.",
    printcolumn(
        name = "Class",
        type_ = "string",
        json_path = ".spec.class",
        description = "Which VMs its hosts are for"
    ),
    printcolumn(
        name = "Priority",
        type_ = "integer",
        json_path = ".spec.priority",
        description = "The highest that selects a Node wins"
    ),
    printcolumn(
        name = "Hosts",
        type_ = "integer",
        json_path = ".status.hosts",
        description = "Hosts that are as it says"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        description = "False if another profile of the same priority selects the same Node"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct HostProfileSpec {
    /// Labels that a Node must have; without any, all Nodes are selected.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// The highest that selects a Node wins. Default 0.
    #[serde(default)]
    pub priority: i32,
    /// Which VMs its hosts are for. Default Standard.
    #[serde(default)]
    pub class: Class,
    /// CPUs kept for the host itself, and how strictly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuSpec>,
    /// Huge pages to reserve at runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub hugepages: Vec<HugepagesSpec>,
    /// Kernel samepage merging.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ksm: Option<KsmSpec>,
    /// The kernel's transparent huge page mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transparent_hugepages: Option<TransparentHugepages>,
    /// Host networks that can carry tenants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub networks: Vec<NetworkSpec>,
}

/// What became of a profile.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HostProfileStatus {
    /// Generation of the spec that this answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Hosts that it is applied to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<u32>,
    /// Ready: `False` names the other profile and the Nodes that both select.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What a host is for, and what a VM is.
#[derive(
    JsonSchema,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
)]
pub enum Class {
    /// VMs with CPUs and memory of their own. They stay off hosts that merge pages.
    Performance,
    /// More VMs than there is memory for, which live by merged pages.
    Density,
    /// Neither.
    #[default]
    Standard,
}

impl HostProfile {
    /// Whether it selects a Node with these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_selects_by_all_of_its_labels() {
        let labels = |all: &[(&str, &str)]| {
            all.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let mut profile = HostProfile::new("all", HostProfileSpec::default());
        assert!(profile.selects(&labels(&[])));
        profile.spec.node_selector = labels(&[("rack", "1"), ("disk", "nvme")]);
        assert!(profile.selects(&labels(&[("rack", "1"), ("disk", "nvme"), ("x", "y")])));
        assert!(!profile.selects(&labels(&[("rack", "1")])));
        assert!(!profile.selects(&labels(&[("rack", "2"), ("disk", "nvme")])));
    }
}
