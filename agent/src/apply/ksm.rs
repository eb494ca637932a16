//! Sets `merge_across_nodes`, which the kernel only changes while no page is merged.

use std::time::{Duration, Instant};

use super::hands::Hands;
use super::outcome::{Ended, Result};
use super::settings;
use crate::host_write::HostWrite as _;
use crate::plan::Step;
use berth_host_facts::setting::{KsmSetting, Setting};

/// Time limit for unmerging. The usual rate is some GiB a second.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Unmerges all pages, waits until no page is shared, writes the setting, and restores the previous state
/// of ksmd. After the deadline the state of ksmd is restored too, and the setting is unchanged.
pub(super) fn set_merge_across_nodes(hands: &Hands, step: &Step) -> Result {
    let run = Setting::Ksm(KsmSetting::Run);
    let before = settings::read(hands.root, run);
    let result = unmerge(hands).and_then(|()| settings::set(hands, step.setting, &step.will_be));
    if let Some(before) = before {
        settings::set(hands, run, &before)?;
    }
    result
}

fn unmerge(hands: &Hands) -> std::result::Result<(), Ended> {
    let file = |name: &str| format!("{}/{name}", berth_host_facts::host_settings::KSM);
    // The write returns after all pages are unmerged, or with an error. Pages that are shared
    // afterwards are being unmerged.
    hands.root.write(&file("run"), "2")?;
    let begin = Instant::now();
    loop {
        hands.alive();
        let shared: u64 = hands
            .root
            .parse(&file("pages_shared"))
            .map_err(|error| Ended::Failed(error.to_string()))?;
        if shared == 0 {
            return Ok(());
        }
        if begin.elapsed() > DEADLINE {
            let seconds = DEADLINE.as_secs();
            return Err(Ended::Failed(format!(
                "{shared} pages are still shared after {seconds} s; try again later"
            )));
        }
        std::thread::sleep(POLL);
    }
}
