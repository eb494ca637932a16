//! Plans the ordered list of changes from the observed to the desired state of a host. The planner is a pure function:
//! it neither reads nor changes the host.
//!
//! There are three steps. Each part of the spec adds the desired values of its settings ([`Target`]). The target of a
//! setting that Berth changed and that the spec no longer has is its original value. Each setting that differs from its
//! target becomes a [`Change`], with its effect on workloads and the reason if it is blocked. A host that matches the
//! spec has no changes, so a plan made after `apply` is empty.

mod change;
pub mod cpu;
mod current;
mod drift;
mod field_path;
mod housekeeping;
mod hugepages;
pub mod id;
mod input;
mod ksm;
pub mod kubelet;
mod leased_networks;
mod memory_reserve;
mod model;
pub mod network;
mod single_value;
pub mod table;
mod target;
mod thp;
mod vfio;

use berth_host_facts::setting::{KsmSetting, Setting, SettingValue};
use berth_host_facts::vfio::FunctionList;

use crate::manifest::SpecPart;
pub use change::{Action, Change, ChangeReason, Disruption, Step};
use current::current_setting_value;
use drift::separate_drift;
pub use id::{AttemptId, ChangeId};
pub use input::Input;
pub use leased_networks::{LeasedNetwork, LeasedNetworks, leased_networks};
pub use model::Plan;
pub use network::state::NetworkState;
use target::{Target, Targets, collect_or_freeze, part_of_setting};

/// Returns the plan from the observed to the desired state.
#[must_use]
pub fn plan(input: Input) -> Plan {
    let mut targets = Targets::default();
    thp::add_target(input, &mut targets);
    let mut frozen = input.unparsed.parts.clone();
    collect_or_freeze(&mut frozen, SpecPart::Hugepages, &mut targets, |t| {
        hugepages::add_targets(input, t)
    });
    collect_or_freeze(&mut frozen, SpecPart::Ksm, &mut targets, |t| ksm::add_targets(input, t));
    collect_or_freeze(&mut frozen, SpecPart::Devices, &mut targets, |t| {
        vfio::add_targets(input, t)
    });
    let mut reserved_cpus = None;
    collect_or_freeze(&mut frozen, SpecPart::Cpu, &mut targets, |t| {
        reserved_cpus = cpu::reserved_cpus(input, t);
        if let Some(reserved) = &reserved_cpus {
            housekeeping::add_targets(input, reserved, t);
        }
    });
    let mut stale_settings = Vec::new();
    for (setting, entry) in &input.facts.ledger.entries {
        if targets.values.contains_key(setting) || frozen.contains(&part_of_setting(*setting)) {
            continue;
        }
        let device_removed = |now: &Option<SettingValue>| match setting {
            Setting::IrqAffinity(number) => {
                now.is_none() && !input.settings.unread_irqs.contains(*number)
            }
            Setting::PciDriver(_) => {
                now.is_none() && input.facts.vfio.list == FunctionList::Complete
            }
            _ => false,
        };
        let current_value = current_setting_value(input, *setting);
        // KSM's advisor changes `pages_to_scan` all the time, so that the value may equal the original value by chance.
        let by_advisor = *setting == Setting::Ksm(KsmSetting::PagesToScan)
            && input.facts.ledger.entries.contains_key(&Setting::Ksm(KsmSetting::AdvisorMode));
        if device_removed(&current_value)
            || (current_value.as_ref() == Some(&entry.original) && !by_advisor)
        {
            stale_settings.push(*setting);
            continue;
        }
        let target = Target { value: entry.original.clone(), reason: ChangeReason::Restore };
        targets.values.insert(*setting, target);
    }

    let mut changes: Vec<Change> = thp::plan_change(input, &targets).into_iter().collect();
    changes.extend(hugepages::plan_changes(input, &targets));
    changes.extend(ksm::plan_changes(input, &targets));
    changes.extend(housekeeping::plan_changes(input, &targets));
    changes.extend(vfio::plan_changes(input, &targets));
    let mut changes = separate_drift(input, changes);
    let (kubelet_changes, advice) =
        kubelet::plan(input, reserved_cpus.as_ref(), &frozen, &mut targets);
    changes.extend(kubelet_changes);
    let networks = network::plan(input);
    changes.extend(networks.changes);
    targets.faults.extend(networks.faults);
    targets.faults.sort();
    targets.notes.extend(kubelet::restart_reason(input.facts));
    Plan {
        node: input.facts.node_name().unwrap_or_default().to_owned(),
        changes,
        faults: targets.faults,
        notes: targets.notes,
        kubelet: advice,
        reserved_cpus,
        networks: networks.states,
        stale_settings,
        stale_records: networks.stale_records,
        records_to_adopt: networks.records_to_adopt,
        unfiltered_reason: None,
        housekeeping: input.spec.cpu.as_ref().and_then(|cpu| cpu.housekeeping) == Some(true),
        is_kubelet_running: input
            .facts
            .processes
            .are_visible
            .then_some(input.facts.kubelet.is_running),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::infra_node::InfraNodeSpec;
    use berth_host_facts::HostFacts;
    use berth_host_facts::host_settings::HostSettings;
    use berth_host_facts::irqs::UnreadIrqs;

    use super::*;
    use crate::manifest::UnparsedParts;

    #[test]
    fn only_the_original_affinity_of_a_removed_interrupt_is_stale() {
        let setting = Setting::IrqAffinity(40);
        let mut facts = HostFacts::default();
        let original = SettingValue::Cpus("0-3".parse().unwrap());
        facts.ledger.record_original_value(setting, original);
        let (spec, unparsed) = (InfraNodeSpec::default(), UnparsedParts::default());
        let stale = |unread_irqs: UnreadIrqs| {
            let settings = HostSettings { unread_irqs, ..HostSettings::default() };
            let input = Input {
                spec: &spec,
                unparsed: &unparsed,
                facts: &facts,
                settings: &settings,
                leases: None,
            };
            plan(input).stale_settings
        };
        assert_eq!(stale(UnreadIrqs::default()), [setting]);
        assert_eq!(stale(UnreadIrqs::Numbers([41].into())), [setting]);
        assert_eq!(stale(UnreadIrqs::Numbers([40].into())), []);
        assert_eq!(stale(UnreadIrqs::All), []);
    }
}
