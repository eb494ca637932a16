//! Steps by which an administrator changes the kubelet to its desired configuration.

use berth_api::infra_node::KubeletMode;
use serde::Serialize;

use super::checkpoint::refused_checkpoints;
use super::paths::checkpoint_path;
use crate::plan::input::Input;
use berth_host_facts::kubelet::KubeletConfig;
use berth_host_facts::kubelet::config_diff::FieldDifference;

/// Desired configuration of the kubelet, and the steps that lead to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletAdvice {
    /// Fields that differ.
    pub differences: Vec<FieldDifference>,
    /// The fields as a KubeletConfiguration, in YAML.
    pub configuration: String,
    /// Steps for the administrator, in this order, as commands where possible.
    pub steps: Vec<String>,
}

pub(super) fn advice_steps(
    input: Input,
    mode: KubeletMode,
    desired: &KubeletConfig,
) -> Vec<String> {
    let kubelet = &input.facts.kubelet;
    let node = input.facts.node_name().unwrap_or("NODE");
    let mut steps =
        vec![format!("kubectl drain {node} --ignore-daemonsets --delete-emptydir-data")];
    if mode == KubeletMode::Stage && kubelet.config_dir.is_some() {
        steps.push(format!("systemctl stop {}", kubelet.systemd_unit));
        steps.push("wait until `berth-agent plan` shows that the drop-in is active: the agent has then removed the checkpoints".to_owned());
        steps.push(format!("systemctl start {}", kubelet.systemd_unit));
    } else {
        steps.push(format!("systemctl stop {}", kubelet.systemd_unit));
        let file = kubelet.sources.first().map_or("the kubelet's configuration", String::as_str);
        let flags = kubelet.fields_set_by_flags.join(", ");
        let flags =
            if flags.is_empty() { flags } else { format!(", and remove its flags for {flags}") };
        steps.push(format!("add the fields below to {file}{flags}"));
        let remove: Vec<String> = refused_checkpoints(input.facts, desired)
            .into_iter()
            .map(|(name, _)| checkpoint_path(kubelet, name))
            .collect();
        if !remove.is_empty() {
            let remove = remove.join(" ");
            steps.push(format!("rm {remove}   # the kubelet would not start with it"));
        }
        steps.push(format!("systemctl start {}", kubelet.systemd_unit));
    }
    steps.push(format!("kubectl uncordon {node}"));
    steps
}
