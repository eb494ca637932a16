//! Compares `berth-agent report` with `lstopo`: the time to describe the same machine.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::output::OutputArgs;
use crate::program::{Program, min_measurable_mib};
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, median_ratio, percentile};

/// Goal for the wall time of the agent, as a fraction of the wall time of the peer.
const WALL_TIME_GOAL: f64 = 0.5;
/// Goal for the peak resident memory of the agent, in MiB.
const MEMORY_GOAL_MIB: f64 = 12.0;
/// Number of rounds that fill the caches and are not counted.
const WARM_UP_ROUNDS: u32 = 3;
/// Number of rounds that measure memory. Memory varies far less than time, so a few rounds are enough.
const MEMORY_ROUNDS: u32 = 5;

/// Compares `berth-agent report` with `lstopo`, both describing the same tree.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// berth-agent binary to measure, built with the profile of a release (dist-agent)
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Captured file tree that both programs describe; / for this host
    #[arg(long, value_name = "TREE")]
    root: PathBuf,
    /// Program to compare with
    #[arg(long, value_name = "PROGRAM", default_value = "lstopo-no-graphics")]
    peer: PathBuf,
    /// Number of rounds that measure the wall time
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measured cost of one program.
#[derive(Debug, Default)]
struct RunCost {
    /// Milliseconds of each round.
    wall_millis: Vec<f64>,
    /// Peak resident memory in MiB, the maximum of all rounds.
    peak_mib: f64,
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = fs::canonicalize(&args.root).with_context(|| format!("{}", args.root.display()))?;
    let programs = programs(args, &root);
    let [agent, peer, bare] = &programs;
    let versions = [agent.version()?, peer.version()?];
    let machine = check_same_machine(agent, [peer, bare])?;

    let costs = measure(&programs, args.rounds)?;
    let floor = min_measurable_mib()?;

    let conditions = vec![
        format!("measured on: {}", describe_host()?),
        format!("programs: {}", versions.join(", ")),
        format!("tree: `{}` ({machine})", display_path(&root)),
        format!(
            "rounds: {} for the wall time after {WARM_UP_ROUNDS} warm-up rounds, then {MEMORY_ROUNDS} for the memory; the order is \
             reversed after every round",
            args.rounds
        ),
    ];
    let text = format!(
        "Wall time in milliseconds from spawn to exit, with the output to `/dev/null`. Ratio: the agent's median divided by the \
         row's median. Ratio per round: the median of the ratios of all rounds. Peak: resident memory in MiB, the maximum of all \
         memory rounds. The method cannot measure values below {floor:.1} MiB.\n\n\
         `lstopo` runs with `HWLOC_COMPONENTS=linux,stop`, because otherwise hwloc mixes the CPUID of this host into the tree. \
         The row without plugins also sets `HWLOC_PLUGINS_PATH=/dev/null`, which corresponds to a host without \
         `libhwloc-plugins`. The goals refer to `lstopo` with plugins."
    );
    args.output.publish(&BenchResult {
        name: "report".to_owned(),
        title: "`berth-agent report` compared with `lstopo`".to_owned(),
        date: args.output.date(),
        conditions,
        sections: vec![Section::untitled(text, vec![cost_table(&programs, &costs)])],
        goals: goals(&costs),
        command: format!(
            "cargo run --profile dist -p berth-benches -- report --agent {} --root {} --peer {} --rounds {}",
            display_path(&args.agent),
            display_path(&root),
            display_path(&args.peer),
            args.rounds
        ),
    })
}

/// Returns the three programs: the agent, the peer, and the peer without plugins.
fn programs(args: &Args, root: &Path) -> [Program; 3] {
    let label = args.peer.file_name().unwrap_or_default().display();
    let peer = |label: String, plugins: &[(&'static str, OsString)]| Program {
        label,
        path: args.peer.clone().into(),
        args: ["--of", "xml"].map(OsString::from).to_vec(),
        // Without `HWLOC_COMPONENTS`, the x86 component of hwloc would read the CPUID of this host and mix it with
        // the captured tree.
        env: [
            ("HWLOC_FSROOT", root.into()),
            ("HWLOC_THISSYSTEM", "0".into()),
            ("HWLOC_COMPONENTS", "linux,stop".into()),
        ]
        .into_iter()
        .chain(plugins.iter().cloned())
        .collect(),
        missing_hint: "install the package hwloc (Debian: hwloc-nox)",
    };
    let agent = Program {
        label: "berth-agent".to_owned(),
        path: args.agent.clone().into(),
        args: ["report".into(), "--root".into(), root.into(), "--output".into(), "json".into()]
            .to_vec(),
        env: vec![],
        missing_hint: "build it with `cargo build --profile dist-agent -p berth-agent`",
    };
    let without = [("HWLOC_PLUGINS_PATH", "/dev/null".into())];
    [agent, peer(format!("{label}"), &[]), peer(format!("{label}, no plugins"), &without)]
}

/// Checks that the agent and the peers report the same machine, and returns a description of the machine.
fn check_same_machine(agent: &Program, peers: [&Program; 2]) -> Result<String> {
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
            "{} reports {threads} threads, but {} reports {units}",
            agent.label,
            peer.label,
        );
        // Equal numbers of threads could be a coincidence, so the names of the CPUs are compared too. Some
        // architectures have no such name.
        let theirs = xml
            .split_once("name=\"CPUModel\" value=\"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .map(|(model, _)| collapse_whitespace(model));
        if let (Some(ours), Some(theirs)) = (model.map(collapse_whitespace), theirs) {
            ensure!(
                ours == theirs,
                "{} reports the CPU {ours:?}, but {} reports {theirs:?}",
                agent.label,
                peer.label,
            );
        }
    }
    Ok(format!("{}, {threads} threads", model.unwrap_or("unnamed CPU")))
}

/// Returns `text` with each sequence of white space replaced by one space. Firmware pads CPU names with spaces, and
/// some programs remove these spaces.
fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs the programs in turn. The order is reversed after every round, so that no program is always first.
fn measure(programs: &[Program; 3], rounds: u32) -> Result<[RunCost; 3]> {
    let mut costs: [RunCost; 3] = Default::default();
    let mut pairs: Vec<_> = programs.iter().zip(&mut costs).collect();
    for round in 0..WARM_UP_ROUNDS + rounds {
        for (program, cost) in &mut pairs {
            let wall = program.wall_ms()?;
            if round >= WARM_UP_ROUNDS {
                cost.wall_millis.push(wall);
            }
        }
        pairs.reverse();
    }
    // Measures memory in separate runs, because the helper process that measures it would add to the wall time.
    for _ in 0..MEMORY_ROUNDS {
        for (program, cost) in &mut pairs {
            cost.peak_mib = cost.peak_mib.max(program.peak_mib()?);
        }
    }
    Ok(costs)
}

/// Returns a table with a row for each program.
fn cost_table(programs: &[Program; 3], costs: &[RunCost; 3]) -> Table {
    let mut table = Table::new(
        &["program"],
        &["median", "p10", "p90", "min", "ratio", "ratio per round", "peak"],
    );
    let [agent, ..] = costs;
    for (program, cost) in programs.iter().zip(costs) {
        let [min, p10, median, p90] = [0, 10, 50, 90].map(|at| percentile(&cost.wall_millis, at));
        table.push([
            program.label.clone(),
            format!("{median:.2}"),
            format!("{p10:.2}"),
            format!("{p90:.2}"),
            format!("{min:.2}"),
            format!("{:.2}", ratio(agent, cost)),
            format!("{:.2}", median_ratio(&agent.wall_millis, &cost.wall_millis)),
            format!("{:.1}", cost.peak_mib),
        ]);
    }
    table
}

fn goals(costs: &[RunCost; 3]) -> Vec<Goal> {
    let [agent, peer, _] = costs;
    let ratio = ratio(agent, peer);
    vec![
        Goal::new(
            format!("at most {WALL_TIME_GOAL} of the wall time of `lstopo`"),
            ratio <= WALL_TIME_GOAL,
            format!("{ratio:.2}"),
        ),
        Goal::new(
            format!("peak memory at most {MEMORY_GOAL_MIB} MiB"),
            agent.peak_mib <= MEMORY_GOAL_MIB,
            format!("{:.1} MiB", agent.peak_mib),
        ),
    ]
}

/// Returns the median wall time in `ours` divided by the median wall time in `theirs`.
fn ratio(ours: &RunCost, theirs: &RunCost) -> f64 {
    median(&ours.wall_millis) / median(&theirs.wall_millis)
}

/// Returns a description of this host: its CPUs and its kernel.
pub(crate) fn describe_host() -> Result<String> {
    #[expect(clippy::disallowed_methods, reason = "reads files of the measuring host")]
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
        // Only on x86 `/proc/cpuinfo` lists the cores.
        if cores == 0 { "unknown".to_owned() } else { cores.to_string() },
        kernel.sysname().display(),
        kernel.release().display(),
    ))
}

/// Returns `path` as shown in results. Of an absolute path only the file name is shown, because the location on
/// this machine does not matter.
fn display_path(path: &Path) -> String {
    match path.file_name() {
        Some(name) if path.is_absolute() => name.display().to_string(),
        _ => path.display().to_string(),
    }
}
