//! Computes the desired configuration of the kubelet.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use berth_api::infra_node::Zone;
use berth_api::{Bytes, CpuSet};

use crate::plan::input::Input;
use berth_host_facts::kubelet::KubeletConfig;

/// Maximum number of zones with which the kubelet's Topology Manager starts by default.
const MAX_ZONES: usize = 8;

/// Returns the configuration with the fields that the reservation needs; all other fields are
/// unchanged.
pub(super) fn desired_config(
    input: Input,
    config: &KubeletConfig,
    reserved: &CpuSet,
) -> KubeletConfig {
    let facts = input.facts;
    let mut desired = config.clone();
    "static".clone_into(&mut desired.cpu_manager_policy);
    desired.reserved_system_cpus = Some(reserved.clone());
    if facts.topology.max_threads_per_core() > 1 {
        // VMs get whole cores, so that two tenants never share the threads of a core.
        desired.cpu_manager_policy_options.insert("full-pcpus-only".to_owned(), "true".to_owned());
    }
    let has_cpus = |zone: &&Zone| zone.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty());
    let has_memory = |zone: &&Zone| zone.memory.is_none_or(|memory| memory.0 > 0);
    let with_cpus: Vec<u32> =
        facts.zones.iter().filter(has_cpus).filter(has_memory).map(|zone| zone.id).collect();
    if with_cpus.len() < 2 {
        return desired;
    }
    if config.topology_manager_policy == "none" && facts.zones.len() <= MAX_ZONES {
        "single-numa-node".clone_into(&mut desired.topology_manager_policy);
    }
    // If the required sum is unknown, the configuration of the Memory Manager is unchanged.
    if let Some(needed) = config.node_reserved_memory(facts.memory.total) {
        "Static".clone_into(&mut desired.memory_manager_policy);
        let reserved_sum: u64 =
            memory_by_zone(&config.reserved_memory).values().map(|bytes| bytes.0).sum();
        if reserved_sum != needed.0 {
            distribute_memory(needed, &with_cpus, &mut desired.reserved_memory);
        }
    }
    desired
}

fn memory_by_zone(reserved: &BTreeMap<u32, BTreeMap<String, Bytes>>) -> BTreeMap<u32, Bytes> {
    let memory =
        |(zone, limits): (&u32, &BTreeMap<String, Bytes>)| Some((*zone, *limits.get("memory")?));
    reserved.iter().filter_map(memory).collect()
}

/// Distributes memory over zones in whole MiB; the first zone gets the remainder. The sum must be exact,
/// because the kubelet refuses any other sum.
fn distribute_memory(
    needed: Bytes,
    zones: &[u32],
    reserved: &mut BTreeMap<u32, BTreeMap<String, Bytes>>,
) {
    for limits in reserved.values_mut() {
        limits.remove("memory");
    }
    let part = ((needed.0 / zones.len() as u64) >> 20) << 20;
    for (index, zone) in zones.iter().enumerate() {
        let rest = if index == 0 { needed.0 - part * zones.len() as u64 } else { 0 };
        if part + rest > 0 {
            reserved.entry(*zone).or_default().insert("memory".to_owned(), Bytes(part + rest));
        }
    }
    reserved.retain(|_, limits| !limits.is_empty());
}

/// Returns the fields that Berth manages, in YAML.
pub(super) fn render_config(config: &KubeletConfig) -> String {
    let mut text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: {}\n",
        config.cpu_manager_policy
    );
    if !config.cpu_manager_policy_options.is_empty() {
        text.push_str("cpuManagerPolicyOptions:\n");
        for (name, value) in &config.cpu_manager_policy_options {
            // Writing to a String cannot fail.
            writeln!(text, "  {name}: \"{value}\"").unwrap_or_default();
        }
    }
    let cpus = config.reserved_system_cpus.clone().unwrap_or_default();
    writeln!(
        text,
        "reservedSystemCPUs: \"{cpus}\"\ntopologyManagerPolicy: {}\nmemoryManagerPolicy: {}",
        config.topology_manager_policy, config.memory_manager_policy
    )
    .unwrap_or_default();
    if config.memory_manager_policy == "Static" && !config.reserved_memory.is_empty() {
        text.push_str("reservedMemory:\n");
        for (zone, limits) in &config.reserved_memory {
            writeln!(text, "- numaNode: {zone}\n  limits:").unwrap_or_default();
            for (name, bytes) in limits {
                writeln!(text, "    {name}: {bytes}").unwrap_or_default();
            }
        }
    }
    text
}
