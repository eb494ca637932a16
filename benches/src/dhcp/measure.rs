//! Measures the two servers from the network namespace of the guests, with the same number of guests for each
//! server.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::LinkAddr;
use serde::{Deserialize, Serialize};

use super::exchange::{AnswerTimes, serve_guests};
use super::guests::{Guest, Server};
use super::socket::{GuestSocket, link_addresses};
use crate::memory::Usage;
use crate::progress::print_step;

/// Wait before each measurement, so that the servers are idle when it starts.
const SETTLE_TIME: Duration = Duration::from_secs(1);
/// Numbers of guests that start at the same time. In a further load, all guests start at the same time.
const SMALL_LOADS: [u16; 2] = [1, 16];

/// Runs in the network namespace of the guests: lets the guests get their addresses, and prints the times as JSON.
#[derive(Debug, clap::Args)]
pub(crate) struct GuestArgs {
    /// Number of guests of each server
    #[arg(long)]
    guests: u16,
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Process id of the agent, to measure it
    #[arg(long)]
    agent_pid: Option<u32>,
    /// Process id of dnsmasq, to measure it
    #[arg(long)]
    dnsmasq_pid: Option<u32>,
}

/// Measured values of one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct MeasuredServer {
    pub(super) server: Server,
    /// Measured values by load: the number of guests that start at the same time.
    pub(super) loads: BTreeMap<u16, MeasuredLoad>,
    /// Resident memory of the server after all loads, in MiB.
    pub(super) resident_mib: f64,
}

/// Measured values for one load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct MeasuredLoad {
    pub(super) times: AnswerTimes,
    /// CPU time of the server under this load.
    pub(super) cpu_seconds: f64,
}

/// A server and the links of its guests.
struct Target {
    pid: u32,
    guests: Vec<(Guest, LinkAddr)>,
    measured: MeasuredServer,
}

/// Measures the servers and prints the result as JSON.
pub(crate) fn run_guests(args: &GuestArgs) -> Result<()> {
    let links = link_addresses()?;
    let pids = [(Server::Agent, args.agent_pid), (Server::Dnsmasq, args.dnsmasq_pid)];
    let pids = pids.into_iter().filter_map(|(server, pid)| Some((server, pid?)));
    let mut targets = pids
        .map(|(server, pid)| new_target(server, pid, args.guests, &links))
        .collect::<Result<Vec<_>>>()?;
    let socket = GuestSocket::open()?;
    let mut loads: Vec<u16> = SMALL_LOADS.into_iter().chain([args.guests]).collect();
    loads.retain(|load| *load <= args.guests);
    loads.dedup();
    let mut transaction = 0;
    for round in 1..=args.rounds {
        for load in &loads {
            for target in &mut targets {
                let label = target.measured.server.label();
                print_step(format!("round {round}: {label}, {load} guests at the same time"));
                target.measure_load(&socket, *load, &mut transaction)?;
            }
        }
        targets.reverse();
    }
    let mut measured = targets.into_iter().map(Target::finish).collect::<Result<Vec<_>>>()?;
    measured.sort_by_key(|one| one.server);
    writeln!(std::io::stdout().lock(), "{}", serde_json::to_string(&measured)?)?;
    Ok(())
}

fn new_target(
    server: Server,
    pid: u32,
    count: u16,
    links: &BTreeMap<String, LinkAddr>,
) -> Result<Target> {
    let link = |guest: Guest| -> Result<_> {
        let name = guest.link();
        let link = links.get(&name).with_context(|| format!("link {name} does not exist"))?;
        Ok((guest, *link))
    };
    let guests = server.guests(count).map(link).collect::<Result<Vec<_>>>()?;
    let measured = MeasuredServer { server, loads: BTreeMap::new(), resident_mib: 0.0 };
    Ok(Target { pid, guests, measured })
}

impl Target {
    fn measure_load(
        &mut self,
        socket: &GuestSocket,
        load: u16,
        transaction: &mut u32,
    ) -> Result<()> {
        std::thread::sleep(SETTLE_TIME);
        let before = Usage::of_process(self.pid)?;
        let times = serve_guests(socket, &self.guests, usize::from(load), transaction)?;
        let after = Usage::of_process(self.pid)?;
        let measured = self.measured.loads.entry(load).or_default();
        measured.times.extend(times);
        measured.cpu_seconds += after.cpu_seconds - before.cpu_seconds;
        Ok(())
    }

    fn finish(mut self) -> Result<MeasuredServer> {
        self.measured.resident_mib = Usage::of_process(self.pid)?.resident;
        Ok(self.measured)
    }
}
