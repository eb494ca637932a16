//! Measures the allocation of addresses: several controllers, whose indexes of claims are stale, claim 1,000,000
//! addresses at the same time. The peer is an allocator that scans its range.

mod model_server;
mod race;
mod scan;
mod tenant;

use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::net::IpAddr;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use berth_api::MacAddress;
use berth_controller::tenants::addresses::claims::NetworkClaims;

use model_server::ModelServer;
use race::{RaceCounts, RaceSize, race};
use tenant::{MAX_MACHINES, Tenant, new_pools};

use crate::memory::Usage;
use crate::output::OutputArgs;
use crate::program::Program;
use crate::progress::print_step;
use crate::report::describe_host;
use crate::result::{BenchResult, Goal, Section, Table};

/// Number of tenants whose machines get addresses at the same time.
const PARALLEL_TENANTS: u32 = 2;
/// Size of the measured index: number of tenants, and number of machines of each tenant.
const INDEX_SIZE: (u32, u32) = (10, 10_000);

/// Lets controllers race for addresses, and compares their speed with an allocator that scans its range.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of tenants
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    tenants: u32,
    /// Number of machines of each tenant
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=MAX_MACHINES))]
    machines: u32,
    /// Number of controllers that claim addresses of the same tenant
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    controllers: u32,
    /// Number of claims of a controller until its watch delivers the claims of the other controllers
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    watch_lag: u32,
    #[command(flatten)]
    output: OutputArgs,
    /// Only build the index of a controller, and print the MiB that it needs
    #[arg(long, hide = true)]
    index: bool,
}

/// Measured cost of an allocator.
#[derive(Debug, Clone, Copy)]
struct AllocationCost {
    claims: f64,
    seconds: f64,
    cpu_seconds: f64,
}

impl AllocationCost {
    fn claims_per_second(self) -> f64 {
        self.claims / self.seconds
    }

    fn cpu_micros(self) -> f64 {
        self.cpu_seconds / self.claims * 1e6
    }
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.index {
        writeln!(std::io::stdout().lock(), "{}", measure_index()?)?;
        return Ok(true);
    }
    let index_mib = index_mib_in_child_process()?;
    let expected_claims = u64::from(args.tenants) * u64::from(args.machines);
    print_step(format!("{expected_claims} claims"));
    let (counts, controller_cost) = measure(|| {
        let counts = race_for_all(args)?;
        Ok((counts, counts.claims))
    })?;
    let peak_mib = Usage::of_process(process::id())?.peak_resident;
    print_step(format!("{} claims of the peer", args.machines));
    let (_, peer_cost) = measure(|| {
        let reservations = scan::reserve_all(args.machines)?;
        let count = u64::try_from(reservations.len())?;
        Ok((reservations, count))
    })?;
    let measured =
        Measurements { expected_claims, counts, controller_cost, peer_cost, peak_mib, index_mib };
    args.output.publish(&build_result(args, &measured)?)
}

/// All measured values.
struct Measurements {
    expected_claims: u64,
    counts: RaceCounts,
    controller_cost: AllocationCost,
    peer_cost: AllocationCost,
    peak_mib: f64,
    index_mib: f64,
}

/// Measures an allocation. `allocate` returns its result and the number of claims.
fn measure<T>(allocate: impl FnOnce() -> Result<(T, u64)>) -> Result<(T, AllocationCost)> {
    let (before, begin) = (Usage::of_process(process::id())?, Instant::now());
    let (result, claims) = allocate()?;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), Usage::of_process(process::id())?);
    let cpu_seconds = after.cpu_seconds - before.cpu_seconds;
    Ok((result, AllocationCost { claims: claims as f64, seconds, cpu_seconds }))
}

/// Runs the race for the addresses of each tenant. The server stores the names of all claims until the end.
fn race_for_all(args: &Args) -> Result<RaceCounts> {
    let (server, pools, next) = (ModelServer::default(), new_pools()?, AtomicU32::new(0));
    let pool = pools.iter().next().context("no pool")?;
    let Args { machines, controllers, watch_lag, .. } = *args;
    let size = RaceSize { machines, controllers, watch_lag };
    let race_for_some = || -> Result<RaceCounts> {
        let mut counts = RaceCounts::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= args.tenants {
                return Ok(counts);
            }
            counts.add(race(&server, pool, &Tenant::new(number), size)?);
        }
    };
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..PARALLEL_TENANTS).map(|_| scope.spawn(race_for_some)).collect();
        let join = |handle: thread::ScopedJoinHandle<'_, Result<RaceCounts>>| {
            handle.join().map_err(|_| anyhow!("a race panicked"))?
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let mut total = RaceCounts::default();
    all.into_iter().for_each(|counts| total.add(counts));
    ensure!(u64::try_from(server.len())? == total.claims, "the server has {} claims", server.len());
    Ok(total)
}

/// Returns the MiB of resident memory that the index of a controller with all its claims adds to this process.
fn measure_index() -> Result<f64> {
    let before = Usage::of_process(process::id())?.resident;
    let (tenants, machines) = INDEX_SIZE;
    let mut networks = Vec::new();
    for number in 0..tenants {
        let tenant = Tenant::new(number);
        let mut claims = NetworkClaims::default();
        for machine in 1..=machines {
            let [_, a, b, c] = machine.to_be_bytes();
            let (address, mac) = (IpAddr::from([10, a, b, c]), MacAddress([2, 0, 0, a, b, c]));
            claims.insert(Arc::new(tenant.claim(address, &tenant.machine(machine), mac)));
        }
        networks.push(claims);
    }
    let after = Usage::of_process(process::id())?.resident;
    ensure!(networks.iter().all(|claims| !claims.is_empty()), "an index is empty");
    Ok(after - before)
}

/// Measures the index in a separate process, so that its resident memory contains nothing else.
fn index_mib_in_child_process() -> Result<f64> {
    let program = Program {
        label: "index of claims".to_owned(),
        path: env::current_exe()?.into(),
        args: ["claims", "--index"].map(OsString::from).to_vec(),
        env: vec![],
        missing_hint: "was the benchmark binary rebuilt during the run?",
    };
    let output = program.stdout()?;
    output.trim().parse().with_context(|| format!("unexpected output of the index: `{output}`"))
}

fn build_result(args: &Args, measured: &Measurements) -> Result<BenchResult> {
    let Measurements { expected_claims, counts, peak_mib, index_mib, .. } = *measured;
    let Args { tenants, machines, controllers, watch_lag, .. } = *args;
    let index_claims = INDEX_SIZE.0 * INDEX_SIZE.1;
    let text = format!(
        "The server refused {} creations because the name existed, {:.2} for each claim; {} reconciles ended after 33 refused \
         creations and continued with an updated index. Machines without an own address: {}.\n\n\
         Peak memory of all controllers and the server: {peak_mib:.0} MiB. The index of one controller needs {index_mib:.0} MiB for \
         {index_claims} claims.",
        counts.conflicts,
        counts.conflicts as f64 / counts.claims as f64,
        counts.requeues,
        counts.duplicates,
    );
    Ok(BenchResult {
        name: "claims".to_owned(),
        title: "Claims of addresses by several controllers".to_owned(),
        date: args.output.date(),
        conditions: vec![
            format!("measured on: {}, one process", describe_host()?),
            format!(
                "tenants: {tenants} with {machines} machines each, {PARALLEL_TENANTS} tenants at the same time; IPv4 pools of 65,277 addresses"
            ),
            format!(
                "controllers: {controllers} for each tenant, each with its own index, which its watch updates after {watch_lag} own claims; \
                 more controllers than leader election permits"
            ),
            "server: a model in the same process that accepts each name once, without serialization and without a network".to_owned(),
            format!(
                "peer: an allocator in one thread that works as whereabouts does, for one tenant with {machines} machines. For each machine it \
                 builds a map of all reservations and checks the addresses from the first on; its requests cost nothing"
            ),
        ],
        sections: vec![Section::untitled(text, vec![cost_table(measured)])],
        goals: vec![Goal::new(
            format!("{expected_claims} claims without a duplicate"),
            counts.claims == expected_claims && counts.duplicates == 0,
            format!("{} claims, {} duplicates", counts.claims, counts.duplicates),
        )],
        command: format!(
            "berth-benches claims --tenants {tenants} --machines {machines} --controllers {controllers} --watch-lag {watch_lag}"
        ),
    })
}

fn cost_table(measured: &Measurements) -> Table {
    let mut table = Table::new(
        &["allocator"],
        &["claims", "seconds", "claims per second", "ratio", "CPU us per claim", "ratio"],
    );
    let controller_cost = measured.controller_cost;
    for (name, cost) in
        [("berth-controller", controller_cost), ("scan of the range", measured.peer_cost)]
    {
        table.push([
            name.to_owned(),
            format!("{:.0}", cost.claims),
            format!("{:.1}", cost.seconds),
            format!("{:.0}", cost.claims_per_second()),
            format!("{:.2}", controller_cost.claims_per_second() / cost.claims_per_second()),
            format!("{:.1}", cost.cpu_micros()),
            format!("{:.3}", controller_cost.cpu_micros() / cost.cpu_micros()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::parse_args;

    #[test]
    fn all_machines_of_all_tenants_get_addresses() {
        let args: Args = parse_args(&["--tenants=5", "--machines=60", "--watch-lag=10"]);
        let counts = race_for_all(&args).unwrap();
        assert_eq!((counts.claims, counts.duplicates), (300, 0));
    }

    #[test]
    fn duplicates_and_missing_claims_miss_the_goal() {
        let args: Args = parse_args(&["--tenants=1", "--machines=100"]);
        let cost = AllocationCost { claims: 100.0, seconds: 1.0, cpu_seconds: 0.5 };
        let is_met = |claims, duplicates| {
            let counts = RaceCounts { claims, duplicates, ..RaceCounts::default() };
            let (controller_cost, peer_cost) = (cost, AllocationCost { seconds: 2.0, ..cost });
            let measured = Measurements {
                expected_claims: 100,
                counts,
                controller_cost,
                peer_cost,
                peak_mib: 1.0,
                index_mib: 1.0,
            };
            assert_eq!(cost_table(&measured).rows[1][4], "2.00");
            build_result(&args, &measured).unwrap().all_goals_met()
        };
        assert!(is_met(100, 0));
        assert!(!is_met(99, 0) && !is_met(100, 1));
    }
}
