//! Writes the report of the measured values and checks the goals, without I/O.

use std::fmt::Write as _;

use jiff::civil::Date;

use super::audit::Requests;
use super::peers::PEERS;
use super::{All, Args, Measured, One};
use crate::memory::Taken;
use crate::stats::{median, percentile};

/// Goal for the resident memory of an agent, in MiB.
const MEMORY_GOAL: f64 = 15.0;
/// Seconds between two renewals of a Lease, and the allowed factor above the resulting request rate.
const RENEWAL: f64 = 30.0;
const SLACK: f64 = 1.2;

/// Returns the report, and true if all goals are met.
pub(super) fn write(args: &Args, date: Date, host: &str, measured: &Measured) -> (String, bool) {
    let quiet = &measured.quiet;
    let agents = f64::from(args.agents);
    let peers = f64::from(PEERS);
    let minutes = quiet.seconds / 60.0;
    let per_second = f64::from(quiet.agents.writes()) / quiet.seconds;
    let writes_goal = agents / RENEWAL * SLACK;
    let beside = quiet.agents.total() - quiet.agents.renewals() - quiet.agents.watches();
    let idle = of(&quiet.taken, |taken| taken.resident);
    let end = of(&measured.at_the_end, |taken| taken.resident);
    let most = percentile(&idle, 100).max(percentile(&end, 100));
    let goals = [
        (
            format!("at most {writes_goal:.2} writes a second while nothing changes"),
            per_second <= writes_goal,
            format!("{per_second:.2}"),
        ),
        (
            "no request beside renewals and watches begun again".to_owned(),
            beside == 0 && quiet.agents.renewals() > 0,
            beside.to_string(),
        ),
        (
            format!("at most {MEMORY_GOAL:.0} MiB resident, each agent, to the end"),
            most <= MEMORY_GOAL,
            format!("{most:.1} MiB"),
        ),
    ];
    let met = goals.iter().all(|(_, met, _)| *met);

    let per_node = |requests: u32, nodes: f64| f64::from(requests) / nodes / minutes;
    let cpu = |seconds: f64, nodes: f64| seconds * 1e3 / nodes / minutes;
    let (ours, theirs) = (&quiet.agents, &quiet.peers);
    let both = [
        (
            "requests a minute and node",
            per_node(ours.total(), agents),
            per_node(theirs.total(), peers),
        ),
        ("of them writes", per_node(ours.writes(), agents), per_node(theirs.writes(), peers)),
        (
            "CPU ms a minute and node",
            cpu(quiet.cpu_seconds, agents),
            cpu(quiet.peers_took.cpu_seconds, peers),
        ),
        (
            "resident MiB: an agent, always (median); a `kubectl`, while it runs (median of peaks)",
            median(&idle),
            median(&measured.peaks),
        ),
    ];
    let mut sides = String::new();
    for (what, ours, theirs) in both {
        add(
            &mut sides,
            format_args!("| {what} | {ours:.2} | {theirs:.2} | {:.2} |\n", ours / theirs),
        );
    }
    let text = format!(
        "# {count} agents with one API server, {date}

- measured on: {host}; everything on this one machine
- control plane: kube-apiserver {version} with an audit log of all requests, one etcd without fsync; no controllers
- agents: {count} processes of `{agent}`, each with a made-up host of 96 CPUs in files of its own (`run --root`), its own Node, the
  rights of `deploy/base`, the timer at its default of 60 s
- peer: {PEERS} Nodes with what people run today, a loop of `kubectl label` (two labels) and `kubectl annotate` (one annotation) once
  a minute, values unchanged, with the kubelet's credential; what the server can do is in its cache. It says three values of a host where the
  agent says all of its InfraNode and of its Node, and it carries out nothing

## While nothing changes

{seconds:.0} s, agents and loops in the same minutes.

| what | berth-agent | `kubectl` every minute | ratio |
|---|--:|--:|--:|
{sides}
A round of such a loop takes {round:.0} ms (median of {rounds}; 90th percentile {round_90:.0} ms).

| requests of all | verb | resource | number | a minute and node |
|---|---|---|--:|--:|
{kinds}
## Memory

| MiB | median | most |
|---|--:|--:|
{memory}
| MiB resident | {PEERS} loops' and all agents' Nodes, no agent yet | after the quiet | at the end | for each agent until the quiet |
|---|--:|--:|--:|--:|
{servers}
## Objects

| bytes of JSON | min | median | max |
|---|--:|--:|--:|
{sizes}
## From a spec to Ready

Ready: the condition is True, and it and the status have the new generation; seen by a `kubectl get --watch`. The spec sets KSM and
the huge pages of a zone, and the files were looked at afterwards.

{one}
{all}
{goals}Command: `make bench`.
",
        count = args.agents,
        version = measured.version,
        agent = args.agent.display(),
        seconds = quiet.seconds,
        round = median(&quiet.peers_took.millis),
        round_90 = percentile(&quiet.peers_took.millis, 90),
        rounds = quiet.peers_took.millis.len(),
        kinds = kinds("agents", ours, agents * minutes) + &kinds("loops", theirs, peers * minutes),
        memory = memory(measured),
        servers = servers(measured, agents),
        sizes = sizes(measured),
        one = one(&measured.one),
        all = all(args.agents, &measured.all),
        goals = goal_lines(&goals),
    );
    (text, met)
}

/// Appends text. Writing to memory cannot fail.
fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).unwrap_or_default();
}

fn of(taken: &[Taken], part: impl Fn(&Taken) -> f64) -> Vec<f64> {
    taken.iter().map(part).collect()
}

fn kinds(whose: &str, requests: &Requests, node_minutes: f64) -> String {
    let mut rows = String::new();
    for (verb, resource, count) in requests.kinds() {
        let rate = f64::from(count) / node_minutes;
        add(&mut rows, format_args!("| {whose} | {verb} | {resource} | {count} | {rate:.2} |\n"));
    }
    rows
}

fn memory(measured: &Measured) -> String {
    let mut rows = String::new();
    for (when, taken) in
        [("after the quiet", &measured.quiet.taken), ("at the end", &measured.at_the_end)]
    {
        let parts = [
            ("resident", of(taken, |one| one.resident)),
            ("anonymous", of(taken, |one| one.anonymous)),
        ];
        for (what, values) in parts {
            let (middle, most) = (median(&values), percentile(&values, 100));
            add(&mut rows, format_args!("| an agent {when}, {what} | {middle:.1} | {most:.1} |\n"));
        }
    }
    rows
}

fn servers(measured: &Measured, agents: f64) -> String {
    let [before, quiet, end] = &measured.servers;
    let mut rows = String::new();
    for (((name, before), quiet), end) in
        ["kube-apiserver", "etcd"].iter().zip(before).zip(quiet).zip(end)
    {
        let (before, quiet, end) = (before.resident, quiet.resident, end.resident);
        let each = (quiet - before) / agents;
        add(
            &mut rows,
            format_args!("| {name} | {before:.0} | {quiet:.0} | {end:.0} | {each:.2} |\n"),
        );
    }
    rows
}

fn sizes(measured: &Measured) -> String {
    let sizes = &measured.sizes;
    let mut rows = String::new();
    for (what, values) in [
        ("InfraNode", &sizes.infra_node),
        ("InfraNode without `managedFields`", &sizes.without_managed),
        ("the agent's part of its Node: labels, conditions, resources", &sizes.of_node),
        ("the agent's entry in the Node's `managedFields`", &sizes.managed_of_node),
    ] {
        let at = |percent| percentile(values, percent);
        add(
            &mut rows,
            format_args!("| {what} | {:.0} | {:.0} | {:.0} |\n", at(0), at(50), at(100)),
        );
    }
    rows
}

fn one(rounds: &[One]) -> String {
    let mut rows = format!(
        "| `kubectl apply --server-side` for one agent, {} times | median ms | 90th percentile ms |\n|---|--:|--:|\n",
        rounds.len()
    );
    let values =
        |part: fn(&One) -> Option<f64>| -> Vec<f64> { rounds.iter().filter_map(part).collect() };
    for (what, values) in [
        ("from the start of `kubectl` to Ready", values(|one| Some(one.ready))),
        ("`kubectl` itself", values(|one| Some(one.kubectl))),
        ("from the changed spec to Ready: the agent", values(|one| one.agent)),
    ] {
        let (middle, most) = (median(&values), percentile(&values, 90));
        add(&mut rows, format_args!("| {what} | {middle:.0} | {most:.0} |\n"));
    }
    rows
}

fn all(agents: u32, rounds: &[All]) -> String {
    let mut rows = format!(
        "| a new spec for all {agents} at once, each round | all asked (`curl`, 50 at a time) after ms | the last Ready after ms | \
         one agent, median ms | 90th percentile ms | seen of both |\n|---|--:|--:|--:|--:|--:|\n"
    );
    for (round, number) in rounds.iter().zip(1..) {
        add(
            &mut rows,
            format_args!(
                "| {number} | {:.0} | {:.0} | {:.0} | {:.0} | {} |\n",
                round.asked,
                round.last,
                median(&round.agents),
                percentile(&round.agents, 90),
                round.agents.len()
            ),
        );
    }
    rows
}

fn goal_lines(goals: &[(String, bool, String)]) -> String {
    let mut lines = String::new();
    for (goal, met, value) in goals {
        let met = if *met { "met" } else { "missed" };
        add(&mut lines, format_args!("goal: {goal}: {met} ({value})\n\n"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_tests::cluster::Version;
    use clap::Parser;

    use super::super::Quiet;
    use super::super::peers::Peers;
    use super::super::server::Sizes;
    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// Returns the report for an agent that renews the Lease twice in one minute and sends the additional requests
    /// `more`.
    fn report(resident: f64, more: &str) -> (String, bool) {
        let line = Line::parse_from(["benches", "--agent=berth-agent", "--agents=1"]);
        let renewal =
            r#"{"verb":"patch","user":{"username":"a"},"objectRef":{"resource":"leases"}}"#;
        let log = [renewal, renewal, more].join("\n");
        let taken = vec![Taken { resident, anonymous: 2.0, most: resident, cpu_seconds: 0.0 }];
        let measured = Measured {
            version: Version(1, 36),
            servers: [1.0, 2.0, 3.0].map(|resident| {
                vec![Taken { resident, anonymous: 0.0, most: resident, cpu_seconds: 0.0 }; 2]
            }),
            quiet: Quiet {
                seconds: Duration::from_secs(60).as_secs_f64(),
                agents: Requests::count(&log, |user| user == "a").unwrap(),
                peers: Requests::count(&log, |user| user == "a").unwrap(),
                peers_took: Peers { millis: vec![1.0], cpu_seconds: 1.0 },
                taken: taken.clone(),
                cpu_seconds: 0.1,
            },
            at_the_end: taken,
            sizes: Sizes::default(),
            one: Vec::new(),
            all: Vec::new(),
            peaks: vec![20.0],
        };
        write(&line.args, "2026-01-02".parse().unwrap(), "a machine", &measured)
    }

    #[test]
    fn goals_are_met_or_missed_one_by_one() {
        let (text, met) = report(10.0, "");
        assert!(met && text.matches(": met (").count() == 3, "{text}");
        assert!(text.contains("| requests a minute and node | 2.00 | 0.10 | 20.00 |"), "{text}");
        let (text, met) = report(16.0, "");
        assert!(
            !met && text.contains("15 MiB resident, each agent, to the end: missed (16.0"),
            "{text}"
        );
        let get = r#"{"verb":"get","user":{"username":"a"},"objectRef":{"resource":"nodes"}}"#;
        let (text, met) = report(10.0, get);
        assert!(!met && text.contains("begun again: missed (1)"), "{text}");
        let update =
            r#"{"verb":"update","user":{"username":"a"},"objectRef":{"resource":"nodes"}}"#;
        let (text, met) = report(10.0, update);
        assert!(!met && text.contains("nothing changes: missed (0.05)"), "{text}");
    }
}
