//! Compares `berth-agent report` with `lstopo`: the time to describe the same machine.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use jiff::civil::Date;
use jiff::{Timestamp, tz::TimeZone};

use crate::program::{Program, floor_mib};
use crate::stats::{median, median_ratio, percentile};

/// Goal for the wall time of the agent, as a part of the wall time of the peer.
const WALL_GOAL: f64 = 0.5;
/// Goal for the peak resident memory of the agent, in MiB.
const MEMORY_GOAL: f64 = 12.0;
/// Number of rounds that fill the caches and are not counted.
const WARM_UP: u32 = 3;
/// Number of rounds for memory. Memory varies far less than time, so a few rounds show the peak.
const MEMORY_ROUNDS: u32 = 5;

/// Compares `berth-agent report` with `lstopo`, both describing the same tree.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent to measure: the dist build, since that is what is shipped
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// The captured tree that both describe; / is this host
    #[arg(long, value_name = "TREE")]
    root: PathBuf,
    /// The program to compare with
    #[arg(long, value_name = "PROGRAM", default_value = "lstopo-no-graphics")]
    peer: PathBuf,
    /// Rounds of measuring the wall time
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The directory to write the report to
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    results: PathBuf,
    /// The date of the report, instead of today in UTC
    #[arg(long)]
    date: Option<Date>,
}

/// Cost of all runs of one program.
#[derive(Debug, Default)]
struct Cost {
    /// Milliseconds of each round.
    wall: Vec<f64>,
    /// MiB, maximum of all rounds.
    peak: f64,
}

/// Runs the benchmark, then prints and writes the report. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = fs::canonicalize(&args.root).with_context(|| format!("{}", args.root.display()))?;
    let programs = programs(args, &root);
    let [agent, peer, bare] = &programs;
    let versions = [agent.version()?, peer.version()?];
    let machine = same_machine(agent, [peer, bare])?;

    let costs = measure(&programs, args.rounds)?;
    let floor = floor_mib()?;

    let date = args.date.unwrap_or_else(|| Timestamp::now().to_zoned(TimeZone::UTC).date());
    let (goals, met) = goals(&costs);
    let text = format!(
        "# `berth-agent report` against `lstopo`, {date}

- measured on: {host}
- programs: {versions}
- tree: `{tree}` ({machine})
- rounds: {rounds} of wall time after {WARM_UP} of warm-up, then {MEMORY_ROUNDS} of memory; \
the order turns around every round

{table}
Wall time in milliseconds from spawn to exit, output to `/dev/null`; ratio: the agent's median by \
the row's, and the median of the ratios of every round. Peak is resident memory in MiB, the \
largest of its rounds; below {floor:.1} MiB it would not show. `lstopo` runs with \
`HWLOC_COMPONENTS=linux,stop`, or it would mix this host's CPUID into the tree; the row without \
plugins also has `HWLOC_PLUGINS_PATH=/dev/null` and is what a host without `libhwloc-plugins` \
would see. The goals are about `lstopo` as it is installed.

    cargo run --profile dist -p berth-benches -- report --agent {agent} --root {root} --peer {peer} \
--rounds {rounds}

{goals}",
        host = host()?,
        versions = versions.join(", "),
        tree = shown(&root),
        rounds = args.rounds,
        table = table(&programs, &costs),
        agent = shown(&args.agent),
        root = shown(&args.root),
        peer = shown(&args.peer),
    );

    fs::create_dir_all(&args.results)
        .with_context(|| format!("create {}", args.results.display()))?;
    let file = args.results.join(format!("{date}-report.md"));
    fs::write(&file, &text).with_context(|| format!("write {}", file.display()))?;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(met)
}

/// Returns the agent, the peer, and the peer without plugins.
fn programs(args: &Args, root: &Path) -> [Program; 3] {
    let label = args.peer.file_name().unwrap_or_default().display();
    let peer = |label: String, plugins: &[(&'static str, OsString)]| Program {
        label,
        path: args.peer.clone().into(),
        args: ["--of", "xml"].map(OsString::from).to_vec(),
        // Without the last variable, the x86 component of hwloc reads the CPUID of this host and mixes the result
        // into the tree.
        env: [
            ("HWLOC_FSROOT", root.into()),
            ("HWLOC_THISSYSTEM", "0".into()),
            ("HWLOC_COMPONENTS", "linux,stop".into()),
        ]
        .into_iter()
        .chain(plugins.iter().cloned())
        .collect(),
        missing: "install the package hwloc (Debian: hwloc-nox)",
    };
    let agent = Program {
        label: "berth-agent".to_owned(),
        path: args.agent.clone().into(),
        args: ["report".into(), "--root".into(), root.into(), "--output".into(), "json".into()]
            .to_vec(),
        env: vec![],
        missing: "build it with `cargo build --profile dist-agent -p berth-agent`",
    };
    let without = [("HWLOC_PLUGINS_PATH", "/dev/null".into())];
    [agent, peer(format!("{label}"), &[]), peer(format!("{label}, no plugins"), &without)]
}

/// Checks that the agent and the peers describe the same machine, and returns a description of the machine.
fn same_machine(agent: &Program, peers: [&Program; 2]) -> Result<String> {
    let json: serde_json::Value = serde_json::from_str(&agent.stdout()?)
        .with_context(|| format!("output of {}", agent.label))?;
    let cpu = &json["status"]["capabilities"]["cpu"];
    let threads = cpu["threads"].as_u64().with_context(|| {
        format!("{}: no .status.capabilities.cpu.threads in its output", agent.label)
    })?;
    let model = cpu["model"].as_str();
    for peer in peers {
        let xml = peer.stdout()?;
        let units = xml.matches("<object type=\"PU\"").count();
        ensure!(
            u64::try_from(units)? == threads,
            "{} sees {threads} threads, {} sees {units}: not the same machine",
            agent.label,
            peer.label,
        );
        // The same number of threads could be a coincidence, so the CPU names are compared too. Some architectures
        // have no CPU name.
        let theirs = xml
            .split_once("name=\"CPUModel\" value=\"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .map(|(model, _)| words(model));
        if let (Some(ours), Some(theirs)) = (model.map(words), theirs) {
            ensure!(
                ours == theirs,
                "{} sees {ours:?}, {} sees {theirs:?}: not the same machine",
                agent.label,
                peer.label,
            );
        }
    }
    Ok(format!("{}, {threads} threads", model.unwrap_or("unnamed CPU")))
}

/// Returns `text` with single spaces. Firmware pads CPU names with spaces, and some programs remove the spaces.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs the programs in turn. The order is reversed after every round, so that no program is always first.
fn measure(programs: &[Program; 3], rounds: u32) -> Result<[Cost; 3]> {
    let mut costs: [Cost; 3] = Default::default();
    let mut pairs: Vec<_> = programs.iter().zip(&mut costs).collect();
    for round in 0..WARM_UP + rounds {
        for (program, cost) in &mut pairs {
            let wall = program.wall_ms()?;
            if round >= WARM_UP {
                cost.wall.push(wall);
            }
        }
        pairs.reverse();
    }
    // Measures memory separately, because the wall time would include the time of the helper process.
    for _ in 0..MEMORY_ROUNDS {
        for (program, cost) in &mut pairs {
            cost.peak = cost.peak.max(program.peak_mib()?);
        }
    }
    Ok(costs)
}

/// Returns a table with a row for each program.
fn table(programs: &[Program; 3], costs: &[Cost; 3]) -> String {
    let mut table = "| program | median | p10 | p90 | min | ratio | per round | peak |\n\
                     |---|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    let [agent, ..] = costs;
    for (program, cost) in programs.iter().zip(costs) {
        let [min, p10, median, p90] = [0, 10, 50, 90].map(|at| percentile(&cost.wall, at));
        table += &format!(
            "| {} | {median:.2} | {p10:.2} | {p90:.2} | {min:.2} | {:.2} | {:.2} | {:.1} |\n",
            program.label,
            ratio(agent, cost),
            median_ratio(&agent.wall, &cost.wall),
            cost.peak,
        );
    }
    table
}

/// Returns the lines of the goals, and true if all goals are met.
fn goals(costs: &[Cost; 3]) -> (String, bool) {
    let [agent, peer, _] = costs;
    let ratio = ratio(agent, peer);
    let (fast, small) = (ratio <= WALL_GOAL, agent.peak <= MEMORY_GOAL);
    let verdict = |met| if met { "met" } else { "MISSED" };
    let lines = format!(
        "goal: at most {WALL_GOAL} of lstopo's wall time: {} ({ratio:.2})\n\
         goal: peak memory at most {MEMORY_GOAL} MiB: {} ({:.1} MiB)\n",
        verdict(fast),
        verdict(small),
        agent.peak,
    );
    (lines, fast && small)
}

/// Returns the median wall time of `ours` divided by the median wall time of `theirs`.
fn ratio(ours: &Cost, theirs: &Cost) -> f64 {
    median(&ours.wall) / median(&theirs.wall)
}

/// Returns the CPUs and the kernel of this host.
pub(crate) fn host() -> Result<String> {
    #[expect(clippy::disallowed_methods, reason = "this host, not a tree, does the measuring")]
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
    let all = |key| {
        let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.filter(move |(name, _)| name.trim() == key).map(|(_, value)| value.trim())
    };
    let cores = all("physical id").zip(all("core id")).collect::<BTreeSet<_>>().len();
    let kernel = nix::sys::utsname::uname()?;
    Ok(format!(
        "{}, {} threads on {} cores, {} {}",
        all("model name").next().unwrap_or("unnamed CPU"),
        all("processor").count(),
        // Only x86 lists the cores in this file.
        if cores == 0 { "unknown".to_owned() } else { cores.to_string() },
        kernel.sysname().display(),
        kernel.release().display(),
    ))
}

/// Returns `path` for the report without the location on this machine, which does not belong in results.
fn shown(path: &Path) -> String {
    match path.file_name() {
        Some(name) if path.is_absolute() => name.display().to_string(),
        _ => path.display().to_string(),
    }
}
