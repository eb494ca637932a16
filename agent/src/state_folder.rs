//! Berth's folder on the host: the rollback ledger, and other files that the agent needs after a restart.

use std::collections::BTreeMap;

use berth_api::infra_node::{AddressConflictStatus, TrunkStatus};
use berth_host_facts::kubelet::StartRecord;
use berth_host_facts::ledger::{KUBELET_RECORD_FILE, LEDGER_FILE, Ledger};
use berth_host_facts::root::Root;

use serde::{Deserialize, Serialize};

use crate::host_write::{HostWrite as _, WriteError};

/// Path of the folder, relative to the root of the host.
pub const STATE_FOLDER: &str = "var/lib/berth";
/// Path of the last InfraNode that the API server sent. The agent reads it if it starts while the API server is
/// unreachable. `revert` removes the file.
pub const LAST_MANIFEST_FILE: &str = "var/lib/berth/asked.json";
/// Path of the last HostLeases that the API server sent. The agent reads it if it starts while the API server is
/// unreachable, so that VMs still get their addresses. `revert` removes the file.
pub const LEASES_FILE: &str = "var/lib/berth/leases.json";
/// Path of the last results of the verification of trunks, which `berth-agent check` reads. `revert` removes the
/// file.
pub const TRUNK_FILE: &str = "var/lib/berth/trunk.json";
/// Path of the list of VM addresses that other machines use, which `berth-agent check` reads. `revert` removes the
/// file.
pub const CONFLICTS_FILE: &str = "var/lib/berth/conflicts.json";
/// Path of the lock file, which a process locks while it changes the host.
pub const LOCK_FILE: &str = "var/lib/berth/lock";

/// Saves the last InfraNode that the API server sent.
///
/// # Errors
/// If the state folder is full, read-only or missing. The file then has its previous content.
pub fn save_last_manifest(root: &Root, manifest: &str) -> Result<(), WriteError> {
    save_file(root, LAST_MANIFEST_FILE, manifest)
}

/// Saves the last HostLeases that the API server sent. `None`, which means that the object does not exist, removes
/// the file.
///
/// # Errors
/// If the file cannot be written; see [`save_last_manifest`].
pub fn save_leases(root: &Root, leases: Option<&str>) -> Result<(), WriteError> {
    match leases {
        Some(leases) => save_file(root, LEASES_FILE, leases),
        None => root.remove(LEASES_FILE),
    }
}

/// Saves the configuration with which the running kubelet was started.
///
/// # Errors
/// If the file cannot be written; see [`save_last_manifest`].
pub fn write_kubelet_record(root: &Root, record: &StartRecord) -> Result<(), WriteError> {
    save_file(root, KUBELET_RECORD_FILE, &record.render())
}

/// Saves the last results of the verification of trunks.
///
/// # Errors
/// If the file cannot be written; see [`save_last_manifest`].
pub fn save_trunk_record(root: &Root, record: &TrunkRecord) -> Result<(), WriteError> {
    save_file(root, TRUNK_FILE, &serde_json::to_string(record).unwrap_or_default())
}

/// Last results of the verification of trunks, as the daemon saves them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrunkRecord {
    /// Boot ID of the host at the time of the verification. Results of an earlier boot are stale.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// Result by host network.
    pub networks: BTreeMap<String, TrunkStatus>,
}

/// Saves the list of VM addresses that other machines use.
///
/// # Errors
/// If the file cannot be written; see [`save_last_manifest`].
pub fn save_conflict_record(root: &Root, record: &ConflictRecord) -> Result<(), WriteError> {
    save_file(root, CONFLICTS_FILE, &serde_json::to_string(record).unwrap_or_default())
}

/// Addresses of VMs that other machines use, as the daemon saves them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConflictRecord {
    /// Boot ID of the host when the conflicts were found. Conflicts of an earlier boot are stale.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// The addresses with the machines that use them.
    pub conflicts: Vec<AddressConflictStatus>,
}

/// Saves the rollback ledger durably, or removes its file if the ledger is empty.
///
/// # Errors
/// If the state folder is full, read-only or missing; the file is then unchanged.
pub fn save_ledger(ledger: &Ledger, root: &Root, boot_id: &str) -> Result<(), WriteError> {
    if ledger == &Ledger::default() {
        return root.remove(LEDGER_FILE);
    }
    save_file(root, LEDGER_FILE, &ledger.render(boot_id))
}

fn save_file(root: &Root, file: &str, text: &str) -> Result<(), WriteError> {
    root.create_folder(STATE_FOLDER)?;
    root.replace(file, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use berth_host_facts::setting::{KsmSetting, Setting, SettingValue};

    use super::*;

    #[test]
    fn empty_ledger_has_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        root.create_folder("var").unwrap();
        root.create_folder("var/lib").unwrap();
        let mut ledger = Ledger::default();
        ledger.record_original_value(Setting::Ksm(KsmSetting::Run), SettingValue::Number(0));
        ledger.files.insert("/etc/x.conf".to_owned());
        ledger.uplinks_set_up.insert("eth1".parse().unwrap());
        save_ledger(&ledger, &root, "b").unwrap();
        assert_eq!(Ledger::read(&root, Some("b")), Ok(ledger));
        save_ledger(&Ledger::default(), &root, "b").unwrap();
        assert!(!root.exists(LEDGER_FILE));
        assert_eq!(Ledger::read(&root, Some("b")), Ok(Ledger::default()));
    }
}
