//! HostProfile: desired state of the hosts that the profile selects, and the class of VMs for these hosts.

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
use crate::infra_node::{
    CpuSpec, DevicesSpec, HugepagesSpec, KsmSpec, NetworkSpec, TransparentHugepages,
};

/// Desired state of the hosts that the profile selects. The profile with the highest priority that selects a Node
/// applies. If several profiles of the same priority select a Node, they conflict, and none of them is applied to the
/// Node.
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
    doc = "Desired state of the hosts that the profile selects, and the class of VMs that these hosts run.",
    printcolumn(
        name = "Class",
        type_ = "string",
        json_path = ".spec.class",
        description = "Class of VMs that the hosts run"
    ),
    printcolumn(
        name = "Priority",
        type_ = "integer",
        json_path = ".spec.priority",
        description = "The profile with the highest priority that selects a Node applies"
    ),
    printcolumn(
        name = "Hosts",
        type_ = "integer",
        json_path = ".status.hosts",
        description = "Number of hosts to which the profile is applied"
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
    /// Labels that a Node must have to be selected. Default: all Nodes are selected.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Priority of the profile: of the profiles that select a Node, the one with the highest priority applies. Default
    /// 0.
    #[serde(default)]
    pub priority: i32,
    /// Class of VMs that the hosts run. Default Standard.
    #[serde(default)]
    pub class: Class,
    /// CPUs that are reserved for the host itself, and whether Berth confines the host's processes to these CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuSpec>,
    /// Huge pages to allocate at runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub hugepages: Vec<HugepagesSpec>,
    /// Configuration of kernel samepage merging (KSM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ksm: Option<KsmSpec>,
    /// Transparent huge page mode of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transparent_hugepages: Option<TransparentHugepages>,
    /// Devices of the hosts that VMs can use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<DevicesSpec>,
    /// Host networks, which carry tenants' networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub networks: Vec<NetworkSpec>,
}

/// Observed state of a profile.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HostProfileStatus {
    /// Generation of the spec from which this status was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of hosts to which the profile is applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<u32>,
    /// Conditions of the profile: Ready. If a conflict makes Ready `False`, its message names the other profile and the
    /// Nodes that both select.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Class of hosts and of VMs.
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
    /// VMs with dedicated CPUs. They are not placed on hosts with kernel samepage merging, so their memory is not shared.
    Performance,
    /// VMs with a memory request below the guest's memory. They need hosts with kernel samepage merging.
    Density,
    /// All other VMs.
    #[default]
    Standard,
}

impl HostProfile {
    /// Returns true if the profile selects a Node with these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_selects_nodes_with_all_its_labels() {
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
