//! Measures tenant networks on an emulated host, compared with the tools of an administrator: `bridge vlan add`,
//! and an `ip -batch` script that creates the same links.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_agent::apply::links::apply_single_step;
use berth_agent::plan::network::LinkOp;
use berth_api::{LinkName, VlanSet};
use berth_host_facts::root::Root;
use berth_tests::host::{Host, HostOptions, Kernel, Machine};

use crate::output::OutputArgs;
use crate::progress::print_step;
use crate::result::{BenchResult, Goal, Section, Table};
use crate::stats::{median, percentile};

/// Goal for the time in which the agent adds VLANs to a port, divided by the time of `bridge vlan add`.
const VLANS_RATIO_GOAL: f64 = 1.0;
/// Goal for the time in which the agent creates the links of all tenants, divided by the time of `ip -batch`.
const TENANTS_RATIO_GOAL: f64 = 0.7;
/// Goal for the time until a deleted bridge is restored, in milliseconds.
const REPAIR_GOAL_MILLIS: f64 = 1000.0;
/// Number of tenants of each comparison.
const TENANT_COUNT: u32 = 1000;
/// Time limit of a command on the emulated host, where the creation of a thousand tenants takes minutes.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Compares tenant networks with `bridge` and `ip -batch` on an emulated host.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// berth-agent binary to measure, built with the profile of a release (dist-agent)
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Number of rounds of each comparison
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs on the emulated host: adds VLANs to a port with one netlink message.
#[derive(Debug, clap::Args)]
pub(crate) struct VlanArgs {
    /// Port of the bridge
    port: LinkName,
    /// IDs of the VLANs to add
    vlans: VlanSet,
}

/// Adds VLANs to a port with the code of the agent.
pub(crate) fn add_vlans(args: &VlanArgs) -> Result<bool> {
    let root = Root::open_live()?;
    let op = LinkOp::AddVlans { port: args.port.clone(), vlans: args.vlans.clone() };
    apply_single_step(&root, &op)?.map_err(|why| anyhow::anyhow!(why))?;
    Ok(true)
}

/// Runs the benchmark and publishes the result. Returns true if all goals are met.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut host = Host::boot(&HostOptions {
        agent: Some(&args.agent),
        number: 8,
        machine: Machine::IntelNoSmt,
        kernel: Kernel::Stable,
        ..HostOptions::default()
    })?;
    host.run_checked("udevadm settle --timeout 100; modprobe -a 8021q bridge dummy")?;
    host.copy_file(&std::env::current_exe()?, "/usr/local/bin/berth-benches")?;
    print_step("add VLANs");
    let vlans = measure_vlans(&mut host, args.rounds * 3)?;
    print_step("create tenants");
    let tenants = measure_tenants(&mut host, args.rounds)?;
    print_step("repair the bridges of tenants");
    let (repairs, resident) = measure_repairs(&mut host, args.rounds * 4)?;

    let (agent, repair) = (args.agent.display(), percentile(&repairs, 90));
    let text = format!(
        "After one of {TENANT_COUNT} tenant bridges is deleted, an event of the kernel makes the agent restore the bridge: median of {} \
         repairs {:.0} ms, 90th percentile {repair:.0} ms. The daemon with {TENANT_COUNT} tenants has {resident:.1} MiB resident.",
        repairs.len(),
        median(&repairs),
    );
    args.output.publish(&BenchResult {
        name: "links".to_owned(),
        title: "Tenant networks".to_owned(),
        date: args.output.date(),
        conditions: vec![
            format!(
                "measured on: an emulated two-socket host (QEMU without KVM), kernel 6.1; both sides on this host, in turn, {} rounds; \
                 udev is stopped for the tenants, because its work is the same for both sides",
                args.rounds
            ),
            format!("agent: `{agent}`"),
        ],
        sections: vec![Section::untitled(text, vec![comparison_table(&vlans, &tenants)])],
        goals: vec![
            Goal::new(
                format!("4,000 VLANs in at most {VLANS_RATIO_GOAL} times the time of the peer"),
                ratio(&vlans) <= VLANS_RATIO_GOAL,
                format!("{:.2}", ratio(&vlans)),
            ),
            Goal::new(
                format!("{TENANT_COUNT} tenants in at most {TENANTS_RATIO_GOAL} times the time of the peer"),
                ratio(&tenants) <= TENANTS_RATIO_GOAL,
                format!("{:.2}", ratio(&tenants)),
            ),
            Goal::new(
                format!("90th percentile of the repairs below {REPAIR_GOAL_MILLIS:.0} ms"),
                repair < REPAIR_GOAL_MILLIS,
                format!("{repair:.0} ms"),
            ),
        ],
        command: format!("berth-benches links --agent {agent} --rounds {}", args.rounds),
    })
}

/// Returns the median of the agent's times divided by the median of the peer's times.
fn ratio((ours, theirs): &(Vec<f64>, Vec<f64>)) -> f64 {
    median(ours) / median(theirs)
}

fn comparison_table(vlans: &(Vec<f64>, Vec<f64>), tenants: &(Vec<f64>, Vec<f64>)) -> Table {
    let columns = ["berth-agent ms", "peer ms", "ratio", "goal"];
    let mut table = Table::new(&["operation", "peer"], &columns);
    let mut row = |what: String, peer: &str, pair: &(Vec<f64>, Vec<f64>), goal: f64| {
        table.push([
            what,
            peer.to_owned(),
            format!("{:.0}", median(&pair.0)),
            format!("{:.0}", median(&pair.1)),
            format!("{:.2}", ratio(pair)),
            goal.to_string(),
        ]);
    };
    row(
        "add 4,000 VLANs to a VLAN-aware bridge with one message, minus the time of the same program for one VLAN".to_owned(),
        "`bridge vlan add vid 2-4001`",
        vlans,
        VLANS_RATIO_GOAL,
    );
    row(
        format!(
            "create {TENANT_COUNT} tenants, each with a VLAN link and a bridge: a complete `apply` with verification"
        ),
        "`ip -batch` and `sysctl -p` to the same state",
        tenants,
        TENANTS_RATIO_GOAL,
    );
    table
}

/// Returns the milliseconds of a command, measured with the clock of the host.
fn run_timed(host: &mut Host, command: &str) -> Result<f64> {
    let result = host.run_for(
        &format!(
            "begin=$(date +%s%N); {command} >/run/timed.log 2>&1 || {{ cat /run/timed.log; exit 1; }}; \
             echo $(( ($(date +%s%N) - begin) / 1000 ))"
        ),
        TIMEOUT,
    )?;
    ensure!(result.code == 0, "{command}: {}", result.output);
    let micros: f64 = result.output.trim().parse().with_context(|| result.output.clone())?;
    Ok(micros / 1000.0)
}

fn measure_vlans(host: &mut Host, rounds: u32) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let create = "ip link add bench0 type bridge vlan_filtering 1 vlan_default_pvid 0; ip link add port0 type dummy; \
                    ip link set port0 master bench0; ip link set port0 up; ip link set bench0 up; udevadm settle";
        let delete = "ip link del bench0; ip link del port0; udevadm settle";
        // Subtracts the time for one VLAN, which is mostly the start of the program. On the emulated host, this
        // start takes as long as adding a thousand VLANs in the kernel, but in production the daemon starts only
        // once.
        let time_beyond_one_vlan = |host: &mut Host, command: &str| -> Result<f64> {
            host.run_checked(create)?;
            let one = run_timed(host, &command.replace("IDS", "4002"))?;
            let all = run_timed(host, &command.replace("IDS", "2-4001"))?;
            host.run_checked("bridge -c -j vlan show dev port0 | grep -q 4001")?;
            host.run_checked(delete)?;
            Ok(all - one)
        };
        ours.push(time_beyond_one_vlan(host, "berth-benches add-vlans port0 IDS")?);
        peers.push(time_beyond_one_vlan(host, "bridge vlan add vid IDS dev port0")?);
    }
    Ok((ours, peers))
}

const STOP_UDEV_COMMAND: &str =
    "systemctl stop systemd-udevd-kernel.socket systemd-udevd-control.socket systemd-udevd";

fn manifest() -> String {
    let tenants: String = (0..TENANT_COUNT)
        .map(|n| format!("  - {{name: cluster-{n}, network: own, vlan: {}}}\n", n + 2))
        .collect();
    format!(
        "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: rack1-a}}\nspec:\n  networks:\n  \
         - {{name: own, scenario: BridgePerTenant, uplink: {{name: own0}}}}\n  tenantNetworks:\n{tenants}"
    )
}

/// Script that reads the links that `apply` created, and writes batch files for `ip` that create the same links.
const COPY_STATE_SCRIPT: &str = r#"
: >/run/batch; : >/run/bridges; : >/run/up; : >/run/ports; : >/run/sysctls
for path in /sys/class/net/tn*; do
    name=${path##*/}; read -r alias <$path/ifalias; read -r mtu <$path/mtu; read -r address <$path/address
    case $name in
    *-v)
        id=${name%-v}; id=${id#tn}
        echo "link add link own0 name $name mtu $mtu group 48679 type vlan id $id" >>/run/batch
        echo "link set dev $name master tn$id alias $alias addrgenmode none" >>/run/batch;;
    *)
        echo "link add name $name address $address group 48679 type bridge stp_state 0 mcast_snooping 0 vlan_default_pvid 0" >>/run/bridges
        echo "link set dev $name mtu $mtu alias $alias addrgenmode none" >>/run/bridges
        echo "net.ipv4.conf.$name.arp_ignore = 8" >>/run/sysctls
        echo "net.ipv4.conf.$name.rp_filter = 1" >>/run/sysctls;;
    esac
    echo "net.ipv6.conf.$name.disable_ipv6 = 1" >>/run/sysctls
    case $name in
    *-v) echo "link set dev $name up" >>/run/ports;;
    *) echo "link set dev $name up" >>/run/up;;
    esac
done
cat /run/bridges /run/batch >/run/made
# Ports first, as a bridge that is up without one is stopped and started again.
cat /run/ports /run/up >/run/raised
"#;

fn measure_tenants(host: &mut Host, rounds: u32) -> Result<(Vec<f64>, Vec<f64>)> {
    // Stops udev for the measurements of the agent and of the peer, because udev needs minutes per round for the
    // emulated links.
    host.run_checked(STOP_UDEV_COMMAND)?;
    host.run_checked(&format!(
        "cat > /run/tenants.yaml <<'END'\n{}END\nip link add own0 type dummy; ip link set own0 up",
        manifest()
    ))?;
    // Compares only the state of the links, without link numbers, timers and order of creation. The loop waits for
    // the carrier state, which the kernel updates later, for a hundred links per second (`MAX_DO_DEV_PER_LOOP` of
    // net/core/link_watch.c).
    let state = "for i in $(seq 120); do ip link show group 48679 | grep -qE 'state (UNKNOWN|DOWN)' || break; sleep 1; done; ip -d link show group 48679 | sed -E 's/^[0-9]+: //; s/[a-z]+_timer +[0-9.]+//g; s/port_(id|no) [^ ]+//g; \
                 s/designated_(port|bridge|root) [^ ]+//g' | sort; \
                 cd /proc/sys/net; grep -H . ipv4/conf/tn*/arp_ignore ipv4/conf/tn*/rp_filter ipv6/conf/tn*/disable_ipv6";
    let remove = "ip link del group 48679; rm -rf /var/lib/berth";
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        ours.push(run_timed(host, "berth-agent apply -f /run/tenants.yaml")?);
        host.run_for(&format!("({state}) >/run/by-us"), TIMEOUT)?;
        if round == 0 {
            let result = host.run_for(COPY_STATE_SCRIPT, TIMEOUT)?;
            ensure!(result.code == 0, "{}", result.output);
        }
        host.run_for(remove, TIMEOUT)?;
        peers.push(run_timed(
            host,
            "{ ip -batch /run/made && sysctl -q -p /run/sysctls && ip -batch /run/raised; }",
        )?);
        host.run_for(&format!("({state}) >/run/by-peer"), TIMEOUT)?;
        let differ = host.run_for("test -s /run/by-us && diff /run/by-us /run/by-peer", TIMEOUT)?;
        ensure!(differ.code == 0, "the script creates a different state: {differ:?}");
        host.run_for(remove, TIMEOUT)?;
    }
    Ok((ours, peers))
}

/// Returns the milliseconds of each repair, and the resident MiB of the daemon.
fn measure_repairs(host: &mut Host, rounds: u32) -> Result<(Vec<f64>, f64)> {
    host.run_for(
        "berth-agent run --standalone /run/tenants.yaml </dev/null >/run/agent.log 2>&1 & echo $! >/run/agent.pid; \
         for i in $(seq 800); do curl -sf http://127.0.0.1:9477/readyz && break; sleep 1; done; systemctl start systemd-udevd; sleep 5",
        TIMEOUT,
    )?;
    let mut millis = Vec::new();
    for round in 0..rounds {
        let name = format!("tn{}", 100 + round);
        // `ip link del` holds the RTNL lock of the kernel until the link is deleted, so the agent can start the
        // repair only afterwards.
        millis.push(run_timed(
            host,
            &format!("ip link del {name}; begin=$(date +%s%N); until [ -e /sys/class/net/{name}/brif/{name}-v ]; do sleep 0.002; done"),
        )?);
        host.run_checked("sleep 1")?;
    }
    let resident =
        host.run_checked("awk '/VmRSS/ {print $2}' /proc/$(cat /run/agent.pid)/status")?;
    let resident: f64 = resident.trim().parse().with_context(|| resident.clone())?;
    Ok((millis, resident / 1024.0))
}
