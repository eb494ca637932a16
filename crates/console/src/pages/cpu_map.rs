//! Map of the CPUs of zones, with a cell for each CPU. The threads of a core are in one column.

use std::fmt::Write as _;

use berth_api::CpuSet;
use berth_api::infra_node::Zone;
use maud::{Markup, html};

/// Number of columns of zones whose threads are unknown.
const DEFAULT_COLUMNS: usize = 64;

/// Use of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CpuUse {
    /// Allocated exclusively.
    Pinned,
    /// May be allocated exclusively.
    Free,
    /// Reserved for the system, or used by all pods.
    Shared,
}

impl CpuUse {
    const ALL: [Self; 3] = [Self::Shared, Self::Free, Self::Pinned];

    const fn class(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Free => "free",
            Self::Shared => "shared",
        }
    }

    fn of(zone: &Zone, cpu: u32) -> Self {
        let has = |set: &Option<CpuSet>| set.as_ref().is_some_and(|set| set.contains(cpu));
        if has(&zone.pinned_cpus) {
            Self::Pinned
        } else if has(&zone.pinnable_cpus) {
            Self::Free
        } else {
            Self::Shared
        }
    }
}

/// Rows of CPUs: those of the first zone, then those of the next, with an empty row between zones.
fn rows(zones: &[Zone]) -> Vec<Vec<CpuUse>> {
    let mut rows = Vec::new();
    for zone in zones {
        let of_zone = zone_rows(zone);
        if !rows.is_empty() && !of_zone.is_empty() {
            rows.push(Vec::new());
        }
        rows.extend(of_zone);
    }
    rows
}

fn zone_rows(zone: &Zone) -> Vec<Vec<CpuUse>> {
    let uses = |cpus: &CpuSet| cpus.iter().map(|cpu| CpuUse::of(zone, cpu)).collect::<Vec<_>>();
    if zone.threads.is_empty() {
        let all = zone.cpus.as_ref().map(uses).unwrap_or_default();
        return all.chunks(DEFAULT_COLUMNS).map(<[CpuUse]>::to_vec).collect();
    }
    zone.threads.iter().map(uses).collect()
}

/// Returns a path with a horizontal line for each run of CPUs with this use. The dashes of the style are the cells: this
/// needs much less text than an element for each CPU.
fn path(rows: &[Vec<CpuUse>], of: CpuUse) -> String {
    let mut path = String::new();
    for (y, row) in rows.iter().enumerate() {
        let mut x = 0;
        for run in row.chunk_by(PartialEq::eq) {
            if run.first() == Some(&of) {
                // Writing to a string cannot fail.
                write!(path, "M{x} {y}.5h{}", run.len()).unwrap_or_default();
            }
            x += run.len();
        }
    }
    path
}

/// Returns the map of zones. Screen readers skip it: the numbers are in the text beside it.
pub(super) fn cpu_map(zones: &[Zone], pixels: usize) -> Markup {
    let rows = rows(zones);
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    html! {
        @if columns > 0 {
            svg .cpus viewBox={ "0 0 " (columns) " " (rows.len()) } width=(columns * pixels)
                height=(rows.len() * pixels) aria-hidden="true" focusable="false" {
                @for use_ in CpuUse::ALL {
                    @let path = path(&rows, use_);
                    @if !path.is_empty() { path class=(use_.class()) d=(path) {} }
                }
            }
        }
    }
}

/// Returns the explanation of the colours.
pub(super) fn legend() -> Markup {
    html! {
        p .legend {
            @for (use_, text) in [
                (CpuUse::Pinned, "pinned"),
                (CpuUse::Free, "free for pinning"),
                (CpuUse::Shared, "reserved or shared"),
            ] {
                span { span class={ "cell " (use_.class()) } aria-hidden="true" {} (text) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn threads_of_a_core_are_in_one_column() {
        let zone = Zone {
            cpus: Some(set("0-3,8-11")),
            threads: vec![set("0-3"), set("8-11")],
            pinnable_cpus: Some(set("1-3,9-11")),
            pinned_cpus: Some(set("1,9")),
            ..Zone::default()
        };
        assert_eq!(rows(&[zone.clone(), zone.clone()]).len(), 5);
        let rows = rows(&[zone]);
        assert_eq!(path(&rows, CpuUse::Shared), "M0 0.5h1M0 1.5h1");
        assert_eq!(path(&rows, CpuUse::Pinned), "M1 0.5h1M1 1.5h1");
        assert_eq!(path(&rows, CpuUse::Free), "M2 0.5h2M2 1.5h2");
    }

    #[test]
    fn zone_without_threads_or_cpus_is_shown() {
        let zone = Zone { cpus: Some(set("0-99")), ..Zone::default() };
        let lengths: Vec<usize> = rows(&[zone, Zone::default()]).iter().map(Vec::len).collect();
        assert_eq!(lengths, [64, 36]);
        assert_eq!(cpu_map(&[Zone::default()], 4).into_string(), "");
    }
}
