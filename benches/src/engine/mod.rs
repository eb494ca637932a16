//! Measures the speed of the assignment engine with all its rules, compared with a full scan of all hosts, and the
//! time to rebuild the engine.

mod rebuild;
mod run;
mod scan;
mod workload;

use std::env;
use std::ffi::OsString;
use std::io::Write;

use anyhow::Result;
use jiff::civil::Date;

use run::{WorkloadMeasurements, measure_speed};

use crate::fleet::PINNABLE_CPUS;
use crate::output::OutputArgs;
use crate::program::Program;
use crate::report;
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::percentile;

/// Fraction of the CPUs that is allocated before the measurement starts.
const FILL_LEVEL: f64 = 0.85;
/// Workloads, each with its goal for the decisions per second.
const RATE_GOALS: [(Workload, f64); 3] = [
    (Workload { hosts: PEER_HOSTS, control_plane_percent: 0 }, 100_000.0),
    (Workload { hosts: 50_000, control_plane_percent: 0 }, 50_000.0),
    (Workload { hosts: PEER_HOSTS, control_plane_percent: 10 }, 100_000.0),
];
/// Goal: 99th percentile of the decision time in microseconds.
const P99_GOAL_MICROS: f64 = 100.0;
/// Goal for the seconds of a rebuild.
const REBUILD_GOAL_SECONDS: f64 = 1.0;
/// Goal for the resident memory after a rebuild, in MiB.
const RESIDENT_GOAL_MIB: f64 = 300.0;
/// Number of hosts of a rebuild.
const REBUILD_HOSTS: usize = 5_000;
/// Number of decisions of the peer with `PEER_HOSTS` hosts. With more hosts, the peer makes fewer decisions,
/// because each takes longer.
const PEER_PAIRS: usize = 2_000;
/// Smallest number of hosts for which the peer is measured.
const PEER_HOSTS: usize = 5_000;

/// Workload: number of hosts, and percentage of the MachineDeployments whose VMs are control planes.
#[derive(Clone, Copy, Debug, Default)]
struct Workload {
    hosts: usize,
    control_plane_percent: usize,
}

impl Workload {
    /// Returns the text for the workload in the list of goals.
    fn describe(self) -> String {
        let Self { hosts, control_plane_percent } = self;
        match control_plane_percent {
            0 => format!("{hosts} hosts"),
            percent => format!("{hosts} hosts and {percent} % control planes"),
        }
    }
}

/// Measures the decisions and the rebuild of the assignment engine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of measured decisions for each number of hosts
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(100..))]
    pairs: u32,
    #[command(flatten)]
    output: OutputArgs,
    /// Only rebuild the engine once, and print total seconds, seconds for the hosts, MiB and pods
    #[arg(long, hide = true)]
    rebuild: bool,
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.rebuild {
        let cost = rebuild::rebuild(REBUILD_HOSTS)?;
        let rebuild::RebuildCost { seconds, hosts_seconds, resident_mib: resident, pods } = cost;
        writeln!(std::io::stdout().lock(), "{seconds} {hosts_seconds} {resident} {pods}")?;
        return Ok(true);
    }
    let rebuilt = (0..3).map(|_| rebuild_in_child_process()).collect::<Result<Vec<_>>>()?;
    let pairs = usize::try_from(args.pairs)?;
    let speeds = RATE_GOALS.iter().map(|(workload, _)| measure_speed(*workload, pairs));
    let speeds = speeds.collect::<Result<Vec<_>>>()?;
    args.output.publish(&build_result(
        args.output.date(),
        &report::describe_host()?,
        &speeds,
        &rebuilt,
    ))
}

/// Runs a rebuild in a separate process, so that the resident memory contains nothing else.
fn rebuild_in_child_process() -> Result<rebuild::RebuildCost> {
    let program = Program {
        label: "rebuild of the engine".to_owned(),
        path: env::current_exe()?.into(),
        args: ["engine", "--rebuild"].map(OsString::from).to_vec(),
        env: vec![],
        missing_hint: "was the benchmark binary rebuilt during the run?",
    };
    let output = program.stdout()?;
    let numbers: Vec<f64> = output.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [seconds, hosts_seconds, resident, _] = numbers[..] else {
        anyhow::bail!("unexpected output of the rebuild: `{output}`")
    };
    let pods = output.split_whitespace().next_back().unwrap_or_default().parse()?;
    Ok(rebuild::RebuildCost { pods, seconds, hosts_seconds, resident_mib: resident })
}

fn build_result(
    date: Date,
    host: &str,
    speeds: &[WorkloadMeasurements],
    rebuilt: &[rebuild::RebuildCost],
) -> BenchResult {
    let median_of = |what: fn(&rebuild::RebuildCost) -> f64| {
        percentile(&rebuilt.iter().map(what).collect::<Vec<_>>(), 50)
    };
    let (seconds, resident) = (median_of(|cost| cost.seconds), median_of(|cost| cost.resident_mib));
    let mut goals = Vec::new();
    for (speed, (_, goal)) in speeds.iter().zip(RATE_GOALS) {
        let (rate, slow) = (speed.decisions_per_second(), percentile(&speed.decision_micros(), 99));
        let workload = speed.workload.describe();
        goals.push(Goal::new(
            format!("at least {goal:.0} decisions per second with {workload}"),
            rate >= goal,
            format!("{rate:.0}"),
        ));
        goals.push(Goal::new(
            format!(
                "99th percentile of the decision time below {P99_GOAL_MICROS} us with {workload}"
            ),
            slow < P99_GOAL_MICROS,
            format!("{slow:.1} us"),
        ));
    }
    goals.push(Goal::new(
        format!("rebuild in less than {REBUILD_GOAL_SECONDS} s"),
        seconds < REBUILD_GOAL_SECONDS,
        format!("{seconds:.2} s"),
    ));
    goals.push(Goal::new(
        format!("less than {RESIDENT_GOAL_MIB} MiB resident after the rebuild"),
        resident < RESIDENT_GOAL_MIB,
        format!("{resident:.0} MiB"),
    ));
    let rebuild = format!(
        "{REBUILD_HOSTS} hosts with {} pods, median of {} rebuilds in separate processes: {seconds:.2} s from InfraNodes as JSON \
         and typed Nodes and Pods to the engine, including {:.2} s for the hosts. {resident:.0} MiB are resident afterwards.",
        rebuilt.first().map_or(0, |cost| cost.pods),
        rebuilt.len(),
        median_of(|cost| cost.hosts_seconds),
    );
    BenchResult {
        name: "engine".to_owned(),
        title: "The assignment engine".to_owned(),
        date,
        conditions: conditions(host),
        sections: vec![
            Section::untitled("", vec![rate_table(speeds), step_table(speeds)]),
            Section::new("Rebuild", rebuild, Vec::new()),
        ],
        goals,
        command: "berth-benches engine".to_owned(),
    }
}

fn conditions(host: &str) -> Vec<String> {
    vec![
        format!("measured on: {host}; one thread"),
        format!(
            "hosts: two NUMA zones, {PINNABLE_CPUS} pinnable CPUs, single-numa-node, Memory Manager Static; two pools and ten failure \
             domains; 7.5 % of the hosts are tainted"
        ),
        "VMs: 40 request classes (8 sizes, each with 5 kinds of rules: none, node selector, toleration, required and preferred \
         node affinity); 25 VMs in each MachineDeployment, spread over hosts with `ScheduleAnyway` by its label, and with required \
         anti-affinity in every tenth MachineDeployment; 10 MachineDeployments in the namespace of each tenant. The next VM \
         belongs to the same MachineDeployment with a probability of 0.91"
            .to_owned(),
        "control planes: the VMs of these MachineDeployments are also spread over hosts, together with those of all tenants. The \
         peer does not score this spread"
            .to_owned(),
        "decision: the engine reads the rules of the pod, chooses the best host and reserves the CPUs. Pair: a decision, and the \
         removal of a random VM, so that the hosts stay equally full"
            .to_owned(),
        "check: the engine runs alone. Afterwards the rules and the kubelet's admission check all decisions in the same order with \
         a second reservation table, which must be equal to the engine's table at the end"
            .to_owned(),
        "peer: checks every host for every VM with the same rules (`berth_placement::rules`) and preferences, and chooses with the \
         same admission; the peer runs alone too"
            .to_owned(),
    ]
}

fn rate_table(speeds: &[WorkloadMeasurements]) -> Table {
    let mut table = Table::new(
        &[],
        &[
            "hosts",
            "control planes %",
            "VMs",
            "full %",
            "decisions per second",
            "decision us, median",
            "99th percentile",
            "max",
            "pairs per second",
            "peer: pairs per second",
            "median us",
            "99th percentile",
            "ratio of pairs",
        ],
    );
    for speed in speeds {
        let decisions = speed.decision_micros();
        let [middle, slow, worst] = [50, 99, 100].map(|at| percentile(&decisions, at));
        let [peer, peer_slow] = [50, 99].map(|at| percentile(&speed.peer_micros, at));
        let (pairs_rate, peer_rate) = (speed.pairs_per_second(), speed.peer_pairs_per_second());
        table.push([
            speed.workload.hosts.to_string(),
            speed.workload.control_plane_percent.to_string(),
            speed.pods.to_string(),
            format!("{:.1}", 100.0 * speed.allocated_fraction),
            format!("{:.0}", speed.decisions_per_second()),
            format!("{middle:.2}"),
            format!("{slow:.2}"),
            format!("{worst:.0}"),
            format!("{pairs_rate:.0}"),
            format!("{peer_rate:.0}"),
            format!("{peer:.0}"),
            format!("{peer_slow:.0}"),
            format!("{:.0}", pairs_rate / peer_rate),
        ]);
    }
    table
}

fn step_table(speeds: &[WorkloadMeasurements]) -> Table {
    let mut table = Table::new(
        &[],
        &[
            "hosts",
            "control planes %",
            "read rules us, median / 99th percentile",
            "choose and reserve",
            "remove",
            "unplaced VMs",
            "checksum of all decisions",
        ],
    );
    let both =
        |values: &[f64]| format!("{:.2} / {:.2}", percentile(values, 50), percentile(values, 99));
    for speed in speeds {
        table.push([
            speed.workload.hosts.to_string(),
            speed.workload.control_plane_percent.to_string(),
            both(&speed.request_micros),
            both(&speed.place_micros),
            both(&speed.remove_micros),
            speed.unplaced.to_string(),
            format!("{:016x}", speed.checksum),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_obey_the_rules_and_allocations_agree() {
        // With few hosts, a pool of hosts may become full, and several VMs in a row that need this pool are not
        // placed.
        for control_plane_percent in [0, 10] {
            let workload = Workload { hosts: 200, control_plane_percent };
            let speed = measure_speed(workload, 400).unwrap();
            assert!(
                (speed.allocated_fraction - FILL_LEVEL).abs() < 0.03,
                "{}",
                speed.allocated_fraction
            );
            assert_eq!(speed.place_micros.len(), 400);
            assert!(!speed.remove_micros.is_empty());
            assert!(!speed.peer_micros.is_empty());
        }
    }
}
