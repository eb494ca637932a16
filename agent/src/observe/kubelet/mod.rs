//! The kubelet: how it is really configured, and what it has handed out.
//!
//! Effective configuration, lowest first: the kubelet's defaults, the file of `--config`, the drop-ins
//! of `--config-dir`, the command line. If a layer that is named cannot be read, the configuration is
//! unknown: the rest would be a guess, and a guess here makes checks fail on healthy hosts.

pub mod config;
pub mod cpu_state;
pub mod flags;
mod layers;
pub mod memory_state;
pub mod podresources;

use std::collections::BTreeMap;

use berth_api::infra_node::UnknownReason;

use super::processes::Processes;
use crate::notes::Notes;
use crate::plan::kubelet as plan;
use crate::root::Root;
pub use config::KubeletConfig;
pub use cpu_state::CpuManagerState;
pub use memory_state::MemoryManagerState;

/// Programs that run a kubelet inside themselves: k3s' server and agent, and MicroK8s.
const EMBEDDED: [&str; 3] = ["k3s-server", "k3s-agent", "kubelite"];

/// Flags that set the fields Berth advises on.
const FLAGS: [(&str, &str); 6] = [
    ("cpu-manager-policy", "cpuManagerPolicy"),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions"),
    ("reserved-cpus", "reservedSystemCPUs"),
    ("topology-manager-policy", "topologyManagerPolicy"),
    ("memory-manager-policy", "memoryManagerPolicy"),
    ("reserved-memory", "reservedMemory"),
];

/// What was found of the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletFacts {
    /// Its process id, if it runs.
    pub pid: Option<u32>,
    /// Its effective configuration; `None` if there is no kubelet or part of it could not be read.
    pub config: Option<KubeletConfig>,
    /// Why there is no configuration.
    pub config_fault: Option<(UnknownReason, String)>,
    /// The Node's name, if the command line overrides the host's (`--hostname-override`).
    pub node_name: Option<String>,
    /// The files and flags the configuration came from, lowest first.
    pub sources: Vec<String>,
    /// Its folder, `/var/lib/kubelet` unless `--root-dir` says otherwise.
    pub folder: String,
    /// The systemd unit it runs in.
    pub unit: String,
    /// The folder of its drop-ins (`--config-dir`), absolute.
    pub config_dir: Option<String>,
    /// Fields that its command line sets, which no file can change.
    pub set_by_flags: Vec<&'static str>,
    /// Berth's drop-in there that the kubelet reads when it starts, and the one that waits.
    pub drop_in: Option<String>,
    /// The drop-in that waits to become active.
    pub staged_drop_in: Option<String>,
    /// `cpu_manager_state`.
    pub cpu_state: Option<CpuManagerState>,
    /// `memory_manager_state`.
    pub memory_state: Option<MemoryManagerState>,
    /// Checkpoints that are there and could not be read, by name, and why.
    pub state_faults: BTreeMap<&'static str, (UnknownReason, String)>,
}

/// Finds the kubelet by its process or its usual files.
pub fn observe(root: &Root, processes: &Processes, notes: &mut Notes) -> KubeletFacts {
    let process = processes.named("kubelet");
    let pid = process.map(|process| process.pid);
    let embedded = EMBEDDED.into_iter().find(|name| processes.named(name).is_some());
    let found = match (pid, embedded) {
        (None, Some(name)) => Err((
            UnknownReason::NotFound,
            format!("{name} runs a kubelet inside itself, whose flags /proc does not show"),
        )),
        (Some(pid), _) => layers::of_process(root, pid),
        (None, None) => layers::of_usual_files(root, processes.known),
    };
    let mut facts = KubeletFacts {
        pid,
        folder: "/var/lib/kubelet".to_owned(),
        unit: pid.and_then(|pid| unit(root, pid)).unwrap_or_else(|| "kubelet.service".to_owned()),
        ..KubeletFacts::default()
    };
    match found {
        Ok(mut layers) => {
            if let Some(folder) = layers.flags.last("root-dir") {
                folder.trim_end_matches('/').clone_into(&mut facts.folder);
            }
            facts.set_by_flags = FLAGS
                .into_iter()
                .filter(|(flag, _)| layers.flags.last(flag).is_some())
                .map(|(_, field)| field)
                .collect();
            if let Some(folder) = layers.flags.last("config-dir") {
                let folder = folder.trim_end_matches('/');
                let file = |name: &str| {
                    root.read(&format!("{folder}/{name}")).ok().map(|text| text + "\n")
                };
                facts.drop_in = file(plan::ACTIVE);
                facts.staged_drop_in = file(plan::STAGED);
                facts.config_dir = Some(folder.to_owned());
            }
            facts.node_name = layers.flags.last("hostname-override").map(str::to_owned);
            let config = layers.configuration(notes);
            for (field, why) in &config.invalid {
                notes.unknown(
                    format!("capabilities.kubelet.{field}"),
                    UnknownReason::Malformed,
                    why,
                );
            }
            facts.config = Some(config);
            facts.sources = layers.sources;
        }
        Err((reason, why)) => {
            if reason == UnknownReason::Malformed {
                notes.warn("kubelet", why.clone());
            }
            notes.unknown("capabilities.kubelet", reason, why.clone());
            facts.config_fault = Some((reason, why));
        }
    }
    facts.cpu_state = state(root, &mut facts, "cpu_manager_state", notes);
    facts.memory_state = state(root, &mut facts, "memory_manager_state", notes);
    facts
}

/// The unit of a process: the last part of its control group that names a service.
fn unit(root: &Root, pid: u32) -> Option<String> {
    let groups = root.read(&format!("proc/{pid}/cgroup")).ok()?;
    let service =
        |line: &str| line.rsplit('/').find(|part| part.ends_with(".service")).map(str::to_owned);
    groups.lines().find_map(service)
}

fn state<T: serde::de::DeserializeOwned>(
    root: &Root,
    facts: &mut KubeletFacts,
    name: &'static str,
    notes: &mut Notes,
) -> Option<T> {
    let path = format!("{}/{name}", facts.folder.trim_start_matches('/'));
    let read = root.read_large(&path).map_err(|error| (error.reason(), error.to_string()));
    let parsed = read.and_then(|text| {
        serde_json::from_str(&text).map_err(|error| {
            let why = format!("/{path}: not a kubelet checkpoint: {error}");
            (UnknownReason::Malformed, why)
        })
    });
    match parsed {
        Ok(state) => Some(state),
        Err((UnknownReason::NotFound, _)) => None,
        Err((reason, why)) => {
            if reason == UnknownReason::Malformed {
                notes.warn(format!("/{path}"), why.trim_start_matches(&format!("/{path}: ")));
            }
            notes.unknown("allocations", reason, why.clone());
            facts.state_faults.insert(name, (reason, why));
            None
        }
    }
}

/// Go writes an empty slice or map that was never made as `null`.
pub(crate) fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + serde::Deserialize<'de>,
{
    <Option<T> as serde::Deserialize>::deserialize(deserializer).map(Option::unwrap_or_default)
}
