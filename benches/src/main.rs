//! `berth-benches`: measures Berth and the existing tools for the same tasks.

mod agents;
mod claims;
mod cluster;
mod counts;
mod dhcp;
mod engine;
mod extender;
mod fleet;
mod full_fleet;
mod idle;
mod links;
mod memory;
mod output;
mod plan;
mod program;
mod progress;
mod render;
mod report;
mod result;
mod stats;
mod summary;
mod tenant_access;
mod tenants;
mod trace;
mod trunk;
mod unshare;
mod views;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

/// Measures Berth and the existing tools for the same tasks.
///
/// Exits with 0 if all goals are met, with 1 if a goal is missed, and with 2 if the measurement failed.
#[derive(Debug, Parser)]
#[command(version)]
enum Benchmark {
    Report(report::Args),
    Idle(idle::Args),
    Links(links::Args),
    Agents(agents::Args),
    Trace(trace::Args),
    Engine(engine::Args),
    Plan(plan::Args),
    Tenants(tenants::Args),
    TenantAccess(tenant_access::Args),
    Extender(extender::Args),
    Dhcp(dhcp::Args),
    LeaseMemory(dhcp::LeaseMemoryArgs),
    Claims(claims::Args),
    Trunk(trunk::Args),
    Views(views::Args),
    Summary(summary::Args),
    /// Runs a scheduler extender that accepts every node of a request, as the peer of the extender benchmark.
    #[command(hide = true)]
    AcceptAll(extender::AcceptAllArgs),
    #[command(hide = true)]
    AddVlans(links::VlanArgs),
    #[command(hide = true)]
    DhcpGuests(dhcp::GuestArgs),
    #[command(hide = true)]
    TrunkAgent(trunk::AgentArgs),
    #[command(hide = true)]
    TrunkPeer(trunk::PeerArgs),
    /// Runs one program and prints its peak resident memory in KiB.
    #[command(hide = true)]
    Peak {
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let done = match Benchmark::parse() {
        Benchmark::Report(args) => report::run(&args),
        Benchmark::Idle(args) => idle::run(&args),
        Benchmark::Links(args) => links::run(&args),
        Benchmark::Agents(args) => agents::run(&args),
        Benchmark::Trace(args) => trace::run(&args),
        Benchmark::Engine(args) => engine::run(&args),
        Benchmark::Plan(args) => plan::run(&args),
        Benchmark::Tenants(args) => tenants::run(&args),
        Benchmark::TenantAccess(args) => tenant_access::run(&args),
        Benchmark::Extender(args) => extender::run(&args),
        Benchmark::Dhcp(args) => dhcp::run(&args),
        Benchmark::LeaseMemory(args) => dhcp::run_lease_memory(&args),
        Benchmark::Claims(args) => claims::run(&args),
        Benchmark::Trunk(args) => trunk::run(&args),
        Benchmark::Views(args) => views::run(&args),
        Benchmark::Summary(args) => summary::run(&args),
        Benchmark::AcceptAll(args) => extender::accept_all(&args).map(|()| true),
        Benchmark::AddVlans(args) => links::add_vlans(&args),
        Benchmark::DhcpGuests(args) => dhcp::run_guests(&args).map(|()| true),
        Benchmark::TrunkAgent(args) => trunk::run_agent(&args).map(|()| true),
        Benchmark::TrunkPeer(args) => trunk::run_peer(&args).map(|()| true),
        Benchmark::Peak { command } => program::print_peak(&command).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            // Ignores a write error, because no other output exists when standard error is closed.
            drop(writeln!(std::io::stderr().lock(), "error: {error:#}"));
            ExitCode::from(2)
        }
    }
}
