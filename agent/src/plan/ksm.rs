//! Kernel samepage merging: detects other programs that control it, and plans the settings of each mode
//! and the steps to change `merge_across_nodes`.
//!
//! Rules: `Documentation/admin-guide/mm/ksm.rst`. Mode `Auto` enables the kernel's advisor (6.8 and
//! later), which controls ksmd. On a kernel without an advisor, ksmd runs when memory is short: it starts
//! below 20 % available memory and stops above 25 %. It scans more pages per wake-up if less memory is
//! available (see [`SCAN_LEVELS`]). Between 20 % and 25 % ksmd stays as it is, and the level changes only when
//! the available memory is two percentage points outside the current level, so that the settings do not alternate.

use berth_api::Bytes;
use berth_api::infra_node::{KsmMode, KsmOwner};

use super::change::{Action, Change, ChangeReason, Disruption};
use super::current::current_setting_value;
use super::field_path::FieldPath;
use super::input::Input;
use super::memory_reserve::host_memory_reserve;
use super::target::{Target, Targets};
use berth_host_facts::setting::{KsmSetting, Setting, SettingValue};

/// Percentage of available memory above which ksmd stops.
const STOP_PERCENT: u64 = 25;
/// Levels of scanning: if less than this percentage of memory is available, ksmd scans this number of
/// pages at each wake-up (every 20 ms by default). The numbers are 5,000 to 62,500 pages a second, the
/// range of ksmtuned's defaults.
const SCAN_LEVELS: [(u64, u64); 4] = [(5, 1250), (10, 800), (15, 400), (20, 100)];
/// Percentage points of hysteresis between levels.
const HYSTERESIS_POINTS: u64 = 2;

/// Adds the targets of the spec.
pub(super) fn add_targets(input: Input, targets: &mut Targets) {
    let Some(spec) = &input.spec.ksm else { return };
    if spec.mode == KsmMode::Observe {
        return;
    }
    for (field, value, max) in [
        ("pagesToScan", spec.pages_to_scan, 1_000_000),
        ("sleepMillis", spec.sleep_millis, 3_600_000),
    ] {
        if let Some(value) = value.filter(|value| !(1..=max).contains(value)) {
            let message = format!("must be from 1 to {max}");
            targets.faults.push(FieldPath::spec("ksm").child(field).fault(value, message));
            return;
        }
    }
    let ksm = |setting: KsmSetting| Setting::Ksm(setting);
    let has_advisor = input.settings.ksm.contains_key(&KsmSetting::AdvisorMode);
    let mut pages = spec.pages_to_scan.map(u64::from);
    let running = match (spec.mode, has_advisor) {
        (KsmMode::Auto, true) => {
            targets.set_target(
                ksm(KsmSetting::AdvisorMode),
                SettingValue::Keyword("scan-time".to_owned()),
            );
            if let Some(pages) = pages.take() {
                targets.set_target(ksm(KsmSetting::PagesToScan), SettingValue::Number(pages));
                let reason =
                    "with mode Auto only the kernel's advisor can set this value; use mode On";
                targets.blocked.insert(ksm(KsmSetting::PagesToScan), reason.to_owned());
            }
            Some(1)
        }
        (KsmMode::Auto, false) => desired_run_state(input, &mut pages),
        (KsmMode::On, _) => Some(1),
        _ => Some(0),
    };
    if let Some(pages) = pages {
        if has_advisor {
            targets
                .set_target(ksm(KsmSetting::AdvisorMode), SettingValue::Keyword("none".to_owned()));
        }
        targets.set_target(ksm(KsmSetting::PagesToScan), SettingValue::Number(pages));
    }
    if let Some(millis) = spec.sleep_millis {
        targets.set_target(ksm(KsmSetting::SleepMillisecs), SettingValue::Number(millis.into()));
    }
    if let Some(across) = spec.merge_across_nodes {
        targets.set_target(ksm(KsmSetting::MergeAcrossNodes), SettingValue::Number(across.into()));
    }
    if let Some(run) = running {
        targets.set_target(ksm(KsmSetting::Run), SettingValue::Number(run));
    }
}

/// Returns 1 if ksmd should run and 0 if it should stop, for mode Auto on a kernel without an advisor. If ksmd should
/// run, also sets `pages`, the number of pages to scan at each wake-up. Returns `None` if ksmd stays as it is.
fn desired_run_state(input: Input, pages: &mut Option<u64>) -> Option<u64> {
    let (Some(available), Some(total)) =
        (input.settings.available_memory, input.facts.memory.total)
    else {
        return None;
    };
    let percent = available.0.saturating_mul(100) / total.0.max(1);
    let number = |setting| match input.settings.ksm.get(&setting) {
        Some(SettingValue::Number(number)) => Some(*number),
        _ => None,
    };
    let runs = number(KsmSetting::Run) == Some(1);
    let start = SCAN_LEVELS[SCAN_LEVELS.len() - 1].0;
    if percent > STOP_PERCENT || (percent >= start && !runs) {
        return Some(0);
    }
    let level = |percent: u64| {
        let found = SCAN_LEVELS.iter().find(|(below, _)| percent < *below);
        found.map_or(SCAN_LEVELS[SCAN_LEVELS.len() - 1].1, |(_, pages)| *pages)
    };
    let now = number(KsmSetting::PagesToScan);
    // The current number of pages stays if it is also correct for slightly more or slightly less available memory.
    let nearby_levels =
        [percent.saturating_sub(HYSTERESIS_POINTS), percent, percent + HYSTERESIS_POINTS]
            .map(level);
    let unchanged = now.filter(|now| runs && nearby_levels.contains(now));
    *pages = pages.or(unchanged).or_else(|| Some(level(percent)));
    Some(1)
}

/// Returns the changes, in the order that the kernel requires: the advisor first, because it
/// forbids and resets `pages_to_scan`; `run` last.
pub(super) fn plan_changes(input: Input, targets: &Targets) -> Vec<Change> {
    let target_of = |setting| targets.get(Setting::Ksm(setting));
    let current_value = |setting| current_setting_value(input, Setting::Ksm(setting));
    let advisor_changes = target_of(KsmSetting::AdvisorMode).is_some_and(|target| {
        current_value(KsmSetting::AdvisorMode).is_some_and(|now| now != target.value)
    });
    let advisor = target_of(KsmSetting::AdvisorMode).map(|target| target.value.clone());
    let advised = advisor.or_else(|| current_value(KsmSetting::AdvisorMode))
        == Some(SettingValue::Keyword("scan-time".to_owned()));
    let owner = conflicting_program(input);
    let change = |setting: KsmSetting| {
        let target = target_of(setting)?;
        let host_setting = Setting::Ksm(setting);
        let Some(was) = current_value(setting) else {
            let reason = format!("this kernel has no /sys/kernel/mm/ksm/{}", setting.file_name());
            return (target.reason == ChangeReason::Spec)
                .then(|| Change::unsupported_setting(host_setting, target, reason));
        };
        // When the advisor is turned off, the kernel resets pages_to_scan, whatever its current
        // value is.
        let reset = setting == KsmSetting::PagesToScan && advisor_changes && !advised;
        if is_desired(setting, &was, target) && !reset {
            return None;
        }
        // The advisor is still on. The original value is restored after the advisor is turned off.
        if setting == KsmSetting::PagesToScan && advised && target.reason == ChangeReason::Restore {
            return None;
        }
        let (disruption, effect) = describe_effect(input, setting, target);
        let mut change = Change::for_setting(host_setting, was, target, disruption, effect);
        if let Action::Set(steps) = &mut change.action
            && let Some(step) = steps.first_mut()
        {
            step.dependent_settings = dependent_settings(setting)
                .iter()
                .filter_map(|other| Some((Setting::Ksm(*other), current_value(*other)?)))
                .collect();
        }
        let blocked = targets.blocked.get(&host_setting).cloned();
        let unmerges = setting == KsmSetting::MergeAcrossNodes
            || (setting == KsmSetting::Run && target.value == SettingValue::Number(2));
        let insufficient_memory = if unmerges { insufficient_memory_reason(input) } else { None };
        Some(change.blocked_by(blocked.or_else(|| owner.clone()).or(insufficient_memory)))
    };
    KsmSetting::ALL.into_iter().filter_map(change).collect()
}

/// Returns true if the setting has its desired value. If `run` should be 0 (stop), 2 (unmerge and
/// stop) is accepted too, because ksmd is stopped and the administrator's unmerging must not be
/// undone.
fn is_desired(setting: KsmSetting, was: &SettingValue, target: &Target) -> bool {
    let stopped = |value: &SettingValue| matches!(value, SettingValue::Number(0 | 2));
    let both_stopped = setting == KsmSetting::Run && target.reason == ChangeReason::Spec;
    *was == target.value || (both_stopped && stopped(was) && stopped(&target.value))
}

/// Returns the other settings that change with this setting, because the kernel or the steps of the change also set
/// them.
const fn dependent_settings(setting: KsmSetting) -> &'static [KsmSetting] {
    match setting {
        KsmSetting::AdvisorMode => &[KsmSetting::PagesToScan],
        KsmSetting::MergeAcrossNodes => &[KsmSetting::Run],
        _ => &[],
    }
}

fn describe_effect(input: Input, setting: KsmSetting, target: &Target) -> (Disruption, String) {
    match (setting, &target.value) {
        (KsmSetting::Run, SettingValue::Number(1)) => (
            Disruption::Low,
            "ksmd takes CPU time; merged pages are copied when written".to_owned(),
        ),
        (KsmSetting::Run, SettingValue::Number(2)) => (
            Disruption::High,
            format!(
                "all merged pages are unmerged: {}",
                memory_to_unmerge(input).to_human_readable()
            ),
        ),
        (KsmSetting::Run, _) => (Disruption::None, "merged pages stay merged".to_owned()),
        (KsmSetting::MergeAcrossNodes, _) => (
            Disruption::High,
            format!(
                "all merged pages are unmerged first, which needs {} of memory",
                memory_to_unmerge(input).to_human_readable()
            ),
        ),
        _ => (Disruption::None, String::new()),
    }
}

/// Returns the memory that the merged pages take when they are unmerged.
fn memory_to_unmerge(input: Input) -> Bytes {
    Bytes(input.facts.ksm.pages_sharing.unwrap_or(0).saturating_mul(4096))
}

fn insufficient_memory_reason(input: Input) -> Option<String> {
    let (needed, available) = (memory_to_unmerge(input), input.settings.available_memory?);
    let host_reserve = host_memory_reserve(input.facts.memory.total);
    (needed.0 > 0 && available.0 < needed.0.saturating_add(host_reserve)).then(|| {
        format!(
            "merged pages would need {} when they are unmerged, and {} are available; Berth leaves \
             {} of them for the host",
            needed.to_human_readable(),
            available.to_human_readable(),
            Bytes(host_reserve).to_human_readable()
        )
    })
}

/// Returns the reason if another program controls KSM, and would revert Berth's change or has already reverted it.
fn conflicting_program(input: Input) -> Option<String> {
    let entries = input.facts.ledger.entries.iter();
    let changed = entries.filter(|(setting, entry)| {
        let now = current_setting_value(input, **setting);
        // While the advisor is on, the kernel changes this setting all the time.
        **setting != Setting::Ksm(KsmSetting::PagesToScan)
            && matches!(setting, Setting::Ksm(_))
            && entry.applied.is_some()
            && now.is_some()
            && entry.applied != now
    });
    if changed.count() > 0 && input.facts.ksm.owner_candidates.contains(&KsmOwner::KubeVirt) {
        return Some(
            "KubeVirt's virt-handler runs and KSM was changed after Berth had set it, so virt-handler probably controls KSM; remove \
             ksmConfiguration from the KubeVirt object, or set spec.ksm.mode to Observe"
                .to_owned(),
        );
    }
    match input.facts.memory.ksm.as_ref()?.owner? {
        KsmOwner::Ksmtuned => Some(
            "ksmtuned controls KSM; systemctl disable --now ksmtuned, or set spec.ksm.mode to Observe".to_owned(),
        ),
        KsmOwner::KubeVirt => Some(
            "KubeVirt's virt-handler controls KSM; remove ksmConfiguration from the KubeVirt object, or set \
             spec.ksm.mode to Observe"
                .to_owned(),
        ),
        KsmOwner::Berth | KsmOwner::Nobody | KsmOwner::Unknown => None,
    }
}
