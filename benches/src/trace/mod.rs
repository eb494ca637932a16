//! Replays the Azure trace on simulated NUMA hosts, and measures which part of the hosts' CPUs each placement
//! policy can use. A model of the kubelet's admission checks the choices of all policies.

mod arrivals;
mod cluster;
mod plot;
mod policy;
mod replay;
mod result;
mod synthetic;

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use berth_api::PageSize;

use arrivals::{Trace, Vm};
use cluster::Cluster;
use policy::{POLICY_NAMES, create_policy};
use replay::{Outcome, fill_cluster, replay};

use crate::output::OutputArgs;
use crate::progress::print_step;
use crate::report;

/// Replays VM arrivals on hosts with two NUMA zones: with kube-scheduler, with full information, and with Berth.
///
/// The trace is the file in `BERTH_AZURE_TRACE`, or all files of `tests/data/azure-trace/`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Generate VMs even if a trace is present
    #[arg(long)]
    synthetic: bool,
    /// Number of hosts, each with two NUMA zones
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=5000))]
    hosts: u16,
    /// Average requested CPUs, as a fraction of all pinnable CPUs
    #[arg(long, value_delimiter = ',', default_values_t = [0.90, 0.95, 1.00], value_parser = parse_load)]
    loads: Vec<f64>,
    /// Size of the huge pages
    #[arg(long, default_value = "1Gi")]
    page: PageSize,
    #[command(flatten)]
    output: OutputArgs,
    /// File for the plot
    #[arg(long, value_name = "FILE", default_value = "docs/packing.svg")]
    plot: PathBuf,
}

fn parse_load(text: &str) -> Result<f64> {
    let load: f64 = text.parse()?;
    anyhow::ensure!((0.05..=3.0).contains(&load), "must be between 0.05 and 3");
    Ok(load)
}

/// Result of one trace at one load: the outcome of each policy in the order of [`POLICY_NAMES`].
#[derive(Debug)]
struct LoadRun {
    load: f64,
    vm_count: usize,
    outcomes: Vec<Outcome>,
}

/// Results of one trace: the usable fraction of the CPUs for each policy, and all runs.
#[derive(Debug)]
struct TraceResult {
    trace: Trace,
    /// For each policy, the pinned CPUs as a fraction of all CPUs at the highest accepted load: at most
    /// [`MAX_LOST_FRACTION`] of the VMs did not run.
    usable_fraction: Vec<f64>,
    runs: Vec<LoadRun>,
}

/// Maximum fraction of VMs that may not run at an accepted load.
const MAX_LOST_FRACTION: f64 = 0.01;
/// Number of bisection steps to find the highest accepted load.
const BISECTION_STEPS: u32 = 7;

/// Replays the traces, publishes the result and draws the plot. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let empty = Cluster::new(usize::from(args.hosts), args.page)?;
    let mut all = Vec::new();
    for trace in read_traces(args.synthetic)? {
        let mut runs = Vec::new();
        for load in &args.loads {
            print_step(format_args!("replay {} with load {load}", trace.name));
            let vms = trace.scale_to(load * empty.pinnable_cpus());
            ensure!(!vms.is_empty(), "{}: no VM is left at this load", trace.name);
            let outcomes = (0..POLICY_NAMES.len()).map(|at| -> Result<Outcome> {
                let (mut outcome, cluster) = replay_policy(at, &empty, &vms, trace.days)?;
                fill_cluster(&mut outcome, cluster, &vms)?;
                Ok(outcome)
            });
            let outcomes = outcomes.collect::<Result<_>>()?;
            runs.push(LoadRun { load: *load, vm_count: vms.len(), outcomes });
        }
        let usable_part = (0..POLICY_NAMES.len())
            .map(|at| measure_usable_fraction(at, &empty, &trace))
            .collect::<Result<_>>()?;
        all.push(TraceResult { trace, usable_fraction: usable_part, runs });
    }
    let met = args.output.publish(&result::build(
        args,
        args.output.date(),
        &report::describe_host()?,
        &all,
    ))?;
    // The plot shows the first trace at the middle load.
    if let Some((trace, run)) =
        all.first().and_then(|all| Some((&all.trace, all.runs.get(all.runs.len() / 2)?)))
    {
        let svg = plot::draw(&trace.name, run, trace.days);
        fs::write(&args.plot, svg).with_context(|| format!("write {}", args.plot.display()))?;
    }
    Ok(met)
}

fn replay_policy(at: usize, empty: &Cluster, vms: &[Vm], days: f64) -> Result<(Outcome, Cluster)> {
    let mut policy = create_policy(at, empty.hosts.len(), empty.page)?;
    let mut cluster = empty.clone();
    let outcome =
        replay(policy.as_mut(), &mut cluster, vms, days).with_context(|| POLICY_NAMES[at])?;
    Ok((outcome, cluster))
}

/// Returns the fraction of the CPUs that a policy can use, see [`TraceResult::usable_fraction`]. `at` is the index
/// of the policy.
fn measure_usable_fraction(at: usize, empty: &Cluster, trace: &Trace) -> Result<f64> {
    let (mut low, mut high, mut packed) = (0.0, 1.1, 0.0);
    for _ in 0..BISECTION_STEPS {
        let load = f64::midpoint(low, high);
        let vms = trace.scale_to(load * empty.pinnable_cpus());
        let (outcome, _) = replay_policy(at, empty, &vms, trace.days)?;
        if outcome.rejected_fraction() <= MAX_LOST_FRACTION {
            (low, packed) = (load, outcome.mean_pinned);
        } else {
            high = load;
        }
    }
    Ok(packed)
}

fn read_traces(synthetic: bool) -> Result<Vec<Trace>> {
    let mut files = Vec::new();
    if let Some(file) = env::var_os("BERTH_AZURE_TRACE").filter(|_| !synthetic) {
        files.push(PathBuf::from(file));
    } else if !synthetic {
        files = berth_tests::data::files("azure-trace", ".csv.gz");
        // Reverses the alphabetical order, so that the trace whose VMs were sampled individually comes first.
        files.reverse();
    }
    if files.is_empty() {
        return Ok(vec![synthetic::generate_trace(1)]);
    }
    files.iter().map(|file| Trace::read(file)).collect()
}
