//! `merge_across_nodes`, which the kernel lets change only while nothing is merged.

use std::time::{Duration, Instant};

use super::hands::Hands;
use super::outcome::{Ended, Result};
use super::settings;
use crate::host_write::HostWrite as _;
use crate::plan::Step;
use berth_host_facts::setting::{KsmSetting, Setting};

/// How long unmerging may take; some GiB a second are ordinary.
const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Unmerges, waits until nothing is shared, sets it, and lets ksmd go on as before. Past the deadline ksmd
/// goes on as before too, and the setting stays.
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
    // Returns once everything is unmerged, or with an error; what is shared afterwards is in flight.
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
