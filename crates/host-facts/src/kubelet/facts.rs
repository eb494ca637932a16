//! Facts about the kubelet, as plain data.

use std::collections::BTreeMap;

use berth_api::infra_node::UnknownReason;

use super::config::KubeletConfig;
use super::config_diff;
use super::cpu_state::CpuManagerState;
use super::memory_state::MemoryManagerState;
use super::start_record::{RunningConfig, StartId, StartRecord};

/// Facts about the host's kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletFacts {
    /// Process id of the kubelet, if it is a separate process.
    pub pid: Option<u32>,
    /// True if a kubelet runs, as a separate process or as a part of another program.
    pub is_running: bool,
    /// The configuration that the next start would read; `None` if there is no kubelet, or if a part of the
    /// configuration cannot be read.
    pub config: Option<KubeletConfig>,
    /// The configuration with which the running kubelet was started.
    pub running_config: RunningConfig,
    /// Start of the running kubelet, if its time is known.
    pub start_id: Option<StartId>,
    /// True if the kubelet has run long enough to have admitted the pods of its first list. False if the time of its
    /// start is unknown.
    pub has_admitted_first_pods: bool,
    /// The kubelet's command line without the program. If the kubelet is stopped, the command line that was last
    /// observed.
    pub arguments: Vec<String>,
    /// The configuration that the next start would read without Berth's drop-in; `None` if the drop-in is not active.
    pub config_without_drop_in: Option<KubeletConfig>,
    /// Reason why `config` is `None`.
    pub config_error: Option<(UnknownReason, String)>,
    /// Name of the Node, if the command line sets it (`--hostname-override`).
    pub node_name: Option<String>,
    /// Files and flags from which the configuration was read, lowest priority first.
    pub sources: Vec<String>,
    /// Root folder of the kubelet (`--root-dir`, by default `/var/lib/kubelet`).
    pub root_dir: String,
    /// Name of the kubelet's systemd unit.
    pub systemd_unit: String,
    /// Absolute path of the drop-in folder (`--config-dir`).
    pub config_dir: Option<String>,
    /// Names of the fields that the kubelet's command line sets, and which no file can change.
    pub fields_set_by_flags: Vec<&'static str>,
    /// Text of Berth's active drop-in, which the kubelet reads when it starts.
    pub active_drop_in: Option<String>,
    /// Text of Berth's staged drop-in.
    pub staged_drop_in: Option<String>,
    /// Checkpoint of the CPU Manager (`cpu_manager_state`).
    pub cpu_state: Option<CpuManagerState>,
    /// Checkpoint of the Memory Manager (`memory_manager_state`).
    pub memory_state: Option<MemoryManagerState>,
    /// Reasons why checkpoints that exist cannot be read, by file name.
    pub checkpoint_errors: BTreeMap<&'static str, (UnknownReason, String)>,
}

impl KubeletFacts {
    /// Returns the configuration by which the kubelet admits pods: that of the running kubelet, or that of the next
    /// start if no kubelet runs. Returns `None` if it is unknown.
    #[must_use]
    pub fn effective_config(&self) -> Option<&KubeletConfig> {
        match &self.running_config {
            RunningConfig::Known(config) => Some(config),
            RunningConfig::NotRunning => self.config.as_ref(),
            RunningConfig::Unknown(_) => None,
        }
    }

    /// Returns the names of the fields whose values in the files differ from those that the running kubelet has read.
    /// The values in the files take effect when the kubelet is restarted.
    #[must_use]
    pub fn fields_pending_restart(&self) -> Vec<&'static str> {
        let (RunningConfig::Known(current), Some(next)) = (&self.running_config, &self.config)
        else {
            return Vec::new();
        };
        config_diff::find_differences(current, next)
            .into_iter()
            .map(|difference| difference.field)
            .collect()
    }

    /// Returns the record that the agent writes about the running kubelet; `None` if its start or configuration is
    /// unknown.
    #[must_use]
    pub fn start_record(&self) -> Option<StartRecord> {
        let RunningConfig::Known(configuration) = &self.running_config else { return None };
        Some(StartRecord {
            start: self.start_id.clone()?,
            arguments: self.arguments.clone(),
            configuration: (**configuration).clone(),
        })
    }
}
