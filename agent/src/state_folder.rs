//! Berth's folder on the host, with the rollback ledger and other files that the agent needs after a
//! restart.

use std::collections::BTreeMap;

use berth_api::infra_node::{AddressConflictStatus, TrunkStatus};
use berth_host_facts::kubelet::StartRecord;
use berth_host_facts::ledger::{KUBELET_RECORD_FILE, LEDGER_FILE, Ledger};
use berth_host_facts::root::Root;

use serde::{Deserialize, Serialize};

use crate::host_write::{HostWrite as _, WriteError};

/// Path of the folder.
pub const STATE_FOLDER: &str = "var/lib/berth";
/// Path of the InfraNode that the API server sent last, for a start of the agent while the API server is unreachable.
/// `revert` removes the file.
pub const LAST_MANIFEST_FILE: &str = "var/lib/berth/asked.json";
/// Path of the HostLeases that the API server sent last, so that VMs get their addresses after a start of the agent
/// while the API server is unreachable. `revert` removes the file.
pub const LEASES_FILE: &str = "var/lib/berth/leases.json";
/// Path of the last results of the verification of trunks, for `berth-agent check`. `revert` removes the file.
pub const TRUNK_FILE: &str = "var/lib/berth/trunk.json";
/// Path of the addresses of VMs that other machines use, for `berth-agent check`. `revert` removes the file.
pub const CONFLICTS_FILE: &str = "var/lib/berth/conflicts.json";
/// Path of the lock file. A process that changes the host holds the lock.
pub const LOCK_FILE: &str = "var/lib/berth/lock";

/// Saves the InfraNode that the API server sent last.
///
/// # Errors
/// If the state folder is full, read-only or missing; the file then has its previous content.
pub fn save_last_manifest(root: &Root, manifest: &str) -> Result<(), WriteError> {
    save_file(root, LAST_MANIFEST_FILE, manifest)
}

/// Saves the HostLeases that the API server sent last, or removes its file if the object does not exist.
///
/// # Errors
/// If the file cannot be written; see [`save_last_manifest`].
pub fn save_leases(root: &Root, leases: Option<&str>) -> Result<(), WriteError> {
    match leases {
        Some(leases) => save_file(root, LEASES_FILE, leases),
        None => root.remove(LEASES_FILE),
    }
}

/// Saves the record of the configuration that the running kubelet was started with.
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
    /// Boot of the host in which the trunks were verified.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// Result of each host network.
    pub networks: BTreeMap<String, TrunkStatus>,
}

/// Saves the addresses of VMs that other machines use.
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
    /// Boot of the host in which the addresses were found.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// The addresses.
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
