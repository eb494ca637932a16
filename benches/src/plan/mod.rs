//! Measures `berth-controller plan` for a fleet in files from spawn to exit, compared with only reading the files.

#![expect(
    clippy::disallowed_methods,
    reason = "the program under measurement is run, and files read that were just written"
)]

mod files;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use jiff::civil::Date;
use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;

use crate::report;
use crate::stats::{median, percentile};

/// Goal for the seconds of a plan.
const GOAL: f64 = 2.0;

/// Measures `berth-controller plan` of a simulated fleet, including the time to read the files.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The controller to measure: the dist build, since that is what is shipped
    #[arg(long, value_name = "PATH")]
    controller: PathBuf,
    /// Hosts of the fleet
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// VMs of the fleet
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    vms: u32,
    /// Rounds that are measured, after one that fills the caches
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The directory to write the report to
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    results: PathBuf,
    /// The date of the report, instead of today in UTC
    #[arg(long)]
    date: Option<Date>,
}

/// Seconds of each round.
#[derive(Debug, Default)]
struct Times {
    yaml: Vec<f64>,
    json: Vec<f64>,
    plain_yaml: Vec<f64>,
    plain_json: Vec<f64>,
}

/// Runs the benchmark, then prints and writes the report. Returns true if the goal is met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let (yaml, json) = (folder.path().join("yaml"), folder.path().join("json"));
    let sizes = files::write(&yaml, &json, args.hosts, args.vms)?;
    let said = answer(&args.controller, &yaml)?;
    ensure!(said == answer(&args.controller, &json)?, "YAML and JSON are not planned the same");
    let placed = said["placed"].as_array().map_or(0, Vec::len);
    let unplaced = said["unplaced"].as_array().map_or(0, Vec::len);
    ensure!(placed + unplaced == usize::try_from(args.vms)?, "not every VM was planned");

    let mut times = Times::default();
    for round in 0..=args.rounds {
        let now = [
            planned(&args.controller, &yaml)?,
            planned(&args.controller, &json)?,
            plain(&yaml, |text| {
                let documents = text.split("---\n").filter(|document| !document.is_empty());
                documents.map(|one| Ok(serde_saphyr::from_str(one)?)).collect()
            })?,
            plain(&json, |text| Ok(serde_json::from_str(text)?))?,
        ];
        if round == 0 {
            continue;
        }
        times.yaml.push(now[0]);
        times.json.push(now[1]);
        times.plain_yaml.push(now[2]);
        times.plain_json.push(now[3]);
    }

    let date = args.date.unwrap_or_else(|| Timestamp::now().to_zoned(TimeZone::UTC).date());
    let seconds = median(&times.yaml);
    let met = seconds < GOAL;
    let text = format!(
        "# `berth-controller plan`, {date}

- measured on: {host}
- fleet: {hosts} InfraNodes and {vms} VirtualMachines in two files, {yaml:.1} MB as YAML documents, {json:.1} MB as JSON \
lists; {placed} VMs are placed, {unplaced} are wider than any zone and explained
- rounds: {rounds} after one of warm-up; seconds from spawn to exit, output to `/dev/null`, in the table's order

| what | median | least | most | plan takes |
|---|--:|--:|--:|--:|
{table}
There is no other program that says this of files. The rows below are the floor: the same files read in one thread by \
serde-saphyr and by serde_json into values, nothing made of them; the ratio is the plan's median by theirs.

goal: under {GOAL} s with {hosts} hosts and {vms} VMs from YAML: {verdict} ({seconds:.2})

Command: `make bench`, or `berth-benches plan --controller target/dist/berth-controller`.
",
        host = report::host()?,
        hosts = args.hosts,
        vms = args.vms,
        yaml = sizes.yaml as f64 / 1e6,
        json = sizes.json as f64 / 1e6,
        rounds = args.rounds,
        table = table(&times),
        verdict = if met { "met" } else { "MISSED" },
    );
    fs::create_dir_all(&args.results)
        .with_context(|| format!("create {}", args.results.display()))?;
    let file = args.results.join(format!("{date}-plan.md"));
    fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(met)
}

fn table(times: &Times) -> String {
    let row = |what: &str, values: &[f64], plan: &[f64]| {
        let [least, middle, most] = [0, 50, 100].map(|at| percentile(values, at));
        let ratio = median(plan) / middle;
        format!("| {what} | {middle:.2} | {least:.2} | {most:.2} | {ratio:.2} |\n")
    };
    [
        row("plan, YAML", &times.yaml, &times.yaml),
        row("plan, JSON", &times.json, &times.json),
        row("reading alone, serde-saphyr", &times.plain_yaml, &times.yaml),
        row("reading alone, serde_json", &times.plain_json, &times.json),
    ]
    .concat()
}

fn command(controller: &Path, folder: &Path) -> Command {
    let mut command = Command::new(controller);
    command.args(["plan", "-f"]).arg(folder);
    command
}

/// Returns the output of the plan. An exit status for unplaced VMs is a valid answer too.
fn answer(controller: &Path, folder: &Path) -> Result<Value> {
    let output = command(controller, folder).args(["-o", "json"]).output();
    let output = output.with_context(|| {
        format!(
            "{}: build it with `cargo build --profile dist -p berth-controller`",
            controller.display()
        )
    })?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(matches!(output.status.code(), Some(0 | 1)), "plan: {}: {stderr}", output.status);
    let said: Value = serde_json::from_slice(&output.stdout).context("what plan says")?;
    ensure!(said["problems"].as_array().is_some_and(Vec::is_empty), "plan: {}", said["problems"]);
    Ok(said)
}

/// Returns the seconds from spawn to exit.
fn planned(controller: &Path, folder: &Path) -> Result<f64> {
    let mut command = command(controller, folder);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let begin = Instant::now();
    let status = command.status()?;
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(matches!(status.code(), Some(0 | 1)), "plan: {status}");
    Ok(seconds)
}

/// Returns the seconds to read all files of a directory.
fn plain(folder: &Path, read: impl Fn(&str) -> Result<Vec<Value>>) -> Result<f64> {
    let begin = Instant::now();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)?;
        ensure!(!read(&text)?.is_empty(), "{}: nothing in it", path.display());
    }
    Ok(begin.elapsed().as_secs_f64())
}
