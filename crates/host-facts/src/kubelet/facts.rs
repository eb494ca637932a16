//! Facts about the kubelet, as plain data.

use std::collections::BTreeMap;

use berth_api::infra_node::UnknownReason;

use super::config::KubeletConfig;
use super::cpu_state::CpuManagerState;
use super::fields;
use super::memory_state::MemoryManagerState;
use super::started::{Record, Start, StartedWith};

/// Facts about the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletFacts {
    /// Process id of the kubelet, if it is a separate process.
    pub pid: Option<u32>,
    /// True if a kubelet runs, as a separate process or within another program.
    pub runs: bool,
    /// The configuration of the next start; `None` without a kubelet, or if a part of the configuration cannot be read.
    pub config: Option<KubeletConfig>,
    /// The configuration that the running kubelet was started with.
    pub started_with: StartedWith,
    /// Start of the running kubelet.
    pub start: Option<Start>,
    /// The kubelet's command line without the program; for a stopped kubelet, the command line that was observed last.
    pub arguments: Vec<String>,
    /// The configuration without Berth's drop-in, if the drop-in is active.
    pub without_drop_in: Option<KubeletConfig>,
    /// Reason for a missing configuration.
    pub config_fault: Option<(UnknownReason, String)>,
    /// Name of the Node, if the command line overrides the host name (`--hostname-override`).
    pub node_name: Option<String>,
    /// Files and flags of the configuration, lowest priority first.
    pub sources: Vec<String>,
    /// Folder of the kubelet (`--root-dir`, by default `/var/lib/kubelet`).
    pub folder: String,
    /// systemd unit of the kubelet.
    pub unit: String,
    /// Absolute path of the drop-in folder (`--config-dir`).
    pub config_dir: Option<String>,
    /// Fields that the kubelet's command line sets, which no file can change.
    pub set_by_flags: Vec<&'static str>,
    /// Berth's active drop-in, which the kubelet reads when it starts.
    pub drop_in: Option<String>,
    /// Berth's staged drop-in.
    pub staged_drop_in: Option<String>,
    /// Checkpoint of the CPU Manager (`cpu_manager_state`).
    pub cpu_state: Option<CpuManagerState>,
    /// Checkpoint of the Memory Manager (`memory_manager_state`).
    pub memory_state: Option<MemoryManagerState>,
    /// Checkpoints that exist and cannot be read, by name, with the reason.
    pub state_faults: BTreeMap<&'static str, (UnknownReason, String)>,
}

impl KubeletFacts {
    /// Returns the configuration by which pods are admitted: that of the running kubelet, or that of its next start
    /// if no kubelet runs. Returns `None` if the configuration is unknown.
    #[must_use]
    pub fn effective_config(&self) -> Option<&KubeletConfig> {
        match &self.started_with {
            StartedWith::Known(config) => Some(config),
            StartedWith::NotRunning => self.config.as_ref(),
            StartedWith::Unknown(_) => None,
        }
    }

    /// Returns the fields whose values in the files differ from those that the running kubelet has read.
    #[must_use]
    pub fn pending_restart(&self) -> Vec<&'static str> {
        let (StartedWith::Known(is), Some(next)) = (&self.started_with, &self.config) else {
            return Vec::new();
        };
        fields::differences(is, next).into_iter().map(|difference| difference.field).collect()
    }

    /// Returns the record of the running kubelet.
    #[must_use]
    pub fn record(&self) -> Option<Record> {
        let StartedWith::Known(configuration) = &self.started_with else { return None };
        Some(Record {
            start: self.start.clone()?,
            arguments: self.arguments.clone(),
            configuration: (**configuration).clone(),
        })
    }
}
