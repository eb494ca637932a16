//! Berth's own folder on the host: the rollback ledger and what else the agent keeps across restarts.

use berth_host_facts::kubelet::Record;
use berth_host_facts::ledger::{FILE, KUBELET, Ledger};
use berth_host_facts::root::Root;

use crate::host_write::{HostWrite as _, WriteError};

/// The folder.
pub const FOLDER: &str = "var/lib/berth";
/// The desired state that the cluster had last, for a start while it is away; `revert` removes it.
pub const ASKED_LAST: &str = "var/lib/berth/asked.json";
/// The lock that the process which changes the host holds.
pub const LOCK: &str = "var/lib/berth/lock";

/// Keeps the manifest that the cluster had last.
///
/// # Errors
/// If the state folder is full, read-only or not there; what was kept before is then still there.
pub fn keep_asked(root: &Root, manifest: &str) -> Result<(), WriteError> {
    keep(root, ASKED_LAST, manifest)
}

/// Keeps the record of the kubelet that was seen last.
///
/// # Errors
/// As [`keep_asked`].
pub fn keep_kubelet(root: &Root, record: &Record) -> Result<(), WriteError> {
    keep(root, KUBELET, &record.render())
}

/// Saves the rollback ledger durably, or removes its file if there is nothing to remember.
///
/// # Errors
/// If the state folder is full, read-only or not there; the file is then as it was.
pub fn save_ledger(ledger: &Ledger, root: &Root, boot_id: &str) -> Result<(), WriteError> {
    if ledger == &Ledger::default() {
        return root.remove(FILE);
    }
    keep(root, FILE, &ledger.render(boot_id))
}

fn keep(root: &Root, file: &str, text: &str) -> Result<(), WriteError> {
    root.make_folder(FOLDER)?;
    root.replace(file, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use berth_host_facts::setting::{KsmSetting, Setting, Value};

    use super::*;

    #[test]
    fn an_empty_ledger_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        root.make_folder("var").unwrap();
        root.make_folder("var/lib").unwrap();
        let mut ledger = Ledger::default();
        ledger.found(Setting::Ksm(KsmSetting::Run), Value::Number(0));
        ledger.files.insert("/etc/x.conf".to_owned());
        ledger.raised.insert("eth1".parse().unwrap());
        save_ledger(&ledger, &root, "b").unwrap();
        assert_eq!(Ledger::read(&root, Some("b")), Ok(ledger));
        save_ledger(&Ledger::default(), &root, "b").unwrap();
        assert!(!root.exists(FILE));
        assert_eq!(Ledger::read(&root, Some("b")), Ok(Ledger::default()));
    }
}
