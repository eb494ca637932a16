//! Differences between two configurations of a kubelet, by field.

use berth_api::CpuSet;
use serde::Serialize;

use super::config::KubeletConfig;

/// A field that has different values in two configurations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldDifference {
    /// Name of the field in the configuration.
    pub field: &'static str,
    /// Value in the actual configuration.
    #[serde(rename = "is")]
    pub actual: String,
    /// Value in the desired configuration.
    #[serde(rename = "shouldBe")]
    pub desired: String,
}

/// Name of a field of the kubelet's configuration, and a function that formats the field's value.
type FieldFormatter = (&'static str, fn(&KubeletConfig) -> String);

/// The fields that determine from which NUMA zones a VM gets CPUs and memory.
const FIELDS: [FieldFormatter; 8] = [
    ("cpuManagerPolicy", |config| config.cpu_manager_policy.clone()),
    ("cpuManagerPolicyOptions", |config| {
        format_enabled_options(&config.cpu_manager_policy_options)
    }),
    ("reservedSystemCPUs", |config| {
        config.reserved_system_cpus.as_ref().map(CpuSet::to_string).unwrap_or_default()
    }),
    ("topologyManagerPolicy", |config| config.topology_manager_policy.clone()),
    ("topologyManagerScope", |config| config.topology_manager_scope.clone()),
    ("topologyManagerPolicyOptions", |config| {
        format_enabled_options(&config.topology_manager_policy_options)
    }),
    ("memoryManagerPolicy", |config| config.memory_manager_policy.clone()),
    ("reservedMemory", format_reserved_memory),
];

/// Returns the fields whose values differ between the actual and the desired configuration.
#[must_use]
pub fn find_differences(actual: &KubeletConfig, desired: &KubeletConfig) -> Vec<FieldDifference> {
    let compare = |(field, value_of): &FieldFormatter| {
        let (is, should_be) = (value_of(actual), value_of(desired));
        (is != should_be).then_some(FieldDifference { field, actual: is, desired: should_be })
    };
    FIELDS.iter().filter_map(compare).collect()
}

/// Formats the names of the options that are not off. An option with another value than `true` is formatted as name and
/// value.
fn format_enabled_options(options: &std::collections::BTreeMap<String, String>) -> String {
    let shown = options.iter().filter(|(_, value)| *value != "false").map(|(name, value)| {
        if value == "true" { name.clone() } else { format!("{name}={value}") }
    });
    shown.collect::<Vec<_>>().join(",")
}

fn format_reserved_memory(config: &KubeletConfig) -> String {
    let zones = config.reserved_memory.iter().map(|(zone, limits)| {
        let limits = limits.iter().map(|(name, bytes)| format!("{name}={bytes}"));
        format!("{zone}:{}", limits.collect::<Vec<_>>().join(","))
    });
    zones.collect::<Vec<_>>().join(";")
}
