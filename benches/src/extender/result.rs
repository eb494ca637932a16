//! Builds the result from the measured values, without I/O.

use jiff::civil::Date;

use super::{Args, Measurements};
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, median_ratio, percentile};

/// Goal for the 99th percentile of `filter` calls, in milliseconds.
const FILTER_GOAL_MILLIS: f64 = 2.0;
/// Goal for the seconds from the arrival of the lists to the first decision.
const START_GOAL_SECONDS: f64 = 2.0;
/// Goal for the peak resident memory in MiB.
const MEMORY_GOAL_MIB: f64 = 500.0;
/// Goal for the pods bound per second with the extender: at least this factor times the rate of kube-scheduler
/// without it.
const BINDING_RATE_GOAL: f64 = 1.1;

/// Returns the result with all tables and goals.
pub(super) fn build(args: &Args, date: Date, host: &str, measured: &Measurements) -> BenchResult {
    let (hosts, version) = (args.hosts, &measured.version);
    let controller = args.controller.file_name().unwrap_or_default().display();
    let conditions = vec![
        format!("measured on: {host}; all processes run on this machine"),
        format!(
            "control plane: kube-apiserver and kube-scheduler {version}, one etcd without fsync; Nodes without kubelets, \
             InfraNodes as agents write them; no KubeVirt, so no VirtualMachineInstances"
        ),
        format!(
            "controller: the process `{controller} run` as the leader, with the permissions of `deploy/base`"
        ),
    ];
    BenchResult {
        name: "extender".to_owned(),
        title: format!("The scheduler extender with {hosts} hosts"),
        date,
        conditions,
        sections: vec![
            filter_section(args, measured),
            cold_start_section(args, measured),
            binding_section(args, measured),
        ],
        goals: goals(measured),
        command: format!(
            "berth-benches extender --controller target/dist/berth-controller{}",
            changed_flags(args)
        ),
    }
}

/// Returns the flags that differ from the defaults.
fn changed_flags(args: &Args) -> String {
    let all = [
        ("hosts", args.hosts, 5_000),
        ("requests", args.requests, 2_000),
        ("starts", args.starts, 3),
        ("pairs", args.pairs, 5),
        ("pods", args.pods, 1_000),
    ];
    let changed = all.iter().filter(|(_, value, usual)| value != usual);
    changed.map(|(name, value, _)| format!(" --{name} {value}")).collect()
}

fn filter_section(args: &Args, measured: &Measurements) -> Section {
    let times = &measured.filter_times;
    let text = format!(
        "{} calls of each kind in turn on persistent connections. Each call is for another pod and has the names of all {} hosts \
         ({:.0} kB). The fleet has {} pods. Peer: an extender in the same HTTP server that reads the same bodies in the same way, \
         decides nothing and returns all names. Milliseconds from the first byte sent to the last byte received.",
        args.requests,
        args.hosts,
        times.request_bytes as f64 / 1e3,
        measured.pods.0,
    );
    let columns = ["median", "99th percentile", "max", "ratio to the peer's median"];
    let mut table = Table::new(&["calls"], &columns);
    for (name, own) in [
        ("VMs with exclusive CPUs and huge pages", &times.pinned_millis),
        ("VMs with shared CPUs", &times.shared_millis),
        ("peer", &times.peer_millis),
    ] {
        let [middle, slow, max] = [50, 99, 100].map(|at| percentile(own, at));
        let ratio = middle / median(&times.peer_millis);
        let numbers = [middle, slow, max, ratio].map(|number| format!("{number:.2}"));
        table.push([name.to_owned()].into_iter().chain(numbers));
    }
    Section::new("`filter`", text, vec![table])
}

fn cold_start_section(args: &Args, measured: &Measurements) -> Section {
    let (pods, bytes) = measured.pods;
    let text = format!(
        "{} hosts and {pods} pods of {bytes} bytes. All pods are bound to hosts and are in the reports of the agents. The controller \
         reads the hosts when the list of hosts is complete. It then lists the pods and counts each page as it arrives. `After the \
         lists` is the sum of both times and of the time from the end of the last list to the first decision. The rest is the time \
         of the API server and of decoding its responses.\n\n\
         After all calls of `filter`, {:.0} MiB are resident, with a peak of {:.0} MiB.",
        args.hosts, measured.usage.resident, measured.usage.peak_resident,
    );
    let mut table = Table::new(
        &[],
        &[
            "start",
            "s from spawn to the first decision",
            "read hosts",
            "count pods",
            "end of the list to the decision",
            "after the lists",
            "CPU s",
            "MiB resident, peak",
        ],
    );
    for (at, start) in measured.cold_starts.iter().enumerate() {
        table.push([
            (at + 1).to_string(),
            format!("{:.1}", start.total_seconds),
            format!("{:.2}", start.hosts_seconds),
            format!("{:.2}", start.pods_seconds),
            format!("{:.3}", start.list_to_decision_seconds),
            format!("{:.2}", start.seconds_after_lists()),
            format!("{:.1}", start.usage.cpu_seconds),
            format!("{:.0}", start.usage.peak_resident),
        ]);
    }
    Section::new("Cold start", text, vec![table])
}

fn binding_section(args: &Args, measured: &Measurements) -> Section {
    let text = format!(
        "{} launcher pods of four sizes with exclusive CPUs and huge pages, without preferences, on {} empty hosts. All pods exist \
         before the scheduler starts. Pods per second from the first binding to the last binding. Both sides use the configuration \
         of `deploy/`, which considers all nodes; the peer has no `extenders`.",
        args.pods, args.hosts,
    );
    let columns = ["with the extender", "kube-scheduler alone", "ratio"];
    let mut table = Table::new(&["pair"], &columns);
    let mut row = |name: String, ours: f64, theirs: f64, ratio: f64| {
        table.push([name, format!("{ours:.1}"), format!("{theirs:.1}"), format!("{ratio:.2}")]);
    };
    let rates = &measured.rates;
    for (at, (ours, theirs)) in rates.with_extender.iter().zip(&rates.without_extender).enumerate()
    {
        row((at + 1).to_string(), *ours, *theirs, ours / theirs);
    }
    let [ours, theirs] = [&rates.with_extender, &rates.without_extender].map(|all| median(all));
    row(
        "median".to_owned(),
        ours,
        theirs,
        median_ratio(&rates.with_extender, &rates.without_extender),
    );
    Section::new("Pods bound", text, vec![table])
}

fn goals(measured: &Measurements) -> Vec<Goal> {
    let times = &measured.filter_times;
    let slow = percentile(&times.pinned_millis, 99).max(percentile(&times.shared_millis, 99));
    let after: Vec<f64> =
        measured.cold_starts.iter().map(super::ColdStart::seconds_after_lists).collect();
    let resident = measured.cold_starts.iter().map(|start| start.usage.peak_resident);
    let peak = resident.chain([measured.usage.peak_resident]).fold(0.0, f64::max);
    let ratio = median_ratio(&measured.rates.with_extender, &measured.rates.without_extender);
    vec![
        Goal::new(
            format!(
                "99th percentile of `filter` below {FILTER_GOAL_MILLIS:.0} ms for both kinds of VMs"
            ),
            slow < FILTER_GOAL_MILLIS,
            format!("{slow:.2} ms"),
        ),
        Goal::new(
            format!(
                "median time of the first decision less than {START_GOAL_SECONDS:.0} s after the lists"
            ),
            median(&after) < START_GOAL_SECONDS,
            format!("{:.2} s", median(&after)),
        ),
        Goal::new(
            format!("less than {MEMORY_GOAL_MIB:.0} MiB resident at any time"),
            peak < MEMORY_GOAL_MIB,
            format!("{peak:.0} MiB"),
        ),
        Goal::new(
            format!(
                "at least {BINDING_RATE_GOAL:.1} times the pods per second of kube-scheduler alone"
            ),
            ratio >= BINDING_RATE_GOAL,
            format!("{ratio:.2}"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use berth_tests::cluster::Version;

    use super::super::binding_rate::BindingRates;
    use super::super::cold_start::ColdStart;
    use super::super::filter::FilterTimes;
    use super::*;
    use crate::memory::Usage;
    use crate::output::parse_args;
    use crate::render::document;

    fn example_result(slow: f64, hosts: f64, peak_mib: f64, ours: f64) -> BenchResult {
        let args = parse_args(&["--controller=/x/berth-controller", "--pairs=1"]);
        let usage = Usage {
            resident: peak_mib,
            anonymous: peak_mib,
            peak_resident: peak_mib,
            cpu_seconds: 3.0,
        };
        let measured = Measurements {
            version: Version(1, 20),
            rates: BindingRates { with_extender: vec![ours], without_extender: vec![50.0] },
            pods: (50_000, 2_345),
            cold_starts: vec![ColdStart {
                total_seconds: 9.0,
                hosts_seconds: hosts,
                pods_seconds: 0.5,
                list_to_decision_seconds: 0.001,
                usage,
            }],
            filter_times: FilterTimes {
                pinned_millis: vec![slow],
                shared_millis: vec![0.5],
                peer_millis: vec![0.25],
                request_bytes: 70_000,
            },
            usage,
        };
        build(&args, "2026-01-02".parse().unwrap(), "a machine", &measured)
    }

    #[test]
    fn goals_are_met_or_missed_one_by_one() {
        let result = example_result(1.0, 0.5, 400.0, 60.0);
        assert!(result.all_goals_met() && result.goals.len() == 4, "{result:?}");
        let text = document(&result);
        assert!(text.contains("| VMs with shared CPUs | 0.50 | 0.50 | 0.50 | 2.00 |"), "{text}");
        assert!(text.contains("| median | 60.0 | 50.0 | 1.20 |"), "{text}");
        assert!(text.contains("berth-controller --pairs 1`"), "{text}");
        for (slow, hosts, peak_mib, ours, at, value) in [
            (2.0, 0.5, 400.0, 60.0, 0, "2.00 ms"),
            (1.0, 1.6, 400.0, 60.0, 1, "2.10 s"),
            (1.0, 0.5, 501.0, 60.0, 2, "501 MiB"),
            (1.0, 0.5, 400.0, 54.0, 3, "1.08"),
        ] {
            let result = example_result(slow, hosts, peak_mib, ours);
            let missed: Vec<_> = result.goals.iter().filter(|goal| !goal.met).collect();
            assert_eq!(missed, [&result.goals[at]]);
            assert_eq!(missed[0].value, value);
        }
    }
}
