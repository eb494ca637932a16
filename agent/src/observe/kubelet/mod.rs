//! The kubelet: how it is really configured, and what it has handed out.
//!
//! Effective configuration, lowest first: the kubelet's defaults, the file of `--config`, the drop-ins
//! of `--config-dir` in the order of their names, the command line.

pub mod config;
pub mod cpu_state;
pub mod flags;
pub mod memory_state;

use berth_api::infra_node::UnknownReason;

use super::processes::Processes;
use crate::notes::Notes;
use crate::root::Root;
pub use config::KubeletConfig;
pub use cpu_state::CpuManagerState;
pub use memory_state::MemoryManagerState;

/// Where distributions put the configuration file, for a kubelet that is not running.
const USUAL_FILES: [&str; 5] = [
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet-config.yaml",
    "etc/kubernetes/kubelet.conf",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
];

/// What was found of the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletFacts {
    /// Its process id, if it runs.
    pub pid: Option<u32>,
    /// Its effective configuration; `None` if neither process nor file was found.
    pub config: Option<KubeletConfig>,
    /// The files and flags the configuration came from, lowest first.
    pub sources: Vec<String>,
    /// Its folder, `/var/lib/kubelet` unless `--root-dir` says otherwise.
    pub folder: String,
    /// `cpu_manager_state`.
    pub cpu_state: Option<CpuManagerState>,
    /// `memory_manager_state`.
    pub memory_state: Option<MemoryManagerState>,
}

/// Finds the kubelet by its process or its usual files.
pub fn observe(root: &Root, processes: &Processes, notes: &mut Notes) -> KubeletFacts {
    let process = processes.named("kubelet");
    let arguments = process
        .and_then(|process| notes.optional(root.bytes(&format!("proc/{}/cmdline", process.pid))))
        .unwrap_or_default();
    let flags = flags::parse(&arguments);
    let folder = flags.get("root-dir").map_or("/var/lib/kubelet", String::as_str);
    let mut facts = KubeletFacts {
        pid: process.map(|process| process.pid),
        folder: folder.trim_end_matches('/').to_owned(),
        ..KubeletFacts::default()
    };

    let mut tree = serde_json::Value::Null;
    let mut found = process.is_some();
    for file in files(root, &flags, process.is_some()) {
        if let Some(layer) = config::layer(root, &file, notes) {
            config::merge(&mut tree, layer);
            facts.sources.push(format!("/{file}"));
            found = true;
        }
    }
    if found {
        let place = facts.sources.last().cloned().unwrap_or_else(|| "kubelet defaults".to_owned());
        let mut config = KubeletConfig::from_tree(&tree, &place, notes);
        if config.apply_flags(&flags, notes) {
            facts.sources.push(format!("/proc/{}/cmdline", facts.pid.unwrap_or_default()));
        }
        facts.config = Some(config);
    } else {
        let embedded = ["k3s-server", "k3s-agent"].iter().find(|n| processes.named(n).is_some());
        let why = match embedded {
            Some(name) => {
                format!("{name} runs a kubelet inside itself, whose flags /proc does not show")
            }
            None => "no process named kubelet and none of its usual configuration files".to_owned(),
        };
        notes.unknown("capabilities.kubelet", UnknownReason::NotFound, why);
    }
    facts.cpu_state = state(root, &facts.folder, "cpu_manager_state", notes);
    facts.memory_state = state(root, &facts.folder, "memory_manager_state", notes);
    facts
}

/// The configuration file and the drop-ins, in the order they are laid over one another.
fn files(
    root: &Root,
    flags: &std::collections::BTreeMap<String, String>,
    running: bool,
) -> Vec<String> {
    let relative = |path: &str| path.trim_start_matches('/').to_owned();
    let mut files = match flags.get("config") {
        Some(path) => vec![relative(path)],
        None if running => Vec::new(),
        None => USUAL_FILES
            .iter()
            .find(|path| config::is_kubelet_configuration(root, path))
            .map(|path| (*path).to_owned())
            .into_iter()
            .collect(),
    };
    if let Some(folder) = flags.get("config-dir").map(|folder| relative(folder)) {
        let names = root.list(&folder).unwrap_or_default();
        let drop_ins = names.iter().filter(|name| name.ends_with(".conf"));
        files.extend(drop_ins.map(|name| format!("{}/{name}", folder.trim_end_matches('/'))));
    }
    files
}

fn state<T: serde::de::DeserializeOwned>(
    root: &Root,
    folder: &str,
    name: &str,
    notes: &mut Notes,
) -> Option<T> {
    let path = format!("{}/{name}", folder.trim_start_matches('/'));
    let text = match root.read_large(&path) {
        Ok(text) => text,
        Err(error) => {
            if !error.is_not_found() {
                notes.unknown("allocations", error.reason(), error.to_string());
            }
            return None;
        }
    };
    match serde_json::from_str(&text) {
        Ok(state) => Some(state),
        Err(error) => {
            let why = format!("/{path}: {error}");
            notes.unknown("allocations", UnknownReason::Malformed, why);
            notes.warn(format!("/{path}"), format!("not a kubelet checkpoint: {error}"));
            None
        }
    }
}
