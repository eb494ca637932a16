//! Measures the time from spawn to exit of `berth-controller plan` for a fleet in files, compared with the time to
//! only read and parse these files.

#![expect(
    clippy::disallowed_methods,
    reason = "the benchmark runs the measured program, and reads files that it has written"
)]

mod files;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::output::OutputArgs;
use crate::progress::print_step;
use crate::report;
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, percentile};

/// Goal for the seconds of a plan.
const PLAN_GOAL_SECONDS: f64 = 2.0;

/// Measures `berth-controller plan` of a simulated fleet, including the time to read the files.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// berth-controller binary to measure, built with the profile of a release (dist)
    #[arg(long, value_name = "PATH")]
    controller: PathBuf,
    /// Number of hosts in the fleet
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// Number of VMs in the fleet
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    vms: u32,
    /// Number of measured rounds, after one round that fills the caches
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Seconds of each round, for a plan and for only reading and parsing the files, by format.
#[derive(Debug, Default)]
struct PlanTimes {
    yaml: Vec<f64>,
    json: Vec<f64>,
    parse_yaml: Vec<f64>,
    parse_json: Vec<f64>,
}

/// Runs the benchmark and publishes the result. Returns true if the goal is met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let (yaml, json) = (folder.path().join("yaml"), folder.path().join("json"));
    let sizes = files::write_fleet(&yaml, &json, args.hosts, args.vms)?;
    let plan = plan_as_json(&args.controller, &yaml)?;
    ensure!(
        plan == plan_as_json(&args.controller, &json)?,
        "the plans from YAML and from JSON differ"
    );
    let placed = plan["placed"].as_array().map_or(0, Vec::len);
    let unplaced = plan["unplaced"].as_array().map_or(0, Vec::len);
    ensure!(placed + unplaced == usize::try_from(args.vms)?, "the plan does not contain every VM");

    let mut times = PlanTimes::default();
    for round in 0..=args.rounds {
        print_step(format_args!("round {round} of {}", args.rounds));
        let seconds = [
            time_plan(&args.controller, &yaml)?,
            time_plan(&args.controller, &json)?,
            time_parse(&yaml, |text| {
                let documents = text.split("---\n").filter(|document| !document.is_empty());
                documents.map(|one| Ok(serde_saphyr::from_str(one)?)).collect()
            })?,
            time_parse(&json, |text| Ok(serde_json::from_str(text)?))?,
        ];
        if round == 0 {
            continue;
        }
        times.yaml.push(seconds[0]);
        times.json.push(seconds[1]);
        times.parse_yaml.push(seconds[2]);
        times.parse_json.push(seconds[3]);
    }

    let (hosts, vms, seconds) = (args.hosts, args.vms, median(&times.yaml));
    let conditions = vec![
        format!("measured on: {}", report::describe_host()?),
        format!(
            "fleet: {hosts} InfraNodes and {vms} VirtualMachines in two files, {:.1} MB as YAML documents, {:.1} MB as JSON lists; \
             {placed} VMs are placed, {unplaced} VMs are larger than any NUMA zone and are unplaced",
            sizes.yaml as f64 / 1e6,
            sizes.json as f64 / 1e6,
        ),
        format!(
            "rounds: {} after one warm-up round; seconds from spawn to exit, with the output to `/dev/null`, in the order of the table",
            args.rounds
        ),
    ];
    let text = "No other program computes a plan from files. The last two rows are a lower bound: serde-saphyr and serde_json \
                read the same files into values in one thread. The ratio is the plan's median divided by the row's median.";
    args.output.publish(&BenchResult {
        name: "plan".to_owned(),
        title: "`berth-controller plan`".to_owned(),
        date: args.output.date(),
        conditions,
        sections: vec![Section::untitled(text, vec![time_table(&times)])],
        goals: vec![Goal::new(
            format!("less than {PLAN_GOAL_SECONDS} s with {hosts} hosts and {vms} VMs from YAML"),
            seconds < PLAN_GOAL_SECONDS,
            format!("{seconds:.2} s"),
        )],
        command: "berth-benches plan --controller target/dist/berth-controller".to_owned(),
    })
}

fn time_table(times: &PlanTimes) -> Table {
    let mut table = Table::new(&["operation"], &["median", "min", "max", "ratio"]);
    for (what, values, plan) in [
        ("plan, YAML", &times.yaml, &times.yaml),
        ("plan, JSON", &times.json, &times.json),
        ("only read, serde-saphyr", &times.parse_yaml, &times.yaml),
        ("only read, serde_json", &times.parse_json, &times.json),
    ] {
        let [min, middle, max] = [0, 50, 100].map(|at| percentile(values, at));
        let ratio = median(plan) / middle;
        let numbers = [middle, min, max, ratio].map(|number| format!("{number:.2}"));
        table.push([what.to_owned()].into_iter().chain(numbers));
    }
    table
}

fn plan_command(controller: &Path, folder: &Path) -> Command {
    let mut command = Command::new(controller);
    command.args(["plan", "-f"]).arg(folder);
    command
}

/// Returns the output of the plan. The exit status of a plan with unplaced VMs is accepted.
fn plan_as_json(controller: &Path, folder: &Path) -> Result<Value> {
    let output = plan_command(controller, folder).args(["-o", "json"]).output();
    let output = output.with_context(|| {
        format!(
            "{}: build it with `cargo build --profile dist -p berth-controller`",
            controller.display()
        )
    })?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(matches!(output.status.code(), Some(0 | 1)), "plan: {}: {stderr}", output.status);
    let said: Value = serde_json::from_slice(&output.stdout).context("parse the output of plan")?;
    ensure!(said["problems"].as_array().is_some_and(Vec::is_empty), "plan: {}", said["problems"]);
    Ok(said)
}

/// Returns the seconds from spawn to exit.
fn time_plan(controller: &Path, folder: &Path) -> Result<f64> {
    let mut command = plan_command(controller, folder);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let begin = Instant::now();
    let status = command.status()?;
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(matches!(status.code(), Some(0 | 1)), "plan: {status}");
    Ok(seconds)
}

/// Returns the seconds to read and parse all files of a folder.
fn time_parse(folder: &Path, read: impl Fn(&str) -> Result<Vec<Value>>) -> Result<f64> {
    let begin = Instant::now();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        ensure!(!read(&text)?.is_empty(), "{}: the file has no objects", path.display());
    }
    Ok(begin.elapsed().as_secs_f64())
}
