//! Writes the report of the measured values and checks the goals, without I/O.

use std::fmt::Write as _;

use jiff::civil::Date;

use super::{Args, Measured, Phase};
use crate::stats::{median, percentile};

/// Goal for the milliseconds of `render`, including the spawn.
const RENDER_GOAL: f64 = 10.0;
/// Goal for the peak resident memory of the controller in MiB.
const MEMORY_GOAL: f64 = 200.0;
/// Number of kinds of requests that the report shows for a phase.
const SHOWN: usize = 16;

fn add(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).unwrap_or_default();
}

/// Returns the report, and true if all goals are met.
pub(super) fn write(args: &Args, date: Date, host: &str, measured: &Measured) -> (String, bool) {
    let (results, met) = goals(measured);
    let machines = u64::from(args.tenants) * u64::from(args.replicas);
    let text = format!(
        "# {tenants} tenants and {machines} machines, {date}

- measured on: {host}; everything on this one machine
- control plane: kube-apiserver {version}, one etcd without fsync, no controllers; KubeVirt's own definitions
- controller: the process `{controller} run`, with the rights of `deploy/base`; {hosts} hosts with one VLAN-aware network, whose agents answer
  once a second; machines come to be and never run, as there is no KubeVirt
- each tenant: a VLAN, namespace, NetworkPolicies, access, instance types; one MachineDeployment with {replicas} replicas and user data from a Secret
- peer: a plain client that knows all of it beforehand and makes the same objects with one request each, {at_once} at once, on a new server
  that nothing else watches

## From nothing

{from_nothing}
{objects_line}
{results}
## Requests

| phase | seconds | requests | of them POST, PATCH and DELETE | CPU s | resident MiB at its end | most so far |
|---|--:|--:|--:|--:|--:|--:|
{phases}
A phase lasts until the controller has nothing left to do. The second start looks at everything every 20 s, three times in that minute.

{kinds}
## One MachineDeployment

From spawn to exit, {runs} runs of each in turn, milliseconds.

| program | median | 99th percentile | least | `render` takes |
|---|--:|--:|--:|--:|
{rendered}
Command: `make bench`, or `berth-benches tenants --controller target/dist/berth-controller`.
",
        tenants = args.tenants,
        version = measured.version,
        controller = args.controller.file_name().unwrap_or_default().display(),
        hosts = args.hosts,
        replicas = args.replicas,
        at_once = args.at_once,
        runs = args.runs,
        from_nothing = from_nothing(measured),
        objects_line = objects(args, measured),
        phases = phases(measured),
        kinds = kinds(measured),
        rendered = rendered(measured),
    );
    (text, met)
}

fn from_nothing(measured: &Measured) -> String {
    let (tenants, machines) = measured.peer;
    let mut rows =
        "| seconds until | berth-controller | plain client | ratio |\n|---|--:|--:|--:|\n"
            .to_owned();
    let at = &measured.tenants;
    for (what, ours, theirs) in [
        ("all TenantClusters are made", at.asked, None),
        ("all have their VLAN and their objects", at.objects, Some(tenants)),
        ("all are on all hosts", at.hosts, None),
        ("all machines and their Secrets are there", measured.machines, Some(machines)),
    ] {
        let cell =
            |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
        let ratio = theirs.map(|theirs| ours / theirs);
        add(
            &mut rows,
            format_args!("| {what} | {ours:.1} | {} | {} |\n", cell(theirs), cell(ratio)),
        );
    }
    rows
}

fn objects(args: &Args, measured: &Measured) -> String {
    let (of_tenants, of_machines) = measured.made;
    let each =
        |phase: &Phase, made: u64, asked: u32| phase.sent.all / (made + u64::from(asked)) as f64;
    format!(
        "Requests for each object: {:.2} of tenants ({of_tenants} objects made for {} TenantClusters), {:.2} of machines \
         ({of_machines} for {} MachineDeployments).\n",
        each(&measured.of_tenants, of_tenants, args.tenants),
        args.tenants,
        each(&measured.of_machines, of_machines, args.tenants),
        args.tenants,
    )
}

fn named(measured: &Measured) -> [(&'static str, &Phase); 5] {
    [
        ("tenants", &measured.of_tenants),
        ("machines", &measured.of_machines),
        ("a quiet minute", &measured.quiet),
        ("a second start", &measured.again),
        ("a minute with three looks at everything", &measured.resync),
    ]
}

fn phases(measured: &Measured) -> String {
    let mut rows = String::new();
    for (name, phase) in named(measured) {
        add(
            &mut rows,
            format_args!(
                "| {name} | {:.1} | {} | {} | {:.2} | {:.1} | {:.1} |\n",
                phase.seconds,
                phase.sent.all,
                phase.sent.changes,
                phase.cpu_seconds,
                phase.taken.resident,
                phase.taken.most,
            ),
        );
    }
    rows
}

fn kinds(measured: &Measured) -> String {
    let mut rows =
        "| phase | verb | resource | number, as the server counts, its own to itself too |\n|---|---|---|--:|\n"
            .to_owned();
    for (name, phase) in named(measured) {
        for (verb, resource, count) in phase.requests.kinds().into_iter().take(SHOWN) {
            add(&mut rows, format_args!("| {name} | {verb} | {resource} | {count} |\n"));
        }
    }
    rows
}

fn rendered(measured: &Measured) -> String {
    let mut rows = String::new();
    let ours = measured.rendered.rows.first().map(|(_, times)| median(times)).unwrap_or(f64::NAN);
    for (name, times) in &measured.rendered.rows {
        let [least, middle, most] = [0, 50, 99].map(|at| percentile(times, at));
        let ratio = ours / middle;
        add(
            &mut rows,
            format_args!("| {name} | {middle:.2} | {most:.2} | {least:.2} | {ratio:.2} |\n"),
        );
    }
    rows
}

/// Returns the lines of the goals, and true if all goals are met.
fn goals(measured: &Measured) -> (String, bool) {
    let phases = named(measured);
    let most = phases.iter().map(|(_, phase)| phase.taken.most).fold(0.0, f64::max);
    let render = measured.rendered.rows.first().map(|(_, times)| median(times)).unwrap_or(f64::NAN);
    let goals = [
        (
            "nothing is written in a quiet minute but the Lease".to_owned(),
            measured.quiet.sent.changes < 1.0,
            measured.quiet.sent.changes.to_string(),
        ),
        (
            "nor in a minute with three looks at everything; nor are there more than a request a second".to_owned(),
            measured.resync.sent.changes < 1.0 && measured.resync.sent.all <= 60.0,
            format!("{} of {}", measured.resync.sent.changes, measured.resync.sent.all),
        ),
        (
            format!("at most {MEMORY_GOAL:.0} MiB resident at any moment"),
            most <= MEMORY_GOAL,
            format!("{most:.1} MiB"),
        ),
        (
            format!("`render` of one MachineDeployment under {RENDER_GOAL:.0} ms"),
            render < RENDER_GOAL,
            format!("{render:.2} ms"),
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

    use super::super::Tenants;
    use super::super::controller::Sent;
    use super::super::render::Rendered;
    use super::*;
    use crate::counts::Counts;
    use crate::memory::Taken;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn phase(requests: &[(&str, &str, f64)], most: f64) -> Phase {
        let mut counts = Counts::default();
        for (verb, resource, count) in requests {
            counts.add(verb, resource, *count);
        }
        let taken = Taken { resident: most, anonymous: most, most, cpu_seconds: 1.0 };
        let all: f64 = requests.iter().map(|(.., count)| count).sum();
        let changes = requests
            .iter()
            .filter(|(verb, ..)| *verb != "PUT" && *verb != "LIST" && *verb != "WATCH");
        let sent = Sent { all, changes: changes.map(|(.., count)| count).sum() };
        Phase { seconds: 60.0, sent, requests: counts, cpu_seconds: 1.0, taken }
    }

    fn report(most: f64, resync: &[(&str, &str, f64)]) -> (String, bool) {
        let line = Line::parse_from(["benches", "--controller=/x/berth-controller", "--tenants=2"]);
        let quiet = [("PUT", "leases", 16.0), ("WATCH", "nodes", 1.0)];
        let measured = Measured {
            version: Version(1, 20),
            tenants: Tenants { asked: 1.0, objects: 4.0, hosts: 5.0 },
            machines: 30.0,
            of_tenants: phase(&[("POST", "namespaces", 10.0)], most),
            of_machines: phase(&[("POST", "virtualmachines", 44.0)], most),
            quiet: phase(&quiet, most),
            again: phase(&[("LIST", "nodes", 1.0)], most),
            resync: phase(resync, most),
            made: (18, 40),
            peer: (2.0, 10.0),
            rendered: Rendered {
                rows: vec![("ours".to_owned(), vec![4.0]), ("theirs".to_owned(), vec![80.0])],
            },
        };
        write(&line.args, "2026-01-02".parse().unwrap(), "a machine", &measured)
    }

    #[test]
    fn goals_are_met_or_missed_one_by_one() {
        let (text, met) = report(100.0, &[("PUT", "leases", 16.0)]);
        assert!(met && text.matches(": met (").count() == 4, "{text}");
        assert!(
            text.contains("| all have their VLAN and their objects | 4.0 | 2.00 | 2.00 |"),
            "{text}"
        );
        assert!(text.contains("0.50 of tenants") && text.contains("1.05 of machines"), "{text}");
        assert!(text.contains("| theirs | 80.00 | 80.00 | 80.00 | 0.05 |"), "{text}");
        let (text, met) = report(201.0, &[("PUT", "leases", 16.0)]);
        assert!(!met && text.contains("at any moment: missed (201.0 MiB)"), "{text}");
        let (text, met) = report(100.0, &[("PATCH", "secrets", 3.0)]);
        assert!(!met && text.contains("than a request a second: missed (3 of 3)"), "{text}");
    }
}
