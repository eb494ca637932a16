//! Settings that are one kernel file or one systemd property. Each setting is written, and then read to confirm the new
//! value.

use std::time::{Duration, Instant};

use berth_api::CpuSet;

use super::context::ApplyContext;
use super::outcome::{ApplyResult, Result};
use crate::host_write::HostWrite as _;
use crate::observe;
use crate::systemd::SystemdError;
use berth_host_facts::kernel_files::read_cpu_list;
use berth_host_facts::root::Root;
use berth_host_facts::setting::{Setting, SettingValue, SystemdUnit};
use berth_host_facts::uptime::read_uptime;
use berth_host_facts::vfio::{DEVICE_FOLDER, read_driver};
use berth_host_facts::{host_settings, memory};

/// Time limit for the control group to change: systemd answers before the kernel has changed the group.
const CGROUP_UPDATE_TIMEOUT: Duration = Duration::from_secs(5);

/// Writes a setting, and reads it to confirm the new value.
pub(super) fn write_and_confirm(
    context: &ApplyContext,
    setting: Setting,
    value: &SettingValue,
) -> Result {
    if let (Setting::AllowedCpus(unit), SettingValue::Cpus(cpus)) = (setting, value) {
        return set_allowed_cpus(context, unit, cpus);
    }
    context.root.write(&setting_path(setting), &format_for_kernel(setting, value))?;
    match read_current_value(context.root, setting) {
        Some(now) if now == *value => Ok(ApplyResult::Done(None)),
        Some(now) => Err(ApplyResult::Failed(format!(
            "/{}: the value is still {now} after {value} was written",
            setting_path(setting)
        ))),
        None => Err(ApplyResult::Failed(format!(
            "/{}: the new value cannot be read",
            setting_path(setting)
        ))),
    }
}

/// Sets the allowed CPUs of a unit. The kernel does not accept an empty CPU list for a control group with
/// processes (ENOSPC), and systemd only logs the error. So a restriction is removed in two steps: first all
/// possible CPUs are allowed, then the property is emptied, after which systemd disables the controller if
/// no other unit needs it.
fn set_allowed_cpus(context: &ApplyContext, unit: SystemdUnit, cpus: &CpuSet) -> Result {
    if cpus.is_empty() {
        let possible = read_cpu_list(context.root, "sys/devices/system/cpu/possible");
        let possible = possible.map_err(|error| ApplyResult::Failed(error.to_string()))?;
        set_allowed_cpus_property(context, unit, &possible)?;
        wait_until_allowed(context, unit, cpus)?;
    }
    set_allowed_cpus_property(context, unit, cpus)?;
    wait_until_allowed(context, unit, cpus)?;
    Ok(ApplyResult::Done(None))
}

fn set_allowed_cpus_property(
    context: &ApplyContext,
    unit: SystemdUnit,
    cpus: &CpuSet,
) -> std::result::Result<(), ApplyResult> {
    let failed =
        |error: SystemdError| ApplyResult::Failed(format!("{}: {error}", unit.unit_name()));
    context.systemd().map_err(failed)?.set_allowed_cpus(unit, cpus).map_err(failed)
}

fn wait_until_allowed(
    context: &ApplyContext,
    unit: SystemdUnit,
    cpus: &CpuSet,
) -> std::result::Result<(), ApplyResult> {
    let begin = Instant::now();
    loop {
        context.report_progress();
        let now = observe::allowed_cpus(context.root, unit);
        if now.as_ref() == Some(cpus) {
            return Ok(());
        }
        if begin.elapsed() > CGROUP_UPDATE_TIMEOUT {
            let now = now.map_or_else(
                || "unknown CPUs".to_owned(),
                |now| SettingValue::Cpus(now).to_display_text(),
            );
            let message = format!(
                "{}: systemd accepted the value, but the control group of the unit still has {now}",
                unit.unit_name()
            );
            return Err(ApplyResult::Failed(message));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the current value; `None` if the setting does not exist or its value cannot be parsed.
pub(super) fn read_current_value(root: &Root, setting: Setting) -> Option<SettingValue> {
    let path = setting_path(setting);
    match setting {
        Setting::AllowedCpus(unit) => observe::allowed_cpus(root, unit).map(SettingValue::Cpus),
        Setting::IrqAffinity(_) => read_cpu_list(root, &path).ok().map(SettingValue::Cpus),
        Setting::WorkqueueCpus | Setting::DefaultIrqAffinity => {
            host_settings::read_cpu_mask(root, &path).map(SettingValue::Cpus)
        }
        Setting::TransparentHugepages => {
            host_settings::read_bracketed_word(root, &path).map(SettingValue::Keyword)
        }
        Setting::Hugepages { zone, size } => {
            super::hugepages::persistent_pages(root, zone, size).map(SettingValue::Number)
        }
        Setting::Ksm(setting) => host_settings::read_ksm_setting(root, setting),
        Setting::PciDriver(address) => read_driver(root, address).map(SettingValue::Keyword),
    }
}

fn setting_path(setting: Setting) -> String {
    match setting {
        Setting::Hugepages { zone, size } => {
            super::hugepages::sysfs_folder(zone, size) + "/nr_hugepages"
        }
        Setting::TransparentHugepages => memory::TRANSPARENT_HUGEPAGES_FILE.to_owned(),
        Setting::Ksm(setting) => format!("{}/{}", host_settings::KSM_FOLDER, setting.file_name()),
        Setting::WorkqueueCpus => host_settings::WORKQUEUE_CPUMASK_FILE.to_owned(),
        Setting::DefaultIrqAffinity => host_settings::DEFAULT_IRQ_AFFINITY_FILE.to_owned(),
        Setting::IrqAffinity(number) => format!("proc/irq/{number}/smp_affinity_list"),
        Setting::AllowedCpus(unit) => format!("sys/fs/cgroup/{}/cpuset.cpus", unit.unit_name()),
        Setting::PciDriver(address) => format!("{DEVICE_FOLDER}/{address}/driver_override"),
    }
}

fn format_for_kernel(setting: Setting, value: &SettingValue) -> String {
    match (setting, value) {
        (Setting::WorkqueueCpus | Setting::DefaultIrqAffinity, SettingValue::Cpus(cpus)) => {
            cpus.to_mask()
        }
        (_, value) => value.to_string(),
    }
}

/// Returns the time since boot in hundredths of a second.
pub(super) fn uptime(root: &Root) -> Option<u64> {
    u64::try_from(read_uptime(root)?.as_millis() / 10).ok()
}
