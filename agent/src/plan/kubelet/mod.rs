//! The kubelet: what its configuration should be, how to get there, and what must not be done before.
//!
//! A kubelet refuses to start if its checkpoints were written under another policy or for other huge pages, and writes
//! them again while it runs. So nothing here takes effect unless the node is drained and its kubelet stopped, and then
//! only together with the removal of the checkpoints. The kubelet is never stopped or started by Berth.

mod drop_in;
mod refusal;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use berth_api::infra_node::{KubeletMode, Zone};
use berth_api::{Bytes, CpuSet};
use serde::Serialize;

use super::{Change, Input, Targets};
use crate::manifest::{Fault, Part};
use berth_host_facts::kubelet::KubeletConfig;
pub use berth_host_facts::kubelet::fields::Difference;
use berth_host_facts::kubelet::fields::differences;
pub use drop_in::{HEADER, KubeletAction};
use drop_in::{stage, take_away};
pub(super) use refusal::{Counted, counted, without_checkpoint};
pub use refusal::{Refused, next_start};
use refusal::{checkpoint, refused_by};
pub(crate) use refusal::{drain_stop_remove_start, restart_needed};

/// How the kubelet's configuration should be, and the way there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// Fields that differ.
    pub differences: Vec<Difference>,
    /// The fields as a KubeletConfiguration, in YAML.
    pub configuration: String,
    /// What to do, in this order; commands where there are any.
    pub steps: Vec<String>,
}

/// Zones beyond which the kubelet's Topology Manager refuses to start unless told otherwise.
const MAX_ZONES: usize = 8;

pub(super) fn plan(
    input: Input,
    reserved: Option<&CpuSet>,
    frozen: &BTreeSet<Part>,
    targets: &mut Targets,
) -> (Vec<Change>, Option<Advice>) {
    if frozen.contains(&Part::Cpu) {
        return (Vec::new(), None);
    }
    let mode = input.spec.cpu.as_ref().and_then(|cpu| cpu.kubelet);
    let kubelet = &input.facts.kubelet;
    let (Some(mode @ (KubeletMode::Advise | KubeletMode::Stage)), Some(reserved)) =
        (mode, reserved)
    else {
        if let (Some(mode @ (KubeletMode::Advise | KubeletMode::Stage)), None) = (mode, reserved) {
            let message = "needs spec.cpu.reserved: the CPUs that the kubelet shall keep";
            targets.faults.push(Fault::new("spec.cpu.kubelet", format!("{mode:?}"), message));
        }
        return (take_away(input), None);
    };
    let Some(config) = &kubelet.config else {
        let why = kubelet.config_fault.as_ref().map_or("not found", |(_, why)| why.as_str());
        targets.notes.push(format!("the kubelet's configuration is not known ({why}): no advice"));
        return (Vec::new(), None);
    };
    let desired = desired(input, config, reserved);
    let differences = differences(config, &desired);
    let configuration = render(&desired);
    let changes = match mode {
        KubeletMode::Stage => stage(input, &differences, &configuration),
        _ => take_away(input),
    };
    let advice = (!differences.is_empty()).then(|| Advice {
        steps: steps(input, mode, &desired),
        differences,
        configuration,
    });
    (changes, advice)
}

/// The configuration with what the reservation needs; everything else as it is.
fn desired(input: Input, config: &KubeletConfig, reserved: &CpuSet) -> KubeletConfig {
    let facts = input.facts;
    let mut desired = config.clone();
    "static".clone_into(&mut desired.cpu_manager_policy);
    desired.reserved_system_cpus = Some(reserved.clone());
    if facts.topology.threads_per_core() > 1 {
        // VMs get whole cores: no two tenants on the threads of one.
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
    // Without knowing what must add up, the Memory Manager stays as it is.
    if let Some(needed) = config.node_reserved_memory(facts.memory.total) {
        "Static".clone_into(&mut desired.memory_manager_policy);
        let kept: u64 = memory_of(&config.reserved_memory).values().map(|bytes| bytes.0).sum();
        if kept != needed.0 {
            share(needed, &with_cpus, &mut desired.reserved_memory);
        }
    }
    desired
}

fn memory_of(reserved: &BTreeMap<u32, BTreeMap<String, Bytes>>) -> BTreeMap<u32, Bytes> {
    let memory =
        |(zone, limits): (&u32, &BTreeMap<String, Bytes>)| Some((*zone, *limits.get("memory")?));
    reserved.iter().filter_map(memory).collect()
}

/// Spreads memory over zones in whole MiB; the first zone gets what does not divide. The sum must be exact:
/// the kubelet refuses any other.
fn share(needed: Bytes, zones: &[u32], reserved: &mut BTreeMap<u32, BTreeMap<String, Bytes>>) {
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

/// Only the fields that Berth has an opinion on.
fn render(config: &KubeletConfig) -> String {
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

fn steps(input: Input, mode: KubeletMode, desired: &KubeletConfig) -> Vec<String> {
    let kubelet = &input.facts.kubelet;
    let node = input.facts.node_name().unwrap_or("NODE");
    let mut steps =
        vec![format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data")];
    if mode == KubeletMode::Stage && kubelet.config_dir.is_some() {
        steps.push(format!("systemctl stop {}", kubelet.unit));
        steps.push("wait until `berth-agent plan` shows the drop-in active: the agent then has removed the checkpoints".to_owned());
        steps.push(format!("systemctl start {}", kubelet.unit));
    } else {
        steps.push(format!("systemctl stop {}", kubelet.unit));
        let file = kubelet.sources.first().map_or("the kubelet's configuration", String::as_str);
        let flags = kubelet.set_by_flags.join(", ");
        let flags =
            if flags.is_empty() { flags } else { format!(", and take its flags for {flags} away") };
        steps.push(format!("put the fields below into {file}{flags}"));
        let remove: Vec<String> = refused_by(input.facts, desired)
            .into_iter()
            .map(|(name, _)| checkpoint(kubelet, name))
            .collect();
        if !remove.is_empty() {
            let remove = remove.join(" ");
            steps.push(format!("rm {remove}   # the kubelet would not start with it"));
        }
        steps.push(format!("systemctl start {}", kubelet.unit));
    }
    steps.push(format!("kubectl uncordon {node}"));
    steps
}
