//! Measures the speed of the assignment engine with all rules in use, compared with a full scan of all hosts, and the
//! time of an engine rebuild.

mod rebuild;
mod run;
mod scan;
mod workload;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use jiff::civil::Date;
use jiff::{Timestamp, tz::TimeZone};

use run::{Speed, speed};

use crate::fleet::PINNABLE;
use crate::program::Program;
use crate::report;
use crate::stats::percentile;

/// Part of the CPUs that is allocated before the measurement starts.
const FULL: f64 = 0.85;
/// Goals: decisions per second for each number of hosts, and the 99th percentile of the decision time in
/// microseconds.
const GOALS: [(usize, f64); 2] = [(5_000, 100_000.0), (50_000, 50_000.0)];
const SLOW_GOAL: f64 = 100.0;
/// Goals of a rebuild: seconds, and resident MiB.
const REBUILD_GOAL: f64 = 1.0;
const RESIDENT_GOAL: f64 = 300.0;
const REBUILD_HOSTS: usize = 5_000;
/// Number of decisions of the peer with 5,000 hosts. The number is lower with more hosts.
const PEER_PAIRS: usize = 2_000;

/// Measures the decisions and the rebuild of the assignment engine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Decisions that are measured, at each number of hosts
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(100..))]
    pairs: u32,
    /// The directory to write the report to
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    results: PathBuf,
    /// The date of the report, instead of today in UTC
    #[arg(long)]
    date: Option<Date>,
    /// Rebuild only, once, and print what it cost: seconds, of them for hosts, MiB, pods
    #[arg(long, hide = true)]
    rebuild: bool,
}

/// Runs the benchmark, then prints and writes the report. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.rebuild {
        let cost = rebuild::rebuild(REBUILD_HOSTS)?;
        let rebuild::Cost { seconds, hosts_seconds, resident, pods } = cost;
        writeln!(std::io::stdout().lock(), "{seconds} {hosts_seconds} {resident} {pods}")?;
        return Ok(true);
    }
    let rebuilt = (0..3).map(|_| rebuilt()).collect::<Result<Vec<_>>>()?;
    let pairs = usize::try_from(args.pairs)?;
    let speeds = GOALS.iter().map(|(hosts, _)| speed(*hosts, pairs));
    let speeds = speeds.collect::<Result<Vec<_>>>()?;
    let date = args.date.unwrap_or_else(|| Timestamp::now().to_zoned(TimeZone::UTC).date());
    let (text, met) = write(date, &report::host()?, &speeds, &rebuilt);
    fs::create_dir_all(&args.results)
        .with_context(|| format!("create {}", args.results.display()))?;
    let file = args.results.join(format!("{date}-engine.md"));
    fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(met)
}

/// Runs a rebuild in a separate process, so that the resident memory contains nothing else.
fn rebuilt() -> Result<rebuild::Cost> {
    let this = Program {
        label: "the rebuild".to_owned(),
        path: env::current_exe()?.into(),
        args: ["engine", "--rebuild"].map(OsString::from).to_vec(),
        env: vec![],
        missing: "was it rebuilt during the run?",
    };
    let said = this.stdout()?;
    let numbers: Vec<f64> = said.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [seconds, hosts_seconds, resident, _] = numbers[..] else {
        anyhow::bail!("the rebuild said `{said}`")
    };
    let pods = said.split_whitespace().next_back().unwrap_or_default().parse()?;
    Ok(rebuild::Cost { pods, seconds, hosts_seconds, resident })
}

fn write(date: Date, host: &str, speeds: &[Speed], rebuilt: &[rebuild::Cost]) -> (String, bool) {
    let verdict = |met: bool| if met { "met" } else { "missed" };
    let (mut table, mut parts, mut goals, mut all) =
        (String::new(), String::new(), String::new(), true);
    for (speed, (_, goal)) in speeds.iter().zip(GOALS) {
        let decisions = speed.decisions();
        let [middle, slow, worst] = [50, 99, 100].map(|at| percentile(&decisions, at));
        let [peer, peer_slow] = [50, 99].map(|at| percentile(&speed.peer, at));
        let (rate, pairs_rate) = (speed.rate(), speed.pairs_rate());
        let peer_rate = speed.peer_rate();
        table += &format!(
            "| {} | {} | {:.1} | {rate:.0} | {middle:.2} | {slow:.2} | {worst:.0} | {pairs_rate:.0} | {peer_rate:.0} | {peer:.0} | {peer_slow:.0} | {:.0} |\n",
            speed.hosts,
            speed.pods,
            100.0 * speed.fullness,
            pairs_rate / peer_rate,
        );
        let both = |values: &[f64]| {
            format!("{:.2} / {:.2}", percentile(values, 50), percentile(values, 99))
        };
        parts += &format!(
            "| {} | {} | {} | {} | {} | {:016x} |\n",
            speed.hosts,
            both(&speed.request),
            both(&speed.place),
            both(&speed.remove),
            speed.unplaced,
            speed.checksum,
        );
        let met = [rate >= goal, slow < SLOW_GOAL];
        goals += &format!(
            "goal at {} hosts: at least {goal:.0} decisions a second: {} ({rate:.0})\n\
             goal at {} hosts: 99 of 100 decisions under {SLOW_GOAL} us: {} ({slow:.1})\n",
            speed.hosts,
            verdict(met[0]),
            speed.hosts,
            verdict(met[1]),
        );
        all &= met.iter().all(|met| *met);
    }
    let of = |what: fn(&rebuild::Cost) -> f64| {
        percentile(&rebuilt.iter().map(what).collect::<Vec<_>>(), 50)
    };
    let (seconds, resident) = (of(|cost| cost.seconds), of(|cost| cost.resident));
    let met = [seconds < REBUILD_GOAL, resident < RESIDENT_GOAL];
    all &= met.iter().all(|met| *met);
    goals += &format!(
        "goal: rebuilt in less than {REBUILD_GOAL} s: {} ({seconds:.2})\n\
         goal: less than {RESIDENT_GOAL} MiB resident then: {} ({resident:.0})\n",
        verdict(met[0]),
        verdict(met[1]),
    );
    let text = format!(
        "# The assignment engine, {date}

- measured on: {host}; one thread
- hosts: two zones, {PINNABLE} CPUs that can be pinned, single-numa-node, Memory Manager Static; two pools and ten failure domains; \
7.5 % of them tainted
- VMs: 40 shapes (8 sizes by 5 kinds of rules: none, node selector, toleration, required and preferred node affinity); 25 to a \
MachineDeployment, each spread `ScheduleAnyway` by its label over hosts, every tenth with required anti-affinity; 10 MachineDeployments to a \
tenant's namespace. The next VM is of the same MachineDeployment with a probability of 0.91
- a decision: the pod's rules are read, the best host is chosen and booked. A pair: a decision, and a VM that goes, drawn from all, so that hosts stay as full
- the engine works alone; afterwards every decision is judged, in the same order, by the rules and by the kubelet's admission on a \
second set of books, which must be the same as the engine's in the end
- peer: every host is queried for every VM, by the same rules (`berth_placement::rules`) and preferences, the winner by the same admission; it works alone too

| hosts | VMs | full % | decisions a second | decision us, median | 99th percentile | most | pairs a second | peer: pairs a second | median us | 99th percentile | ratio of pairs |
|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
{table}
| hosts | reading rules us, median / 99th percentile | choosing and booking | going | found no host | checksum of all decisions |
|--:|--:|--:|--:|--:|--:|
{parts}
Rebuild of {REBUILD_HOSTS} hosts with {pods} pods, median of {rounds}, in a process of its own: {seconds:.2} s from InfraNodes as JSON, typed \
Nodes and typed Pods to the engine, of which hosts {of_hosts:.2} s; {resident:.0} MiB resident afterwards.

{goals}
Command: `make bench`, or `berth-benches engine`.
",
        pods = rebuilt.first().map_or(0, |cost| cost.pods),
        rounds = rebuilt.len(),
        of_hosts = of(|cost| cost.hosts_seconds),
    );
    (text, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_decision_is_by_the_rules_and_the_books_agree() {
        // With few hosts, a pool can be full, and then a series of VMs of the same kind is unplaced.
        let speed = speed(200, 400).unwrap();
        assert!((speed.fullness - FULL).abs() < 0.03, "{}", speed.fullness);
        assert_eq!(speed.place.len(), 400);
        assert!(!speed.remove.is_empty());
        assert!(!speed.peer.is_empty());
    }
}
