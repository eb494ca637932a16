//! Measures resident memory, CPU time and wake-ups of the idle agent on an emulated host, compared with daemons
//! that every systemd host runs. Also measures the time from a changed manifest to the changed setting of the host.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_tests::host::{Host, HostOptions, Kernel, Machine};

use crate::output::OutputArgs;
use crate::program::Program;
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, percentile};

/// Goal for the resident memory of the idle agent, in MiB.
const MEMORY_GOAL_MIB: f64 = 15.0;
/// Goal for the CPU time of the idle agent, in percent of a core.
const CPU_GOAL_PERCENT: f64 = 0.1;
/// Number of runs of `plan` that measure how much slower the emulated host is than this machine.
const PLAN_RUNS: u32 = 20;
/// Name of the agent's process.
const AGENT: &str = "berth-agent";
/// Daemons for comparison, which run on every systemd host.
const PEER_DAEMONS: [&str; 3] = ["systemd-udevd", "systemd-logind", "systemd-journald"];

/// Measures the idle daemon on an emulated host.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// berth-agent binary to measure, built with the profile of a release (dist-agent)
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Captured file tree; its plan is timed on this machine and on the emulated host, to compare their speed
    #[arg(long, value_name = "TREE")]
    tree: PathBuf,
    /// Length of the idle phase in minutes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// Number of changes of the manifest
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Usage of a daemon since its start.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    resident_mib: f64,
    cpu_seconds: f64,
    wake_ups: f64,
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let options = HostOptions {
        agent: Some(&args.agent),
        number: 9,
        machine: Machine::IntelSmt,
        kernel: Kernel::Backports,
        ..HostOptions::default()
    };
    let mut host = Host::boot(&options)?;
    host.run_checked("udevadm settle --timeout 100")?;
    start_agent(&mut host)?;
    let before = read_usage(&mut host)?;
    for _ in 0..args.minutes {
        host.run_for("sleep 60", Duration::from_secs(90))?;
    }
    let after = read_usage(&mut host)?;
    let millis = measure_changes(&mut host, args.rounds)?;
    let slowdown = measure_slowdown(&mut host, args)?;

    let minutes = f64::from(args.minutes);
    let agent_usage = *after.get(AGENT).context("the agent is not running")?;
    let start = before.get(AGENT).copied().unwrap_or_default();
    let percent = (agent_usage.cpu_seconds - start.cpu_seconds) / minutes / 60.0 * 100.0;
    let local_percent = percent / slowdown;
    let (agent, tree) = (args.agent.display(), args.tree.display());
    let text = format!(
        "Wake-ups: voluntary and involuntary context switches of all threads.\n\n\
         The emulated host needs {slowdown:.1} times the CPU time of this machine for the same work: user and system time of {PLAN_RUNS} \
         plans of the captured tree `{tree}`. {percent:.3} % of a core there correspond to {local_percent:.4} % of a core of this machine.\n\n\
         Time from the rename of the manifest to the changed host, polled every 2 ms on the host, for {} changes: median {:.0} ms, \
         90th percentile {:.0} ms. 100 ms of this time are the debounce interval of the agent.",
        millis.len(),
        median(&millis),
        percentile(&millis, 90),
    );
    args.output.publish(&BenchResult {
        name: "idle".to_owned(),
        title: "The idle daemon".to_owned(),
        date: args.output.date(),
        conditions: vec![
            "measured on: an emulated two-socket host (QEMU without KVM), kernel 6.12, with the sample manifest applied".to_owned(),
            format!("agent: `{agent}`"),
            format!(
                "`berth-agent run --standalone` with the default timer of 60 s; {} minutes without a change",
                args.minutes
            ),
            "peers: daemons of every systemd host, on the same host in the same minutes".to_owned(),
        ],
        sections: vec![Section::untitled(text, vec![usage_table(&before, &after, minutes, agent_usage)])],
        goals: vec![
            Goal::new(
                format!("less than {MEMORY_GOAL_MIB} MiB resident"),
                agent_usage.resident_mib < MEMORY_GOAL_MIB,
                format!("{:.1} MiB", agent_usage.resident_mib),
            ),
            Goal::new(
                format!("less than {CPU_GOAL_PERCENT} % of a core of this machine"),
                local_percent < CPU_GOAL_PERCENT,
                format!("{local_percent:.4} %"),
            ),
        ],
        command: format!(
            "berth-benches idle --agent {agent} --tree {tree} --minutes {} --rounds {}",
            args.minutes, args.rounds
        ),
    })
}

fn usage_table(
    before: &BTreeMap<String, Usage>,
    after: &BTreeMap<String, Usage>,
    minutes: f64,
    agent_usage: Usage,
) -> Table {
    let mut table = Table::new(
        &["daemon"],
        &["resident MiB", "% of a core", "wake-ups per minute", "ratio of the agent's memory"],
    );
    for (name, end) in after {
        let start = before.get(name).copied().unwrap_or_default();
        table.push([
            name.clone(),
            format!("{:.1}", end.resident_mib),
            format!("{:.3}", (end.cpu_seconds - start.cpu_seconds) / minutes / 60.0 * 100.0),
            format!("{:.1}", (end.wake_ups - start.wake_ups) / minutes),
            format!("{:.2}", agent_usage.resident_mib / end.resident_mib),
        ]);
    }
    table
}

/// Starts the daemon with the sample manifest and waits until the daemon is idle.
fn start_agent(host: &mut Host) -> Result<()> {
    let manifest = include_str!("../../examples/infranode.yaml");
    host.run_checked(&format!(
        "mkdir -p /etc/berth && cat > /etc/berth/infranode.yaml <<'END'\n{manifest}\nEND"
    ))?;
    host.run_checked(
        "setsid berth-agent run --standalone /etc/berth/infranode.yaml </dev/null >/run/agent.log 2>&1 & \
         until curl -sf http://127.0.0.1:9477/readyz; do sleep 0.5; done",
    )?;
    // Waits until the idle threads of the first cycle have ended, which takes some time.
    host.run_checked("sleep 20").map(drop)
}

fn read_usage(host: &mut Host) -> Result<BTreeMap<String, Usage>> {
    let mut all = BTreeMap::new();
    for name in ["berth-agent"].into_iter().chain(PEER_DAEMONS) {
        // The kernel truncates the name of a process to 15 bytes.
        let short: String = name.chars().take(15).collect();
        let output = host.run_checked(&format!(
            "pid=$(pgrep -o -x {short}) && awk '/^VmRSS/ {{print $2}}' /proc/$pid/status && \
             cut -d' ' -f14,15 /proc/$pid/stat && \
             cat /proc/$pid/task/*/status | awk '/ctxt_switches/ {{n += $2}} END {{print n}}'"
        ))?;
        let numbers: Vec<f64> =
            output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [resident, user, system, switches] = numbers.as_slice() else {
            anyhow::bail!("{name}: unexpected output: {output}");
        };
        let cpu_seconds = (user + system) / 100.0;
        let usage = Usage { resident_mib: resident / 1024.0, cpu_seconds, wake_ups: *switches };
        all.insert(name.to_owned(), usage);
    }
    Ok(all)
}

/// Returns the milliseconds from the rename of a changed manifest until the huge page pool has changed, measured on
/// the host.
fn measure_changes(host: &mut Host, rounds: u32) -> Result<Vec<f64>> {
    let mut millis = Vec::new();
    for round in 0..rounds {
        let count = 16 + round % 2;
        let output = host.run_checked(&format!(
            "cd /etc/berth && sed 's/count: .*/count: {}/' infranode.yaml > new && \
             pool=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages && \
             begin=$(date +%s%N) && mv new infranode.yaml && \
             until [ $(<$pool) = {} ]; do sleep 0.002; done; echo $(( ($(date +%s%N) - begin) / 1000 ))",
            2 * count,
            2 * count
        ))?;
        let micros: f64 = output.trim().parse().with_context(|| output.clone())?;
        ensure!(micros > 0.0, "the clock of the host did not advance");
        millis.push(micros / 1000.0);
    }
    Ok(millis)
}

/// Returns the CPU time of the emulated host divided by the CPU time of this machine, for the same script.
fn measure_slowdown(host: &mut Host, args: &Args) -> Result<f64> {
    let archive = std::env::temp_dir().join(format!("berth-bench-{}.tar", std::process::id()));
    let words =
        ["-cf".as_ref(), archive.as_os_str(), "-C".as_ref(), args.tree.as_os_str(), ".".as_ref()];
    let uploaded = tool_program("tar", &words)
        .stdout()
        .and_then(|_| host.copy_file(&archive, "/run/tree.tar"));
    fs::remove_file(&archive).with_context(|| archive.display().to_string())?;
    uploaded?;
    host.run_checked("mkdir /run/tree && tar -xf /run/tree.tar -C /run/tree && rm /run/tree.tar")?;
    let host_output = host.run_for(
        &plan_script("/usr/local/bin/berth-agent", "/run/tree", "/etc/berth/infranode.yaml"),
        Duration::from_secs(300),
    )?;
    let agent = fs::canonicalize(&args.agent).with_context(|| args.agent.display().to_string())?;
    let tree = fs::canonicalize(&args.tree).with_context(|| args.tree.display().to_string())?;
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/infranode.yaml");
    let script = plan_script(&agent.to_string_lossy(), &tree.to_string_lossy(), manifest);
    let local_output = tool_program("bash", &["-c".as_ref(), script.as_ref()]).stdout()?;
    Ok(parse_cpu_seconds(&host_output.output)? / parse_cpu_seconds(&local_output)?)
}

/// Returns a shell script that repeats a plan and prints the user and system CPU seconds.
fn plan_script(agent: &str, tree: &str, manifest: &str) -> String {
    format!(
        "exec 2>&1; TIMEFORMAT='%U %S'; plan() {{ '{agent}' plan -f '{manifest}' --root '{tree}' --node-name rack1-a >/dev/null 2>&1; \
         [ $? -le 1 ]; }}; plan || {{ echo plan failed; exit 1; }}; time (for i in $(seq {PLAN_RUNS}); do plan; done)"
    )
}

fn parse_cpu_seconds(output: &str) -> Result<f64> {
    let numbers: Vec<f64> =
        output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [user, system] = numbers.as_slice() else {
        anyhow::bail!("the output has no user and system seconds: {output}");
    };
    Ok(user + system)
}

fn tool_program(name: &str, words: &[&OsStr]) -> Program {
    Program {
        label: name.to_owned(),
        path: name.into(),
        args: words.iter().map(OsString::from).collect(),
        env: Vec::new(),
        missing_hint: "install it",
    }
}
