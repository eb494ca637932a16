//! Measures the probes of a trunk with 4,000 VLANs: the time until all VLANs are verified, the CPU time while nothing
//! changes, compared with pings at the same rate of frames, and the time until both ends name a VLAN that the trunk drops.
//!
//! ```text
//! namespace                              namespace `peer`
//! trunk-agent a ── packet socket ── up0 ════ up0 ── packet socket ── trunk-agent b
//! fping ───────────────────────────        ───── the kernel answers
//! ```
//!
//! Both ends run the code of the agent. There is no switch and no bridge: the probes leave through the link itself, as
//! through the uplink of a host. To drop a VLAN, a filter of `tc` on both ends of the veth pair drops its frames without
//! an error for the sender, as a switch does.

mod cost;
mod drops;
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
    /// Seconds between the measurement and the first dropped VLAN. With the seconds before, they are more than the two
    /// minutes in which the probes of two hosts begin to alternate
    #[arg(long, default_value_t = 120)]
    before_drops: u32,
    /// Number of VLANs that are dropped, one after the other
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(..=100))]
    drops: u16,
    #[command(flatten)]
    output: OutputArgs,
}

/// Number of frames that all hosts of a segment together send per second while nothing changes (`docs/trunks.md`).
/// A ping has two frames: the request and the reply.
const FRAMES_PER_SECOND: u32 = 512;

/// Script that runs both ends. `$vlans`, `$settle`, `$seconds`, `$before_drops` and `$drops` are the arguments of the
/// benchmark. The result of the script is what it writes to file descriptor 3.
///
/// The filter is a program of classic BPF. It returns 4 (`TC_ACT_STOLEN`, the frame is dropped, and the sender gets no
/// error) for the frames with the tag of one VLAN, and 0 (`TC_ACT_OK`) for all other frames.
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
options="--link up0 --vlans $vlans --settle $settle --seconds $seconds --drops $drops"
"$benches" trunk-agent --node a $options >a.json 3>&- &
first=$!
ip netns exec peer "$benches" trunk-agent --node b $options >b.json 3>&- &
second=$!
wait_for() { # SECONDS FILE...
  end=$((SECONDS + $1)); shift
  for file; do
    until [ -e "$file" ]; do
      [ $SECONDS -lt $end ] || { echo "no file $file: an end of the trunk has failed" >&2; return 1; }
      sleep 0.05
    done
  done
}
both() { tc "$@"; tc -n peer "$@"; }
wait_for $((settle + seconds + 150)) a.idle b.idle
[ "$drops" -eq 0 ] || sleep "$before_drops"
both qdisc add dev up0 clsact
for number in $(seq "$drops"); do
  vlan=$((2 + (2 * number - 1) * vlans / (2 * drops)))
  both filter add dev up0 egress bpf da bytecode \
    "7,40 0 0 12,21 0 4 33024,40 0 0 14,84 0 0 4095,21 0 1 $vlan,6 0 0 4,6 0 0 0"
  echo "$vlan" >vlan
  mv vlan "dropped.$number"
  wait_for 150 "a.named.$number" "b.named.$number"
  both filter del dev up0 egress
  : >"restored.$number"
  wait_for 150 "a.verified.$number" "b.verified.$number"
done
both qdisc del dev up0 clsact
: >finished
wait "$first"
wait "$second"
ip address add 192.0.2.1/24 dev up0
ip -n peer address add 192.0.2.2/24 dev up0
"$benches" trunk-peer --link up0 -- "$fping" -q -i 1 -p "$period" -c "$count" 192.0.2.2 >peer.json 3>&-
cat a.json b.json peer.json >&3
"#;

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let version = fping_version(&args.fping)?;
    // If the only VLAN is dropped, no probe of the other host arrives, and the agent does not report a missing VLAN.
    let drops = if args.vlans > 1 { args.drops } else { 0 };
    let idle_seconds = args.settle + 2 * args.seconds;
    print_step(format!("{} VLANs, {idle_seconds} s, then {drops} dropped VLANs", args.vlans));
    let pings_per_second = FRAMES_PER_SECOND / 2;
    let numbers = [
        ("vlans", args.vlans.to_string()),
        ("settle", args.settle.to_string()),
        ("seconds", args.seconds.to_string()),
        ("before_drops", args.before_drops.to_string()),
        ("drops", drops.to_string()),
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
    let Args { vlans, settle, seconds, before_drops, .. } = *args;
    let size = RunSize { vlans, settle, seconds, before_drops, drops };
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
