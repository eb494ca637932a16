//! Housekeeping: restricts systemd's units, interrupts and unbound workqueues to the reserved CPUs.

use berth_api::CpuSet;

use super::change::{self, Action, Change, ChangeReason, Disruption, Step};
use super::current::current_setting_value;
use super::id::ChangeId;
use super::input::Input;
use super::single_value::plan_single_value;
use super::target::{Target, Targets};
use berth_host_facts::setting::{Setting, SettingValue, SystemdUnit};

/// Adds the targets of `housekeeping: true`.
pub(super) fn add_targets(input: Input, reserved: &CpuSet, targets: &mut Targets) {
    if input.spec.cpu.as_ref().and_then(|cpu| cpu.housekeeping) != Some(true) {
        return;
    }
    let cpus = || SettingValue::Cpus(reserved.clone());
    targets.set_target(Setting::WorkqueueCpus, cpus());
    targets.set_target(Setting::DefaultIrqAffinity, cpus());
    for unit in SystemdUnit::ALL {
        let setting = Setting::AllowedCpus(unit);
        targets.set_target(setting, cpus());
        if let Some(evidence) = input.settings.pods.units_with_pods.get(&unit)
            && current_setting_value(input, setting) == Some(cpus())
        {
            targets.notes.push(format!(
                "pods or virtual machines below {} can use only CPUs {reserved}: {evidence}",
                unit.unit_name()
            ));
        }
    }
    let mut unmovable = 0;
    for irq in &input.settings.irqs {
        if input.facts.ledger.unmovable_irqs.get(&irq.number) == Some(&irq.driver_names) {
            unmovable += 1;
        } else {
            targets.set_target(Setting::IrqAffinity(irq.number), cpus());
        }
    }
    if unmovable > 0 {
        targets.notes.push(format!(
            "{unmovable} interrupts are not moved: they are bound to their CPUs or managed by their \
             drivers (storage queues)"
        ));
    }
    let pinned = pinned_cpus(input).intersection(reserved);
    if !pinned.is_empty() {
        let reason = format!(
            "CPUs {pinned} of the reserved {reserved} are allocated exclusively to running pods; drain the node first"
        );
        let blocked_settings: Vec<Setting> =
            targets.values.keys().copied().filter(is_housekeeping).collect();
        targets
            .blocked
            .extend(blocked_settings.into_iter().map(|setting| (setting, reason.clone())));
    }
}

const fn is_housekeeping(setting: &Setting) -> bool {
    matches!(
        setting,
        Setting::WorkqueueCpus
            | Setting::DefaultIrqAffinity
            | Setting::AllowedCpus(_)
            | Setting::IrqAffinity(_)
    )
}

fn pinned_cpus(input: Input) -> CpuSet {
    let state = input.facts.kubelet.cpu_state.as_ref();
    state.map(berth_host_facts::kubelet::CpuManagerState::exclusive_cpus).unwrap_or_default()
}

/// Returns the changes: first those of units, then those of workqueues and of the default affinity, then one change for
/// all interrupts.
pub(super) fn plan_changes(input: Input, targets: &Targets) -> Vec<Change> {
    let mut changes: Vec<Change> = SystemdUnit::ALL
        .into_iter()
        .filter_map(|unit| plan_allowed_cpus(input, targets, unit))
        .collect();
    let absent = "this kernel has no such setting, or it cannot be read";
    let effect = "unbound kernel work moves to these CPUs";
    changes.extend(plan_single_value(input, targets, Setting::WorkqueueCpus, absent, effect));
    let effect = "interrupts that drivers request later use these CPUs";
    changes.extend(plan_single_value(input, targets, Setting::DefaultIrqAffinity, absent, effect));
    changes.extend(plan_interrupts(input, targets, ChangeReason::Spec));
    changes.extend(plan_interrupts(input, targets, ChangeReason::Restore));
    changes
}

fn plan_allowed_cpus(input: Input, targets: &Targets, unit: SystemdUnit) -> Option<Change> {
    let setting = Setting::AllowedCpus(unit);
    let target = targets.get(setting)?;
    let version = input.facts.cgroup.version;
    if version.is_some_and(|version| version != 2) {
        let reason = "systemd restricts CPUs of units only with control groups of version 2; boot with \
                   systemd.unified_cgroup_hierarchy=1";
        return Some(Change::unsupported_setting(setting, target, reason.to_owned()));
    }
    let Some(was) = current_setting_value(input, setting) else {
        let reason = "this host has no such unit, or systemd does not answer".to_owned();
        return Some(Change::unsupported_setting(setting, target, reason));
    };
    if was == target.value {
        return None;
    }
    let blocked = targets.blocked.get(&setting).cloned().or_else(|| {
        let evidence = input.settings.pods.units_with_pods.get(&unit)?;
        (target.reason == ChangeReason::Spec).then(|| {
            format!(
                "pods or virtual machines below {0} would lose their CPUs: {evidence}; move them out of {0} (the kubelet \
                 and the container runtime need the same cgroup driver)",
                unit.unit_name()
            )
        })
    });
    let effect = match unit {
        SystemdUnit::Init => "systemd itself moves to these CPUs",
        SystemdUnit::System => {
            "all services move to these CPUs, including the kubelet and the container runtime; pods do not move"
        }
        SystemdUnit::User => "login sessions move to these CPUs",
    };
    let change = Change::for_setting(setting, was, target, Disruption::Low, effect.to_owned());
    Some(change.blocked_by(blocked))
}

/// Returns the change of all interrupts whose affinity differs. Any subset of the reserved CPUs satisfies the spec; a
/// restored affinity is exactly the original set.
fn plan_interrupts(input: Input, targets: &Targets, reason: ChangeReason) -> Option<Change> {
    let step = |setting: Setting, target: &Target| {
        let was = current_setting_value(input, setting)?;
        let (SettingValue::Cpus(now), SettingValue::Cpus(desired)) = (&was, &target.value) else {
            return None;
        };
        let is_satisfied = match reason {
            ChangeReason::Spec => !now.is_empty() && now.is_subset(desired),
            ChangeReason::Restore => now == desired,
        };
        let (will_be, desired) = (target.value.clone(), target.value.clone());
        (!is_satisfied).then(|| Step {
            setting,
            current_value: was,
            new_value: will_be,
            desired_value: desired,
            dependent_settings: Vec::new(),
        })
    };
    let irq_targets = targets.values.iter().filter(|(setting, target)| {
        matches!(setting, Setting::IrqAffinity(_)) && target.reason == reason
    });
    let steps: Vec<Step> =
        irq_targets.filter_map(|(setting, target)| step(*setting, target)).collect();
    let first = steps.first()?;
    let blocked =
        targets.blocked.get(&first.setting).cloned().or_else(|| irqbalance_conflict(input, reason));
    let will_be = match reason {
        ChangeReason::Spec => first.new_value.to_display_text(),
        ChangeReason::Restore => "the original CPUs".to_owned(),
    };
    let mut old_values: Vec<String> =
        steps.iter().map(|step| step.current_value.to_display_text()).collect();
    old_values.sort_unstable();
    old_values.dedup();
    let was = if old_values.len() == 1 { old_values.concat() } else { "various CPUs".to_owned() };
    let group = Change {
        id: ChangeId::Interrupts(change::interrupt_numbers(&steps)),
        was,
        will_be,
        why: reason,
        drift: false,
        disruption: Disruption::Low,
        effect: "the interrupts move to these CPUs, except those that drivers manage".to_owned(),
        blocked: None,
        removes: Vec::new(),
        action: Action::Set(steps),
    };
    Some(group.blocked_by(blocked))
}

fn irqbalance_conflict(input: Input, reason: ChangeReason) -> Option<String> {
    let runs = input.facts.processes.find_by_name("irqbalance").is_some();
    (runs && reason == ChangeReason::Spec).then(|| {
        "irqbalance would move the interrupts back; set IRQBALANCE_BANNED_CPULIST to all other CPUs in \
         /etc/default/irqbalance and restart it, or systemctl disable --now irqbalance"
            .to_owned()
    })
}
