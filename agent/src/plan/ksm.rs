//! Kernel samepage merging: who may steer it, what each mode means, and the way to `merge_across_nodes`.
//!
//! Rules: `Documentation/admin-guide/mm/ksm.rst`. `Auto` hands ksmd to the kernel's advisor (6.8 and
//! later). Without one it runs when memory is short: it starts below 20 % available and stops above 25 %,
//! and scans the more pages per wake-up the less there is (see [`LEVELS`]). Between the two it stays as it
//! is, and a level is kept until memory is two points away from it, so that nothing flips to and fro.

use berth_api::Bytes;
use berth_api::infra_node::{KsmMode, KsmOwner};

use super::change::{Action, Change, Disruption, Why};
use super::current::current;
use super::input::Input;
use super::spare::kept_back;
use super::target::{Target, Targets};
use crate::manifest::Fault;
use berth_host_facts::setting::{KsmSetting, Setting, Value};

/// Stops when more than this part of memory is available, in percent.
const STOP: u64 = 25;
/// Below so many percent of memory available, so many pages are scanned each time ksmd wakes (every 20 ms
/// unless set otherwise): from 5,000 to 62,500 pages a second, the range of ksmtuned's defaults.
const LEVELS: [(u64, u64); 4] = [(5, 1250), (10, 800), (15, 400), (20, 100)];
/// Points of hysteresis between levels.
const SLACK: u64 = 2;

/// Adds the targets of the spec.
pub(super) fn targets(input: Input, targets: &mut Targets) {
    let Some(spec) = &input.spec.ksm else { return };
    if spec.mode == KsmMode::Observe {
        return;
    }
    for (field, value, most) in [
        ("pagesToScan", spec.pages_to_scan, 1_000_000),
        ("sleepMillis", spec.sleep_millis, 3_600_000),
    ] {
        if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
            let message = format!("must be from 1 to {most}");
            targets.faults.push(Fault::new(format!("spec.ksm.{field}"), value, message));
            return;
        }
    }
    let ksm = |setting: KsmSetting| Setting::Ksm(setting);
    let has_advisor = input.shape.ksm.contains_key(&KsmSetting::AdvisorMode);
    let mut pages = spec.pages_to_scan.map(u64::from);
    let running = match (spec.mode, has_advisor) {
        (KsmMode::Auto, true) => {
            targets.want(ksm(KsmSetting::AdvisorMode), Value::Word("scan-time".to_owned()));
            if let Some(pages) = pages.take() {
                targets.want(ksm(KsmSetting::PagesToScan), Value::Number(pages));
                let why = "with mode Auto the kernel's advisor sets it, and it cannot be written; use mode On";
                targets.blocked.insert(ksm(KsmSetting::PagesToScan), why.to_owned());
            }
            Some(1)
        }
        (KsmMode::Auto, false) => auto(input, &mut pages),
        (KsmMode::On, _) => Some(1),
        _ => Some(0),
    };
    if let Some(pages) = pages {
        if has_advisor {
            targets.want(ksm(KsmSetting::AdvisorMode), Value::Word("none".to_owned()));
        }
        targets.want(ksm(KsmSetting::PagesToScan), Value::Number(pages));
    }
    if let Some(millis) = spec.sleep_millis {
        targets.want(ksm(KsmSetting::SleepMillisecs), Value::Number(millis.into()));
    }
    if let Some(across) = spec.merge_across_nodes {
        targets.want(ksm(KsmSetting::MergeAcrossNodes), Value::Number(across.into()));
    }
    if let Some(run) = running {
        targets.want(ksm(KsmSetting::Run), Value::Number(run));
    }
}

/// Mode Auto on a kernel without an advisor: whether to run, and how fast. `None` leaves it as it is.
fn auto(input: Input, pages: &mut Option<u64>) -> Option<u64> {
    let (Some(available), Some(total)) = (input.shape.available, input.facts.memory.total) else {
        return None;
    };
    let percent = available.0.saturating_mul(100) / total.0.max(1);
    let number = |setting| match input.shape.ksm.get(&setting) {
        Some(Value::Number(number)) => Some(*number),
        _ => None,
    };
    let runs = number(KsmSetting::Run) == Some(1);
    let start = LEVELS[LEVELS.len() - 1].0;
    if percent > STOP || (percent >= start && !runs) {
        return Some(0);
    }
    let level = |percent: u64| {
        let found = LEVELS.iter().find(|(below, _)| percent < *below);
        found.map_or(LEVELS[LEVELS.len() - 1].1, |(_, pages)| *pages)
    };
    let now = number(KsmSetting::PagesToScan);
    // As it is, if a little more or less memory would want just that.
    let near = [percent.saturating_sub(SLACK), percent, percent + SLACK].map(level);
    let kept = now.filter(|now| runs && near.contains(now));
    *pages = pages.or(kept).or_else(|| Some(level(percent)));
    Some(1)
}

/// The changes, in the order in which the kernel takes them: the advisor first, as it forbids and
/// resets `pages_to_scan`; `run` last.
pub(super) fn changes(input: Input, targets: &Targets) -> Vec<Change> {
    let of = |setting| targets.get(Setting::Ksm(setting));
    let now = |setting| current(input, Setting::Ksm(setting));
    let advisor_changes = of(KsmSetting::AdvisorMode)
        .is_some_and(|target| now(KsmSetting::AdvisorMode).is_some_and(|now| now != target.value));
    let advisor = of(KsmSetting::AdvisorMode).map(|target| target.value.clone());
    let advised = advisor.or_else(|| now(KsmSetting::AdvisorMode))
        == Some(Value::Word("scan-time".to_owned()));
    let owner = other_owner(input);
    let change = |setting: KsmSetting| {
        let target = of(setting)?;
        let setting_ = Setting::Ksm(setting);
        let Some(was) = now(setting) else {
            let why = format!("this kernel has no /sys/kernel/mm/ksm/{}", setting.file());
            return (target.why == Why::Spec).then(|| Change::impossible(setting_, target, why));
        };
        // Switching the advisor off resets pages_to_scan, whatever it is now.
        let reset = setting == KsmSetting::PagesToScan && advisor_changes && !advised;
        if is_desired(setting, &was, target) && !reset {
            return None;
        }
        // The original value is restored once the advisor is off again.
        if setting == KsmSetting::PagesToScan && advised && target.why == Why::Restore {
            return None;
        }
        let (disruption, effect) = effect(input, setting, target);
        let mut change = Change::of_setting(setting_, was, target, disruption, effect);
        if let Action::Set(steps) = &mut change.action
            && let Some(step) = steps.first_mut()
        {
            step.disturbs = disturbed(setting)
                .iter()
                .filter_map(|other| Some((Setting::Ksm(*other), now(*other)?)))
                .collect();
        }
        let blocked = targets.blocked.get(&setting_).cloned();
        let unmerges = setting == KsmSetting::MergeAcrossNodes
            || (setting == KsmSetting::Run && target.value == Value::Number(2));
        let no_room = if unmerges { no_room(input) } else { None };
        Some(change.blocked_by(blocked.or_else(|| owner.clone()).or(no_room)))
    };
    KsmSetting::ALL.into_iter().filter_map(change).collect()
}

/// 2 is stopped as well: the administrator's unmerging is not undone.
fn is_desired(setting: KsmSetting, was: &Value, target: &Target) -> bool {
    let stopped = |value: &Value| matches!(value, Value::Number(0 | 2));
    let both_stopped = setting == KsmSetting::Run && target.why == Why::Spec;
    *was == target.value || (both_stopped && stopped(was) && stopped(&target.value))
}

/// What the kernel, or the way to it, changes along with a setting.
const fn disturbed(setting: KsmSetting) -> &'static [KsmSetting] {
    match setting {
        KsmSetting::AdvisorMode => &[KsmSetting::PagesToScan],
        KsmSetting::MergeAcrossNodes => &[KsmSetting::Run],
        _ => &[],
    }
}

fn effect(input: Input, setting: KsmSetting, target: &Target) -> (Disruption, String) {
    match (setting, &target.value) {
        (KsmSetting::Run, Value::Number(1)) => (
            Disruption::Low,
            "ksmd takes CPU time; merged pages are copied when written".to_owned(),
        ),
        (KsmSetting::Run, Value::Number(2)) => {
            (Disruption::High, format!("all merged pages come apart: {}", merged(input).human()))
        }
        (KsmSetting::Run, _) => (Disruption::None, "what is merged stays merged".to_owned()),
        (KsmSetting::MergeAcrossNodes, _) => (
            Disruption::High,
            format!(
                "all merged pages come apart first, which takes {} of memory",
                merged(input).human()
            ),
        ),
        _ => (Disruption::None, String::new()),
    }
}

/// Memory that merged pages take when they come apart.
fn merged(input: Input) -> Bytes {
    Bytes(input.facts.ksm.pages_sharing.unwrap_or(0).saturating_mul(4096))
}

fn no_room(input: Input) -> Option<String> {
    let (needed, available) = (merged(input), input.shape.available?);
    let keep = kept_back(input.facts.memory.total);
    (needed.0 > 0 && available.0 < needed.0.saturating_add(keep)).then(|| {
        format!(
            "merged pages would take {} when they come apart, and {} are available; Berth leaves the host \
             {} of them",
            needed.human(),
            available.human(),
            Bytes(keep).human()
        )
    })
}

/// Returns the reason if another program controls KSM, and would revert our change or already has.
fn other_owner(input: Input) -> Option<String> {
    let entries = input.facts.ledger.entries.iter();
    let changed = entries.filter(|(setting, entry)| {
        let now = current(input, **setting);
        // Under the advisor the kernel sets it, all the time.
        **setting != Setting::Ksm(KsmSetting::PagesToScan)
            && matches!(setting, Setting::Ksm(_))
            && entry.set.is_some()
            && now.is_some()
            && entry.set != now
    });
    if changed.count() > 0 && input.facts.ksm.candidates.contains(&KsmOwner::KubeVirt) {
        return Some(
            "KubeVirt's virt-handler runs and KSM was changed after Berth had set it: it seems to steer KSM; take \
             ksmConfiguration out of the KubeVirt object, or set spec.ksm.mode to Observe"
                .to_owned(),
        );
    }
    match input.facts.memory.ksm.as_ref()?.owner? {
        KsmOwner::Ksmtuned => Some(
            "ksmtuned steers KSM; systemctl disable --now ksmtuned, or set spec.ksm.mode to Observe".to_owned(),
        ),
        KsmOwner::KubeVirt => Some(
            "KubeVirt's virt-handler steers KSM; take ksmConfiguration out of the KubeVirt object, or set \
             spec.ksm.mode to Observe"
                .to_owned(),
        ),
        KsmOwner::Berth | KsmOwner::Nobody | KsmOwner::Unknown => None,
    }
}
