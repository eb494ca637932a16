//! Builds the result from the measured values, without I/O.

use jiff::civil::Date;

use super::{Args, Measurements, Round};
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, median_ratio, percentile};

/// Goal for the seconds until a changed label has reached the Nodes of all tenants.
const LABEL_GOAL_SECONDS: f64 = 2.0;
/// Goal for the peak resident memory of the controller in MiB.
const MEMORY_GOAL_MIB: f64 = 300.0;

/// Returns the result with all tables and goals.
pub(super) fn build(args: &Args, date: Date, host: &str, measured: &Measurements) -> BenchResult {
    let controller = args.controller.file_name().unwrap_or_default().display();
    let conditions = vec![
        format!("measured on: {host}; all processes run on this machine"),
        format!(
            "infra cluster: kube-apiserver {}, one etcd without fsync, no controllers; {} hosts",
            measured.version, args.hosts
        ),
        format!(
            "tenants: {}, each with {} Nodes, one of them on the host whose label changes; {} have a real API server, one \
             small server (HTTPS, lists, watches, server-side apply) answers for all others",
            args.tenants, args.machines, measured.real_servers
        ),
        format!(
            "controller: the process `{controller} run`, with the permissions of `deploy/base` and one kubeconfig for each tenant"
        ),
        format!(
            "peer: a plain client with open connections that knows all Nodes and sends one merge patch to each, {} in parallel",
            args.at_once
        ),
    ];
    BenchResult {
        name: "tenant-access".to_owned(),
        title: format!("Labels of a host on the Nodes of {} tenants", args.tenants),
        date,
        conditions,
        sections: vec![
            Section::new(
                "A label of one host changes",
                format!(
                    "Seconds from before the change of the host until its tenants' Nodes have the label, {} changes. Before \
                     them, the controller connected to all tenants and labelled all Nodes in {:.1} s.",
                    args.rounds, measured.connect_seconds
                ),
                vec![label_table(&measured.rounds)],
            ),
            Section::new(
                "Nothing changes",
                format!("{} s without changes.", args.idle_seconds),
                vec![idle_table(measured)],
            ),
        ],
        goals: goals(args, measured),
        command: "berth-benches tenant-access --controller target/dist/berth-controller".to_owned(),
    }
}

/// Returns the seconds until the last Node had the label, for each round.
fn last_nodes(rounds: &[Round]) -> Vec<f64> {
    rounds.iter().map(|round| percentile(&round.nodes, 100)).collect()
}

fn label_table(rounds: &[Round]) -> Table {
    let columns = ["median", "worst"];
    let mut table = Table::new(&["seconds until"], &columns);
    let of_rounds = |percent: usize| -> Vec<f64> {
        rounds.iter().map(|round| percentile(&round.nodes, percent)).collect()
    };
    let peer: Vec<f64> = rounds.iter().map(|round| round.peer).collect();
    for (what, values) in [
        ("the first Node has the label", of_rounds(0)),
        ("half of the Nodes have it", of_rounds(50)),
        ("all Nodes have it", of_rounds(100)),
        ("the plain client has patched all Nodes", peer.clone()),
    ] {
        let numbers = [median(&values), percentile(&values, 100)];
        table.push([what.to_owned()].into_iter().chain(numbers.map(|one| format!("{one:.3}"))));
    }
    let ratio = median_ratio(&last_nodes(rounds), &peer);
    table.push([
        "ratio of all Nodes to the plain client".to_owned(),
        format!("{ratio:.2}"),
        String::new(),
    ]);
    table
}

fn idle_table(measured: &Measurements) -> Table {
    let columns = [
        "lists, reads and writes of Nodes",
        "new watches",
        "CPU s",
        "resident MiB at the end",
        "peak",
    ];
    let mut table = Table::new(&["process"], &columns);
    table.push([
        "berth-controller".to_owned(),
        measured.idle.without_watches().to_string(),
        measured.idle.watches.to_string(),
        format!("{:.2}", measured.idle_cpu_seconds),
        format!("{:.1}", measured.usage.resident),
        format!("{:.1}", measured.usage.peak_resident),
    ]);
    table
}

fn goals(args: &Args, measured: &Measurements) -> Vec<Goal> {
    let worst = percentile(&last_nodes(&measured.rounds), 100);
    let (requests, peak) = (measured.idle.without_watches(), measured.usage.peak_resident);
    vec![
        Goal::new(
            format!(
                "a label of a host reaches its Nodes of {} tenants in less than {LABEL_GOAL_SECONDS:.0} s, in each round",
                args.tenants
            ),
            worst < LABEL_GOAL_SECONDS,
            format!("{worst:.2} s"),
        ),
        Goal::new(
            format!(
                "no requests to tenants except watches in {} s without changes",
                args.idle_seconds
            ),
            requests == 0,
            format!("{requests} requests"),
        ),
        Goal::new(
            format!("less than {MEMORY_GOAL_MIB:.0} MiB resident at any time"),
            peak < MEMORY_GOAL_MIB,
            format!("{peak:.1} MiB"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use berth_tests::cluster::Version;

    use super::super::fake::RequestCounts;
    use super::*;
    use crate::memory::Usage;
    use crate::output::parse_args;
    use crate::render::document;

    fn example_result(slowest: f64, patches: u64, peak_resident: f64) -> BenchResult {
        let args = parse_args(&["--controller=/x/berth-controller", "--tenants=20"]);
        let usage = Usage { resident: 90.0, anonymous: 80.0, peak_resident, cpu_seconds: 3.0 };
        let round = Round { nodes: vec![0.1, 0.2, slowest], peer: 0.4 };
        let measured = Measurements {
            version: Version(1, 31),
            real_servers: 2,
            connect_seconds: 4.0,
            rounds: vec![round.clone(), round],
            idle: RequestCounts { watches: 3, patches, ..RequestCounts::default() },
            idle_cpu_seconds: 0.1,
            usage,
        };
        build(&args, "2026-01-02".parse().unwrap(), "a machine", &measured)
    }

    #[test]
    fn goals_are_met_or_missed_one_by_one() {
        let result = example_result(0.8, 0, 100.0);
        assert!(result.all_goals_met() && result.goals.len() == 3, "{result:?}");
        let text = document(&result);
        assert!(text.contains("| all Nodes have it | 0.800 | 0.800 |"), "{text}");
        assert!(text.contains("| ratio of all Nodes to the plain client | 2.00 |"), "{text}");
        for (slowest, patches, peak, at) in [(2.5, 0, 9.0, 0), (0.5, 1, 9.0, 1), (0.5, 0, 301.0, 2)]
        {
            let result = example_result(slowest, patches, peak);
            let missed: Vec<_> = result.goals.iter().filter(|goal| !goal.met).collect();
            assert_eq!(missed, [&result.goals[at]]);
        }
    }
}
