//! Measures the controller with a thousand tenants and ten thousand machines against a real API server, compared with
//! a plain client that creates the same objects with one request each. Also measures the rendering of a
//! MachineDeployment.

mod controller;
mod machines;
mod peer;
mod render;
mod result;
mod world;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use berth_tests::cluster::{ControlPlane, Version};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::counts::Counts;
use controller::{Controller, Sent};
use peer::Made;
use render::Rendered;

use crate::memory::Taken;
use crate::output::Output;

/// Time limit for each phase.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// The controller is idle if it sends at most this many requests in this time. Lease renewals and restarted watches
/// cause these requests.
const CALM: (f64, Duration) = (6.0, Duration::from_secs(8));
/// Length of a phase in which nothing changes.
const QUIET: Duration = Duration::from_secs(60);
/// Resync interval of the second start. Three resyncs run in a minute.
const RESYNC: Duration = Duration::from_secs(20);
/// Resync interval of the first start. The interval is longer than the benchmark.
const NEVER: Duration = Duration::from_secs(86_400);

/// Measures the controller with many tenants and machines.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The controller to measure: the dist build, since that is what is shipped
    #[arg(long, value_name = "PATH")]
    controller: PathBuf,
    /// TenantClusters, each with a VLAN and one MachineDeployment
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=3_900))]
    tenants: u32,
    /// Machines of each
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// Hosts that carry all of them
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// Parallel requests of the client, as many as the controller reconciles objects in parallel
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    at_once: u32,
    /// Runs of `render` and its peers
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    #[command(flatten)]
    output: Output,
}

/// All measured values.
#[derive(Debug)]
struct Measured {
    version: Version,
    /// Seconds since the first TenantCluster was created.
    tenants: Tenants,
    /// Seconds from the first MachineDeployment until all machines and their Secrets exist.
    machines: f64,
    of_tenants: Phase,
    of_machines: Phase,
    quiet: Phase,
    /// Phase after a restart of the controller.
    again: Phase,
    /// A minute after the restart, with resyncs.
    resync: Phase,
    /// Number of objects that the controller has created, for tenants and for machines.
    made: (u64, u64),
    /// Seconds of the plain client, for tenants and for machines.
    peer: (f64, f64),
    rendered: Rendered,
}

/// Seconds until all tenants reached a state.
#[derive(Debug, Default)]
struct Tenants {
    /// All TenantClusters are created.
    asked: f64,
    /// All tenants have a VLAN and the dependent objects.
    objects: f64,
    /// All hosts have the networks of all tenants.
    hosts: f64,
}

/// Requests and usage of the controller until the controller was idle, or in a fixed time.
#[derive(Debug)]
struct Phase {
    seconds: f64,
    /// Requests from the metrics of the controller.
    sent: Sent,
    /// Requests from the metrics of the API server, without the requests of the benchmark. The number includes
    /// requests that the API server sends to itself.
    requests: Counts,
    cpu_seconds: f64,
    taken: Taken,
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    crate::program::must_be_there(&args.controller)?;
    let measured = measure(args)?;
    let host = crate::report::host()?;
    args.output.publish(&result::of(args, args.output.date(), &host, &measured))
}

/// The control plane, the client and the controller under test.
struct Bed<'a> {
    plane: &'a ControlPlane,
    cluster: &'a Cluster,
    controller: Controller,
}

/// Values of all counters at a point in time.
struct Mark {
    begin: Instant,
    sent: Sent,
    server: Counts,
    own: Counts,
    cpu_seconds: f64,
}

impl Bed<'_> {
    fn mark(&self) -> Result<Mark> {
        Ok(Mark {
            begin: Instant::now(),
            sent: self.controller.sent()?,
            server: self.server()?,
            own: self.cluster.own(),
            cpu_seconds: self.controller.taken()?.cpu_seconds,
        })
    }

    fn server(&self) -> Result<Counts> {
        Ok(Counts::of_server(&self.plane.kubectl(&["get", "--raw", "/metrics"])?))
    }

    fn since(&self, mark: &Mark) -> Result<Phase> {
        let taken = self.controller.taken()?;
        // Reads the counters in this order, so that no request of the benchmark is counted for the controller.
        let server = self.server()?;
        let own = self.cluster.own();
        Ok(Phase {
            seconds: mark.begin.elapsed().as_secs_f64(),
            sent: self.controller.sent()?.since(mark.sent),
            requests: server.since(&mark.server, &own, &mark.own),
            cpu_seconds: taken.cpu_seconds - mark.cpu_seconds,
            taken,
        })
    }

    /// Waits until the controller is idle. The waiting time is not counted.
    fn calm(&self, mark: &Mark) -> Result<Phase> {
        let begin = Instant::now();
        let mut phase = self.since(mark)?;
        loop {
            std::thread::sleep(CALM.1);
            let next = self.since(mark)?;
            if next.sent.since(phase.sent).all <= CALM.0 {
                return Ok(phase);
            }
            anyhow::ensure!(begin.elapsed() < TIMEOUT, "the controller does not come to rest");
            phase = next;
        }
    }
}

fn measure(args: &Args) -> Result<Measured> {
    let at_once = usize::try_from(args.at_once)?;
    let plane = world::start()?;
    let cluster = Cluster::of(&plane.kubeconfig(), at_once)?;
    world::make_hosts(&cluster, args.hosts)?;
    let controller = Controller::start(&args.controller, &plane, NEVER, "first")?;
    world::await_hosts(&cluster, args.hosts)?;
    let bed = Bed { plane: &plane, cluster: &cluster, controller };
    let mark = bed.mark()?;
    let tenants = make_tenants(&cluster, args.tenants)?;
    let of_tenants = bed.calm(&mark)?;
    cluster.create(&machines::user_data(args.tenants))?;
    let mark = bed.mark()?;
    let machines = make_machines(&cluster, args)?;
    let of_machines = bed.calm(&mark)?;
    let mark = bed.mark()?;
    std::thread::sleep(QUIET);
    let quiet = bed.since(&mark)?;
    bed.controller.end()?;

    let (server, own, begin) = (bed_counts(&plane)?, cluster.own(), Instant::now());
    let controller = Controller::start(&args.controller, &plane, RESYNC, "second")?;
    let bed = Bed { plane: &plane, cluster: &cluster, controller };
    let mark = Mark { begin, sent: Sent::default(), server, own, cpu_seconds: 0.0 };
    let again = bed.calm(&mark)?;
    let mark = bed.mark()?;
    std::thread::sleep(QUIET);
    let resync = bed.since(&mark)?;
    bed.controller.end()?;

    let made = Made::of(&cluster)?;
    let rendered = render::measure(&args.controller, &plane, args.runs)?;
    let version = plane.version();
    drop(cluster);
    drop(plane);
    Ok(Measured {
        version,
        tenants,
        machines,
        of_tenants,
        of_machines,
        quiet,
        again,
        resync,
        made: made.sizes(),
        peer: made.again(at_once, args.tenants, args.replicas)?,
        rendered,
    })
}

fn bed_counts(plane: &ControlPlane) -> Result<Counts> {
    Ok(Counts::of_server(&plane.kubectl(&["get", "--raw", "/metrics"])?))
}

/// Returns true if all given conditions of a tenant are True.
fn says(tenant: &Value, conditions: &[&str]) -> bool {
    let all = tenant["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_so =
        |name: &&str| all.iter().any(|one| one["type"] == **name && one["status"] == "True");
    conditions.iter().all(is_so)
}

fn make_tenants(cluster: &Cluster, count: u32) -> Result<Tenants> {
    let begin = Instant::now();
    let asked = cluster.create(&machines::tenants(count))?.as_secs_f64();
    let wanted = usize::try_from(count)?;
    let until = |parts: &[&str]| {
        cluster.until(&parts.join(", "), TIMEOUT, |cluster| {
            let all = cluster.cached("/apis/berth.dev/v1alpha1/tenantclusters")?;
            let is_so = |one: &&Value| one["status"]["vlan"].is_u64() && says(one, parts);
            let so = all.iter().filter(is_so).count();
            Ok(if so == wanted {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(format!("{so} of {wanted} tenants"))
            })
        })?;
        anyhow::Ok(begin.elapsed().as_secs_f64())
    };
    let objects = until(&["NetworkReady", "PoliciesReady", "ObjectsReady"])?;
    Ok(Tenants { asked, objects, hosts: until(&["HostsReady"])? })
}

fn make_machines(cluster: &Cluster, args: &Args) -> Result<f64> {
    const SECRETS: &str = "/api/v1/secrets";
    let wanted = u64::from(args.tenants).saturating_mul(u64::from(args.replicas));
    let before = cluster.count(SECRETS)?;
    let begin = Instant::now();
    cluster.create(&machines::deployments(args.tenants, args.replicas))?;
    cluster.until("all machines", TIMEOUT, |cluster| {
        let vms = cluster.count("/apis/kubevirt.io/v1/virtualmachines")?;
        let secrets = cluster.count(SECRETS)?.saturating_sub(before);
        let there = vms >= wanted && secrets >= wanted;
        Ok(if there {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(format!("{vms} VMs, {secrets} Secrets of {wanted}"))
        })
    })?;
    Ok(begin.elapsed().as_secs_f64())
}
