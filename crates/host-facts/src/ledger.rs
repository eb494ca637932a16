//! The rollback ledger: the original values of the settings that Berth has changed.
//!
//! The ledger is one file. Before the agent changes settings, it replaces the whole file, so that after a crash at any
//! time the file contains the original value of every setting that may have been changed. A reboot resets kernel
//! settings and systemd's runtime properties. Therefore an original value is valid only in the boot in which it was
//! read, and Berth does not undo settings that an administrator has made after a reboot.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::{LinkName, MacAddress, VlanId};
use serde::{Deserialize, Serialize};

use crate::root::{ReadError, ReadProblem, Root};
use crate::setting::{ParseSettingError, Setting, SettingValue};

/// Path of the ledger's file.
pub const LEDGER_FILE: &str = "var/lib/berth/found.json";
/// Path of the [`StartRecord`](crate::kubelet::StartRecord) about the kubelet that the agent observed last. `revert`
/// removes the file.
pub const KUBELET_RECORD_FILE: &str = "var/lib/berth/kubelet.json";
/// The original values, and other facts that Berth must store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Settings that Berth has changed in this boot, with their values.
    pub entries: BTreeMap<Setting, LedgerEntry>,
    /// Paths of files that Berth has created and that remain after a reboot.
    pub files: BTreeSet<String>,
    /// Interrupts whose affinity the kernel refused to change in this boot: the name of the driver by the interrupt's
    /// number.
    pub unmovable_irqs: BTreeMap<u32, String>,
    /// Time of the last change of huge pages, in hundredths of a second after the boot.
    pub hugepages_changed_at: Option<u64>,
    /// Uplinks that were down before Berth set them up (`ip link set up`).
    pub uplinks_set_up: BTreeSet<LinkName>,
    /// Host networks that Berth has created in this boot, by name.
    pub networks: BTreeMap<String, NetworkRecord>,
    /// The nf_tables table that Berth has created in this boot.
    pub filter: Option<FilterRecord>,
    /// Entries for settings that this version of Berth does not know. They are saved unchanged, for the version that
    /// wrote them.
    unknown_entries: BTreeMap<String, LedgerFileEntry>,
}

/// The values of one setting that Berth has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Value of the setting before Berth changed it.
    pub original: SettingValue,
    /// Value that the host had after Berth's change; `None` until the change was made. A later difference from this
    /// value is drift.
    pub applied: Option<SettingValue>,
}

/// State of a host network after Berth's last change. A later difference from this state is drift.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRecord {
    /// Settings of the network in the spec, formatted as one string for comparison.
    pub settings: String,
    /// The uplink that is a port of the network's bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<LinkName>,
    /// Links that Berth is adding to the bridge as its uplink. After a crash, such a link may already be a port of the
    /// bridge, and must not be mistaken for the port of a VM.
    #[serde(default, rename = "joining", skip_serializing_if = "BTreeSet::is_empty")]
    pub joining_uplinks: BTreeSet<LinkName>,
    /// Names of the network's tenants, by VLAN id or VNI.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<u32, String>,
    /// Settings of the last trial that failed, formatted as in `settings`, and the reason why the trial was rolled
    /// back.
    #[serde(default, rename = "trial", skip_serializing_if = "Option::is_none")]
    pub failed_trial: Option<(String, String)>,
}

/// The nf_tables table that drops control frames of guests at the uplinks, as it was after Berth's last change. A later
/// difference from this record is drift.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilterRecord {
    /// Version of the table's rules: another value than that of this agent means that the rules must be replaced.
    pub version: u32,
    /// Uplinks to which the table applies.
    pub uplinks: BTreeSet<LinkName>,
    /// Networks in which the table drops the messages of guests that act as DHCP servers or routers, or frames of guests
    /// from foreign addresses.
    #[serde(default, skip_serializing_if = "GuardRecord::is_empty")]
    pub guard: GuardRecord,
}

/// Networks in which messages of guests that act as DHCP servers or routers, or frames of guests from foreign addresses
/// are dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuardRecord {
    /// Bridges each of which carries the network of a single tenant.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub bridges: BTreeSet<LinkName>,
    /// VLANs of VLAN-aware bridges, which several tenants share: the name of the bridge and the VLAN id.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub vlans: BTreeSet<(LinkName, VlanId)>,
    /// Networks whose guests may send only from the addresses of their leases, sorted by bridge and VLAN.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceRecord>,
    /// True if the kernel lacks `CONFIG_NFT_BRIDGE_META`, so that rules cannot match the bridge of a frame and none of
    /// these networks is guarded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsupported: bool,
}

impl GuardRecord {
    /// Returns true if the record has no networks and is not marked as unsupported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the number of networks whose guests cannot act as DHCP servers or routers; 0 if the kernel does not
    /// support the rules.
    #[must_use]
    pub fn network_count(&self) -> usize {
        if self.unsupported { 0 } else { self.bridges.len() + self.vlans.len() }
    }

    /// Returns true if there is a network whose guests cannot act as DHCP servers or routers.
    #[must_use]
    pub fn has_networks(&self) -> bool {
        self.network_count() > 0
    }

    /// Returns the networks whose guests can send only from the addresses of their leases; no network if the kernel
    /// does not support the rules.
    #[must_use]
    pub fn guarded_sources(&self) -> &[SourceRecord] {
        if self.unsupported { &[] } else { &self.sources }
    }

    /// Returns true if the table has rules that match the bridge of a frame (`CONFIG_NFT_BRIDGE_META`).
    #[must_use]
    pub fn matches_bridges(&self) -> bool {
        self.has_networks() || !self.guarded_sources().is_empty()
    }
}

/// Network whose guests may send only from the addresses of their leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceRecord {
    /// Name of the tenant's network.
    pub network: String,
    /// Bridge of the network.
    pub bridge: LinkName,
    /// VLAN of the network, if several tenants share the bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// Ethernet address and IP address of each lease.
    pub addresses: BTreeSet<(MacAddress, IpAddr)>,
}

/// Format of the ledger's file. All values of settings are strings, so that an operator can read the file and restore
/// values manually.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LedgerFile {
    version: u32,
    #[serde(rename = "bootID")]
    boot_id: String,
    #[serde(default)]
    entries: BTreeMap<String, LedgerFileEntry>,
    #[serde(default)]
    files: BTreeSet<String>,
    #[serde(default)]
    unmovable_interrupts: BTreeMap<u32, String>,
    #[serde(default, rename = "hugepagesChanged", skip_serializing_if = "Option::is_none")]
    hugepages_changed_at: Option<u64>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    raised_uplinks: BTreeSet<LinkName>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    networks: BTreeMap<String, NetworkRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    filter: Option<FilterRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LedgerFileEntry {
    #[serde(rename = "found")]
    original: String,
    #[serde(default, rename = "set", skip_serializing_if = "Option::is_none")]
    applied: Option<String>,
}

const FORMAT_VERSION: u32 = 1;

/// Error of parsing a rollback ledger.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The text is not a valid ledger.
    #[error("the file is not a rollback ledger: {0}")]
    InvalidSyntax(String),
    /// The file has a format version that only later versions of Berth can read.
    #[error(
        "the ledger was written by a later version of berth-agent (format {0}); use that version"
    )]
    LaterVersion(u32),
    /// A value is invalid for its setting.
    #[error("entry `{entry}`: {problem}")]
    InvalidValue {
        /// Name of the setting.
        entry: String,
        /// Reason why the value is invalid.
        problem: ParseSettingError,
    },
}

impl Ledger {
    /// Reads the ledger from its file. If the file does not exist, the ledger is empty.
    ///
    /// # Errors
    /// Returns an error if the file exists but cannot be read. The caller must then change no settings, because their
    /// original values would be lost.
    pub fn read(root: &Root, boot_id: Option<&str>) -> Result<Self, ReadError> {
        let text = match root.read_large(LEDGER_FILE) {
            Err(error) if error.is_not_found() => return Ok(Self::default()),
            read => read?,
        };
        Self::parse(&text, boot_id).map_err(|error| ReadError {
            path: LEDGER_FILE.to_owned(),
            problem: ReadProblem::Malformed(error.to_string()),
        })
    }

    /// Parses the content of the ledger's file. If `boot_id`, the id of the current boot, differs from the boot id in
    /// the file, only the paths of created files are returned.
    ///
    /// # Errors
    /// Returns an error if the text is not a valid ledger.
    pub fn parse(text: &str, boot_id: Option<&str>) -> Result<Self, LedgerError> {
        let document: LedgerFile = serde_json::from_str(text)
            .map_err(|error| LedgerError::InvalidSyntax(error.to_string()))?;
        if document.version > FORMAT_VERSION {
            return Err(LedgerError::LaterVersion(document.version));
        }
        let mut ledger = Self { files: document.files, ..Self::default() };
        if boot_id != Some(document.boot_id.as_str()) {
            return Ok(ledger);
        }
        ledger.unmovable_irqs = document.unmovable_interrupts;
        ledger.hugepages_changed_at = document.hugepages_changed_at;
        ledger.uplinks_set_up = document.raised_uplinks;
        ledger.networks = document.networks;
        ledger.filter = document.filter;
        for (name, entry) in document.entries {
            let Ok(setting) = name.parse::<Setting>() else {
                ledger.unknown_entries.insert(name, entry);
                continue;
            };
            let value = |text: &String| {
                let invalid_value =
                    |problem| LedgerError::InvalidValue { entry: name.clone(), problem };
                setting.parse_value(text).map_err(invalid_value)
            };
            let original = value(&entry.original)?;
            let applied = entry.applied.as_ref().map(value).transpose()?;
            ledger.entries.insert(setting, LedgerEntry { original, applied });
        }
        Ok(ledger)
    }

    /// Returns the content of the ledger's file.
    #[must_use]
    pub fn render(&self, boot_id: &str) -> String {
        let text = |(setting, entry): (&Setting, &LedgerEntry)| {
            let set = entry.applied.as_ref().map(SettingValue::to_string);
            (
                setting.to_string(),
                LedgerFileEntry { original: entry.original.to_string(), applied: set },
            )
        };
        let mut entries = self.unknown_entries.clone();
        entries.extend(self.entries.iter().map(text));
        let document = LedgerFile {
            version: FORMAT_VERSION,
            boot_id: boot_id.to_owned(),
            entries,
            files: self.files.clone(),
            unmovable_interrupts: self.unmovable_irqs.clone(),
            hugepages_changed_at: self.hugepages_changed_at,
            raised_uplinks: self.uplinks_set_up.clone(),
            networks: self.networks.clone(),
            filter: self.filter.clone(),
        };
        serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
    }

    /// Records the original value of a setting, unless the ledger already has an entry for this setting.
    pub fn record_original_value(&mut self, setting: Setting, value: SettingValue) {
        self.entries.entry(setting).or_insert(LedgerEntry { original: value, applied: None });
    }

    /// Returns true if Berth has changed a setting for which `predicate` returns true.
    #[must_use]
    pub fn has_entry(&self, predicate: impl Fn(&Setting) -> bool) -> bool {
        self.entries.keys().any(predicate)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::setting::KsmSetting;

    const KSM_RUN: Setting = Setting::Ksm(KsmSetting::Run);

    fn example_guard() -> GuardRecord {
        GuardRecord {
            bridges: ["tn5001".parse().unwrap()].into(),
            vlans: [("br-tenant".parse().unwrap(), 120.try_into().unwrap())].into(),
            sources: vec![SourceRecord {
                network: "cluster-a".to_owned(),
                bridge: "br-tenant".parse().unwrap(),
                vlan: Some(120.try_into().unwrap()),
                addresses: [(MacAddress([2, 0, 0, 0, 0, 1]), [10, 0, 0, 1].into())].into(),
            }],
            unsupported: false,
        }
    }

    #[test]
    fn record_of_an_older_agent_has_no_guard() {
        let record: FilterRecord = serde_json::from_str(r#"{"version":1,"uplinks":[]}"#).unwrap();
        assert!(record.guard.is_empty());
        assert!(!serde_json::to_string(&record).unwrap().contains("guard"));
    }

    #[test]
    fn unsupported_rules_guard_no_network() {
        let guard = example_guard();
        assert!(guard.matches_bridges() && guard.guarded_sources().len() == 1);
        let sources_only = GuardRecord { sources: guard.sources.clone(), ..GuardRecord::default() };
        assert!(sources_only.matches_bridges() && !sources_only.has_networks());
        let unsupported = GuardRecord { unsupported: true, ..guard };
        assert!(!unsupported.matches_bridges() && unsupported.guarded_sources().is_empty());
    }

    fn example_ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.record_original_value(KSM_RUN, SettingValue::Number(0));
        ledger.files.insert("/etc/x.conf".to_owned());
        ledger.unmovable_irqs.insert(24, "nvme0q1".to_owned());
        ledger.hugepages_changed_at = Some(7);
        let uplinks = ["eth1".parse().unwrap()].into();
        ledger.filter = Some(FilterRecord { version: 1, uplinks, guard: example_guard() });
        ledger
    }

    #[test]
    fn ledger_is_read_back_in_the_same_boot() {
        let text = example_ledger().render("boot-1");
        assert_eq!(Ledger::parse(&text, Some("boot-1")), Ok(example_ledger()));
    }

    #[test]
    fn a_reboot_invalidates_all_entries_except_files() {
        let text = example_ledger().render("boot-1");
        for boot in [Some("boot-2"), None] {
            let read = Ledger::parse(&text, boot).unwrap();
            assert_eq!(read, Ledger { files: example_ledger().files, ..Ledger::default() });
        }
    }

    #[test]
    fn the_first_original_value_is_kept() {
        let mut ledger = example_ledger();
        ledger.record_original_value(KSM_RUN, SettingValue::Number(1));
        assert_eq!(ledger.entries[&KSM_RUN].original, SettingValue::Number(0));
    }

    #[test]
    fn entries_of_other_versions_are_kept() {
        let text = r#"{"version":1,"bootID":"b","entries":{"zswap":{"found":"Y"}}}"#;
        let ledger = Ledger::parse(text, Some("b")).unwrap();
        assert!(ledger.entries.is_empty());
        assert!(ledger.render("b").contains("zswap"));
    }

    #[test]
    fn invalid_ledger_is_reported() {
        for (text, expected) in [
            ("", "the file is not a rollback ledger"),
            ("{\"version\":9,\"bootID\":\"b\"}", "later version"),
            (
                "{\"version\":1,\"bootID\":\"b\",\"entries\":{\"ksm run\":{\"found\":\"x\"}}}",
                "entry `ksm run`: `x` is not a number",
            ),
        ] {
            let error = Ledger::parse(text, Some("b")).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,200}") {
            drop(Ledger::parse(&text, Some("b")));
        }
    }
}
