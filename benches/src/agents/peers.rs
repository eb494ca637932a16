//! The peer: the common alternative to Berth for host facts on a Node. A loop on every node runs `kubectl label`
//! and `kubectl annotate` once a minute, with the credential of the kubelet.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use berth_tests::cluster::ControlPlane;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use crate::program::Program;

/// Number of Nodes. One loop runs for each Node.
pub(super) const PEER_COUNT: u8 = 20;
/// Time between the starts of two iterations of a loop.
const LOOP_INTERVAL: Duration = Duration::from_secs(60);
/// Prefix of the user names of the loops.
pub(super) const USER_PREFIX: &str = "system:node:rack1-";
/// Number of runs of `kubectl` that measure its peak memory.
const MEMORY_RUNS: u32 = 5;

/// Returns the names of the Nodes. The control plane has tokens for these names.
pub(super) fn node_names() -> Vec<String> {
    (0..PEER_COUNT).map(|number| format!("rack1-{number}")).collect()
}

/// Fills the discovery cache of kubectl, because a loop that has run for a long time has a filled cache.
pub(super) fn warm_up(plane: &ControlPlane) -> Result<()> {
    loop_programs(plane, 0)?.iter().try_for_each(|program| program.wall_ms().map(drop))
}

/// Durations and CPU time of the loops.
#[derive(Debug)]
pub(super) struct PeerUsage {
    /// Milliseconds of each iteration, which runs `label` and `annotate`.
    pub(super) millis: Vec<f64>,
    /// CPU time of all loops.
    pub(super) cpu_seconds: f64,
}

/// Returns the programs that a loop runs: `kubectl label` and `kubectl annotate`.
fn loop_programs(plane: &ControlPlane, number: u8) -> Result<[Program; 2]> {
    let kubeconfig =
        plane.write_kubeconfig(&format!("kubelet-{number}"), &format!("node-{number}"), false)?;
    // All loops share one cache of API discovery data, because the data is the same, and a loop that has run for a
    // long time has cached it.
    let cache = plane.folder().join("cache-of-loops");
    let node = format!("rack1-{number}");
    let program = |words: &[&str]| {
        let mut args = vec!["--kubeconfig".into(), kubeconfig.clone().into_os_string()];
        args.extend(["--cache-dir".into(), cache.clone().into_os_string()]);
        args.extend(words.iter().map(Into::into));
        Program {
            label: "kubectl".to_owned(),
            path: plane.assets().join("kubectl").into_os_string(),
            args,
            env: Vec::new(),
            missing_hint: "tests/cluster/assets.sh builds it with the control plane",
        }
    };
    // The labels do not change between the iterations, because the facts of the agents' hosts do not change either.
    let labels = ["host.example.com/smt=true", "host.example.com/hugepages-2Mi=true"];
    Ok([
        program(&["label", "--overwrite", "node", &node, labels[0], labels[1]]),
        program(&["annotate", "--overwrite", "node", &node, "host.example.com/ksm=off"]),
    ])
}

/// Runs the loops for this number of minutes. The iterations of different loops are spread over each minute.
pub(super) fn run_loops(plane: &ControlPlane, minutes: u32) -> Result<PeerUsage> {
    let loops: Vec<[Program; 2]> =
        (0..PEER_COUNT).map(|number| loop_programs(plane, number)).collect::<Result<_>>()?;
    let cpu = children_cpu_seconds()?;
    let begin = Instant::now();
    let millis = std::thread::scope(|scope| {
        let threads: Vec<_> = loops
            .iter()
            .zip(0..)
            .map(|(programs, number)| {
                let first = begin + LOOP_INTERVAL * number / u32::from(PEER_COUNT);
                scope.spawn(move || run_rounds(programs, first, minutes))
            })
            .collect();
        let mut millis = Vec::new();
        for thread in threads {
            millis.extend(thread.join().map_err(|_| anyhow!("a loop of kubectl panicked"))??);
        }
        anyhow::Ok(millis)
    })?;
    std::thread::sleep((begin + LOOP_INTERVAL * minutes).saturating_duration_since(Instant::now()));
    Ok(PeerUsage { millis, cpu_seconds: children_cpu_seconds()? - cpu })
}

/// Runs the iterations of one loop, and returns the milliseconds of each.
fn run_rounds(programs: &[Program; 2], first: Instant, rounds: u32) -> Result<Vec<f64>> {
    (0..rounds)
        .map(|round| {
            let begin = first + LOOP_INTERVAL * round;
            std::thread::sleep(begin.saturating_duration_since(Instant::now()));
            let [label, annotate] = programs;
            Ok(label.wall_ms()? + annotate.wall_ms()?)
        })
        .collect()
}

/// Returns the peak resident memory of `kubectl` for each run, in MiB.
pub(super) fn kubectl_peaks_mib(plane: &ControlPlane) -> Result<Vec<f64>> {
    let [label, _] = loop_programs(plane, 0)?;
    (0..MEMORY_RUNS).map(|_| label.peak_mib()).collect()
}

/// Returns the CPU time of all child processes that have ended.
fn children_cpu_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = (usage.user_time() + usage.system_time()).num_microseconds();
    Ok(Duration::from_micros(u64::try_from(micros)?).as_secs_f64())
}
