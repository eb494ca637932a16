//! Sets `merge_across_nodes`, which the kernel only changes while no page is merged.

use std::time::{Duration, Instant};

use super::context::ApplyContext;
use super::outcome::{ApplyResult, Result};
use super::settings;
use crate::host_write::HostWrite as _;
use crate::plan::Step;
use berth_host_facts::setting::{KsmSetting, Setting};

/// Time limit for unmerging. The usual rate is some GiB a second.
const UNMERGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two reads of the number of shared pages.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Unmerges all pages, waits until no page is shared, writes the setting, and restores the previous state
/// of ksmd. After the deadline the state of ksmd is restored too, and the setting is unchanged.
pub(super) fn set_merge_across_nodes(context: &ApplyContext, step: &Step) -> Result {
    let run = Setting::Ksm(KsmSetting::Run);
    let before = settings::read_current_value(context.root, run);
    let result = unmerge(context)
        .and_then(|()| settings::write_and_confirm(context, step.setting, &step.new_value));
    if let Some(before) = before {
        settings::write_and_confirm(context, run, &before)?;
    }
    result
}

fn unmerge(context: &ApplyContext) -> std::result::Result<(), ApplyResult> {
    let file = |name: &str| format!("{}/{name}", berth_host_facts::host_settings::KSM_FOLDER);
    // The kernel returns from this write after it has unmerged all pages, or with an error. The counter `pages_shared`
    // may still be above zero then, so it is polled.
    context.root.write(&file("run"), "2")?;
    let begin = Instant::now();
    loop {
        context.report_progress();
        let shared: u64 = context
            .root
            .read_value(&file("pages_shared"))
            .map_err(|error| ApplyResult::Failed(error.to_string()))?;
        if shared == 0 {
            return Ok(());
        }
        if begin.elapsed() > UNMERGE_TIMEOUT {
            let seconds = UNMERGE_TIMEOUT.as_secs();
            return Err(ApplyResult::Failed(format!(
                "{shared} pages are still shared after {seconds} s; retry later"
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
