//! The kubelet: what its configuration should be, how to get there, and what must not be done before.
//!
//! A kubelet refuses to start if its checkpoints were written under another policy or for other huge
//! pages. So nothing here takes effect unless the node is drained, and then only together with the
//! removal of the checkpoints. The kubelet is never restarted by Berth.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use berth_api::infra_node::{KubeletMode, Zone};
use berth_api::{Bytes, CpuSet, PageSize};
use serde::Serialize;

use super::{Action, Change, Disruption, Input, Targets, Why};
use crate::manifest::{Fault, Part};
use crate::observe::HostFacts;
use crate::observe::kubelet::{KubeletConfig, KubeletFacts};
use crate::observe::shape::Shape;

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

/// A field of the kubelet's configuration that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Its name.
    pub field: &'static str,
    /// What it is.
    pub is: String,
    /// What it should be.
    pub should_be: String,
}

/// What is done to the kubelet's files; paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubeletAction {
    /// Writes the drop-in under a name that the kubelet does not read.
    Stage {
        /// Where to.
        staged: String,
        /// What.
        text: String,
    },
    /// Removes the checkpoints, then gives the drop-in the name that the kubelet reads at its next start.
    Activate {
        /// Its name until then.
        staged: String,
        /// Its name from then on.
        active: String,
        /// The checkpoints.
        checkpoints: Vec<String>,
    },
    /// Gives the drop-in the name that the kubelet does not read.
    Deactivate {
        /// Its name until then.
        active: String,
        /// Its name from then on.
        staged: String,
    },
    /// Removes files, in this order.
    Remove(Vec<String>),
}

impl KubeletAction {
    /// The files it works on.
    #[must_use]
    pub fn files(&self) -> Vec<&str> {
        match self {
            Self::Stage { staged, .. } => vec![staged],
            Self::Activate { staged, active, checkpoints } => {
                checkpoints.iter().chain([staged, active]).map(String::as_str).collect()
            }
            Self::Deactivate { active, staged } => vec![active, staged],
            Self::Remove(files) => files.iter().map(String::as_str).collect(),
        }
    }
}

/// How the drop-in begins: a file that begins otherwise is not ours.
pub const HEADER: &str = "# Made by berth-agent; changes are overwritten. ";
/// The drop-in's name; the kubelet reads `*.conf`, in the order of names.
pub const ACTIVE: &str = "99-berth.conf";
/// Its name as long as it waits.
pub const STAGED: &str = "99-berth.conf.staged";

/// What it costs to change which configuration the kubelet starts with.
const WITH_CHECKPOINTS: &str =
    "its checkpoints are removed with it; takes effect when you restart the kubelet";

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
        KubeletMode::Stage => stage(input, config, &differences, &configuration),
        _ => take_away(input),
    };
    let advice = (!differences.is_empty()).then(|| Advice {
        steps: steps(input, mode, &desired, config),
        differences,
        configuration,
    });
    (changes, advice)
}

/// Whether a pool may become this large under this kubelet: checkpoints to remove first, or why not.
///
/// The Memory Manager compares the pages of every zone with its checkpoint when the kubelet starts, and
/// stops if they differ. So after a reboot the number it has counted is the one to go back to, whatever is
/// in use; any other waits for the drain.
pub(super) fn before_hugepages(
    input: Input,
    zone: u32,
    size: PageSize,
    pages: u64,
) -> Result<Vec<String>, String> {
    let kubelet = &input.facts.kubelet;
    let state = kubelet.memory_state.as_ref();
    let Some(state) = state.filter(|s| s.policy_name == "Static" && !s.machine_state.is_empty())
    else {
        return Ok(Vec::new());
    };
    let table = state.machine_state.get(&zone);
    let table = table.and_then(|zone| zone.memory_map.get(&size.resource()));
    let counted = table.map_or(0, |table| table.total / size.bytes());
    if counted == pages {
        return Ok(Vec::new());
    }
    let file = checkpoint(kubelet, "memory_manager_state");
    match input.shape.pods.not_drained() {
        None => Ok(vec![file]),
        Some(why) => Err(format!(
            "the kubelet's Memory Manager has counted {counted} pages there ({file}), and would refuse to start \
             with another number; drain the node first ({why})"
        )),
    }
}

/// The kubelet counts huge pages when it starts: whether Berth has changed them since. `None` if not, or not
/// known.
pub(crate) fn restart_needed(facts: &HostFacts, shape: &Shape) -> Option<String> {
    let (started, changed) = (shape.kubelet_started?, facts.ledger.hugepages_changed?);
    (started < changed).then(|| {
        format!(
            "kubelet restart needed: huge pages were changed after it had counted them (systemctl restart {})",
            facts.kubelet.unit
        )
    })
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

fn differences(config: &KubeletConfig, desired: &KubeletConfig) -> Vec<Difference> {
    let both = |field, of: fn(&KubeletConfig) -> String| {
        let (is, should_be) = (of(config), of(desired));
        (is != should_be).then_some(Difference { field, is, should_be })
    };
    let on = |config: &KubeletConfig| {
        let options = config.cpu_manager_policy_options.iter();
        let on: Vec<&str> =
            options.filter(|(_, value)| *value == "true").map(|(name, _)| name.as_str()).collect();
        on.join(",")
    };
    [
        both("cpuManagerPolicy", |config| config.cpu_manager_policy.clone()),
        both("cpuManagerPolicyOptions", on),
        both("reservedSystemCPUs", |config| {
            config.reserved_system_cpus.as_ref().map(CpuSet::to_string).unwrap_or_default()
        }),
        both("topologyManagerPolicy", |config| config.topology_manager_policy.clone()),
        both("memoryManagerPolicy", |config| config.memory_manager_policy.clone()),
        both("reservedMemory", |config| {
            let zones = config.reserved_memory.iter();
            let shown: Vec<String> = zones
                .map(|(zone, limits)| {
                    let limits = limits.iter().map(|(name, bytes)| format!("{name}={bytes}"));
                    format!("{zone}:{}", limits.collect::<Vec<_>>().join(","))
                })
                .collect();
            shown.join(";")
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
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

/// Checkpoints that a kubelet with this configuration would not take.
fn outdated(input: Input, desired: &KubeletConfig) -> Vec<String> {
    use crate::check::checkpoints::{cpu_state_fault, memory_state_fault};
    let (facts, kubelet) = (input.facts, &input.facts.kubelet);
    let cpu = kubelet.cpu_state.as_ref();
    let cpu = cpu.and_then(|state| cpu_state_fault(state, desired, &facts.topology.online));
    let memory = kubelet.memory_state.as_ref();
    let memory = memory.and_then(|state| memory_state_fault(state, desired, &facts.zones));
    checkpoints(kubelet, cpu.is_some(), memory.is_some())
}

/// Checkpoints that a kubelet wrote which had not read the drop-in. What else may be wrong with them (a CPU
/// that went, memory that differs after a reboot) is none of the drop-in's doing.
fn of_the_old_policy(kubelet: &KubeletFacts, config: &KubeletConfig) -> Vec<String> {
    let cpu = kubelet.cpu_state.as_ref();
    let cpu = cpu.filter(|state| state.policy_name != config.cpu_manager_policy);
    let memory = kubelet.memory_state.as_ref();
    let memory = memory.filter(|state| state.policy_name != config.memory_manager_policy);
    checkpoints(kubelet, cpu.is_some(), memory.is_some())
}

/// The files of the managers that are meant.
fn checkpoints(kubelet: &KubeletFacts, cpu: bool, memory: bool) -> Vec<String> {
    let files = [(cpu, "cpu_manager_state"), (memory, "memory_manager_state")];
    let meant = files.into_iter().filter(|(meant, _)| *meant);
    meant.map(|(_, name)| checkpoint(kubelet, name)).collect()
}

fn checkpoint(kubelet: &KubeletFacts, name: &str) -> String {
    format!("{}/{name}", kubelet.folder)
}

fn steps(
    input: Input,
    mode: KubeletMode,
    desired: &KubeletConfig,
    config: &KubeletConfig,
) -> Vec<String> {
    let kubelet = &input.facts.kubelet;
    let node = input.facts.node_name().unwrap_or("NODE");
    let mut steps =
        vec![format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data")];
    if mode == KubeletMode::Stage && kubelet.config_dir.is_some() {
        steps.push("wait until `berth-agent plan` shows the drop-in active: the agent then has removed the checkpoints".to_owned());
        steps.push(format!("systemctl restart {}", kubelet.unit));
    } else {
        steps.push(format!("systemctl stop {}", kubelet.unit));
        let file = kubelet.sources.first().map_or("the kubelet's configuration", String::as_str);
        let flags = kubelet.set_by_flags.join(", ");
        let flags =
            if flags.is_empty() { flags } else { format!(", and take its flags for {flags} away") };
        steps.push(format!("put the fields below into {file}{flags}"));
        let remove = if desired == config { Vec::new() } else { outdated(input, desired) };
        if !remove.is_empty() {
            steps.push(format!(
                "rm {}   # of another policy: the kubelet would not start",
                remove.join(" ")
            ));
        }
        steps.push(format!("systemctl start {}", kubelet.unit));
    }
    steps.push(format!("kubectl uncordon {node}"));
    steps
}

fn stage(
    input: Input,
    config: &KubeletConfig,
    differences: &[Difference],
    configuration: &str,
) -> Vec<Change> {
    let kubelet = &input.facts.kubelet;
    let Some(folder) = &kubelet.config_dir else {
        if differences.is_empty() {
            return Vec::new();
        }
        let why = "the kubelet runs without --config-dir (Kubernetes 1.28 and later), so there is no place for a \
                   drop-in; add the flag, or use mode Advise";
        let change = change("staged", "none", Why::Asked, KubeletAction::Remove(Vec::new()));
        return vec![change.blocked_by(Some(why.to_owned()))];
    };
    let (active, staged) = (format!("{folder}/{ACTIVE}"), format!("{folder}/{STAGED}"));
    let text = format!("{HEADER}Takes effect when the kubelet starts.\n{configuration}");
    let is_active = kubelet.drop_in.as_ref().is_some_and(|found| *found == text);
    let fixed: Vec<&str> = differences
        .iter()
        .map(|difference| difference.field)
        .filter(|field| kubelet.set_by_flags.contains(field))
        .collect();
    let not_ours = [&kubelet.drop_in, &kubelet.staged_drop_in]
        .into_iter()
        .flatten()
        .any(|found| !found.starts_with(HEADER));
    let blocked = if not_ours {
        Some(format!("{active} or {staged} is there and was not made by Berth; move it away"))
    } else if !fixed.is_empty() {
        Some(format!(
            "the kubelet's command line sets {}, which beats any file; take it away",
            fixed.join(", ")
        ))
    } else {
        None
    };
    let not_drained = input.shape.pods.not_drained();
    if is_active {
        let old = of_the_old_policy(kubelet, config);
        return match (old.is_empty(), not_drained) {
            (true, _) => Vec::new(),
            // The running kubelet has written its old checkpoints again: its restart would fail.
            (false, None) => {
                let action = KubeletAction::Remove(old);
                vec![change("active", "active, without old checkpoints", Why::Asked, action)]
            }
            (false, Some(_)) => {
                let action = KubeletAction::Deactivate { active, staged };
                vec![change("active", "staged", Why::Asked, action)]
            }
        };
    }
    if differences.is_empty() && kubelet.drop_in.is_none() && kubelet.staged_drop_in.is_none() {
        return Vec::new();
    }
    let mut changes = Vec::new();
    let is_staged = kubelet.staged_drop_in.as_ref().is_some_and(|found| *found == text);
    if !is_staged {
        let was = if kubelet.staged_drop_in.is_some() { "an older one" } else { "none" };
        let action = KubeletAction::Stage { staged: staged.clone(), text };
        changes.push(change(was, "staged", Why::Asked, action).blocked_by(blocked.clone()));
    }
    let checkpoints = checkpoints(kubelet, true, true);
    let action = KubeletAction::Activate { staged, active, checkpoints };
    let waits = not_drained.map(|why| format!("waits until the node is drained: {why}"));
    let mut activate = change("staged", "active", Why::Asked, action).blocked_by(blocked.or(waits));
    activate.effect = WITH_CHECKPOINTS.to_owned();
    activate.disruption = Disruption::High;
    changes.push(activate);
    changes
}

/// Removes what was staged, now that nobody asks for it. What is active only goes from a drained node, as
/// it takes another policy with it.
fn take_away(input: Input) -> Vec<Change> {
    let kubelet = &input.facts.kubelet;
    let mut changes = Vec::new();
    let files = &input.facts.ledger.files;
    for file in files.iter().filter(|file| file.ends_with(STAGED)) {
        if kubelet.staged_drop_in.as_ref().is_some_and(|text| text.starts_with(HEADER)) {
            changes.push(change(
                "staged",
                "none",
                Why::PutBack,
                KubeletAction::Remove(vec![file.clone()]),
            ));
        }
    }
    for file in files.iter().filter(|file| file.ends_with(ACTIVE)) {
        if kubelet.drop_in.as_ref().is_some_and(|text| text.starts_with(HEADER)) {
            let mut remove = checkpoints(kubelet, true, true);
            remove.push(file.clone());
            let waits = input.shape.pods.not_drained();
            let waits = waits.map(|why| format!("waits until the node is drained: {why}"));
            let mut change = change("active", "none", Why::PutBack, KubeletAction::Remove(remove));
            change.effect = WITH_CHECKPOINTS.to_owned();
            changes.push(change.blocked_by(waits));
        }
    }
    changes
}

fn change(was: &str, will_be: &str, why: Why, action: KubeletAction) -> Change {
    Change {
        what: "kubelet drop-in".to_owned(),
        was: was.to_owned(),
        will_be: will_be.to_owned(),
        why,
        drift: false,
        disruption: Disruption::None,
        effect: "nothing until it is active".to_owned(),
        blocked: None,
        removes: Vec::new(),
        action: Action::Kubelet(action),
    }
}
