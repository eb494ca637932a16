//! Measures how long a changed label of a host needs to reach the Nodes of all tenants on this host, compared with
//! a plain client that patches these Nodes. Two tenants have real API servers; one emulated server answers for all
//! other tenants. Also measures requests and memory of the controller while nothing changes.

mod fake;
mod namespace;
mod peer;
mod result;
mod server;
mod setup;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_tests::cluster::Version;
use serde_json::json;

use crate::memory::Usage;
use crate::output::OutputArgs;
use crate::progress::print_step;
use fake::{FakeTenants, RequestCounts};
use peer::Peer;
use setup::Testbed;

/// Time limit for each phase.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Time without a request to the emulated server after which the controller counts as idle.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// Interval between two reads of a Node of a real API server.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Label of a host that the controller copies to Nodes.
const LABEL: &str = "example.com/rack";
/// Label that the plain client (the peer) sets on Nodes.
const PEER_LABEL: &str = "example.com/peer";

/// Measures the controller with connections to many tenants.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// berth-controller binary to measure, built with the profile of a release (dist)
    #[arg(long, value_name = "PATH")]
    controller: PathBuf,
    /// Number of tenants; two of them have real API servers
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    tenants: u32,
    /// Number of machines and Nodes of each tenant; the first one is on the host whose label changes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    machines: u32,
    /// Number of hosts
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    hosts: u32,
    /// Number of changes of the label
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of the phase in which nothing changes, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    idle_seconds: u32,
    /// Number of parallel requests of the plain client
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    at_once: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// All measured values.
#[derive(Debug)]
struct Measurements {
    version: Version,
    real_servers: usize,
    /// Seconds from the first kubeconfig until all Nodes have the label.
    connect_seconds: f64,
    rounds: Vec<Round>,
    /// Requests to the emulated server while nothing changed.
    idle: RequestCounts,
    idle_cpu_seconds: f64,
    usage: Usage,
}

/// Times until one change of the label has reached the Nodes, in seconds. Each time starts before the label of the
/// host is changed.
#[derive(Debug, Clone, Default)]
struct Round {
    /// Seconds until each Node of a machine on the host had the label.
    nodes: Vec<f64>,
    /// Seconds until the plain client had patched the same Nodes.
    peer: f64,
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    crate::program::ensure_controller_exists(&args.controller)?;
    if !namespace::is_in_namespace() {
        return namespace::run_in_namespace();
    }
    let measured = measure(args)?;
    let host = crate::report::describe_host()?;
    args.output.publish(&result::build(args, args.output.date(), &host, &measured))
}

fn measure(args: &Args) -> Result<Measurements> {
    let testbed = setup::start(args)?;
    print_step(format_args!("connect {} tenants", args.tenants));
    let connect_seconds = testbed.connect_tenants(args)?;
    wait_until_idle(&testbed.fake_tenants)?;
    let peer = Peer::new(&testbed.kubeconfigs, usize::try_from(args.at_once)?)?;
    let mut rounds = Vec::new();
    // In its first round the peer opens its connections, so this round is not counted.
    peer.patch_all("warm-up")?;
    for number in 1..=args.rounds {
        print_step(format_args!("change {number} of {}", args.rounds));
        let value = format!("round-{number}");
        let nodes = change_label(&testbed, &value)?;
        wait_until_idle(&testbed.fake_tenants)?;
        let peer = peer.patch_all(&value)?.as_secs_f64();
        wait_until_idle(&testbed.fake_tenants)?;
        rounds.push(Round { nodes, peer });
    }
    drop(peer);
    print_step(format_args!("wait for {} s without changes", args.idle_seconds));
    let (before, cpu_before) =
        (testbed.fake_tenants.counts(), testbed.controller_usage()?.cpu_seconds);
    std::thread::sleep(Duration::from_secs(args.idle_seconds.into()));
    let usage = testbed.controller_usage()?;
    let idle = testbed.fake_tenants.counts().delta_since(before);
    let connected = testbed.connected_count()?;
    ensure!(
        connected == usize::try_from(args.tenants)?,
        "only {connected} of {} tenants are connected at the end",
        args.tenants
    );
    Ok(Measurements {
        version: testbed.infra.version(),
        real_servers: testbed.real_tenants.len(),
        connect_seconds,
        rounds,
        idle,
        idle_cpu_seconds: usage.cpu_seconds - cpu_before,
        usage,
    })
}

/// Changes the label of the first host, and returns the seconds until each Node of its machines has the label.
fn change_label(testbed: &Testbed, value: &str) -> Result<Vec<f64>> {
    testbed.fake_tenants.clear_arrivals();
    let change = json!({"metadata": {"labels": {LABEL: value}}});
    let begin = Instant::now();
    testbed.cluster.merge("/api/v1/nodes", "", &[(setup::host_name(1), change)])?;
    let mut real_times: Vec<Option<Duration>> = vec![None; testbed.real_tenants.len()];
    loop {
        for (tenant, time) in testbed.real_tenants.iter().zip(&mut real_times) {
            if time.is_none() && tenant.label(LABEL)?.as_deref() == Some(value) {
                *time = Some(begin.elapsed());
            }
        }
        let arrivals = testbed.fake_tenants.arrivals(value);
        let known: Vec<f64> = real_times.iter().flatten().map(Duration::as_secs_f64).collect();
        let count = arrivals.len() + known.len();
        if count >= testbed.fake_tenants.tenant_count() + testbed.real_tenants.len() {
            let fake = arrivals.iter().map(|at| at.duration_since(begin).as_secs_f64());
            return Ok(fake.chain(known).collect());
        }
        ensure!(
            begin.elapsed() < TIMEOUT,
            "timeout: {count} Nodes have the label: {}",
            testbed.log_tail()
        );
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until the emulated server has received no request for [`SETTLE_TIME`].
fn wait_until_idle(fake: &Arc<FakeTenants>) -> Result<()> {
    let begin = Instant::now();
    loop {
        let before = fake.counts();
        std::thread::sleep(SETTLE_TIME);
        if fake.counts().delta_since(before).without_watches() == 0 {
            return Ok(());
        }
        ensure!(begin.elapsed() < TIMEOUT, "the controller does not become idle");
    }
}
