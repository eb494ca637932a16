//! Current values of settings.

use berth_api::PageSize;
use berth_api::infra_node::HugepagePool;

use super::input::Input;
use berth_host_facts::HostFacts;
use berth_host_facts::setting::{Setting, SettingValue};
use berth_host_facts::vfio::VfioFunction;

/// Returns the current value of a setting; `None` if this host does not have the setting, or it
/// cannot be read.
pub(super) fn current_setting_value(input: Input, setting: Setting) -> Option<SettingValue> {
    let settings = input.settings;
    match setting {
        Setting::Hugepages { zone, size } => find_pool(input.facts, zone, size)
            .map(|pool| SettingValue::Number(persistent_pages(pool))),
        Setting::TransparentHugepages => {
            settings.transparent_hugepages.clone().map(SettingValue::Keyword)
        }
        Setting::Ksm(setting) => settings.ksm.get(&setting).cloned(),
        Setting::WorkqueueCpus => settings.workqueue_cpus.clone().map(SettingValue::Cpus),
        Setting::DefaultIrqAffinity => {
            settings.default_irq_affinity.clone().map(SettingValue::Cpus)
        }
        Setting::IrqAffinity(number) => {
            let irq = settings.irqs.iter().find(|irq| irq.number == number)?;
            Some(SettingValue::Cpus(irq.affinity.clone()))
        }
        Setting::AllowedCpus(unit) => {
            settings.unit_cpus.get(&unit).cloned().map(SettingValue::Cpus)
        }
        Setting::PciDriver(address) => {
            input.facts.vfio.functions.get(&address).map(VfioFunction::driver_setting)
        }
    }
}

/// Returns the huge pages of one size in a zone.
pub(super) fn find_pool(facts: &HostFacts, zone: u32, size: PageSize) -> Option<&HugepagePool> {
    let zone = facts.zones.iter().find(|known| known.id == zone)?;
    zone.hugepages.iter().find(|pool| pool.size == size)
}

/// Returns the number of persistent huge pages. Surplus pages, whose number changes with use, are not included.
pub(super) fn persistent_pages(pool: &HugepagePool) -> u64 {
    pool.total.saturating_sub(pool.surplus.unwrap_or(0))
}
