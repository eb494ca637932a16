//! Settings that are one file or one property: written, then read back.

use std::time::{Duration, Instant};

use berth_api::CpuSet;

use super::Hands;
use super::outcome::{Ended, Result};
use crate::observe::memory::chosen;
use crate::observe::{kernel_list, shape};
use crate::root::Root;
use crate::setting::{Setting, Unit, Value};

/// systemd answers before the control group is changed; this long is waited for it.
const REALIZED: Duration = Duration::from_secs(5);

/// Sets it and looks whether it is so.
pub(super) fn set(hands: &Hands, setting: Setting, value: &Value) -> Result {
    if let (Setting::AllowedCpus(unit), Value::Cpus(cpus)) = (setting, value) {
        return set_allowed_cpus(hands, unit, cpus);
    }
    hands.root.write(&path(setting), &text(setting, value))?;
    match read(hands.root, setting) {
        Some(now) if now == *value => Ok(Ended::Done(None)),
        Some(now) => {
            Err(Ended::Failed(format!("/{}: still {now} after {value} was written", path(setting))))
        }
        None => Err(Ended::Failed(format!("/{}: cannot be read back", path(setting)))),
    }
}

fn set_allowed_cpus(hands: &Hands, unit: Unit, cpus: &CpuSet) -> Result {
    let failed =
        |error: crate::systemd::SystemdError| Ended::Failed(format!("{}: {error}", unit.name()));
    let systemd = hands.systemd().map_err(failed)?;
    systemd.set_allowed_cpus(unit, cpus).map_err(failed)?;
    let begin = Instant::now();
    loop {
        let now = read(hands.root, Setting::AllowedCpus(unit));
        let now = match now {
            Some(Value::Cpus(now)) => now,
            // A unit that is not active has no control group; it gets the CPUs when it starts.
            _ => systemd.allowed_cpus(unit).map_err(failed)?,
        };
        if now == *cpus {
            return Ok(Ended::Done(None));
        }
        if begin.elapsed() > REALIZED {
            let all = if now.is_empty() { "all CPUs".to_owned() } else { format!("CPUs {now}") };
            return Err(Ended::Failed(format!(
                "{}: systemd took it, and its control group still has {all}",
                unit.name()
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The value now; `None` if there is no such setting or it makes no sense.
pub(super) fn read(root: &Root, setting: Setting) -> Option<Value> {
    let path = path(setting);
    match setting {
        Setting::AllowedCpus(_) => {
            let folder = path.trim_end_matches("/cpuset.cpus");
            let cpus = match kernel_list(root, &path) {
                Err(error) if error.is_not_found() && root.exists(folder) => CpuSet::new(),
                read => read.ok()?,
            };
            Some(Value::Cpus(cpus))
        }
        Setting::IrqAffinity(_) => kernel_list(root, &path).ok().map(Value::Cpus),
        Setting::WorkqueueCpus | Setting::DefaultIrqAffinity => {
            CpuSet::from_mask(&root.read(&path).ok()?).ok().map(Value::Cpus)
        }
        Setting::TransparentHugepages | Setting::Ksm(crate::setting::KsmSetting::AdvisorMode) => {
            chosen(&root.read(&path).ok()?).map(|word| Value::Word(word.to_owned()))
        }
        Setting::Ksm(_) | Setting::Hugepages { .. } => root.parse(&path).ok().map(Value::Number),
    }
}

fn path(setting: Setting) -> String {
    match setting {
        Setting::Hugepages { zone, size } => super::hugepages::folder(zone, size) + "/nr_hugepages",
        Setting::TransparentHugepages => shape::TRANSPARENT_HUGEPAGES.to_owned(),
        Setting::Ksm(setting) => format!("{}/{}", shape::KSM, setting.file()),
        Setting::WorkqueueCpus => shape::WORKQUEUES.to_owned(),
        Setting::DefaultIrqAffinity => shape::DEFAULT_IRQ.to_owned(),
        Setting::IrqAffinity(number) => format!("proc/irq/{number}/smp_affinity_list"),
        Setting::AllowedCpus(unit) => format!("sys/fs/cgroup/{}/cpuset.cpus", unit.name()),
    }
}

fn text(setting: Setting, value: &Value) -> String {
    match (setting, value) {
        (Setting::WorkqueueCpus | Setting::DefaultIrqAffinity, Value::Cpus(cpus)) => cpus.to_mask(),
        (_, value) => value.to_string(),
    }
}

/// Whole seconds since boot.
pub(super) fn uptime(root: &Root) -> Option<u64> {
    root.read("proc/uptime").ok()?.split('.').next()?.parse().ok()
}
