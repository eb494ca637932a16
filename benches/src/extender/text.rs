//! Writes the report of the measured values and checks the goals, without I/O.

use std::fmt::Write as _;

use jiff::civil::Date;

use super::{Args, Measured};
use crate::stats::{median, median_ratio, percentile};

/// Goal for the 99th percentile of `filter` calls, in milliseconds.
const FILTER_GOAL: f64 = 2.0;
/// Goal for the seconds from the arrival of the lists to the first decision.
const START_GOAL: f64 = 2.0;
/// Goal for the peak resident memory in MiB.
const MEMORY_GOAL: f64 = 500.0;
/// Goal for the pods bound per second, as a factor of the rate of kube-scheduler without the extender.
const BOUND_GOAL: f64 = 1.1;

fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).unwrap_or_default();
}

/// Returns the report, and true if all goals are met.
pub(super) fn write(args: &Args, date: Date, host: &str, measured: &Measured) -> (String, bool) {
    let (results, met) = goals(measured);
    let (pods, bytes) = measured.pods;
    let text = format!(
        "# The scheduler extender with {hosts} hosts, {date}

- measured on: {host}; everything on this one machine
- control plane: kube-apiserver and kube-scheduler {version}, one etcd without fsync; Nodes without kubelets, InfraNodes as agents write
  them; no KubeVirt, so there are no VirtualMachineInstances to follow
- controller: the process `{controller} run`, with the rights of `deploy/base`, leading

{results}
## `filter`

{requests} calls of each in turn on connections that are kept, each for another pod with the names of all {hosts} hosts ({body:.0} kB), on a
fleet of {pods} pods. Peer: an extender in the same HTTP server that reads the same bodies in the same way, decides nothing and answers all
names. Milliseconds from the first byte sent to the last one read.

| calls | median | 99th percentile | most | median by the peer's |
|---|--:|--:|--:|--:|
{calls}
## Cold start

{hosts} hosts and {pods} pods of {bytes} bytes, all on hosts and in their agents' reports. Hosts are read when all are listed; then pods are
listed, and counted as their pages come. `After the lists` is the sum of both and of the time from the end of the last list to the first
decision; all else is the API server's time and the reading of what it sends.

| start | s from spawn to the first decision | hosts read | pods counted | end of the list to the decision | after the lists | CPU s | MiB resident, most |
|---|--:|--:|--:|--:|--:|--:|--:|
{starts}
After all calls of `filter`: {resident:.0} MiB resident, at most {most:.0}.

## Pods bound

{bound} launcher pods of four sizes with exclusive CPUs and pages and no preferences, on {hosts} empty hosts; all are there before the scheduler
starts. Pods a second from the first binding to the last one. Both with the configuration of `deploy/`, which has all nodes considered; the
peer without `extenders`.

| pair | with the extender | kube-scheduler alone | ratio |
|---|--:|--:|--:|
{rates}
Command: `make bench`, or `berth-benches extender --controller target/dist/berth-controller{flags}`.
",
        hosts = args.hosts,
        version = measured.version,
        controller = args.controller.file_name().unwrap_or_default().display(),
        requests = args.requests,
        body = measured.times.bytes as f64 / 1e3,
        calls = calls(measured),
        starts = starts(measured),
        resident = measured.taken.resident,
        most = measured.taken.most,
        bound = args.pods,
        rates = rates(measured),
        flags = flags(args),
    );
    (text, met)
}

/// Returns the flags that differ from the defaults.
fn flags(args: &Args) -> String {
    let all = [
        ("hosts", args.hosts, 5_000),
        ("requests", args.requests, 2_000),
        ("starts", args.starts, 3),
        ("pairs", args.pairs, 5),
        ("pods", args.pods, 1_000),
    ];
    let said = all.iter().filter(|(_, value, usual)| value != usual);
    said.map(|(name, value, _)| format!(" --{name} {value}")).collect()
}

fn calls(measured: &Measured) -> String {
    let times = &measured.times;
    let mut rows = String::new();
    for (name, own) in [
        ("VMs with CPUs and pages of their own", &times.pinned),
        ("VMs that share CPUs", &times.plain),
        ("the peer", &times.peer),
    ] {
        let [middle, slow, most] = [50, 99, 100].map(|at| percentile(own, at));
        let ratio = middle / median(&times.peer);
        add(
            &mut rows,
            format_args!("| {name} | {middle:.2} | {slow:.2} | {most:.2} | {ratio:.2} |\n"),
        );
    }
    rows
}

fn starts(measured: &Measured) -> String {
    let mut rows = String::new();
    for (at, start) in measured.starts.iter().enumerate() {
        add(
            &mut rows,
            format_args!(
                "| {} | {:.1} | {:.2} | {:.2} | {:.3} | {:.2} | {:.1} | {:.0} |\n",
                at + 1,
                start.total,
                start.hosts,
                start.pods,
                start.last,
                start.after_lists(),
                start.taken.cpu_seconds,
                start.taken.most,
            ),
        );
    }
    rows
}

fn rates(measured: &Measured) -> String {
    let mut rows = String::new();
    let mut row = |name: &str, ours: f64, theirs: f64, ratio: f64| {
        add(&mut rows, format_args!("| {name} | {ours:.1} | {theirs:.1} | {ratio:.2} |\n"));
    };
    let rates = &measured.rates;
    for (at, (ours, theirs)) in rates.extender.iter().zip(&rates.alone).enumerate() {
        row(&(at + 1).to_string(), *ours, *theirs, ours / theirs);
    }
    let [ours, theirs] = [&rates.extender, &rates.alone].map(|all| median(all));
    row("median", ours, theirs, median_ratio(&rates.extender, &rates.alone));
    rows
}

/// Returns the lines of the goals, and true if all goals are met.
fn goals(measured: &Measured) -> (String, bool) {
    let times = &measured.times;
    let slow = percentile(&times.pinned, 99).max(percentile(&times.plain, 99));
    let after: Vec<f64> = measured.starts.iter().map(super::Start::after_lists).collect();
    let resident = measured.starts.iter().map(|start| start.taken.most);
    let most = resident.chain([measured.taken.most]).fold(0.0, f64::max);
    let ratio = median_ratio(&measured.rates.extender, &measured.rates.alone);
    let goals = [
        (
            format!("99 of 100 calls of `filter` within {FILTER_GOAL:.0} ms, both kinds"),
            slow < FILTER_GOAL,
            format!("{slow:.2} ms"),
        ),
        (
            format!("the first decision within {START_GOAL:.0} s after the lists, median"),
            median(&after) < START_GOAL,
            format!("{:.2} s", median(&after)),
        ),
        (
            format!("under {MEMORY_GOAL:.0} MiB resident at any moment"),
            most < MEMORY_GOAL,
            format!("{most:.0} MiB"),
        ),
        (
            format!("{BOUND_GOAL:.1} times the pods a second of kube-scheduler alone"),
            ratio >= BOUND_GOAL,
            format!("{ratio:.2}"),
        ),
    ];
    let mut lines = String::new();
    for (goal, met, value) in &goals {
        let met = if *met { "met" } else { "missed" };
        add(&mut lines, format_args!("goal: {goal}: {met} ({value})\n\n"));
    }
    (lines, goals.iter().all(|(_, met, _)| *met))
}

#[cfg(test)]
mod tests {
    use berth_tests::cluster::Version;
    use clap::Parser;

    use super::super::bound::Rates;
    use super::super::filter::Times;
    use super::super::start::Start;
    use super::*;
    use crate::memory::Taken;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn report(slow: f64, hosts: f64, most: f64, ours: f64) -> (String, bool) {
        let line = Line::parse_from(["benches", "--controller=/x/berth-controller", "--pairs=1"]);
        let taken = Taken { resident: most, anonymous: most, most, cpu_seconds: 3.0 };
        let measured = Measured {
            version: Version(1, 20),
            rates: Rates { extender: vec![ours], alone: vec![50.0] },
            pods: (50_000, 2_345),
            starts: vec![Start { total: 9.0, hosts, pods: 0.5, last: 0.001, taken }],
            times: Times { pinned: vec![slow], plain: vec![0.5], peer: vec![0.25], bytes: 70_000 },
            taken,
        };
        write(&line.args, "2026-01-02".parse().unwrap(), "a machine", &measured)
    }

    #[test]
    fn goals_are_met_or_missed_one_by_one() {
        let (text, met) = report(1.0, 0.5, 400.0, 60.0);
        assert!(met && text.matches(": met (").count() == 4, "{text}");
        assert!(text.contains("| VMs that share CPUs | 0.50 | 0.50 | 0.50 | 2.00 |"), "{text}");
        assert!(text.contains("| median | 60.0 | 50.0 | 1.20 |"), "{text}");
        assert!(text.contains("berth-controller --pairs 1`"), "{text}");
        for (slow, hosts, most, ours, said) in [
            (2.0, 0.5, 400.0, 60.0, "both kinds: missed (2.00 ms)"),
            (1.0, 1.6, 400.0, 60.0, "median: missed (2.10 s)"),
            (1.0, 0.5, 501.0, 60.0, "at any moment: missed (501 MiB)"),
            (1.0, 0.5, 400.0, 54.0, "alone: missed (1.08)"),
        ] {
            let (text, met) = report(slow, hosts, most, ours);
            assert!(!met && text.contains(said), "{text}");
        }
    }
}
