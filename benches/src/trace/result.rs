//! Builds the result from the replayed traces, without I/O.

use jiff::civil::Date;

use super::policy::{BERTH_POLICY, BEST_FIT_POLICY, DEFAULT_POLICY, POLICY_NAMES};
use super::replay::{Outcome, SIZE_CLASSES};
use super::{Args, LoadRun, MAX_LOST_FRACTION, TraceResult};
use crate::fleet::{PINNABLE_CPUS, ZONE_CPUS, ZONE_GIB};
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::percentile;

/// Goal for Berth's result minus that of the default policy: at least this many percentage points of the pinnable
/// CPUs.
const MIN_AHEAD_POINTS: f64 = 10.0;
/// Goal for the result with full information minus that of Berth: at most this many percentage points of the
/// pinnable CPUs.
const MAX_BEHIND_POINTS: f64 = 3.0;

pub(super) const SOURCE: &str = "Azure Traces for Packing 2020 (Hadary et al., Protean, OSDI'20), sampled and with cores \
     and memory reconstructed by CoSpot (SoCC'22); CC-BY 4.0";

/// Explanation of the columns of all tables.
const COLUMN_EXPLANATION: &str = "Packed: pinned CPUs, time-weighted mean. Rejected: VMs that did not run. Refused: rejected VMs that the kubelet \
     refused. Empty: hosts without VMs, mean. Free at the first unplaced VM, and stranded: at the end, VMs of the same sizes are added where they fit \
     best; the CPUs that are free when the first VM is unplaced, and when no VM can be placed. Decision: the choice of a host, without \
     the kubelet.";

/// Returns the result with the sections and goals of all traces.
pub(super) fn build(args: &Args, date: Date, host: &str, all: &[TraceResult]) -> BenchResult {
    let (mut sections, mut goals) =
        (vec![Section::untitled(COLUMN_EXPLANATION, Vec::new())], Vec::new());
    for replayed in all {
        sections.push(summary_section(replayed));
        goals.extend(summary_goals(replayed));
        for run in &replayed.runs {
            sections.push(load_section(&replayed.trace.name, run));
            goals.extend(load_goals(&replayed.trace.name, run));
        }
    }
    BenchResult {
        name: "trace".to_owned(),
        title: "VM arrivals replayed on NUMA hosts".to_owned(),
        date,
        conditions: conditions(args, host, all),
        sections,
        goals,
        command: "berth-benches trace".to_owned(),
    }
}

fn conditions(args: &Args, host: &str, all: &[TraceResult]) -> Vec<String> {
    let source = if all.iter().any(|one| one.trace.name != "synthetic") {
        SOURCE.to_owned()
    } else {
        format!("generated with the quantiles of: {SOURCE}")
    };
    vec![
        format!("measured on: {host}; one thread"),
        format!(
            "hosts: {}, each with two NUMA zones of 24 cores with two threads; {PINNABLE_CPUS} pinnable CPUs ({} in zone 0, {ZONE_CPUS} \
             in zone 1); {ZONE_GIB} GiB of {} pages in each zone; kubelet 1.36: static, full-pcpus-only, Memory Manager Static, \
             single-numa-node",
            args.hosts,
            PINNABLE_CPUS - ZONE_CPUS,
            args.page,
        ),
        format!("VMs: {source}"),
        "sizes: a core of the trace is a physical core here, which is two CPUs, because smaller parts are not allocated; a unit of \
         the trace's memory is 0.25 GiB (3.5 GiB for most cores), in whole pages; fractions are rounded up. The VMs of every \
         tenth tenant have a small sidecar without exclusive CPUs"
            .to_owned(),
        "nominal load: average requested CPUs over the days of the trace, as a fraction of all pinnable CPUs. To reach the load, tenants \
         are left out, or repeated with new ids and at other times. VMs that exist before day 0 arrive first"
            .to_owned(),
        "admission: the kubelet's admission (`berth_kubelet_admission`, which is tested against the kubelet's code) checks every \
         policy. A VM is lost if no host is found or if the kubelet refuses it, as with `runStrategy: Once`; it is not retried"
            .to_owned(),
        "kube-scheduler: NodeResourcesFit and NodeResourcesBalancedAllocation with their default weights and the default sampling; \
         the NUMA filter is exact and never stale, which is better than any existing filter"
            .to_owned(),
        "full information: the kubelet of every host is queried for every VM; like the NUMA filter, the policy caches the answers \
         until something changes on the host"
            .to_owned(),
    ]
}

/// Returns the summary of a trace: the fraction of the CPUs that each policy can use, and the pinned CPUs at each
/// load.
fn summary_section(replayed: &TraceResult) -> Section {
    let TraceResult { trace, usable_fraction: full, runs } = replayed;
    let lost = 100.0 * MAX_LOST_FRACTION;
    let text = format!(
        "{} VMs of the whole trace are larger than any NUMA zone ({:.1} % of the CPU time) and are left out for every policy. Full: \
         average pinned CPUs, as a fraction of all pinnable CPUs, at the highest load at which at most {lost} % of the VMs are lost.",
        trace.oversized_vms,
        100.0 * trace.oversized_fraction,
    );
    let mut names = vec![format!("full at {lost} % lost, %")];
    names.extend(runs.iter().map(|run| format!("packed at load {:.2}, %", run.load)));
    let mut table = Table::new(&["policy"], &names.iter().map(String::as_str).collect::<Vec<_>>());
    for (at, name) in POLICY_NAMES.iter().enumerate() {
        let full = full.get(at).copied().unwrap_or(f64::NAN);
        let packed = runs.iter().map(|run| packed_percent(run, at));
        let numbers = [100.0 * full].into_iter().chain(packed);
        table.push(
            [(*name).to_owned()].into_iter().chain(numbers.map(|number| format!("{number:.1}"))),
        );
    }
    Section::new(&format!("Trace {}", trace.name), text, vec![table])
}

fn summary_goals(replayed: &TraceResult) -> [Goal; 2] {
    let TraceResult { trace, usable_fraction: full, .. } = replayed;
    let full = |at: usize| full.get(at).map_or(f64::NAN, |full| 100.0 * full);
    let (ahead, behind) =
        (full(BERTH_POLICY) - full(DEFAULT_POLICY), full(BEST_FIT_POLICY) - full(BERTH_POLICY));
    let at = format!("trace {}, {} % of the VMs lost", trace.name, 100.0 * MAX_LOST_FRACTION);
    [
        Goal::new(
            format!(
                "{at}: hosts at least {MIN_AHEAD_POINTS} points fuller than with the default policy"
            ),
            ahead >= MIN_AHEAD_POINTS,
            format!("{ahead:.1}"),
        ),
        Goal::new(
            format!(
                "{at}: hosts at most {MAX_BEHIND_POINTS} points below the policy 'full-information best fit'"
            ),
            behind <= MAX_BEHIND_POINTS,
            format!("{behind:.1}"),
        ),
    ]
}

/// Returns the mean pinned CPUs in percent of all CPUs, for the policy with index `at` in [`POLICY_NAMES`].
fn packed_percent(run: &LoadRun, at: usize) -> f64 {
    run.outcomes.get(at).map_or(f64::NAN, |one| 100.0 * one.mean_pinned)
}

/// Returns the section with the results of a trace at one load.
fn load_section(trace: &str, run: &LoadRun) -> Section {
    let classes = SIZE_CLASSES.iter().map(|most| match *most {
        u32::MAX => "more".to_owned(),
        most => most.to_string(),
    });
    let classes = classes.collect::<Vec<_>>().join(" / ");
    let mut table = Table::new(
        &["policy"],
        &[
            "packed %",
            "rejected %",
            &format!("rejected with up to {classes} CPUs, %"),
            "refused",
            "empty %",
            "free at the first unplaced VM %",
            "stranded %",
            "decision us, median",
            "99th percentile",
        ],
    );
    for (name, outcome) in POLICY_NAMES.iter().zip(&run.outcomes) {
        let [middle, slow] = [50, 99].map(|at| percentile(&outcome.decision_nanos, at) / 1e3);
        table.push([
            (*name).to_owned(),
            format!("{:.1}", 100.0 * outcome.mean_pinned),
            format!("{:.2}", 100.0 * outcome.rejected_fraction()),
            rejected_by_class_text(outcome),
            outcome.refused_count.to_string(),
            format!("{:.1}", 100.0 * outcome.empty_fraction),
            format!("{:.1}", 100.0 * outcome.free_at_first_unplaced),
            format!("{:.1}", 100.0 * outcome.stranded_fraction),
            format!("{middle:.1}"),
            format!("{slow:.1}"),
        ]);
    }
    let text = format!(
        "{} VMs request {:.1} % of all CPUs on average. Berth is {:.1} points ahead of the default policy.",
        run.vm_count,
        run.outcomes.first().map_or(f64::NAN, |one| 100.0 * one.mean_requested),
        packed_percent(run, BERTH_POLICY) - packed_percent(run, DEFAULT_POLICY),
    );
    Section::new(&format!("Trace {trace}, nominal load {:.2}", run.load), text, vec![table])
}

fn load_goals(trace: &str, run: &LoadRun) -> [Goal; 2] {
    let behind = packed_percent(run, BEST_FIT_POLICY) - packed_percent(run, BERTH_POLICY);
    let refused = run.outcomes.get(BERTH_POLICY).map_or(usize::MAX, |one| one.refused_count);
    let at = format!("trace {trace}, load {:.2}", run.load);
    [
        Goal::new(
            format!(
                "{at}: packed at most {MAX_BEHIND_POINTS} points below the policy 'full-information best fit'"
            ),
            behind <= MAX_BEHIND_POINTS,
            format!("{behind:.1}"),
        ),
        Goal::new(format!("{at}: the kubelet refuses no VM"), refused == 0, refused.to_string()),
    ]
}

fn rejected_by_class_text(outcome: &Outcome) -> String {
    let classes = outcome.rejected_by_class.iter().zip(&outcome.vms_by_class);
    let parts = classes.map(|(rejected, vms)| match vms {
        0 => "-".to_owned(),
        vms => format!("{:.1}", 100.0 * *rejected as f64 / *vms as f64),
    });
    parts.collect::<Vec<_>>().join(" / ")
}
