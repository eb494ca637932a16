//! Writes the report of the replayed traces and checks the goals, without I/O.

use std::fmt::Write as _;

use jiff::civil::Date;

use super::policy::{BERTH, BEST_FIT, DEFAULT, NAMES};
use super::replay::{CLASSES, Outcome};
use super::{Args, LOST, Replayed, Run};
use crate::fleet::{PINNABLE, ZONE_CPUS, ZONE_GIB};
use crate::stats::percentile;

/// Goals in percentage points of the pinnable CPUs: minimum lead of Berth over the default policy, and maximum lag of
/// Berth behind full information.
const AHEAD_GOAL: f64 = 10.0;
const BEHIND_GOAL: f64 = 3.0;

/// Source of the VMs.
pub(super) const SOURCE: &str = "Azure Traces for Packing 2020 (Hadary et al., Protean, OSDI'20), sampled and with cores \
     and memory reconstructed by CoSpot (SoCC'22); CC-BY 4.0";

/// Returns the report, and true if all goals are met.
pub(super) fn write(args: &Args, date: Date, host: &str, all: &[Replayed]) -> (String, bool) {
    let mut text = format!(
        "# VM arrivals replayed on NUMA hosts, {date}

- measured on: {host}; one thread
- hosts: {hosts}, each with two zones of 24 cores with two threads; {PINNABLE} CPUs can be pinned ({first} in zone 0, {ZONE_CPUS} in zone 1); \
{ZONE_GIB} GiB of {page} pages in each zone; kubelet 1.36: static, full-pcpus-only, Memory Manager Static, single-numa-node
- VMs: {source}
- a trace's core is a physical core here, so two CPUs, as no less is allocated; a unit of its memory is 0.25 GiB (3.5 GiB beside \
most cores), in whole pages; parts are rounded up. Every tenth tenant's VMs have a small sidecar without CPUs of its own
- nominal load: CPUs that are requested on average over the trace's days, as a part of all that can be pinned. Tenants are left out, or \
repeated under new ids and at other times, until it is met. VMs that are there before day 0 come first
- judge: the kubelet's admission (`berth_kubelet_admission`, held against the kubelet's own code) for every policy. A VM that finds no \
host, or that the kubelet refuses, is lost, as with `runStrategy: Once`; it is not retried
- kube-scheduler: NodeResourcesFit and NodeResourcesBalancedAllocation with their default weights, sampling as it does by default; the NUMA \
filter is exact and never stale, better than any that can be had. Full information: the kubelet of every host is queried for every VM; like the \
filter, it remembers what a kubelet said until something changes on its host
",
        hosts = args.hosts,
        first = PINNABLE - ZONE_CPUS,
        page = args.page,
        source = if all.iter().any(|one| one.trace.name != "synthetic") {
            SOURCE.to_owned()
        } else {
            format!("made up after the quantiles of: {SOURCE}")
        },
    );
    let mut met = true;
    for replayed in all {
        met &= summary(&mut text, replayed);
        for run in &replayed.runs {
            met &= section(&mut text, run);
        }
    }
    let columns = "Packed: pinned CPUs, time-weighted mean. Rejected: VMs that did not come to run. Refused: those of them that the kubelet \
turned away. Empty: hosts without VMs, mean. Free at the first miss, stranded: at the end VMs of the mix are added where they fit best; what is \
free when one finds no place, and when none does. A decision: choosing a host, not the kubelet's part.";
    writeln!(text, "\n{columns}\n\nCommand: `make bench`, or `berth-benches trace`.").unwrap_or(());
    (text, met)
}

/// Appends the summary of a trace with the usable part of the hosts. Returns true if the goals of the trace are met.
fn summary(text: &mut String, replayed: &Replayed) -> bool {
    let Replayed { trace, full, runs } = replayed;
    let mut table = "| policy | full at %d |".replace("%d", &format!("{} % lost, %", 100.0 * LOST));
    for run in runs {
        write!(table, " packed at {:.2} % |", run.load).unwrap_or(());
    }
    table += "\n|---|--:|";
    table += &"--:|".repeat(runs.len());
    for (at, name) in NAMES.iter().enumerate() {
        write!(table, "\n| {name} | {:.1} |", 100.0 * full.get(at).unwrap_or(&f64::NAN))
            .unwrap_or(());
        for run in runs {
            let packed = run.outcomes.get(at).map_or(f64::NAN, |one| one.mean_packed);
            write!(table, " {:.1} |", 100.0 * packed).unwrap_or(());
        }
    }
    let full = |at: usize| full.get(at).map_or(f64::NAN, |full| 100.0 * full);
    let (ahead, behind) = (full(BERTH) - full(DEFAULT), full(BEST_FIT) - full(BERTH));
    let goals = [ahead >= AHEAD_GOAL, behind <= BEHIND_GOAL];
    let [first, second] = goals.map(verdict);
    *text += &format!(
        "
## {name}

Left out: {wide} VMs of the whole trace that are larger than any zone ({part:.1} % of its CPU time), by any placement. Full: CPUs that are \
pinned on average, of all that can be, at the highest load at which {lost} % of the VMs at most do not come to run.

{table}

goal: hosts at least {AHEAD_GOAL} points fuller than with the default, when {lost} % are lost: {first} ({ahead:.1})
goal: at most {BEHIND_GOAL} points behind full information there: {second} ({behind:.1})
",
        name = trace.name,
        wide = trace.wide,
        part = 100.0 * trace.wide_part,
        lost = 100.0 * LOST,
    );
    goals.iter().all(|met| *met)
}

const fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

/// Appends the results of a trace at one load. Returns true if the goals of the load are met.
fn section(text: &mut String, run: &Run) -> bool {
    let percent = |part: f64| 100.0 * part;
    let mut table = String::new();
    for (name, outcome) in NAMES.iter().zip(&run.outcomes) {
        let [middle, slow] = [50, 99].map(|at| percentile(&outcome.nanos, at) / 1e3);
        table += &format!(
            "| {name} | {:.1} | {:.2} | {} | {} | {:.1} | {:.1} | {:.1} | {middle:.1} | {slow:.1} |\n",
            percent(outcome.mean_packed),
            percent(outcome.rejected()),
            by_class(outcome),
            outcome.refused,
            percent(outcome.empty),
            percent(outcome.at_first_miss),
            percent(outcome.stranded),
        );
    }
    let classes: Vec<String> = CLASSES
        .iter()
        .map(|most| match *most {
            u32::MAX => "more".to_owned(),
            most => format!("{most}"),
        })
        .collect();
    let packed = |at: usize| run.outcomes.get(at).map_or(f64::NAN, |one| percent(one.mean_packed));
    let ahead = packed(BERTH) - packed(DEFAULT);
    let behind = packed(BEST_FIT) - packed(BERTH);
    let refused = run.outcomes.get(BERTH).map_or(usize::MAX, |one| one.refused);
    let wanted = run.outcomes.first().map_or(f64::NAN, |one| percent(one.mean_wanted));
    let goals = [behind <= BEHIND_GOAL, refused == 0];
    let [first, second] = goals.map(verdict);
    *text += &format!(
        "
### Nominal load {load:.2}

{vms} VMs; on average {wanted:.1} % of all CPUs are requested.

| policy | packed % | rejected % | of them up to {classes} CPUs, % | refused | empty % | free at the first miss % | stranded % | decision us, median | 99th percentile |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
{table}
Berth is {ahead:.1} points ahead of the default.

goal: at most {BEHIND_GOAL} points behind full information: {first} ({behind:.1})
goal: no VM that the kubelet refuses: {second} ({refused})
",
        load = run.load,
        vms = run.vms,
        classes = classes.join(" / "),
    );
    goals.iter().all(|met| *met)
}

fn by_class(outcome: &Outcome) -> String {
    let classes = outcome.rejected.iter().zip(&outcome.vms);
    let parts = classes.map(|(rejected, vms)| match vms {
        0 => "-".to_owned(),
        vms => format!("{:.1}", 100.0 * *rejected as f64 / *vms as f64),
    });
    parts.collect::<Vec<_>>().join(" / ")
}
