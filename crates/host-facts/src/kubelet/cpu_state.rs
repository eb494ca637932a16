//! The file `cpu_manager_state`, with the CPUs that the kubelet's CPU Manager has allocated to containers.
//!
//! Format: `pkg/kubelet/cm/cpumanager/state/checkpoint.go`. Only the kubelet verifies the checksum in the file: it is a
//! hash of the structure as Go prints it, which this module does not reproduce.

use std::collections::BTreeMap;

use berth_api::CpuSet;
use serde::{Deserialize, Serialize};

use super::go_json::null_is_empty;

/// The checkpoint of the CPU Manager. Fields that later versions of Kubernetes add are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuManagerState {
    /// CPU Manager policy of the kubelet that wrote the checkpoint. A kubelet with a different policy refuses to start.
    pub policy_name: String,
    /// CPUs of the shared pool, on which containers without exclusive CPUs run.
    #[serde(default)]
    pub default_cpu_set: CpuSet,
    /// Exclusive CPUs by pod UID and container name.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub entries: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// Exclusive CPUs that are allocated to whole pods, by pod UID (feature PodLevelResourceManagers, Kubernetes 1.36).
    #[serde(default, deserialize_with = "null_is_empty")]
    pub pod_entries: BTreeMap<String, PodEntry>,
}

/// Resources that are allocated to a whole pod and shared by its containers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodEntry {
    /// Exclusive CPUs of the pod.
    #[serde(default)]
    pub cpu_set: CpuSet,
}

impl CpuManagerState {
    /// Returns the exclusive CPUs of each pod, by pod UID.
    #[must_use]
    pub fn exclusive_cpus_by_pod(&self) -> BTreeMap<&str, CpuSet> {
        let union_of = |containers: &BTreeMap<String, CpuSet>| {
            containers.values().fold(CpuSet::new(), |all, cpus| all.union(cpus))
        };
        let mut pods: BTreeMap<&str, CpuSet> = self
            .entries
            .iter()
            .map(|(pod, containers)| (pod.as_str(), union_of(containers)))
            .collect();
        for (pod, entry) in &self.pod_entries {
            let cpus = pods.entry(pod).or_default();
            *cpus = cpus.union(&entry.cpu_set);
        }
        pods
    }

    /// Returns all CPUs that are allocated exclusively to a container or pod.
    #[must_use]
    pub fn exclusive_cpus(&self) -> CpuSet {
        self.exclusive_cpus_by_pod().values().fold(CpuSet::new(), |all, cpus| all.union(cpus))
    }

    /// Returns all CPUs in the checkpoint: the shared pool and all exclusive CPUs.
    #[must_use]
    pub fn all_cpus(&self) -> CpuSet {
        self.default_cpu_set.union(&self.exclusive_cpus())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_checkpoint_is_parsed() {
        let text = r#"{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"uid-1":{"compute":"1-2",
            "sidecar":"8"}},"checksum":1261164297}"#;
        let state: CpuManagerState = serde_json::from_str(text).unwrap();
        assert_eq!(state.exclusive_cpus_by_pod()["uid-1"].to_string(), "1-2,8");
        assert_eq!(state.all_cpus().to_string(), "0-8");
    }

    #[test]
    fn pod_level_cpu_assignments_are_read() {
        let text = r#"{"policyName":"static","defaultCpuSet":"0-3","entries":{"uid":{"c":"4"}},
            "podEntries":{"uid":{"cpuSet":"4-5"},"other":{"cpuSet":"6"}},"checksum":1}"#;
        let state: CpuManagerState = serde_json::from_str(text).unwrap();
        assert_eq!(state.exclusive_cpus_by_pod()["uid"].to_string(), "4-5");
        assert_eq!(state.all_cpus().to_string(), "0-6");
    }

    #[test]
    fn checkpoint_of_policy_none_has_no_cpus() {
        let text = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
        let state: CpuManagerState = serde_json::from_str(text).unwrap();
        assert!(state.all_cpus().is_empty());
    }

    #[test]
    fn invalid_checkpoint_is_an_error() {
        for text in ["", "{}", "[]", r#"{"policyName":"static","defaultCpuSet":"x"}"#] {
            assert!(serde_json::from_str::<CpuManagerState>(text).is_err(), "{text}");
        }
    }
}
