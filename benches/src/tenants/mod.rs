//! Measures the controller with a thousand tenants and ten thousand machines on a real API server, compared with a
//! plain client that creates the same objects with one request each. Also measures the time to render a
//! MachineDeployment.

mod controller;
mod machines;
mod peer;
mod render;
mod result;
mod setup;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use berth_tests::cluster::{ControlPlane, Version};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::counts::RequestCounts;
use controller::{Controller, SentRequests};
use peer::CreatedObjects;
use render::RenderTimes;

use crate::memory::Usage;
use crate::output::OutputArgs;
use crate::progress::print_step;

/// Time limit for each phase.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum number of requests in this time for which the controller counts as idle. An idle controller still renews
/// its Lease and restarts watches.
const IDLE_THRESHOLD: (f64, Duration) = (6.0, Duration::from_secs(8));
/// Length of a phase in which nothing changes.
const QUIET_TIME: Duration = Duration::from_secs(60);
/// Resync interval of the second start, so that three resyncs run within [`QUIET_TIME`].
const RESYNC: Duration = Duration::from_secs(20);
/// Resync interval of the first start. It is longer than the benchmark, so no resync runs.
const NO_RESYNC: Duration = Duration::from_secs(86_400);

/// Measures the controller with many tenants and machines.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// berth-controller binary to measure, built with the profile of a release (dist)
    #[arg(long, value_name = "PATH")]
    controller: PathBuf,
    /// Number of TenantClusters, each with a VLAN and one MachineDeployment
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=3_900))]
    tenants: u32,
    /// Number of machines of each MachineDeployment
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    replicas: u32,
    /// Number of hosts, each with the networks of all tenants
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// Number of parallel requests of the client; the controller reconciles eight objects in parallel
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    at_once: u32,
    /// Each machine imports its image; by default, the disks are clones of one golden image
    #[arg(long)]
    own_imports: bool,
    /// Number of runs of `render` and of its peers
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// All measured values.
#[derive(Debug)]
struct Measurements {
    version: Version,
    /// Seconds from the first TenantCluster until all tenants reached each state.
    tenant_times: TenantTimes,
    /// Seconds from the first MachineDeployment until all machines and their Secrets exist.
    machines_seconds: f64,
    tenants_phase: Phase,
    machines_phase: Phase,
    quiet_phase: Phase,
    /// Measurements after a restart of the controller, until it is idle.
    restart_phase: Phase,
    /// Measurements in the minute after `restart_phase`, in which nothing changes and the controller resyncs its
    /// objects.
    resync_phase: Phase,
    /// Number of objects that the controller has created, for tenants and for machines.
    created_objects: (u64, u64),
    /// Seconds that the plain client needed, for tenants and for machines.
    peer_seconds: (f64, f64),
    render_times: RenderTimes,
}

/// Seconds from the first TenantCluster until all tenants had reached a state.
#[derive(Debug, Default)]
struct TenantTimes {
    /// All TenantClusters are created.
    created_seconds: f64,
    /// All tenants have a VLAN and the dependent objects.
    objects_seconds: f64,
    /// All hosts have the networks of all tenants.
    hosts_seconds: f64,
}

/// Requests and usage of the controller in a phase, which ends when the controller is idle or after a fixed time.
#[derive(Debug)]
struct Phase {
    seconds: f64,
    /// Requests according to the metrics of the controller.
    sent: SentRequests,
    /// Requests according to the metrics of the API server, without the requests of the benchmark. They include the
    /// requests that the API server sends to itself.
    requests: RequestCounts,
    cpu_seconds: f64,
    usage: Usage,
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    crate::program::ensure_controller_exists(&args.controller)?;
    let measured = measure(args)?;
    let host = crate::report::describe_host()?;
    args.output.publish(&result::build(args, args.output.date(), &host, &measured))
}

/// The control plane, the client and the controller under test.
struct Testbed<'a> {
    plane: &'a ControlPlane,
    cluster: &'a Cluster,
    controller: Controller,
}

/// Values of all counters at a point in time.
struct Snapshot {
    begin: Instant,
    sent: SentRequests,
    server: RequestCounts,
    client_requests: RequestCounts,
    cpu_seconds: f64,
}

impl Testbed<'_> {
    fn snapshot(&self) -> Result<Snapshot> {
        Ok(Snapshot {
            begin: Instant::now(),
            sent: self.controller.sent_requests()?,
            server: self.server_requests()?,
            client_requests: self.cluster.sent_requests(),
            cpu_seconds: self.controller.usage()?.cpu_seconds,
        })
    }

    fn server_requests(&self) -> Result<RequestCounts> {
        Ok(RequestCounts::from_server_metrics(&self.plane.kubectl(&["get", "--raw", "/metrics"])?))
    }

    fn phase_since(&self, snapshot: &Snapshot) -> Result<Phase> {
        let usage = self.controller.usage()?;
        // The metrics of the API server are read before the client's own counter, so that no request of the
        // benchmark is attributed to the controller.
        let server = self.server_requests()?;
        let client_requests = self.cluster.sent_requests();
        Ok(Phase {
            seconds: snapshot.begin.elapsed().as_secs_f64(),
            sent: self.controller.sent_requests()?.delta_since(snapshot.sent),
            requests: server.delta_since(
                &snapshot.server,
                &client_requests,
                &snapshot.client_requests,
            ),
            cpu_seconds: usage.cpu_seconds - snapshot.cpu_seconds,
            usage,
        })
    }

    /// Waits until the controller is idle, and returns the measurements since `snapshot`. The time during which the
    /// controller was already idle is not counted.
    fn wait_until_idle(&self, snapshot: &Snapshot) -> Result<Phase> {
        let begin = Instant::now();
        let mut phase = self.phase_since(snapshot)?;
        loop {
            std::thread::sleep(IDLE_THRESHOLD.1);
            let next = self.phase_since(snapshot)?;
            if next.sent.delta_since(phase.sent).total <= IDLE_THRESHOLD.0 {
                return Ok(phase);
            }
            anyhow::ensure!(begin.elapsed() < TIMEOUT, "the controller does not become idle");
            phase = next;
        }
    }
}

fn measure(args: &Args) -> Result<Measurements> {
    let at_once = usize::try_from(args.at_once)?;
    let plane = setup::start()?;
    let cluster = Cluster::new(&plane.kubeconfig(), at_once)?;
    print_step(format_args!("create {} hosts", args.hosts));
    setup::create_hosts(&cluster, args.hosts, !args.own_imports)?;
    let controller = Controller::start(&args.controller, &plane, NO_RESYNC, "first")?;
    setup::wait_for_hosts(&cluster, args.hosts)?;
    if !args.own_imports {
        setup::complete_import(&cluster)?;
    }
    let testbed = Testbed { plane: &plane, cluster: &cluster, controller };
    let snapshot = testbed.snapshot()?;
    print_step(format_args!("create {} tenants", args.tenants));
    let tenants = create_tenants(&cluster, args.tenants)?;
    let tenants_phase = testbed.wait_until_idle(&snapshot)?;
    cluster.create(&machines::user_data_secrets(args.tenants))?;
    let snapshot = testbed.snapshot()?;
    print_step("create the machines of all tenants");
    let machines = create_machines(&cluster, args)?;
    let machines_phase = testbed.wait_until_idle(&snapshot)?;
    let snapshot = testbed.snapshot()?;
    std::thread::sleep(QUIET_TIME);
    let quiet = testbed.phase_since(&snapshot)?;
    testbed.controller.terminate()?;

    print_step("start a second controller");
    let (server, client_requests, begin) =
        (server_requests(&plane)?, cluster.sent_requests(), Instant::now());
    let controller = Controller::start(&args.controller, &plane, RESYNC, "second")?;
    let testbed = Testbed { plane: &plane, cluster: &cluster, controller };
    let snapshot = Snapshot {
        begin,
        sent: SentRequests::default(),
        server,
        client_requests,
        cpu_seconds: 0.0,
    };
    let restart_phase = testbed.wait_until_idle(&snapshot)?;
    let snapshot = testbed.snapshot()?;
    std::thread::sleep(QUIET_TIME);
    let resync = testbed.phase_since(&snapshot)?;
    testbed.controller.terminate()?;

    let created_objects = CreatedObjects::list(&cluster)?;
    print_step("render all machines from files");
    let rendered = render::measure(&args.controller, &plane, args.runs)?;
    let version = plane.version();
    drop(cluster);
    drop(plane);
    Ok(Measurements {
        version,
        tenant_times: tenants,
        machines_seconds: machines,
        tenants_phase,
        machines_phase,
        quiet_phase: quiet,
        restart_phase,
        resync_phase: resync,
        created_objects: created_objects.counts(),
        peer_seconds: created_objects.recreate(at_once, args.tenants, args.replicas)?,
        render_times: rendered,
    })
}

fn server_requests(plane: &ControlPlane) -> Result<RequestCounts> {
    Ok(RequestCounts::from_server_metrics(&plane.kubectl(&["get", "--raw", "/metrics"])?))
}

/// Returns true if all these conditions of a tenant are `True`.
fn are_conditions_true(tenant: &Value, conditions: &[&str]) -> bool {
    let all = tenant["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_true =
        |name: &&str| all.iter().any(|one| one["type"] == **name && one["status"] == "True");
    conditions.iter().all(is_true)
}

fn create_tenants(cluster: &Cluster, count: u32) -> Result<TenantTimes> {
    let begin = Instant::now();
    let created = cluster.create(&machines::tenants(count))?.as_secs_f64();
    let wanted = usize::try_from(count)?;
    let wait_for_conditions = |parts: &[&str]| {
        cluster.wait_until(&parts.join(", "), TIMEOUT, |cluster| {
            let all = cluster.list_from_cache("/apis/berth.dev/v1alpha1/tenantclusters")?;
            let is_ready =
                |one: &&Value| one["status"]["vlan"].is_u64() && are_conditions_true(one, parts);
            let ready_count = all.iter().filter(is_ready).count();
            Ok(if ready_count == wanted {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(format!("{ready_count} of {wanted} tenants"))
            })
        })?;
        anyhow::Ok(begin.elapsed().as_secs_f64())
    };
    let objects = wait_for_conditions(&["NetworkReady", "PoliciesReady", "ObjectsReady"])?;
    Ok(TenantTimes {
        created_seconds: created,
        objects_seconds: objects,
        hosts_seconds: wait_for_conditions(&["HostsReady"])?,
    })
}

fn create_machines(cluster: &Cluster, args: &Args) -> Result<f64> {
    const SECRETS: &str = "/api/v1/secrets";
    let wanted = u64::from(args.tenants).saturating_mul(u64::from(args.replicas));
    let before = cluster.count(SECRETS)?;
    let begin = Instant::now();
    cluster.create(&machines::deployments(args.tenants, args.replicas))?;
    cluster.wait_until("all machines exist", TIMEOUT, |cluster| {
        let vms = cluster.count("/apis/kubevirt.io/v1/virtualmachines")?;
        let secrets = cluster.count(SECRETS)?.saturating_sub(before);
        let is_complete = vms >= wanted && secrets >= wanted;
        Ok(if is_complete {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(format!("{vms} VMs, {secrets} Secrets of {wanted}"))
        })
    })?;
    Ok(begin.elapsed().as_secs_f64())
}
