//! The configuration with which the running kubelet was started.
//!
//! A kubelet reads its configuration once, when it starts; the files may change later. The configuration is known if
//! no file has changed since the process started, or if the agent recorded the configuration before the files
//! changed. The agent does not read `/configz`: through the API server this requires `get nodes/proxy`, which gives
//! access to the containers of every pod. On the kubelet's own port, `nodes/configz` is sufficient (KEP-2862,
//! Kubernetes 1.33), but most kubelets use a self-signed certificate there, so a process that listens on the port
//! while the kubelet is stopped would receive the agent's token.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::KubeletConfig;
use crate::ledger::KUBELET_RECORD_FILE as FILE;
use crate::root::{ReadError, ReadProblem, Root};
use crate::uptime::read_uptime;

/// The configuration with which the running kubelet was started, if it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RunningConfig {
    /// No kubelet runs on the host.
    #[default]
    NotRunning,
    /// The kubelet was started with this configuration.
    Known(Box<KubeletConfig>),
    /// The kubelet runs, but its configuration is unknown. The text is the reason.
    Unknown(String),
}

/// Identifies one start of a kubelet's process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartId {
    /// Boot id of the host.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// Time from the host's boot to the start of the kubelet's process, in hundredths of a second.
    pub after_boot: u64,
}

/// The agent's record about the kubelet that it observed last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartRecord {
    /// Start of the recorded kubelet.
    pub start: StartId,
    /// Command line of the kubelet, without the program.
    pub arguments: Vec<String>,
    /// Configuration that the kubelet read when it started.
    pub configuration: KubeletConfig,
}

impl StartRecord {
    /// Reads the record from its file; returns `None` if the file does not exist.
    ///
    /// # Errors
    /// Returns an error if the record exists but cannot be read.
    pub fn read(root: &Root) -> Result<Option<Self>, ReadError> {
        let text = match root.read(FILE) {
            Err(error) if error.is_not_found() => return Ok(None),
            read => read?,
        };
        serde_json::from_str(&text).map(Some).map_err(|error| ReadError {
            path: FILE.to_owned(),
            problem: ReadProblem::Malformed(format!(
                "the file is not a record of a kubelet: {error}"
            )),
        })
    }

    /// Returns the content of the record's file.
    #[must_use]
    pub fn render(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

/// Returns the time from the boot to the start of a process, in hundredths of a second. Field 22 of `stat` is in
/// units of `USER_HZ`, which is 100 on every Linux on which a kubelet runs. An earlier field of `stat`, the process
/// name, may contain any characters, even `)`.
pub(super) fn process_start_time(root: &Root, pid: u32) -> Option<u64> {
    let text = root.read(&format!("proc/{pid}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

/// Returns the reason why the running process may have read an earlier version of a file: a file has changed since the
/// process started, or the times cannot be compared. Returns `None` if no file has changed.
///
/// The times are accurate to a few hundredths of a second. This is sufficient, because a process needs longer from its
/// start until it reads its first file. `btime` of `/proc/stat` cannot be used on a running machine: it is truncated to
/// seconds, and kubeadm starts the kubelet in the same second in which it writes the configuration file.
pub(super) fn find_change_after_start(
    root: &Root,
    files: &[String],
    after_boot: u64,
) -> Option<String> {
    let Some(boot_time) = read_boot_time(root) else {
        return Some("the boot time of the host is unknown".to_owned());
    };
    let started = boot_time + ticks_to_duration(after_boot);
    let is_changed = |file: &&String| root.change_time(file).is_none_or(|time| time > started);
    let file = files.iter().find(is_changed)?;
    Some(format!("/{} was changed after the kubelet started", file.trim_start_matches('/')))
}

/// Converts clock ticks to a duration. Linux reports 100 ticks per second on all architectures.
pub(super) const fn ticks_to_duration(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(10))
}

/// Returns the time of the host's boot, as the duration since 1970-01-01 (UTC).
fn read_boot_time(root: &Root) -> Option<Duration> {
    if !root.is_live() {
        let text = root.read("proc/stat").ok()?;
        let time = text.lines().find_map(|line| line.strip_prefix("btime "))?;
        return time.trim().parse().ok().map(Duration::from_secs);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    now.checked_sub(read_uptime(root)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_record_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["var", "var/lib", "var/lib/berth"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let root = Root::open(folder.path()).unwrap();
        assert_eq!(StartRecord::read(&root), Ok(None));
        let mut configuration = KubeletConfig {
            reserved_system_cpus: Some("0-1".parse().unwrap()),
            ..KubeletConfig::default()
        };
        let memory = [("memory".to_owned(), berth_api::Bytes(1 << 30))];
        configuration.reserved_memory.insert(1, memory.into());
        let record = StartRecord {
            start: StartId { boot_id: "b".to_owned(), after_boot: 7 },
            arguments: vec!["--config=/x".to_owned()],
            configuration,
        };
        let write = |text: &str| std::fs::write(folder.path().join(FILE), text).unwrap();
        write(&record.render());
        assert_eq!(StartRecord::read(&root), Ok(Some(record)));
        write("{");
        assert!(StartRecord::read(&root).is_err());
    }
}
