//! Measures the scheduler extender of the controller as a separate process, with a real API server and a real
//! kube-scheduler: the time of an answer, the pods bound per second, and the time until the first decision after a
//! start with a full fleet.

mod binding_rate;
mod cold_start;
mod connection;
mod filter;
mod peer;
mod process;
mod result;
mod setup;

use std::path::PathBuf;

use anyhow::{Context, Result};
use berth_tests::cluster::Version;

use binding_rate::{BindingRates, Testbed};
use cold_start::ColdStart;
use filter::{FilterRequest, FilterTimes};
pub(crate) use peer::{AcceptAllArgs, accept_all};
use process::Peer;

use crate::cluster::Cluster;
use crate::memory::Usage;
use crate::output::OutputArgs;
use crate::program::ensure_controller_exists;
use crate::progress::print_step;

/// Number of parallel requests while the benchmark creates objects.
const CONCURRENCY: usize = 32;

/// Measures the scheduler extender of the controller.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// berth-controller binary to measure, built with the profile of a release (dist)
    #[arg(long, value_name = "PATH")]
    controller: PathBuf,
    /// Number of hosts; for the cold start and `filter`, each host has ten VMs
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    hosts: u32,
    /// Number of `filter` calls for each kind of VM; less than twice the number of hosts
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(100..))]
    requests: u32,
    /// Number of cold starts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    starts: u32,
    /// Number of pairs of runs that measure the pods bound per second
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Number of pods in each of these runs
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..))]
    pods: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// All measured values.
#[derive(Debug)]
struct Measurements {
    version: Version,
    rates: BindingRates,
    /// Number of pods of the full fleet, and the size in bytes of one pod as JSON.
    pods: (usize, usize),
    cold_starts: Vec<ColdStart>,
    filter_times: FilterTimes,
    /// CPU time and memory of the controller that was started last, after all calls.
    usage: Usage,
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    ensure_controller_exists(&args.controller)?;
    let measured = measure(args)?;
    let host = crate::report::describe_host()?;
    args.output.publish(&result::build(args, args.output.date(), &host, &measured))
}

fn measure(args: &Args) -> Result<Measurements> {
    let hosts = usize::try_from(args.hosts)?;
    print_step(format_args!("create {hosts} hosts"));
    let mut plane = setup::start()?;
    let cluster = Cluster::new(&plane.kubeconfig(), CONCURRENCY)?;
    setup::create_hosts(&cluster, hosts)?;
    let pods = usize::try_from(args.pods)?;
    let mut testbed =
        Testbed { plane: &mut plane, cluster: &cluster, controller: &args.controller, pods };
    let rates = testbed.measure(usize::try_from(args.pairs)?)?;

    print_step("create ten VMs for each host");
    let pods = setup::create_vms(&cluster, hosts)?;
    let request = FilterRequest::new(hosts);
    let mut starts = Vec::new();
    let mut last = None;
    for number in 0..usize::try_from(args.starts)? {
        if let Some(before) = last.take() {
            process::Extender::terminate(before)?;
        }
        print_step(format_args!("cold start {} of {}", number + 1, args.starts));
        // The pods of the cold starts have higher numbers than the pods of all later calls, so that no pod is used
        // twice.
        let (start, extender) =
            cold_start::measure(&args.controller, &plane, &request, 1_000_000 + number)?;
        starts.push(start);
        last = Some(extender);
    }
    let extender = last.context("no cold start was measured")?;
    let peer = Peer::start()?;
    let requests = usize::try_from(args.requests)?;
    print_step(format_args!("{requests} calls of filter for each kind of VM"));
    let times = filter::measure(extender.port, peer.port, &request, requests)?;
    let usage = extender.usage()?;
    extender.terminate()?;
    Ok(Measurements {
        version: plane.version(),
        rates,
        pods,
        cold_starts: starts,
        filter_times: times,
        usage,
    })
}
