//! Reserves huge pages at runtime. The kernel needs contiguous free memory for each page, so memory is
//! compacted and the pages are requested again, as long as the number of pages grows.

use std::time::Duration;

use berth_api::PageSize;

use super::context::ApplyContext;
use super::outcome::{ApplyResult, Result};
use crate::host_write::HostWrite as _;
use crate::plan::Step;
use berth_host_facts::root::Root;
use berth_host_facts::setting::SettingValue;

/// Number of consecutive tries without a new page after which no further try is made.
const MAX_TRIES_WITHOUT_PROGRESS: u32 = 3;
/// Maximum number of tries, which limits the sum of the waits between them to 2 s.
const MAX_TRIES: u32 = 20;
/// Wait between tries: per-CPU caches are drained and freed pages merge in the meantime.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the sysfs folder of the huge pages of one size in a NUMA zone.
pub(super) fn sysfs_folder(zone: u32, size: PageSize) -> String {
    format!("sys/devices/system/node/node{zone}/hugepages/hugepages-{}kB", size.kib())
}

/// Returns the folder of [`sysfs_folder`] or, for a kernel without NUMA, the folder with the huge pages of the whole
/// host.
fn existing_sysfs_folder(root: &Root, zone: u32, size: PageSize) -> String {
    let zone_folder = sysfs_folder(zone, size);
    let host_folder = format!("sys/kernel/mm/hugepages/hugepages-{}kB", size.kib());
    if zone == 0 && !root.exists(&zone_folder) { host_folder } else { zone_folder }
}

/// Returns the number of persistent huge pages (all except surplus pages) in a zone; `None` if the kernel has no huge
/// pages of this size.
pub(super) fn persistent_pages(root: &Root, zone: u32, size: PageSize) -> Option<u64> {
    let folder = existing_sysfs_folder(root, zone, size);
    let number = |file: &str| root.read_value::<u64>(&format!("{folder}/{file}")).ok();
    Some(number("nr_hugepages")?.saturating_sub(number("surplus_hugepages").unwrap_or(0)))
}

/// Changes the number of huge pages to the planned number, as far as possible.
pub(super) fn set_page_count(
    context: &ApplyContext,
    zone: u32,
    size: PageSize,
    step: &Step,
) -> Result {
    let (SettingValue::Number(target), SettingValue::Number(desired)) =
        (&step.new_value, &step.desired_value)
    else {
        return Err(ApplyResult::Failed("the desired value is not a number of pages".to_owned()));
    };
    let folder = existing_sysfs_folder(context.root, zone, size);
    let pool = Pool { context, folder: &folder };
    let before = pool.persistent_pages()?;
    if *target < before {
        return pool.shrink(before, *target);
    }
    let mut tries_without_progress = 0;
    let mut current = before;
    for round in 0..MAX_TRIES {
        if round > 0 {
            pool.compact(zone);
            std::thread::sleep(RETRY_INTERVAL);
        }
        context.root.write(&format!("{folder}/nr_hugepages"), &target.to_string())?;
        context.report_progress();
        let new_count = pool.persistent_pages()?;
        tries_without_progress = if new_count > current { 0 } else { tries_without_progress + 1 };
        current = new_count;
        if current >= *target || tries_without_progress >= MAX_TRIES_WITHOUT_PROGRESS {
            break;
        }
    }
    if current == *desired {
        return Ok(ApplyResult::Done(
            Some("the kubelet counts pages when it starts".to_owned())
                .filter(|_| kubelet_runs(context.root))
                .map(|reason| format!("{reason}: kubelet restart needed")),
        ));
    }
    let cause = if current >= *target {
        "the host needs the remaining memory"
    } else {
        "memory is fragmented"
    };
    Ok(ApplyResult::Partial(format!(
        "{current} of {desired} pages reserved: {cause}; {}",
        boot_parameter_remedy(zone, size, *desired)
    )))
}

/// Returns advice on how to reserve the pages at boot.
fn boot_parameter_remedy(zone: u32, size: PageSize, count: u64) -> String {
    let unit = if size.bytes() >= 1 << 30 { "G" } else { "M" };
    let number = if unit == "G" { size.bytes() >> 30 } else { size.bytes() >> 20 };
    format!(
        "reserve them before memory is fragmented: boot with hugepagesz={number}{unit} hugepages={zone}:{count}, or, with a \
         manifest in /etc/berth, systemctl enable berth-hugepages.service and reboot"
    )
}

fn kubelet_runs(root: &Root) -> bool {
    berth_host_facts::processes::observe(root).is_kubelet_running()
}

struct Pool<'a> {
    context: &'a ApplyContext<'a>,
    folder: &'a str,
}

impl Pool<'_> {
    fn read_number(&self, file: &str) -> std::result::Result<u64, ApplyResult> {
        let read = self.context.root.read_value(&format!("{}/{file}", self.folder));
        read.map_err(|error| ApplyResult::Failed(error.to_string()))
    }

    /// Returns the number of pages without surplus pages. A write to `nr_hugepages` sets the number without surplus
    /// pages, but a read returns the number with surplus pages.
    fn persistent_pages(&self) -> std::result::Result<u64, ApplyResult> {
        Ok(self
            .read_number("nr_hugepages")?
            .saturating_sub(self.read_number("surplus_hugepages").unwrap_or(0)))
    }

    /// Reduces the number of pages. More pages may be in use than when the plan was made, so the number of used pages
    /// is read again right before the write.
    fn shrink(&self, before: u64, target: u64) -> Result {
        let used =
            self.read_number("nr_hugepages")?.saturating_sub(self.read_number("free_hugepages")?);
        if target < used {
            return Err(ApplyResult::Blocked(format!("{used} of {before} pages are in use now")));
        }
        let surplus = || self.read_number("surplus_hugepages").unwrap_or(0);
        let surplus_before = surplus();
        let file = format!("{}/nr_hugepages", self.folder);
        self.context.root.write(&file, &target.to_string())?;
        if surplus() > surplus_before {
            // More pages came into use after the read, and the kernel turned used pages into surplus pages. So the
            // previous number of pages is restored.
            self.context.root.write(&file, &before.to_string())?;
            return Err(ApplyResult::Blocked("the pages are in use now".to_owned()));
        }
        match self.persistent_pages()? {
            now if now == target => Ok(ApplyResult::Done(None)),
            now => Ok(ApplyResult::Partial(format!(
                "{now} pages remain, {target} desired: the kernel did not release reserved pages"
            ))),
        }
    }

    /// Requests compaction of memory from the kernel. The request is a hint; only the next request for
    /// pages shows its effect.
    fn compact(&self, zone: u32) {
        let of_zone = format!("sys/devices/system/node/node{zone}/compact");
        let file = if self.context.root.exists(&of_zone) {
            &of_zone
        } else {
            "proc/sys/vm/compact_memory"
        };
        drop(self.context.root.write(file, "1"));
    }
}
