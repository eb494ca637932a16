//! Builds the result from the measured values, without I/O.

use jiff::civil::Date;

use super::{Args, Measurements, Phase};
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, percentile};

/// Goal for the milliseconds of `render` from spawn to exit.
const RENDER_GOAL_MILLIS: f64 = 10.0;
/// Goal for the peak resident memory of the controller in MiB.
const MEMORY_GOAL_MIB: f64 = 200.0;
/// Goal for the requests of the controller for each object of the machines. This was the value before golden images and
/// drains existed (2026-11-23).
const MACHINE_REQUESTS_GOAL: f64 = 1.30;
/// Number of kinds of requests that the report shows for a phase.
const MAX_ROWS: usize = 16;

/// Returns the result with all tables and goals.
pub(super) fn build(args: &Args, date: Date, host: &str, measured: &Measurements) -> BenchResult {
    let machines = u64::from(args.tenants) * u64::from(args.replicas);
    let controller = args.controller.file_name().unwrap_or_default().display();
    let conditions = vec![
        format!("measured on: {host}; all processes run on this machine"),
        format!(
            "control plane: kube-apiserver {}, one etcd without fsync, no controllers; the CustomResourceDefinitions of KubeVirt",
            measured.version
        ),
        format!(
            "controller: the process `{controller} run`, with the permissions of `deploy/base`; {} hosts with one VLAN-aware \
             network, whose agents update the status once per second; machines are created and never run, because there is no \
             KubeVirt",
            args.hosts
        ),
        format!(
            "each tenant: a VLAN, namespace, NetworkPolicies, RBAC, instance types; one MachineDeployment with {} replicas and user \
             data from a Secret",
            args.replicas
        ),
        format!(
            "each machine: three disks, one of them hotpluggable; {}",
            if args.own_imports {
                "it imports its image"
            } else {
                "the first is a clone of a golden image that all tenants share"
            }
        ),
        format!(
            "peer: a plain client that knows all objects beforehand and creates them with one request each, {} in parallel, on a new \
             server without other watches",
            args.at_once
        ),
    ];
    BenchResult {
        name: "tenants".to_owned(),
        title: format!("{} tenants and {machines} machines", args.tenants),
        date,
        conditions,
        sections: vec![
            Section::new("Creation", objects_text(args, measured), vec![creation_table(measured)]),
            Section::new(
                "Requests",
                "A phase ends when the controller is idle. After the second start, the controller resyncs all objects every 20 s, \
                 three times in that minute. The number of requests is from the metrics of the API server and includes the requests \
                 that the API server sends to itself.",
                vec![phase_table(measured), request_table(measured)],
            ),
            Section::new(
                "One MachineDeployment",
                format!(
                    "From spawn to exit, {} runs of each program in turn, milliseconds.",
                    args.runs
                ),
                vec![render_table(measured)],
            ),
        ],
        goals: goals(args, measured),
        command: "berth-benches tenants --controller target/dist/berth-controller".to_owned(),
    }
}

fn creation_table(measured: &Measurements) -> Table {
    let mut table = Table::new(&["seconds until"], &["berth-controller", "plain client", "ratio"]);
    let (tenants, machines) = measured.peer_seconds;
    let times = &measured.tenant_times;
    for (what, ours, theirs) in [
        ("all TenantClusters are created", times.created_seconds, None),
        ("all tenants have their VLAN and their objects", times.objects_seconds, Some(tenants)),
        ("all tenants are on all hosts", times.hosts_seconds, None),
        ("all machines and their Secrets exist", measured.machines_seconds, Some(machines)),
    ] {
        let cell =
            |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
        let ratio = theirs.map(|theirs| ours / theirs);
        table.push([what.to_owned(), format!("{ours:.1}"), cell(theirs), cell(ratio)]);
    }
    table
}

fn objects_text(args: &Args, measured: &Measurements) -> String {
    let (of_tenants, of_machines) = measured.created_objects;
    format!(
        "Requests for each object: {:.2} for tenants ({of_tenants} objects created for {tenants} TenantClusters), {:.2} for machines \
         ({of_machines} objects for {tenants} MachineDeployments).",
        requests_per_object(args, &measured.tenants_phase, of_tenants),
        requests_per_object(args, &measured.machines_phase, of_machines),
        tenants = args.tenants,
    )
}

/// Returns the number of requests for each created object. The objects that a user creates, one for each tenant, count too.
fn requests_per_object(args: &Args, phase: &Phase, created: u64) -> f64 {
    phase.sent.total / (created + u64::from(args.tenants)) as f64
}

fn named_phases(measured: &Measurements) -> [(&'static str, &Phase); 5] {
    [
        ("tenants", &measured.tenants_phase),
        ("machines", &measured.machines_phase),
        ("one minute without changes", &measured.quiet_phase),
        ("second start of the controller", &measured.restart_phase),
        ("one minute with three resyncs", &measured.resync_phase),
    ]
}

fn phase_table(measured: &Measurements) -> Table {
    let mut table = Table::new(
        &["phase"],
        &[
            "seconds",
            "requests",
            "POST, PATCH and DELETE",
            "CPU s",
            "resident MiB at the end",
            "peak so far",
        ],
    );
    for (name, phase) in named_phases(measured) {
        table.push([
            name.to_owned(),
            format!("{:.1}", phase.seconds),
            phase.sent.total.to_string(),
            phase.sent.changes.to_string(),
            format!("{:.2}", phase.cpu_seconds),
            format!("{:.1}", phase.usage.resident),
            format!("{:.1}", phase.usage.peak_resident),
        ]);
    }
    table
}

fn request_table(measured: &Measurements) -> Table {
    let mut table = Table::new(&["phase", "verb", "resource"], &["requests"]);
    for (name, phase) in named_phases(measured) {
        for (verb, resource, count) in phase.requests.entries().into_iter().take(MAX_ROWS) {
            table.push(
                [name, verb, resource].map(str::to_owned).into_iter().chain([count.to_string()]),
            );
        }
    }
    table
}

/// Returns the median milliseconds of `render`.
fn render_median(measured: &Measurements) -> f64 {
    measured.render_times.rows.first().map_or(f64::NAN, |(_, times)| median(times))
}

fn render_table(measured: &Measurements) -> Table {
    let columns = ["median", "99th percentile", "min", "ratio of `render`"];
    let mut table = Table::new(&["program"], &columns);
    for (name, times) in &measured.render_times.rows {
        let [min, middle, p99] = [0, 50, 99].map(|at| percentile(times, at));
        let ratio = render_median(measured) / middle;
        let numbers = [middle, p99, min, ratio].map(|number| format!("{number:.2}"));
        table.push([name.clone()].into_iter().chain(numbers));
    }
    table
}

fn goals(args: &Args, measured: &Measurements) -> Vec<Goal> {
    let (quiet, resync) = (measured.quiet_phase.sent, measured.resync_phase.sent);
    let peak = named_phases(measured)
        .iter()
        .map(|(_, phase)| phase.usage.peak_resident)
        .fold(0.0, f64::max);
    let render = render_median(measured);
    let (_, of_machines) = measured.created_objects;
    let requests = requests_per_object(args, &measured.machines_phase, of_machines);
    vec![
        Goal::new(
            "no writes except Lease renewals in one minute without changes",
            quiet.changes < 1.0,
            format!("{} writes", quiet.changes),
        ),
        Goal::new(
            "no writes except Lease renewals in one minute with three resyncs, and at most one request per second",
            resync.changes < 1.0 && resync.total <= 60.0,
            format!("{} writes in {} requests", resync.changes, resync.total),
        ),
        Goal::new(
            format!("at most {MEMORY_GOAL_MIB:.0} MiB resident at any time"),
            peak <= MEMORY_GOAL_MIB,
            format!("{peak:.1} MiB"),
        ),
        Goal::new(
            format!("`render` of one MachineDeployment in less than {RENDER_GOAL_MILLIS:.0} ms"),
            render < RENDER_GOAL_MILLIS,
            format!("{render:.2} ms"),
        ),
        Goal::new(
            format!("at most {MACHINE_REQUESTS_GOAL:.2} requests for each object of the machines"),
            // The value is compared as it is printed.
            (requests * 100.0).round() <= MACHINE_REQUESTS_GOAL * 100.0,
            format!("{requests:.2}"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use berth_tests::cluster::Version;

    use super::super::TenantTimes;
    use super::super::controller::SentRequests;
    use super::super::render::RenderTimes;
    use super::*;
    use crate::counts::RequestCounts;
    use crate::memory::Usage;
    use crate::output::parse_args;
    use crate::render::document;

    fn phase(requests: &[(&str, &str, f64)], peak_mib: f64) -> Phase {
        let mut counts = RequestCounts::default();
        for (verb, resource, count) in requests {
            counts.add(verb, resource, *count);
        }
        let usage = Usage {
            resident: peak_mib,
            anonymous: peak_mib,
            peak_resident: peak_mib,
            cpu_seconds: 1.0,
        };
        let total: f64 = requests.iter().map(|(.., count)| count).sum();
        let changes = requests
            .iter()
            .filter(|(verb, ..)| *verb != "PUT" && *verb != "LIST" && *verb != "WATCH");
        let sent = SentRequests { total, changes: changes.map(|(.., count)| count).sum() };
        Phase { seconds: 60.0, sent, requests: counts, cpu_seconds: 1.0, usage }
    }

    fn example_result(peak_mib: f64, resync: &[(&str, &str, f64)]) -> BenchResult {
        let args = parse_args(&["--controller=/x/berth-controller", "--tenants=2"]);
        let quiet = [("PUT", "leases", 16.0), ("WATCH", "nodes", 1.0)];
        let measured = Measurements {
            version: Version(1, 20),
            tenant_times: TenantTimes {
                created_seconds: 1.0,
                objects_seconds: 4.0,
                hosts_seconds: 5.0,
            },
            machines_seconds: 30.0,
            tenants_phase: phase(&[("POST", "namespaces", 10.0)], peak_mib),
            machines_phase: phase(&[("POST", "virtualmachines", 44.0)], peak_mib),
            quiet_phase: phase(&quiet, peak_mib),
            restart_phase: phase(&[("LIST", "nodes", 1.0)], peak_mib),
            resync_phase: phase(resync, peak_mib),
            created_objects: (18, 40),
            peer_seconds: (2.0, 10.0),
            render_times: RenderTimes {
                rows: vec![("ours".to_owned(), vec![4.0]), ("theirs".to_owned(), vec![80.0])],
            },
        };
        build(&args, "2026-01-02".parse().unwrap(), "a machine", &measured)
    }

    #[test]
    fn goals_are_met_or_missed_one_by_one() {
        let result = example_result(100.0, &[("PUT", "leases", 16.0)]);
        assert!(result.all_goals_met() && result.goals.len() == 5, "{result:?}");
        let text = document(&result);
        assert!(
            text.contains("| all tenants have their VLAN and their objects | 4.0 | 2.00 | 2.00 |"),
            "{text}"
        );
        assert!(text.contains("0.50 for tenants") && text.contains("1.05 for machines"), "{text}");
        assert!(text.contains("| theirs | 80.00 | 80.00 | 80.00 | 0.05 |"), "{text}");
        for (peak_mib, resync, at, value) in [
            (201.0, ("PUT", "leases", 16.0), 2, "201.0 MiB"),
            (100.0, ("PATCH", "secrets", 3.0), 1, "3 writes in 3 requests"),
        ] {
            let result = example_result(peak_mib, &[resync]);
            let missed: Vec<_> = result.goals.iter().filter(|goal| !goal.met).collect();
            assert_eq!(missed, [&result.goals[at]]);
            assert_eq!(missed[0].value, value);
        }
    }
}
