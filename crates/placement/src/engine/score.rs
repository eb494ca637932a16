//! How well a host suits, as one number: what would be left over, and what people would rather have.
//!
//! | part | points | why |
//! |---|--:|---|
//! | left free in the zone that the VM goes to | 0 to 600 | zones are filled one after the other, so that large VMs still find one |
//! | CPUs and memory left out of proportion | 0 to 200 | what is left without the other is stranded |
//! | a narrow VM on a host that takes VMs wider than a zone | 60 | such hosts are few |
//! | host of another class | 300 | a HostProfile says what a host is for |
//! | preferred node affinity that is not met | 0 to 400 | as a preference of the scheduler |
//! | each taint `PreferNoSchedule` that is not tolerated | 200 | the same |
//! | Density VM on a host that does not merge pages | 150 | overcommitted memory lives by KSM |
//!
//! Fewer points are better. Preferences by pods that are there already are added when a host is looked at
//! ([`pods`]): they change with every pod.

use super::free::{Free, Of, Wants, Zone};
use super::scores::Score;
use crate::rules::{Leaning, Leanings, Preference};

const LEFT: u32 = 600;
const OUT_OF_PROPORTION: u32 = 200;
const WIDE: u32 = 60;
/// A host of another class.
pub(crate) const OTHER_CLASS: u32 = 300;
const NOT_PREFERRED: u32 = 400;
const TAINT: u32 = 200;
/// A VM that lives by merged pages where nothing merges them.
pub(crate) const NO_MERGING: u32 = 150;
/// A pod of the same group on the host, with a constraint that would rather have it elsewhere.
const CROWDED: i64 = 300;
/// The most that preferences by pods count, either way.
const PODS: i64 = 6_000;

/// Points for what is left over; `None` if it certainly does not fit.
pub(crate) fn left_over(free: &Free, wants: &Wants) -> Option<u32> {
    if !wants.is_pinned || !free.pins {
        return Some(shared(free));
    }
    let one_zone = free.wants_one_zone(wants);
    let wants = &free.by_zone(wants);
    if let Some(zone) = free.first_zone(wants) {
        let wide = if free.one_zone || free.zone_count < 2 { 0 } else { WIDE };
        return Some(zone_left(zone, wants) + wide);
    }
    if one_zone {
        return None;
    }
    let all = free.sum();
    all.has(wants).then(|| zone_left(&all, wants))
}

fn zone_left(zone: &Zone, wants: &Wants) -> u32 {
    let cpus = part(zone.cpus, wants.cpus);
    let wanted = zone.pages.iter().zip(wants.pages).filter(|(_, wanted)| *wanted > 0);
    let memory = wanted.map(|(pages, wanted)| part(*pages, wanted)).min();
    let memory = memory.unwrap_or(cpus);
    LEFT * (cpus + memory) / 2 / WHOLE + OUT_OF_PROPORTION * cpus.abs_diff(memory) / WHOLE
}

/// Of a host that only shares its CPUs, the emptier it is the more points: shared VMs are packed too.
fn shared(free: &Free) -> u32 {
    let all = free.sum();
    LEFT * part(all.cpus, 0) / WHOLE / 4
}

const WHOLE: u32 = 1024;

/// What is left after taking, of all there is.
fn part(of: Of<u32>, taken: u32) -> u32 {
    let left = u64::from(of.free.saturating_sub(taken)) * u64::from(WHOLE);
    u32::try_from(left / u64::from(of.all.max(1))).map_or(WHOLE, |part| part.min(WHOLE))
}

/// Points for preferences that only depend on the host.
pub(crate) fn preferences(preference: &Preference) -> u32 {
    let most = preference.most;
    let missed = most.saturating_sub(preference.met).clamp(0, most.max(0));
    let missed = if most <= 0 { 0 } else { i64::from(NOT_PREFERRED).saturating_mul(missed) / most };
    let taints = i64::from(TAINT).saturating_mul(preference.taints.clamp(0, 20));
    u32::try_from(missed.saturating_add(taints)).unwrap_or_default()
}

/// Points, of either sign, for preferences by the pods that are there.
pub(crate) fn pods(leaning: &Leaning) -> i64 {
    let crowded = match leaning.crowd {
        None => PODS,
        Some(crowded) => crowded.saturating_mul(CROWDED).clamp(0, PODS),
    };
    // A weight of 100 is what being alone is worth.
    let liked = leaning.liked.saturating_mul(CROWDED / 100).clamp(-PODS, PODS);
    crowded - liked
}

/// The fewest points that [`pods`] can give anywhere.
pub(crate) fn least(leanings: &Leanings<'_>) -> i64 {
    if leanings.only_crowd() { 0 } else { -PODS }
}

/// As a score: what has more points than fit is merely last.
pub(crate) fn score(points: u32) -> Score {
    Score::try_from(points).unwrap_or(Score::MAX).min(Score::MAX - 1)
}
