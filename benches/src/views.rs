//! Measures the views of `kubectl berth`: from the JSON of a list to the rows of hosts and machines, compared with the time to
//! only parse the JSON.

use std::time::Instant;

use anyhow::{Result, ensure};
use berth_api::PageSize;
use berth_views::machines::MachineFilter;
use berth_views::{Kind, Snapshot, hosts, machines};
use serde_json::{Value, json};

use crate::fleet::infra_node;
use crate::output::OutputArgs;
use crate::progress::print_step;
use crate::report;
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, percentile};

/// Goal for the seconds to compute the rows of all hosts from objects that are read.
const ROWS_GOAL_SECONDS: f64 = 1.0;

/// Measures the rows of `kubectl berth hosts` and `kubectl berth machines` for a simulated fleet
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of hosts in the fleet
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// Number of VMs in the fleet
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    vms: u32,
    /// Number of measured rounds, after one round that fills the caches
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Seconds of each step, by round.
#[derive(Debug, Default)]
struct Times {
    parse: Vec<f64>,
    add: Vec<f64>,
    hosts: Vec<f64>,
    machines: Vec<f64>,
}

/// Runs the benchmark and publishes the result. Returns true if the goal is met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let texts = fleet(args.hosts, args.vms);
    let mut times = Times::default();
    for round in 0..=args.rounds {
        print_step(format_args!("round {round} of {}", args.rounds));
        let measured = measure(&texts, args)?;
        if round == 0 {
            continue;
        }
        let [parse, add, hosts, machines] = measured;
        times.parse.push(parse);
        times.add.push(add);
        times.hosts.push(hosts);
        times.machines.push(machines);
    }
    let (hosts, vms, seconds) = (args.hosts, args.vms, median(&times.hosts));
    let size: usize = texts.iter().map(|(_, text)| text.len()).sum();
    let conditions = vec![
        format!("measured on: {}", report::describe_host()?),
        format!(
            "fleet: {hosts} InfraNodes, and {vms} VirtualMachines with VirtualMachineInstances; {:.0} MB of JSON in memory",
            size as f64 / 1e6
        ),
        format!("rounds: {} after one warm-up round; seconds in one thread", args.rounds),
    ];
    let text = "The first row is the peer: serde_json parses the same objects into values, as every client must. The next row \
                reads the fields from these values. The last rows compute all rows from the snapshot. The requests to the API \
                server are not measured.";
    args.output.publish(&BenchResult {
        name: "views".to_owned(),
        title: "Rows of `kubectl berth`".to_owned(),
        date: args.output.date(),
        conditions,
        sections: vec![Section::untitled(text, vec![table(&times)])],
        goals: vec![Goal::new(
            format!("rows of {hosts} hosts with {vms} VMs in less than {ROWS_GOAL_SECONDS} s"),
            seconds < ROWS_GOAL_SECONDS,
            format!("{seconds:.2} s"),
        )],
        command: "berth-benches views".to_owned(),
    })
}

fn measure(texts: &[(Kind, String)], args: &Args) -> Result<[f64; 4]> {
    let mut snapshot = Snapshot::default();
    let (mut parse, mut add) = (0.0, 0.0);
    for (kind, text) in texts {
        let start = Instant::now();
        let object: Value = serde_json::from_str(text)?;
        parse += start.elapsed().as_secs_f64();
        let start = Instant::now();
        snapshot.add(*kind, &object);
        add += start.elapsed().as_secs_f64();
    }
    let start = Instant::now();
    let hosts = hosts::rows(&snapshot);
    let host_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let machines = machines::rows(&snapshot, &MachineFilter::default());
    let machine_seconds = start.elapsed().as_secs_f64();
    ensure!(hosts.len() == usize::try_from(args.hosts)?, "{} hosts", hosts.len());
    ensure!(machines.len() == usize::try_from(args.vms)?, "{} machines", machines.len());
    let counted: usize = hosts.iter().filter_map(|row| row.vms).sum();
    ensure!(counted == machines.len(), "{counted} VMs on hosts");
    Ok([parse, add, host_seconds, machine_seconds])
}

fn table(times: &Times) -> Table {
    let mut table = Table::new(&["operation"], &["median", "min", "max"]);
    for (what, values) in [
        ("only parse, serde_json", &times.parse),
        ("add to the snapshot", &times.add),
        ("rows of hosts", &times.hosts),
        ("rows of machines", &times.machines),
    ] {
        let numbers = [50, 0, 100].map(|at| format!("{:.2}", percentile(values, at)));
        table.push([what.to_owned()].into_iter().chain(numbers));
    }
    table
}

fn fleet(hosts: u32, vms: u32) -> Vec<(Kind, String)> {
    let host_name = |at: u32| format!("rack{}-{at:05}", at / 20);
    let infra = (0..hosts).map(|at| {
        let node = infra_node(&host_name(at), PageSize::GIB_1, &[]);
        (Kind::InfraNode, node.to_string())
    });
    let machines = (0..vms).flat_map(|at| {
        let metadata = json!({
            "name": format!("vm-{at}"), "namespace": format!("cluster-{}", at / 50), "labels": {"md": "web"},
        });
        let spec = json!({"domain": {
            "cpu": {"cores": 4, "dedicatedCpuPlacement": true}, "memory": {"guest": "8Gi", "hugepages": {"pageSize": "1Gi"}},
        }});
        let vm = json!({
            "metadata": metadata, "spec": {"runStrategy": "Always", "template": {"spec": spec}},
            "status": {"printableStatus": "Running", "ready": true},
        });
        let instance = json!({
            "metadata": metadata, "spec": spec,
            "status": {
                "phase": "Running", "nodeName": host_name(at % hosts),
                "interfaces": [{"name": "default", "ipAddress": format!("10.{}.{}.7", at / 256 % 256, at % 256)}],
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "LiveMigratable", "status": "True"}],
            },
        });
        [(Kind::VirtualMachine, vm.to_string()), (Kind::VirtualMachineInstance, instance.to_string())]
    });
    infra.chain(machines).collect()
}
