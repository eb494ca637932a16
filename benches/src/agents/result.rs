//! Builds the result from the measured values, without I/O.

use jiff::civil::Date;

use super::peers::PEER_COUNT;
use super::{Args, FleetApply, Measurements, SingleApply};
use crate::memory::Usage;
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, percentile};

/// Goal for the resident memory of an agent, in MiB.
const MEMORY_GOAL_MIB: f64 = 15.0;
/// Seconds between two renewals of a Lease.
const RENEWAL_SECONDS: f64 = 30.0;
/// Goal for the write requests while nothing changes: at most this factor times the renewals of Leases.
const ALLOWED_WRITE_FACTOR: f64 = 1.2;

/// Returns the result with all tables and goals.
pub(super) fn build(args: &Args, date: Date, host: &str, measured: &Measurements) -> BenchResult {
    let (count, version, agent) = (args.agents, &measured.version, args.agent.display());
    let agents = f64::from(count);
    let conditions = vec![
        format!("measured on: {host}; all processes run on this machine"),
        format!(
            "control plane: kube-apiserver {version} with an audit log of all requests, one etcd without fsync; no controllers"
        ),
        format!(
            "agents: {count} processes of `{agent}`, each with a generated host of 96 CPUs in separate files (`run --root`) and a \
             separate Node, with the permissions of `deploy/base` and the default timer of 60 s"
        ),
        format!(
            "peer: {PEER_COUNT} Nodes with a loop, a common practice, that runs `kubectl label` (two labels) and `kubectl annotate` (one \
             annotation) once per minute with unchanged values, with the credential of the kubelet and a filled discovery cache. The \
             loop publishes three values of a host and changes no host; the agent publishes its InfraNode and its fields of the Node"
        ),
    ];
    BenchResult {
        name: "agents".to_owned(),
        title: format!("{count} agents with one API server"),
        date,
        conditions,
        sections: vec![
            quiet_section(measured, agents),
            Section::new(
                "Memory",
                "",
                vec![memory_table(measured), server_table(measured, agents)],
            ),
            Section::new("Objects", "", vec![size_table(measured)]),
            Section::new(
                "From a spec to Ready",
                "Ready: the condition is True, and the condition and the status have the new generation, as seen by a `kubectl get \
                 --watch`. The spec sets KSM and the huge pages of a NUMA zone. The benchmark then checks the files of the host.",
                vec![
                    single_apply_table(&measured.single_applies),
                    fleet_apply_table(count, &measured.fleet_applies),
                ],
            ),
        ],
        goals: goals(measured, agents),
        command: format!("berth-benches agents --agent {agent}"),
    }
}

fn usage_values(usage: &[Usage], part: impl Fn(&Usage) -> f64) -> Vec<f64> {
    usage.iter().map(part).collect()
}

/// Returns the section of the quiet phase: requests, memory and CPU time while nothing changes.
fn quiet_section(measured: &Measurements, agents: f64) -> Section {
    let quiet = &measured.quiet;
    let (peers, minutes) = (f64::from(PEER_COUNT), quiet.seconds / 60.0);
    let per_node = |requests: u32, nodes: f64| f64::from(requests) / nodes / minutes;
    let cpu = |seconds: f64, nodes: f64| seconds * 1e3 / nodes / minutes;
    let (ours, theirs) = (&quiet.agent_requests, &quiet.peer_requests);
    let idle = usage_values(&quiet.usage, |taken| taken.resident);
    let mut sides =
        Table::new(&["measurement"], &["berth-agent", "`kubectl` every minute", "ratio"]);
    for (what, ours, theirs) in [
        (
            "requests per minute and node",
            per_node(ours.total(), agents),
            per_node(theirs.total(), peers),
        ),
        (
            "write requests per minute and node",
            per_node(ours.writes(), agents),
            per_node(theirs.writes(), peers),
        ),
        (
            "CPU ms per minute and node",
            cpu(quiet.cpu_seconds, agents),
            cpu(quiet.peer_usage.cpu_seconds, peers),
        ),
        (
            "resident MiB: agent, always (median); `kubectl`, while running (median of the peaks)",
            median(&idle),
            median(&measured.kubectl_peaks_mib),
        ),
    ] {
        let numbers = [ours, theirs, ours / theirs].map(|number| format!("{number:.2}"));
        sides.push([what.to_owned()].into_iter().chain(numbers));
    }
    let mut kinds =
        Table::new(&["requests of", "verb", "resource"], &["number", "per minute and node"]);
    for (client, requests, nodes) in [("agents", ours, agents), ("loops", theirs, peers)] {
        for (verb, resource, count) in requests.entries() {
            kinds.push([
                client.to_owned(),
                verb.to_owned(),
                resource.to_owned(),
                count.to_string(),
                format!("{:.2}", per_node(count, nodes)),
            ]);
        }
    }
    let rounds = &quiet.peer_usage.millis;
    let text = format!(
        "{:.0} s, agents and loops in the same minutes. A round of a loop takes {:.0} ms (median of {}; 90th percentile {:.0} ms).",
        quiet.seconds,
        median(rounds),
        rounds.len(),
        percentile(rounds, 90),
    );
    Section::new("While nothing changes", text, vec![sides, kinds])
}

fn memory_table(measured: &Measurements) -> Table {
    let mut table = Table::new(&["MiB"], &["median", "max"]);
    for (when, taken) in
        [("after the quiet phase", &measured.quiet.usage), ("at the end", &measured.final_usage)]
    {
        for (what, values) in [
            ("resident", usage_values(taken, |one| one.resident)),
            ("anonymous", usage_values(taken, |one| one.anonymous)),
        ] {
            table.push([
                format!("one agent {when}, {what}"),
                format!("{:.1}", median(&values)),
                format!("{:.1}", percentile(&values, 100)),
            ]);
        }
    }
    table
}

fn server_table(measured: &Measurements, agents: f64) -> Table {
    let before = format!("with the Nodes of {PEER_COUNT} loops and all agents, without agents");
    let columns =
        [before.as_str(), "after the quiet phase", "at the end", "per agent until the quiet phase"];
    let mut table = Table::new(&["MiB resident"], &columns);
    let [before, quiet, end] = &measured.server_usage;
    for (((name, before), quiet), end) in
        ["kube-apiserver", "etcd"].iter().zip(before).zip(quiet).zip(end)
    {
        let (before, quiet, end) = (before.resident, quiet.resident, end.resident);
        table.push([
            (*name).to_owned(),
            format!("{before:.0}"),
            format!("{quiet:.0}"),
            format!("{end:.0}"),
            format!("{:.2}", (quiet - before) / agents),
        ]);
    }
    table
}

fn size_table(measured: &Measurements) -> Table {
    let sizes = &measured.sizes;
    let mut table = Table::new(&["bytes of JSON"], &["min", "median", "max"]);
    for (what, values) in [
        ("InfraNode", &sizes.infra_node),
        ("InfraNode without `managedFields`", &sizes.infra_node_without_managed_fields),
        ("the agent's fields of its Node: labels, conditions, resources", &sizes.node_agent_fields),
        ("the agent's entry in the Node's `managedFields`", &sizes.node_managed_fields),
    ] {
        let numbers = [0, 50, 100].map(|at| format!("{:.0}", percentile(values, at)));
        table.push([what.to_owned()].into_iter().chain(numbers));
    }
    table
}

fn single_apply_table(rounds: &[SingleApply]) -> Table {
    let title = format!("`kubectl apply --server-side` for one agent, {} times", rounds.len());
    let mut table = Table::new(&[&title], &["median ms", "90th percentile ms"]);
    let values = |part: fn(&SingleApply) -> Option<f64>| -> Vec<f64> {
        rounds.iter().filter_map(part).collect()
    };
    for (what, values) in [
        ("from the start of `kubectl` to Ready", values(|one| Some(one.ready_millis))),
        ("run time of `kubectl`", values(|one| Some(one.kubectl_millis))),
        ("agent: from the changed spec to Ready", values(|one| one.agent_millis)),
    ] {
        table.push([
            what.to_owned(),
            format!("{:.0}", median(&values)),
            format!("{:.0}", percentile(&values, 90)),
        ]);
    }
    table
}

fn fleet_apply_table(agents: u32, rounds: &[FleetApply]) -> Table {
    let mut table = Table::new(
        &[&format!("round with a new spec for all {agents} agents at once")],
        &[
            "all requests sent (`curl`, 50 in parallel) after ms",
            "last InfraNode Ready after ms",
            "one agent, median ms",
            "90th percentile ms",
            "agents with measured times",
        ],
    );
    for (round, number) in rounds.iter().zip(1..) {
        table.push([
            format!("{number}"),
            format!("{:.0}", round.requests_sent_millis),
            format!("{:.0}", round.last_ready_millis),
            format!("{:.0}", median(&round.agent_millis)),
            format!("{:.0}", percentile(&round.agent_millis, 90)),
            round.agent_millis.len().to_string(),
        ]);
    }
    table
}

fn goals(measured: &Measurements, agents: f64) -> Vec<Goal> {
    let quiet = &measured.quiet;
    let per_second = f64::from(quiet.agent_requests.writes()) / quiet.seconds;
    let writes_goal = agents / RENEWAL_SECONDS * ALLOWED_WRITE_FACTOR;
    let other = quiet.agent_requests.total()
        - quiet.agent_requests.renewals()
        - quiet.agent_requests.watches();
    let usage = quiet.usage.iter().chain(&measured.final_usage);
    let peak = percentile(&usage.map(|one| one.resident).collect::<Vec<_>>(), 100);
    vec![
        Goal::new(
            format!("at most {writes_goal:.2} writes per second while nothing changes"),
            per_second <= writes_goal,
            format!("{per_second:.2}"),
        ),
        Goal::new(
            "only Lease renewals and restarted watches while nothing changes",
            other == 0 && quiet.agent_requests.renewals() > 0,
            format!("{other} other requests"),
        ),
        Goal::new(
            format!("at most {MEMORY_GOAL_MIB:.0} MiB resident for each agent until the end"),
            peak <= MEMORY_GOAL_MIB,
            format!("{peak:.1} MiB"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_tests::cluster::Version;

    use super::super::QuietPhase;
    use super::super::audit::Requests;
    use super::super::peers::PeerUsage;
    use super::super::server::ObjectSizes;
    use super::*;
    use crate::output::parse_args;
    use crate::render::document;

    /// Returns the result of a run with one agent, which renews its Lease twice in one minute and also sends
    /// `extra_requests`. `resident` is its memory in MiB.
    fn example_result(resident: f64, extra_requests: &str) -> BenchResult {
        let args = parse_args(&["--agent=berth-agent", "--agents=1"]);
        let renewal =
            r#"{"verb":"patch","user":{"username":"a"},"objectRef":{"resource":"leases"}}"#;
        let log = [renewal, renewal, extra_requests].join("\n");
        let usage =
            vec![Usage { resident, anonymous: 2.0, peak_resident: resident, cpu_seconds: 0.0 }];
        let measured = Measurements {
            version: Version(1, 36),
            server_usage: [1.0, 2.0, 3.0].map(|resident| {
                vec![
                    Usage { resident, anonymous: 0.0, peak_resident: resident, cpu_seconds: 0.0 };
                    2
                ]
            }),
            quiet: QuietPhase {
                seconds: Duration::from_secs(60).as_secs_f64(),
                agent_requests: Requests::count(&log, |user| user == "a").unwrap(),
                peer_requests: Requests::count(&log, |user| user == "a").unwrap(),
                peer_usage: PeerUsage { millis: vec![1.0], cpu_seconds: 1.0 },
                usage: usage.clone(),
                cpu_seconds: 0.1,
            },
            final_usage: usage,
            sizes: ObjectSizes::default(),
            single_applies: Vec::new(),
            fleet_applies: Vec::new(),
            kubectl_peaks_mib: vec![20.0],
        };
        build(&args, "2026-01-02".parse().unwrap(), "a machine", &measured)
    }

    #[test]
    fn goals_are_met_or_missed_one_by_one() {
        let result = example_result(10.0, "");
        assert!(result.all_goals_met() && result.goals.len() == 3, "{result:?}");
        let text = document(&result);
        assert!(text.contains("| requests per minute and node | 2.00 | 0.10 | 20.00 |"), "{text}");
        let get = r#"{"verb":"get","user":{"username":"a"},"objectRef":{"resource":"nodes"}}"#;
        let update =
            r#"{"verb":"update","user":{"username":"a"},"objectRef":{"resource":"nodes"}}"#;
        for (resident, more, at, value) in [
            (16.0, "", 2, "16.0 MiB"),
            (10.0, get, 1, "1 other requests"),
            (10.0, update, 0, "0.05"),
        ] {
            let result = example_result(resident, more);
            assert!(!result.goals[at].met, "{result:?}");
            assert_eq!(result.goals[at].value, value);
        }
    }
}
