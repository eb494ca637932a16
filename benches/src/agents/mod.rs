//! Measures hundreds of agents with one real API server: requests, memory and CPU time while nothing changes, the
//! sizes of the objects, and the time until an agent applies a spec. For comparison, the benchmark runs loops of
//! `kubectl` at the same time.

mod audit;
mod fleet;
mod peers;
mod result;
mod server;
mod watch;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_api::names::AGENT_FIELD_MANAGER;
use berth_tests::cluster::{ControlPlane, Version};
use serde_json::{Value, json};

use audit::Requests;
use fleet::Fleet;
use peers::PeerUsage;
use server::ObjectSizes;
use watch::Watch;

use crate::memory::Usage;
use crate::output::OutputArgs;
use crate::progress::print_step;

/// User name of the agents at the API server.
const AGENTS_USER: &str = "system:serviceaccount:berth-system:berth-agent";
/// Time for the agents to become idle, between the first status of the last agent and the quiet phase (the phase in
/// which nothing changes).
const SETTLE_TIME: Duration = Duration::from_secs(30);
/// Time limit until all agents have published their first status, or the status for a new spec. It exceeds the 30
/// seconds after which an agent retries a failed start.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Arguments of kubectl for the write of a spec whose time is measured.
const SERVER_SIDE_APPLY: [&str; 5] = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
/// Number of rounds in which all agents get a new spec at once.
const FLEET_ROUNDS: u32 = 3;

/// Measures hundreds of agents with one API server.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// berth-agent binary to measure, built with the profile of a release (dist-agent)
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Number of agents, each with a simulated host and a Node
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=2000))]
    agents: u32,
    /// Length of the quiet phase in minutes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// Number of specs to apply to one InfraNode
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// All measured values.
#[derive(Debug)]
struct Measurements {
    version: Version,
    /// Memory and CPU time of the API server and of etcd at three times: when only Nodes exist, at the end of the
    /// quiet phase, and at the end of the benchmark.
    server_usage: [Vec<Usage>; 3],
    quiet: QuietPhase,
    /// Memory and CPU time of each agent at the end of the benchmark.
    final_usage: Vec<Usage>,
    sizes: ObjectSizes,
    single_applies: Vec<SingleApply>,
    fleet_applies: Vec<FleetApply>,
    /// Peak resident MiB of `kubectl`.
    kubectl_peaks_mib: Vec<f64>,
}

/// Requests, memory and CPU time while nothing changed.
#[derive(Debug)]
struct QuietPhase {
    seconds: f64,
    agent_requests: Requests,
    peer_requests: Requests,
    peer_usage: PeerUsage,
    /// Memory and CPU time of each agent at the end of the phase.
    usage: Vec<Usage>,
    /// CPU time of all agents during the phase.
    cpu_seconds: f64,
}

/// Times for a spec applied to one InfraNode, in milliseconds since the start of `kubectl apply`.
#[derive(Debug, Clone, Copy)]
struct SingleApply {
    kubectl_millis: f64,
    ready_millis: f64,
    /// Time between two watch events: the changed spec, and the status for this spec. `None` if the watch missed
    /// the changed spec.
    agent_millis: Option<f64>,
}

/// Times for a spec applied to all InfraNodes at once, in milliseconds since the first request.
#[derive(Debug)]
struct FleetApply {
    requests_sent_millis: f64,
    last_ready_millis: f64,
    /// Time of each agent, measured as in [`SingleApply`].
    agent_millis: Vec<f64>,
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let measured = measure(args)?;
    let host = crate::report::describe_host()?;
    args.output.publish(&result::build(args, args.output.date(), &host, &measured))
}

fn measure(args: &Args) -> Result<Measurements> {
    let plane = server::start()?;
    let names: Vec<String> = (1..=args.agents).map(|number| format!("host-{number}")).collect();
    let kubeconfig = plane.write_kubeconfig(
        AGENT_FIELD_MANAGER,
        &plane.create_token(AGENT_FIELD_MANAGER)?,
        false,
    )?;
    print_step(format_args!("start {} agents", args.agents));
    let mut fleet = Fleet::prepare(&args.agent, &kubeconfig, names)?;
    server::create_nodes(&plane, fleet.names())?;
    server::create_nodes(&plane, &peers::node_names())?;
    peers::warm_up(&plane)?;
    let before = server_usage(&plane)?;
    let mut watch = Watch::start(&plane)?;
    fleet.start()?;
    watch
        .wait_until_ready(fleet.names(), TIMEOUT)
        .map_err(|late| late.with_log(|name| fleet.log_tail(name)))?;
    std::thread::sleep(SETTLE_TIME);
    print_step(format_args!("measure idle agents for {} min", args.minutes));
    let quiet = measure_quiet_phase(&plane, &fleet, args.minutes)?;
    let idle = server_usage(&plane)?;
    let sizes = server::measure_sizes(&plane, fleet.names())?;
    let mut spec_count = 0;
    print_step("change the spec of single hosts, then of all hosts");
    let single_applies =
        measure_single_applies(&plane, &mut watch, &fleet, args.rounds, &mut spec_count)?;
    let fleet_applies = measure_fleet_applies(&plane, &mut watch, &fleet, &mut spec_count)?;
    Ok(Measurements {
        version: plane.version(),
        server_usage: [before, idle, server_usage(&plane)?],
        quiet,
        final_usage: fleet.usage()?,
        sizes,
        single_applies,
        fleet_applies,
        kubectl_peaks_mib: peers::kubectl_peaks_mib(&plane)?,
    })
}

fn server_usage(plane: &ControlPlane) -> Result<Vec<Usage>> {
    let (server, etcd) = plane.server_process_ids();
    Ok(vec![
        Usage::of_process(server.context("kube-apiserver has exited")?)?,
        Usage::of_process(etcd)?,
    ])
}

fn measure_quiet_phase(plane: &ControlPlane, fleet: &Fleet, minutes: u32) -> Result<QuietPhase> {
    let log_begin = audit_log(plane)?.len();
    let cpu = |taken: &[Usage]| taken.iter().map(|one| one.cpu_seconds).sum::<f64>();
    let before = cpu(&fleet.usage()?);
    let begin = Instant::now();
    let peer_usage = peers::run_loops(plane, minutes)?;
    let seconds = begin.elapsed().as_secs_f64();
    let log = audit_log(plane)?;
    let usage = fleet.usage()?;
    let log = log.get(log_begin..).context("the audit log was rotated")?;
    // The last line may be incomplete, because the API server is still writing it.
    let log = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    Ok(QuietPhase {
        seconds,
        agent_requests: Requests::count(log, |user| user == AGENTS_USER)?,
        peer_requests: Requests::count(log, |user| user.starts_with(peers::USER_PREFIX))?,
        peer_usage,
        cpu_seconds: cpu(&usage) - before,
        usage,
    })
}

#[expect(clippy::disallowed_methods, reason = "reads the log of the benchmark's API server")]
fn audit_log(plane: &ControlPlane) -> Result<String> {
    let path = plane.folder().join("audit.log");
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Returns a spec with values that no earlier spec had, and the files that the agent must write for this spec, each
/// with its expected value.
fn next_spec(spec_count: &mut u32) -> (Value, [(&'static str, u32); 2]) {
    *spec_count += 1;
    let (millis, pages) = (100 + *spec_count, 4096 + *spec_count);
    let spec = json!({
        "ksm": {"mode": "On", "sleepMillis": millis},
        "hugepages": [{"size": "2Mi", "zone": 1, "count": pages}],
    });
    let pool = "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    (spec, [("sys/kernel/mm/ksm/sleep_millisecs", millis), (pool, pages)])
}

fn ensure_applied(fleet: &Fleet, names: &[String], files: &[(&str, u32)]) -> Result<()> {
    for name in names {
        for (path, value) in files {
            let actual = fleet.read_file(name, path)?;
            ensure!(
                actual == value.to_string(),
                "{name} is Ready, but {path} has the value {actual}, not {value}"
            );
        }
    }
    Ok(())
}

fn millis_between(begin: Instant, end: Instant) -> f64 {
    end.saturating_duration_since(begin).as_secs_f64() * 1e3
}

fn measure_single_applies(
    plane: &ControlPlane,
    watch: &mut Watch<'_>,
    fleet: &Fleet,
    rounds: u32,
    spec_count: &mut u32,
) -> Result<Vec<SingleApply>> {
    let names = fleet.names().get(..1).unwrap_or_default();
    let mut measured = Vec::new();
    for _ in 0..rounds {
        // Waits until the agents are idle again before the next round.
        std::thread::sleep(Duration::from_secs(1));
        let (spec, files) = next_spec(spec_count);
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "InfraNode",
            "metadata": {"name": names.first()}, "spec": spec,
        });
        let begin = Instant::now();
        plane.kubectl_with(&plane.kubeconfig(), &SERVER_SIDE_APPLY, &object.to_string())?;
        let kubectl = millis_between(begin, Instant::now());
        let ready_times = watch
            .wait_until_ready(names, TIMEOUT)
            .map_err(|late| late.with_log(|name| fleet.log_tail(name)))?;
        ensure_applied(fleet, names, &files)?;
        measured.extend(ready_times.iter().map(|answer| SingleApply {
            kubectl_millis: kubectl,
            ready_millis: millis_between(begin, answer.became_ready),
            agent_millis:
                answer.spec_changed.map(|asked| millis_between(asked, answer.became_ready)),
        }));
    }
    Ok(measured)
}

fn measure_fleet_applies(
    plane: &ControlPlane,
    watch: &mut Watch<'_>,
    fleet: &Fleet,
    spec_count: &mut u32,
) -> Result<Vec<FleetApply>> {
    let mut measured = Vec::new();
    for _ in 0..FLEET_ROUNDS {
        std::thread::sleep(Duration::from_secs(5));
        let (spec, files) = next_spec(spec_count);
        let begin = Instant::now();
        server::patch_all_specs(plane, fleet.names(), &spec)?;
        let requests_sent = millis_between(begin, Instant::now());
        let ready_times = watch
            .wait_until_ready(fleet.names(), TIMEOUT)
            .map_err(|late| late.with_log(|name| fleet.log_tail(name)))?;
        ensure_applied(fleet, fleet.names(), &files)?;
        measured.push(FleetApply {
            requests_sent_millis: requests_sent,
            last_ready_millis: ready_times
                .iter()
                .map(|one| millis_between(begin, one.became_ready))
                .fold(0.0, f64::max),
            agent_millis: ready_times
                .iter()
                .filter_map(|one| Some(millis_between(one.spec_changed?, one.became_ready)))
                .collect(),
        });
    }
    Ok(measured)
}
