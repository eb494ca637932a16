//! Measures the probes of a trunk with 4,000 VLANs: the time until all VLANs are verified, and the CPU time while nothing
//! changes, compared with pings at the same rate of frames.
//!
//! ```text
//! namespace                              namespace `peer`
//! trunk-agent a ── packet socket ── up0 ════ up0 ── packet socket ── trunk-agent b
//! fping ───────────────────────────        ───── the kernel answers
//! ```
//!
//! Both ends run the code of the agent. There is no switch and no bridge: the probes leave through the link itself, as
//! through the uplink of a host.

mod cost;
mod ends;
mod result;

use std::ffi::{OsStr, OsString};

use anyhow::{Context, Result, bail};

pub(crate) use ends::{AgentArgs, PeerArgs, run_agent, run_peer};

use ends::{MeasuredAgent, MeasuredPeer};
use result::{RunSize, build_result};

use crate::output::OutputArgs;
use crate::program::Program;
use crate::progress::print_step;
use crate::unshare::run_unshared;

/// Compares the probes of a trunk with pings, in network namespaces of this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Program to compare with
    #[arg(long, value_name = "PROGRAM", default_value = "fping")]
    fping: OsString,
    /// Number of VLANs
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u16).range(1..=4000))]
    vlans: u16,
    /// Seconds between the verification and the measurement. The fast rounds of probes end in this time
    #[arg(long, default_value_t = 60)]
    settle: u32,
    /// Seconds of the measurement
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Number of frames that all hosts of a segment together send per second while nothing changes (`docs/trunks.md`).
/// A ping has two frames: the request and the reply.
const FRAMES_PER_SECOND: u32 = 280;

/// Script that runs both ends. `$vlans`, `$settle` and `$seconds` are the arguments of the benchmark. The result of
/// the script is what it writes to file descriptor 3.
const SCRIPT: &str = r#"
exec 3>&1 1>&2
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
cd "$1"
mount -t sysfs none /sys
mount -t tmpfs none /run
ip netns add peer
# Without IPv6, idle links send nothing.
disable_ipv6='cd /proc/sys/net/ipv6/conf/default 2>/dev/null && echo 1 >disable_ipv6 || true'
sh -c "$disable_ipv6"
ip netns exec peer sh -c "$disable_ipv6"
ip link add up0 type veth peer name up0 netns peer
ip link set up0 up
ip -n peer link set up0 up
for _ in $(seq 100); do [ "$(cat /sys/class/net/up0/operstate)" = up ] && break; sleep 0.1; done
options="--link up0 --vlans $vlans --settle $settle --seconds $seconds"
"$benches" trunk-agent --node a $options >a.json 3>&- &
first=$!
ip netns exec peer "$benches" trunk-agent --node b $options >b.json 3>&-
wait "$first"
ip address add 192.0.2.1/24 dev up0
ip -n peer address add 192.0.2.2/24 dev up0
"$benches" trunk-peer --link up0 -- "$fping" -q -i 1 -p "$period" -c "$count" 192.0.2.2 >peer.json 3>&-
cat a.json b.json peer.json >&3
"#;

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let version = fping_version(&args.fping)?;
    print_step(format!("{} VLANs, {} s", args.vlans, args.settle + 2 * args.seconds));
    let pings_per_second = FRAMES_PER_SECOND / 2;
    let numbers = [
        ("vlans", args.vlans.to_string()),
        ("settle", args.settle.to_string()),
        ("seconds", args.seconds.to_string()),
        ("period", format!("{:.2}", 1000.0 / f64::from(pings_per_second))),
        ("count", args.seconds.saturating_mul(pings_per_second).to_string()),
    ];
    let benches = std::env::current_exe()?;
    let mut variables = vec![("benches", benches.as_os_str()), ("fping", args.fping.as_os_str())];
    variables.extend(numbers.iter().map(|(name, value)| (*name, OsStr::new(value))));
    let folder = tempfile::tempdir()?;
    let output = run_unshared(SCRIPT, folder.path(), &variables)?;
    let lines: Vec<&str> = output.lines().collect();
    let [first, second, peer] = lines.as_slice() else {
        bail!("expected the results of two agents and of fping: {output}")
    };
    let parse_agent = |line: &str| -> Result<MeasuredAgent> {
        serde_json::from_str(line).with_context(|| format!("result of an agent: {line}"))
    };
    let agents = [parse_agent(first)?, parse_agent(second)?];
    let peer: MeasuredPeer =
        serde_json::from_str(peer).with_context(|| format!("result of fping: {peer}"))?;
    let size = RunSize { vlans: args.vlans, settle: args.settle, seconds: args.seconds };
    args.output.publish(&build_result(args.output.date(), size, &version, &agents, &peer)?)
}

/// Returns the version of fping, without the name of the program.
fn fping_version(path: &OsString) -> Result<String> {
    let program = Program {
        label: "fping".to_owned(),
        path: path.clone(),
        args: Vec::new(),
        env: Vec::new(),
        missing_hint: "install it: apt-get install fping",
    };
    let version = program.version()?;
    Ok(version.rsplit(' ').next().unwrap_or_default().to_owned())
}
