//! Measures the resident memory of the agent with 1,000 leases, compared with dnsmasq.

use anyhow::{Context, Result, bail};

use super::namespace::{NamespaceArgs, run_script};
use crate::output::OutputArgs;
use crate::report::describe_host;
use crate::result::{BenchResult, Goal, Section, Table};

/// Goal for the resident memory of the agent with all leases, in MiB.
const MEMORY_GOAL_MIB: f64 = 15.0;

/// Measures the memory of the agent with the leases of 1,000 guests, in network namespaces of this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaseMemoryArgs {
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measured states in their order: several states of the agent, and then dnsmasq with all leases in use.
const STATES: [&str; 5] = [
    "berth-agent with a network, without leases",
    "berth-agent with all leases, without bridge ports",
    "berth-agent with all leases and bridge ports",
    "berth-agent after the answers to all guests",
    "dnsmasq after the answers to all guests",
];
/// Index in [`STATES`] of the agent's state for which [`MEMORY_GOAL_MIB`] applies.
const AGENT_STATE: usize = 3;
/// Index in [`STATES`] of the state of dnsmasq.
const DNSMASQ_STATE: usize = 4;

/// Script that measures the states. It waits before each measurement, because an idle thread of the agent ends only
/// after some time.
const SCRIPT: &str = r#"
measure() { # PID
    sleep 20
    awk '/^VmRSS/ {resident=$2} /^RssAnon/ {anonymous=$2} END {print resident, anonymous}' "/proc/$1/status" >&3
}
cp network.yaml host.yaml
start_agent
measure "$agent_pid"
mv leases.yaml host.yaml
wait_for metric_is berth_dhcp_leases "$count"
wait_for probes_ended
measure "$agent_pid"
add_guests agent tn5001
wait_for metric_is berth_dhcp_ports "$count"
measure "$agent_pid"
run_guests --agent-pid "$agent_pid" >/dev/null
measure "$agent_pid"
start_dnsmasq
add_guests dnsmasq peer0
run_guests --dnsmasq-pid "$dnsmasq_pid" >/dev/null
measure "$dnsmasq_pid"
"#;

/// Memory in MiB.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Memory {
    resident: f64,
    anonymous: f64,
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &LeaseMemoryArgs) -> Result<bool> {
    let namespace = &args.namespace;
    let version = namespace.dnsmasq_version()?;
    let output = run_script(namespace, SCRIPT, 1)?;
    let states = parse_states(&output)?;
    let (agent, guests) = (namespace.agent.display(), namespace.guests);
    let text = "Resident memory includes the pages of the program itself; anonymous memory does not. Each value is measured 20 s after \
                the change.";
    let resident = states[AGENT_STATE].resident;
    args.output.publish(&BenchResult {
        name: "lease-memory".to_owned(),
        title: "Memory of the agent with leases".to_owned(),
        date: args.output.date(),
        conditions: vec![
            format!("measured on: {}", describe_host()?),
            format!(
                "programs: `{agent}` with `run --standalone` and the environment of systemd/berth-agent.service, \
                 {version}"
            ),
            format!(
                "guests: {guests} for each server, each with a lease and a bridge port (veth) of one bridge; the agent has a packet socket for \
                 each port"
            ),
        ],
        sections: vec![Section::untitled(text, vec![state_table(&states)])],
        goals: vec![Goal::new(
            format!("less than {MEMORY_GOAL_MIB} MiB resident after the answers to {guests} guests"),
            resident < MEMORY_GOAL_MIB,
            format!("{resident:.1} MiB"),
        )],
        command: format!("berth-benches lease-memory --agent {agent} --guests {guests}"),
    })
}

fn state_table(states: &[Memory; STATES.len()]) -> Table {
    let mut table =
        Table::new(&["state"], &["resident MiB", "anonymous MiB", "ratio of resident memory"]);
    let peer = states[DNSMASQ_STATE].resident;
    for (name, memory) in STATES.iter().zip(states) {
        table.push([
            (*name).to_owned(),
            format!("{:.1}", memory.resident),
            format!("{:.1}", memory.anonymous),
            format!("{:.2}", memory.resident / peer),
        ]);
    }
    table
}

/// Parses the output of the script: for each state a line with the resident and the anonymous memory in KiB.
fn parse_states(output: &str) -> Result<[Memory; STATES.len()]> {
    let mut states = Vec::new();
    for line in output.lines() {
        let numbers = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
        let numbers = numbers.with_context(|| format!("memory of a process: {line}"))?;
        let [resident, anonymous] = numbers.as_slice() else {
            bail!("expected resident and anonymous memory: {line}")
        };
        states.push(Memory { resident: resident / 1024.0, anonymous: anonymous / 1024.0 });
    }
    let count = states.len();
    let states = <[Memory; STATES.len()]>::try_from(states).ok();
    states.with_context(|| format!("expected {} values, got {count}", STATES.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_parsed_and_compared_with_dnsmasq() {
        let states = parse_states("10240 2048\n11264 3072\n12288 4096\n13312 5120\n6656 1024\n");
        let states = states.unwrap();
        assert_eq!(states[AGENT_STATE], Memory { resident: 13.0, anonymous: 5.0 });
        let table = state_table(&states);
        assert_eq!(table.rows[AGENT_STATE][1..], ["13.0", "5.0", "2.00"]);
        assert_eq!(table.rows[DNSMASQ_STATE][3], "1.00");
        for malformed in ["", "1 2\n", "1 2 3\n", "x 2\n"] {
            assert!(parse_states(malformed).is_err(), "{malformed}");
        }
    }
}
