//! Runs both servers and their guests in network namespaces of this machine.
//!
//! ```text
//! namespace of the host                      namespace `guests`
//! agent   ── packet sockets ── port-1-N ════ guest-1-N ──┐
//!              bridge tn5001 ──┘                         ├─ dhcp-guests
//! dnsmasq ── bridge peer0 ───── port-2-N ═══ guest-2-N ──┘
//! ```

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::guests::write_files;
use crate::program::Program;
use crate::unshare::run_unshared;

/// Arguments of a benchmark that runs in network namespaces.
#[derive(Debug, clap::Args)]
pub(super) struct NamespaceArgs {
    /// berth-agent binary to measure, built with the profile of a release (dist-agent)
    #[arg(long, value_name = "PATH")]
    pub(super) agent: PathBuf,
    /// Server to compare with
    #[arg(long, value_name = "PROGRAM", default_value = "dnsmasq")]
    pub(super) dnsmasq: PathBuf,
    /// Number of guests, each with a lease and a bridge port
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) guests: u16,
}

impl NamespaceArgs {
    /// Returns the path of dnsmasq, resolved in `PATH` if it is only a name, and valid in any working folder.
    fn dnsmasq_path(&self) -> Result<PathBuf> {
        if self.dnsmasq.components().count() == 1 {
            return Ok(self.dnsmasq.clone());
        }
        fs::canonicalize(&self.dnsmasq).with_context(|| self.dnsmasq.display().to_string())
    }

    /// Returns the name and version that `dnsmasq --version` prints, without the copyright.
    pub(super) fn dnsmasq_version(&self) -> Result<String> {
        let program = Program {
            label: "dnsmasq".to_owned(),
            path: self.dnsmasq.clone().into(),
            args: Vec::new(),
            env: Vec::new(),
            missing_hint: "install it: apt-get install dnsmasq-base",
        };
        let version = program.version()?;
        // In the output, two spaces separate the version from the copyright.
        Ok(version.split("  ").next().unwrap_or_default().to_owned())
    }
}

/// Environment of the agent in `systemd/berth-agent.service` and in the DaemonSet, which determines how much freed
/// memory stays resident.
const ALLOCATOR_SETTINGS: &str =
    "MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072";

/// Shell functions that both benchmarks use. `$1` is the folder with the files of [`write_files`], `$count` the
/// number of guests. The result of the script is what it writes to file descriptor 3.
const PRELUDE: &str = r#"
exec 3>&1 1>&2
trap '[ $? = 0 ] || tail -n 30 agent.log dnsmasq.log || true; kill $(jobs -p) || true' EXIT
mount -t sysfs none /sys
mkdir -p /var/lib/berth
mount -t tmpfs none /var/lib/berth
mount -t tmpfs none /run
cd "$1"
wait_for() { for _ in $(seq 1200); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done; echo "failed: $*"; exit 1; }
metric() { curl -s http://127.0.0.1:9477/metrics | sed -n "s/^$1 //p"; }
metric_is() { [ "$(metric "$1")" = "$2" ]; }
# Before the agent serves an address, it probes it three times, on all ports that exist then, at a limited rate. Ports are
# therefore added after the probes have ended, as on a host that has run for a while.
probes_ended() { [ "$(metric berth_dhcp_address_probes_total)" -ge "$((3 * count))" ]; }
# The kernel updates the state of a hundred links per second, and the bridge does not use a port before.
ports_are_up() { [ "$(ip -o link show master "$1" | grep -c 'state UP')" -ge "$count" ]; }
add_guests() { # SERVER BRIDGE
    ip -batch "$1-ports"
    ip -n guests -batch "$1-guests"
    wait_for ports_are_up "$2"
}
start_agent() {
    # Without quotes, because it is a list of settings. `env` is replaced by the agent, which has the same process id.
    env $allocator "$agent" run --standalone host.yaml --node-name a 2>>agent.log 3>&- &
    agent_pid=$!
    wait_for curl -sf http://127.0.0.1:9477/readyz
    wait_for ip link show tn5001
}
start_dnsmasq() {
    # The same settings as those of the agent's bridges.
    ip link add peer0 type bridge stp_state 0 mcast_snooping 0
    ip address add 10.2.0.1/16 dev peer0
    ip link set peer0 up
    "$dnsmasq" --keep-in-foreground --conf-file="$PWD/dnsmasq.conf" 2>>dnsmasq.log 3>&- &
    dnsmasq_pid=$!
    wait_for grep -q ':0043 ' /proc/net/udp
}
run_guests() { ip netns exec guests "$benches" dhcp-guests --guests "$count" "$@"; }

ip netns add guests
# Without IPv6, links without guests send nothing.
disable_ipv6='cd /proc/sys/net/ipv6/conf/default 2>/dev/null && echo 1 >disable_ipv6 || true'
sh -c "$disable_ipv6"
ip netns exec guests sh -c "$disable_ipv6"
ip link set lo up
ip link add up0 type veth peer name uplink-peer
ip link set up0 up
ip link set uplink-peer up
ip address add 172.16.0.1/24 dev up0
"#;

/// Runs a script in new network and mount namespaces, after [`PRELUDE`]. Returns the text that the script writes to
/// file descriptor 3.
pub(super) fn run_script(args: &NamespaceArgs, script: &str, rounds: u32) -> Result<String> {
    let agent = fs::canonicalize(&args.agent).with_context(|| args.agent.display().to_string())?;
    let (dnsmasq, benches) = (args.dnsmasq_path()?, std::env::current_exe()?);
    let (count, rounds) = (args.guests.to_string(), rounds.to_string());
    let folder = tempfile::tempdir()?;
    write_files(folder.path(), args.guests)?;
    let variables = [
        ("agent", agent.as_os_str()),
        ("allocator", OsStr::new(ALLOCATOR_SETTINGS)),
        ("dnsmasq", dnsmasq.as_os_str()),
        ("benches", benches.as_os_str()),
        ("count", OsStr::new(&count)),
        ("rounds", OsStr::new(&rounds)),
    ];
    run_unshared(&format!("{PRELUDE}{script}"), folder.path(), &variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_measured_with_the_environment_that_is_shipped() {
        let unit = include_str!("../../../systemd/berth-agent.service");
        let line = format!("Environment={ALLOCATOR_SETTINGS}");
        assert!(unit.lines().any(|other| other == line), "{line}");
        let daemon_set = include_str!("../../../deploy/base/daemonset.yaml");
        for setting in ALLOCATOR_SETTINGS.split(' ') {
            let (name, value) = setting.split_once('=').unwrap();
            let item = format!("- {{name: {name}, value: \"{value}\"}}");
            assert!(daemon_set.contains(&item), "{item}");
        }
    }
}
