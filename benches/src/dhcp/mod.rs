//! Compares how fast the agent and dnsmasq answer the DHCP requests of 1,000 guests of one host, and measures the
//! memory that the agent needs for their leases.
//!
//! Each guest is one end of a veth pair, whose other end is a port of a bridge, as for the VMs of a host. The agent
//! opens a packet socket for each port; dnsmasq listens on the bridge.

mod exchange;
mod guests;
mod lease_memory;
mod measure;
mod message;
mod namespace;
mod result;
mod socket;

use anyhow::{Context, Result, bail};

pub(crate) use lease_memory::{LeaseMemoryArgs, run as run_lease_memory};
pub(crate) use measure::{GuestArgs, run_guests};

use measure::MeasuredServer;
use namespace::{NamespaceArgs, run_script};
use result::build_result;

use crate::output::OutputArgs;
use crate::report::describe_host;

/// Compares the DHCP answers of the agent with dnsmasq, in network namespaces of this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Number of rounds. In each round, all guests get their addresses once for each load
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

const SCRIPT: &str = r#"
mv leases.yaml host.yaml
start_agent
wait_for probes_ended
add_guests agent tn5001
wait_for metric_is berth_dhcp_ports "$count"
start_dnsmasq
add_guests dnsmasq peer0
# The agent reads the new links.
sleep 10
run_guests --rounds "$rounds" --agent-pid "$agent_pid" --dnsmasq-pid "$dnsmasq_pid" >&3
"#;

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let version = args.namespace.dnsmasq_version()?;
    let output = run_script(&args.namespace, SCRIPT, args.rounds)?;
    let measured: Vec<MeasuredServer> =
        serde_json::from_str(&output).with_context(|| format!("output of the guests: {output}"))?;
    let [agent, dnsmasq] = measured.as_slice() else {
        bail!("expected the results of two servers: {output}")
    };
    let (namespace, rounds) = (&args.namespace, args.rounds);
    args.output.publish(&build_result(
        args.output.date(),
        vec![
            format!("measured on: {}", describe_host()?),
            format!(
                "programs: `{}`, {version} without ping, without a log of each answer, and with its lease file in memory",
                namespace.agent.display()
            ),
            format!(
                "guests: {} for each server, each with a bridge port (veth) and its own Ethernet address. All ports of a server are on \
                 one bridge, which forwards each broadcast of a guest to all of them. The agent has a packet socket for each \
                 port; dnsmasq has one socket on the bridge",
                namespace.guests
            ),
            format!(
                "one program sends DHCPDISCOVER and DHCPREQUEST of all guests and times each answer: {rounds} rounds for each load, \
                 in which each guest gets its address once; the order of the servers is reversed after every round"
            ),
        ],
        agent,
        dnsmasq,
        format!(
            "berth-benches dhcp --agent {} --guests {} --rounds {rounds}",
            namespace.agent.display(),
            namespace.guests
        ),
    ))
}
