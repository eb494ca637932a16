//! Labels `host.berth.dev/*` of the Node. They describe features of the host that rarely change, so that users and
//! schedulers can depend on the labels.

use std::collections::BTreeMap;

use crate::infra_node::{KvmState, Zone};
use crate::names::label;
use crate::{InfraNodeStatus, PageSize};

/// Returns each label with its value, or with `None` if the fact is not known.
#[must_use]
pub fn feature_labels(status: &InfraNodeStatus) -> BTreeMap<&'static str, Option<String>> {
    let capabilities = &status.capabilities;
    let is_unknown =
        |path: &str| status.unknown.iter().any(|unknown| unknown.path.starts_with(path));
    let has_pages = |size| has_hugepages(&status.zones, size).filter(|_| !is_unknown("zones"));
    // `true` requires only one device with the feature; `false` requires that the facts about all devices are known.
    let present = |found: bool, path: &str| (found || !is_unknown(path)).then_some(found);
    let kubelet = capabilities.kubelet.as_ref();
    let sriov = capabilities.sriov.iter().any(|function| function.total > 0);
    BTreeMap::from([
        (
            label::KVM,
            to_bool_label_value(capabilities.kvm.state.map(|state| state == KvmState::Ready)),
        ),
        (label::NESTED_VIRTUALIZATION, to_bool_label_value(capabilities.kvm.nested)),
        (
            label::SMT,
            to_bool_label_value(capabilities.cpu.threads_per_core.map(|threads| threads > 1)),
        ),
        (label::HUGEPAGES_2MI, to_bool_label_value(has_pages(PageSize::MIB_2))),
        (label::HUGEPAGES_1GI, to_bool_label_value(has_pages(PageSize::GIB_1))),
        (
            label::KSM,
            to_bool_label_value(capabilities.memory.ksm.as_ref().and_then(|ksm| ksm.running)),
        ),
        (label::IOMMU, to_bool_label_value(capabilities.iommu.enabled)),
        (label::SRIOV, to_bool_label_value(present(sriov, "capabilities.sriov"))),
        (
            label::NVME,
            to_bool_label_value(present(!capabilities.nvme.is_empty(), "capabilities.nvme")),
        ),
        (label::VHOST_NET, to_bool_label_value(capabilities.kvm.vhost_net)),
        (label::CPU_VENDOR, capabilities.cpu.vendor.as_deref().map(cpu_vendor_label_value)),
        (
            label::NUMA_ZONES,
            Some(status.zones.len().to_string()).filter(|_| !status.zones.is_empty()),
        ),
        (
            label::CPU_MANAGER,
            kubelet.and_then(|kubelet| kubelet.cpu_manager_policy.as_deref().map(to_label_value)),
        ),
        (
            label::TOPOLOGY_POLICY,
            kubelet
                .and_then(|kubelet| kubelet.topology_manager_policy.as_deref().map(to_label_value)),
        ),
    ])
}

fn to_bool_label_value(fact: Option<bool>) -> Option<String> {
    fact.map(|fact| fact.to_string())
}

/// Returns true if any zone has huge pages of this size; `None` if the zones are unknown.
fn has_hugepages(zones: &[Zone], size: PageSize) -> Option<bool> {
    let pools = || zones.iter().flat_map(|zone| &zone.hugepages);
    (!zones.is_empty()).then(|| pools().any(|pool| pool.size == size && pool.total > 0))
}

/// Returns the value of the label for a CPU vendor, such as `intel` for `GenuineIntel`. For an unknown vendor, this is
/// the vendor name from CPUID or the device tree, in lower case.
fn cpu_vendor_label_value(name: &str) -> String {
    match name {
        "GenuineIntel" => "intel".to_owned(),
        "AuthenticAMD" => "amd".to_owned(),
        "HygonGenuine" => "hygon".to_owned(),
        other => to_label_value(&other.to_ascii_lowercase()),
    }
}

/// Maximum length of a label's value.
const MAX_LABEL_VALUE_LENGTH: usize = 63;

/// Converts a text to a valid label value: other characters than letters, digits, `-`, `_` and `.` become `-`, and
/// punctuation at the ends is removed.
fn to_label_value(text: &str) -> String {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let word: String = text
        .chars()
        .map(|letter| if is_allowed(letter) { letter } else { '-' })
        .take(MAX_LABEL_VALUE_LENGTH)
        .collect();
    word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infra_node::{HugepagePool, Nvme, UnknownFact, UnknownReason};
    use proptest::prelude::*;

    #[test]
    fn unknown_fact_has_no_label_value() {
        let mut status = InfraNodeStatus::default();
        let all = feature_labels(&status);
        assert_eq!(all.values().filter(|value| value.is_some()).count(), 2, "{all:?}");
        let unknown = |path: &str| UnknownFact {
            path: path.to_owned(),
            reason: UnknownReason::Unreadable,
            message: None,
        };
        status.unknown = vec![unknown("capabilities.nvme"), unknown("capabilities.sriov[0].total")];
        assert!(feature_labels(&status).values().all(Option::is_none));
    }

    #[test]
    fn label_is_true_if_one_device_is_known() {
        let mut status = InfraNodeStatus::default();
        status.capabilities.nvme = ["nvme0n1", "nvme1n1"]
            .map(|name| Nvme {
                name: name.to_owned(),
                id: None,
                model: None,
                size: None,
                zone: None,
                pci_address: None,
                driver: None,
                iommu_group: None,
                in_use: None,
                users: Vec::new(),
            })
            .to_vec();
        status.unknown = vec![UnknownFact {
            path: "capabilities.nvme[1].inUse".to_owned(),
            reason: UnknownReason::NotFound,
            message: None,
        }];
        assert_eq!(feature_labels(&status)[label::NVME].as_deref(), Some("true"));
    }

    #[test]
    fn facts_become_label_values() {
        let mut status = InfraNodeStatus::default();
        let pool =
            |size, total| HugepagePool { size, total, free: None, surplus: None, reserved: None };
        status.zones = vec![
            Zone { id: 0, hugepages: vec![pool(PageSize::MIB_2, 0)], ..Zone::default() },
            Zone {
                id: 2,
                hugepages: vec![pool(PageSize::MIB_2, 7), pool(PageSize::GIB_1, 0)],
                ..Zone::default()
            },
        ];
        status.capabilities.cpu.vendor = Some("GenuineIntel".to_owned());
        status.capabilities.kvm.state = Some(KvmState::ModuleNotLoaded);
        let all = feature_labels(&status);
        for (key, value) in [
            (label::HUGEPAGES_2MI, "true"),
            (label::HUGEPAGES_1GI, "false"),
            (label::CPU_VENDOR, "intel"),
            (label::NUMA_ZONES, "2"),
            (label::KVM, "false"),
        ] {
            assert_eq!(all[key].as_deref(), Some(value), "{key}");
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_valid_label_value(text in ".{0,90}") {
            let word = to_label_value(&text);
            prop_assert!(word.len() <= 63);
            prop_assert!(word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)));
            prop_assert!(word.is_empty() || word.starts_with(|c: char| c.is_ascii_alphanumeric()));
            prop_assert!(word.is_empty() || word.ends_with(|c: char| c.is_ascii_alphanumeric()));
        }
    }
}
