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
    /// The configuration with which the kubelet would start next; `None` if there is no kubelet, or if a part of the
    /// configuration cannot be read.
    pub config: Option<KubeletConfig>,
    /// The configuration with which the running kubelet was started.
    pub running_config: RunningConfig,
    /// Identifies the start of the running kubelet; `None` if the time of the start is unknown.
    pub start_id: Option<StartId>,
    /// True if the kubelet has run for so long that it has admitted all pods of its first list. False if the time of
    /// its start is unknown.
    pub has_admitted_first_pods: bool,
    /// Arguments of the kubelet's command line, without the program. If the kubelet is stopped, the arguments that were
    /// last observed.
    pub arguments: Vec<String>,
    /// The configuration with which the kubelet would start next if Berth's drop-in were removed; `None` if the drop-in
    /// is not active.
    pub config_without_drop_in: Option<KubeletConfig>,
    /// Reason why `config` is `None`.
    pub config_error: Option<(UnknownReason, String)>,
    /// Name of the Node if the kubelet's command line sets it (`--hostname-override`).
    pub node_name: Option<String>,
    /// Files and flags from which `config` was read, lowest priority first.
    pub sources: Vec<String>,
    /// Root folder of the kubelet (`--root-dir`, by default `/var/lib/kubelet`).
    pub root_dir: String,
    /// Name of the kubelet's systemd unit.
    pub systemd_unit: String,
    /// Absolute path of the drop-in folder (`--config-dir`).
    pub config_dir: Option<String>,
    /// Names of the configuration fields that the kubelet's command line sets, so that no configuration file can change
    /// them.
    pub fields_set_by_flags: Vec<&'static str>,
    /// Content of Berth's active drop-in, which the kubelet reads when it starts.
    pub active_drop_in: Option<String>,
    /// Content of Berth's staged drop-in, which the kubelet does not read.
    pub staged_drop_in: Option<String>,
    /// Checkpoint of the CPU Manager (`cpu_manager_state`).
    pub cpu_state: Option<CpuManagerState>,
    /// Checkpoint of the Memory Manager (`memory_manager_state`).
    pub memory_state: Option<MemoryManagerState>,
    /// Reasons why checkpoints that exist cannot be read, by file name.
    pub checkpoint_errors: BTreeMap<&'static str, (UnknownReason, String)>,
}

impl KubeletFacts {
    /// Returns the configuration that determines how the kubelet admits pods: the configuration of the running kubelet
    /// or, if no kubelet runs, the configuration of its next start. Returns `None` if this configuration is unknown.
    #[must_use]
    pub fn effective_config(&self) -> Option<&KubeletConfig> {
        match &self.running_config {
            RunningConfig::Known(config) => Some(config),
            RunningConfig::NotRunning => self.config.as_ref(),
            RunningConfig::Unknown(_) => None,
        }
    }

    /// Returns the names of the fields whose values in the configuration files differ from the values that the running
    /// kubelet has read. The new values take effect when the kubelet is restarted.
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

    /// Returns the record that the agent writes about the running kubelet; `None` if the kubelet's start or
    /// configuration is unknown.
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
