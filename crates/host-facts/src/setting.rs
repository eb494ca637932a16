//! All settings of a host that Berth can change, with their names in plans, in the ledger and in messages.

use std::fmt;
use std::str::FromStr;

use berth_api::{CpuSet, PageSize, PciAddress, excerpt};

/// A setting of the host that Berth may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// Number of huge pages in the persistent pool of a NUMA zone (`nr_hugepages` without surplus pages).
    Hugepages {
        /// The kernel's number of the zone.
        zone: u32,
        /// Size of the huge pages.
        size: PageSize,
    },
    /// Mode of transparent huge pages (`/sys/kernel/mm/transparent_hugepage/enabled`).
    TransparentHugepages,
    /// The value in a file of `/sys/kernel/mm/ksm`.
    Ksm(KsmSetting),
    /// CPUs that run unbound workqueues (`/sys/devices/virtual/workqueue/cpumask`).
    WorkqueueCpus,
    /// Default affinity: CPUs that will handle the interrupts that drivers request later
    /// (`/proc/irq/default_smp_affinity`).
    DefaultIrqAffinity,
    /// CPUs that handle the interrupt with this number (`/proc/irq/<n>/smp_affinity_list`).
    IrqAffinity(u32),
    /// CPUs on which systemd lets a unit's processes run. The property `AllowedCPUs` is set only at runtime, so it is
    /// lost at a reboot.
    AllowedCpus(SystemdUnit),
    /// Driver to which a PCI function is bound, with `driver_override` for `vfio-pci`. The kernel binds the functions
    /// again at each boot.
    PciDriver(PciAddress),
}

/// Files of `/sys/kernel/mm/ksm` (`Documentation/admin-guide/mm/ksm.rst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KsmSetting {
    /// The file `advisor_mode`, in kernel 6.8 and later.
    AdvisorMode,
    /// The file `merge_across_nodes`, which is writable only while no pages are merged.
    MergeAcrossNodes,
    /// The file `pages_to_scan`, which is not writable while the advisor is active.
    PagesToScan,
    /// The file `sleep_millisecs`, in milliseconds.
    SleepMillisecs,
    /// The file `run`: 0 means stopped, 1 running, 2 stopped with all pages unmerged.
    Run,
}

/// The systemd units that together contain all processes except those of virtual machines and pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SystemdUnit {
    /// `init.scope`, which contains only the process of systemd itself.
    Init,
    /// `system.slice`, which contains services, including the kubelet and the container runtime.
    System,
    /// `user.slice`, which contains the login sessions of users.
    User,
}

/// Actual or desired value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingValue {
    /// A number of pages, a time in milliseconds, or the value of a numeric file such as `run`.
    Number(u64),
    /// A set of CPUs. For `AllowedCPUs`, an empty set means all CPUs.
    Cpus(CpuSet),
    /// A keyword of the kernel, such as `madvise`, or the name of a driver.
    Keyword(String),
}

/// Error when a setting of the ledger or its value cannot be parsed: the text, and a description of a valid text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not {1}")]
pub struct ParseSettingError(String, &'static str);

/// Maximum length of a driver's name in the ledger. The kernel limits the names of modules to 56 bytes.
const MAX_DRIVER_NAME_BYTES: usize = 64;

impl KsmSetting {
    /// All files, in the order in which they must be written: KSM is started (`run`) only after its other settings are
    /// written.
    pub const ALL: [Self; 5] = [
        Self::AdvisorMode,
        Self::MergeAcrossNodes,
        Self::PagesToScan,
        Self::SleepMillisecs,
        Self::Run,
    ];

    /// Returns the name of the file in `/sys/kernel/mm/ksm`.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::AdvisorMode => "advisor_mode",
            Self::MergeAcrossNodes => "merge_across_nodes",
            Self::PagesToScan => "pages_to_scan",
            Self::SleepMillisecs => "sleep_millisecs",
            Self::Run => "run",
        }
    }
}

impl SystemdUnit {
    pub const ALL: [Self; 3] = [Self::Init, Self::System, Self::User];

    /// Returns the name of the unit, which is also the name of its control group.
    #[must_use]
    pub const fn unit_name(self) -> &'static str {
        match self {
            Self::Init => "init.scope",
            Self::System => "system.slice",
            Self::User => "user.slice",
        }
    }
}

impl Setting {
    /// Parses a value of this setting in the format that [`SettingValue`]'s `Display` writes.
    ///
    /// # Errors
    /// Returns an error if the text is not a value of this setting.
    pub fn parse_value(&self, text: &str) -> Result<SettingValue, ParseSettingError> {
        let number = || text.parse().ok().map(SettingValue::Number);
        let cpus = || text.parse().ok().map(SettingValue::Cpus);
        let word = || {
            let is_word_byte = |b: u8| b.is_ascii_lowercase() || b == b'-';
            (!text.is_empty() && text.bytes().all(is_word_byte))
                .then(|| SettingValue::Keyword(text.to_owned()))
        };
        let driver_name = || {
            let is_valid = (1..=MAX_DRIVER_NAME_BYTES).contains(&text.len());
            let is_printable = text.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
            (is_valid && is_printable).then(|| SettingValue::Keyword(text.to_owned()))
        };
        let (value, expected) = match self {
            Self::Hugepages { .. } => (number(), "a number of pages"),
            Self::TransparentHugepages | Self::Ksm(KsmSetting::AdvisorMode) => {
                (word(), "a kernel keyword")
            }
            Self::Ksm(_) => (number(), "a number"),
            Self::WorkqueueCpus
            | Self::DefaultIrqAffinity
            | Self::IrqAffinity(_)
            | Self::AllowedCpus(_) => (cpus(), "a CPU list"),
            Self::PciDriver(_) => (driver_name(), "the name of a driver"),
        };
        value.ok_or_else(|| ParseSettingError(excerpt(text), expected))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hugepages { zone, size } => write!(f, "hugepages {size} zone {zone}"),
            Self::TransparentHugepages => f.write_str("transparent hugepages"),
            Self::Ksm(setting) => write!(f, "ksm {}", setting.file_name()),
            Self::WorkqueueCpus => f.write_str("unbound workqueues"),
            Self::DefaultIrqAffinity => f.write_str("new interrupts"),
            Self::IrqAffinity(number) => write!(f, "interrupt {number}"),
            Self::AllowedCpus(unit) => write!(f, "{} AllowedCPUs", unit.unit_name()),
            Self::PciDriver(address) => write!(f, "pci {address} driver"),
        }
    }
}

impl FromStr for Setting {
    type Err = ParseSettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = text.split(' ').collect();
        let found = match words.as_slice() {
            ["hugepages", size, "zone", zone] => size
                .parse()
                .ok()
                .zip(zone.parse().ok())
                .map(|(size, zone)| Self::Hugepages { zone, size }),
            ["transparent", "hugepages"] => Some(Self::TransparentHugepages),
            ["ksm", file] => KsmSetting::ALL
                .into_iter()
                .find(|setting| setting.file_name() == *file)
                .map(Self::Ksm),
            ["unbound", "workqueues"] => Some(Self::WorkqueueCpus),
            ["new", "interrupts"] => Some(Self::DefaultIrqAffinity),
            ["interrupt", number] => number.parse().ok().map(Self::IrqAffinity),
            ["pci", address, "driver"] => address.parse().ok().map(Self::PciDriver),
            [unit, "AllowedCPUs"] => SystemdUnit::ALL
                .into_iter()
                .find(|known| known.unit_name() == *unit)
                .map(Self::AllowedCpus),
            _ => None,
        };
        found.ok_or_else(|| {
            ParseSettingError(excerpt(text), "a setting that this version of Berth supports")
        })
    }
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Cpus(cpus) => write!(f, "{cpus}"),
            Self::Keyword(word) => f.write_str(word),
        }
    }
}

impl SettingValue {
    /// Formats the value for messages. Unlike `Display`, shows an empty set of CPUs as `all CPUs`.
    #[must_use]
    pub fn to_display_text(&self) -> String {
        match self {
            Self::Cpus(cpus) if cpus.is_empty() => "all CPUs".to_owned(),
            Self::Cpus(cpus) => format!("CPUs {}", cpus.to_compact_string()),
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one_setting_of_each_kind() -> Vec<Setting> {
        let mut all: Vec<Setting> = vec![
            Setting::Hugepages { zone: 12, size: PageSize::GIB_1 },
            Setting::TransparentHugepages,
            Setting::WorkqueueCpus,
            Setting::DefaultIrqAffinity,
            Setting::IrqAffinity(24),
            Setting::PciDriver("0000:81:00.0".parse().unwrap()),
        ];
        all.extend(KsmSetting::ALL.map(Setting::Ksm));
        all.extend(SystemdUnit::ALL.map(Setting::AllowedCpus));
        all
    }

    #[test]
    fn setting_names_round_trip() {
        for setting in one_setting_of_each_kind() {
            assert_eq!(setting.to_string().parse(), Ok(setting));
        }
        for wrong in [
            "",
            "ksm",
            "ksm x",
            "hugepages 2Mi",
            "hugepages 3Mi zone 0",
            "interrupt -1",
            "pci 81.0 driver",
        ] {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn value_type_depends_on_setting() {
        assert_eq!(
            Setting::IrqAffinity(1).parse_value("0-1"),
            Ok(SettingValue::Cpus("0-1".parse().unwrap()))
        );
        assert!(Setting::IrqAffinity(1).parse_value("x").is_err());
        assert!(Setting::Ksm(KsmSetting::Run).parse_value("").is_err());
        assert!(Setting::TransparentHugepages.parse_value("a b").is_err());
        let driver = Setting::PciDriver("0000:81:00.0".parse().unwrap());
        assert_eq!(
            driver.parse_value("8250_mid"),
            Ok(SettingValue::Keyword("8250_mid".to_owned()))
        );
        for text in ["", "a\nb", "x".repeat(65).as_str()] {
            assert!(driver.parse_value(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,40}") {
            drop(text.parse::<Setting>());
            for setting in one_setting_of_each_kind() {
                if let Ok(value) = setting.parse_value(&text) {
                    prop_assert_eq!(setting.parse_value(&value.to_string()), Ok(value));
                }
            }
        }
    }
}
