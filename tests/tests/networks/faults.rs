//! Tests of kills, power cuts, other network tools, and thousands of links.

use std::time::Duration;

use berth_tests::host::Host;

use crate::daemon::{read_report, start_agent, stop_agent, wait_until};
use crate::{
    MANIFEST_PATH, UPLINK_NAME, assert_link_state, assert_state, manifest, read_link_state,
    read_until_stable, rename_uplink, wait_for_link_local_address, write_manifest,
};

const SHARED_NETWORK: &str = "{name: tenants, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: br-tenant, mtu: 1500}";

/// Returns a manifest with twenty tenants on a shared bridge and twenty tenants with their own bridges.
fn manifest_with_forty_tenants() -> String {
    let own = "{name: own, scenario: BridgePerTenant, uplink: {name: own0}}";
    let tenants: Vec<String> = (0..20)
        .flat_map(|n| {
            [
                format!("{{name: shared-{n}, network: tenants, vlan: {}}}", 100 + n),
                format!("{{name: own-{n}, network: own, vlan: {}}}", 300 + n),
            ]
        })
        .collect();
    let tenants: Vec<&str> = tenants.iter().map(String::as_str).collect();
    manifest(&[SHARED_NETWORK, own], &tenants)
}

/// Kills apply or revert after various delays, and asserts that the next apply or revert reaches the same state.
pub(crate) fn killed_commands_are_completed(host: &mut Host, count: u32) {
    host.run_checked(CREATE_LINK_COMMAND).unwrap();
    wait_for_link_local_address(host, UPLINK_NAME);
    let before = read_link_state(host);
    write_manifest(host, &manifest_with_forty_tenants());
    host.run_checked(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    let whole = read_until_stable(host, links_by_name);
    host.run_checked("berth-agent revert").unwrap();
    assert_link_state(&before, host);
    for round in 0..count {
        // The delays are spread over the duration of the command, which is a second or two here.
        let delay = f64::from(round % 25) * 0.08 + 0.02;
        run_and_kill(host, delay, &format!("berth-agent apply -f {MANIFEST_PATH}"));
        if round % 2 == 0 {
            host.run_checked(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
            assert_state(&whole, host, links_by_name);
        }
        run_and_kill(host, delay, "berth-agent revert");
        host.run_checked("berth-agent revert").unwrap();
        assert_link_state(&before, host);
        host.run_checked("test ! -e /var/lib/berth/found.json").unwrap();
    }
    host.run_checked("ip link del own0").unwrap();
}

/// Kills a command after this many seconds, and waits until the process has ended: the kernel first completes the
/// current system call.
fn run_and_kill(host: &mut Host, delay: f64, command: &str) {
    host.run(&format!(
        "timeout --signal=KILL {delay:.3} {command} >/dev/null 2>&1; while pidof berth-agent >/dev/null; do sleep 0.05; done"
    ))
    .unwrap();
}

/// Returns the links without the kernel's indexes and numbers, which depend on the order of creation.
fn links_by_name(host: &mut Host) -> String {
    host.run_checked("tenants links | sed -E 's/^[0-9]+: //; s/port_id [^ ]+ port_no [^ ]+//; s/designated_port [^ ]+//' | sort").unwrap()
}

/// Shell command that creates a link, and sets the link up and down once. A link that was never up has a different
/// queue discipline and addresses, which the kernel does not restore.
const CREATE_LINK_COMMAND: &str = "modprobe -a 8021q bridge; ip link add own0 type dummy; ip link set own0 up; ip link set own0 down";

/// Prints link names, the number of ports, and VLANs. Addresses and routes are left out, because they appear with a
/// delay after a boot.
const LIST_LINKS_COMMAND: &str = "ip -br link | cut -d' ' -f1; ip link | grep -c master; bridge vlan show; ip link show group 48679";

pub(crate) fn networks_are_restored_after_power_cuts(host: &mut Host, count: u32) {
    write_manifest(host, &manifest_with_forty_tenants());
    host.run_checked("sync").unwrap();
    // The power cycle removes the changes of earlier tests.
    host.power_cycle().unwrap();
    host.run_checked("udevadm settle --timeout 100").unwrap();
    rename_uplink(host);
    for round in 0..count {
        host.run_checked(CREATE_LINK_COMMAND).unwrap();
        let before = host.run_checked(LIST_LINKS_COMMAND).unwrap();
        host.start_command(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
        std::thread::sleep(Duration::from_millis(u64::from(round) * 100));
        host.power_cycle().unwrap();
        host.run_checked("udevadm settle --timeout 100").unwrap();
        rename_uplink(host);
        host.run_checked(CREATE_LINK_COMMAND).unwrap();
        // The ledger entries of an earlier boot are ignored: there is nothing to restore, and all networks can be
        // created.
        let output = host.run_checked("berth-agent revert").unwrap();
        assert!(output.contains("the host has its original state"), "{output}");
        host.run_checked(&format!("berth-agent apply -f {MANIFEST_PATH} && berth-agent revert"))
            .unwrap();
        assert_eq!(host.run_checked(LIST_LINKS_COMMAND).unwrap(), before, "round {round}");
        host.run_checked("ip link del own0").unwrap();
    }
}

/// Tests that the agent misses no relevant change when there are more events than a socket buffer holds.
pub(crate) fn no_event_of_four_thousand_links_is_missed(host: &mut Host) {
    host.run_checked("ip link add own0 type dummy; ip link set own0 up").unwrap();
    write_manifest(host, &manifest_with_forty_tenants());
    start_agent(host);
    host.run_checked(
        "for i in $(seq 4000); do echo link add name flood$i group 77 type dummy; done >/run/flood; \
         (sleep 5; ip link del tn305; bridge vlan del vid 105 dev trunk0) & ip -batch /run/flood; wait",
    )
    .unwrap();
    wait_until(host, "ip link show tn305-v && bridge vlan show dev trunk0 | grep -q 105");
    // One command deletes the whole group: separate deletions would each wait for a grace period of the kernel.
    host.run_for("ip link del group 77", Duration::from_secs(600)).unwrap();
    stop_agent(host);
    host.run_checked("berth-agent revert; ip link del own0").unwrap();
    host.run_checked("! ip link show group 48679 | grep . && ! ip link show trunk0 | grep master")
        .unwrap();
}

pub(crate) fn thousand_tenants_survive_a_flapping_uplink(host: &mut Host) {
    let tenants: Vec<String> =
        (0..1000).map(|n| format!("{{name: own-{n}, network: own, vlan: {}}}", 2 + n)).collect();
    let tenants: Vec<&str> = tenants.iter().map(String::as_str).collect();
    let own = "{name: own, scenario: BridgePerTenant, uplink: {name: own0}}";
    host.run_checked("ip link add own0 type dummy; ip link set own0 up; ip link set own0 down")
        .unwrap();
    let before = read_link_state(host);
    write_manifest(host, &manifest(&[own], &tenants));
    host.run_checked(&format!("berth-agent run --standalone {MANIFEST_PATH} </dev/null >/run/agent.log 2>&1 & echo $! >/run/agent.pid")).unwrap();
    wait_until(
        host,
        "curl -s http://127.0.0.1:9477/report | grep -q '1000 tenant networks are ready'",
    );
    let resident =
        host.run_checked("awk '/VmRSS/ {print $2}' /proc/$(cat /run/agent.pid)/status").unwrap();
    let resident: u32 = resident.trim().parse().unwrap();
    assert!(
        resident < 60_000,
        "the agent needs too much memory with 1,000 tenants: {resident} KiB"
    );
    for _ in 0..3 {
        host.run_for(
            "ip link set own0 down; sleep 1; ip link set own0 up",
            Duration::from_secs(300),
        )
        .unwrap();
    }
    wait_until(host, "[ $(ip -br link | grep -cE '^tn[0-9]+(-v@own0)? +UP') -ge 1000 ]");
    wait_until(
        host,
        "curl -s http://127.0.0.1:9477/report | grep -q '1000 tenant networks are ready'",
    );
    assert_eq!(read_report(host)["status"]["networks"][0]["ready"], 1000);
    // The agent limits the rate of removals, so another program can create links between two removals.
    write_manifest(host, &manifest(&[own], &tenants[100..]));
    host.run_checked("sleep 3; for i in 1 2 3 4 5; do timeout 5 ip link add probe$i type dummy && ip link del probe$i; done").unwrap();
    let removed =
        "! ip -br link show group 48679 | grep -qE '^tn([2-9]|[1-9][0-9]|10[01])(-v@own0)? '";
    // The removal takes 200 s on two idle cores: the emulated host deletes the two links of a tenant in 2 s.
    host.wait_until(removed, Duration::from_secs(300), "ip -br link show group 48679 | head")
        .unwrap();
    stop_agent(host);
    // One command deletes the whole group: separate deletions take long on the emulated host.
    host.run_for("ip link del group 48679", Duration::from_secs(600)).unwrap();
    host.run_checked("berth-agent revert").unwrap();
    assert_link_state(&before, host);
    host.run_checked("ip link del own0").unwrap();
}

/// Tests hosts with tenants on which NetworkManager and systemd-networkd start and restart: tenants stay, and the
/// agent reports which program manages their links.
pub(crate) fn tenants_survive_other_network_managers(host: &mut Host) {
    host.run_checked("ip link add own0 type dummy; ip link set own0 up").unwrap();
    write_manifest(host, &manifest_with_forty_tenants());
    start_agent(host);
    for (unit, before) in [
        (
            "systemd-networkd",
            "mkdir -p /etc/systemd/network; printf '[Match]\nName=trunk0\n[Network]\nLinkLocalAddressing=no\n' >/etc/systemd/network/10-trunk.network",
        ),
        ("NetworkManager", "systemctl unmask NetworkManager"),
    ] {
        host.run_checked(before).unwrap();
        for _ in 0..3 {
            host.run_for(&format!("systemctl restart {unit}; sleep 5"), Duration::from_secs(200))
                .unwrap();
            wait_until(
                host,
                "ip link show trunk0 | grep -q 'master br-tenant' && bridge vlan show dev trunk0 | grep -q 119 && ip link show tn319-v | grep -q 'master tn319'",
            );
        }
        if unit == "systemd-networkd" {
            let result = host.run("berth-agent check network.manager").unwrap();
            assert!(
                crate::join_lines(&result.output).contains("systemd-networkd manages trunk0"),
                "{}",
                result.output
            );
        }
        host.run_checked(&format!("systemctl stop {unit}")).unwrap();
    }
    host.run_checked("systemctl mask NetworkManager; rm /etc/systemd/network/10-trunk.network")
        .unwrap();
    stop_agent(host);
    host.run_checked("berth-agent revert; ip link del own0").unwrap();
    host.run_checked("! ip link show group 48679 | grep . && ! ip link show trunk0 | grep master")
        .unwrap();
}
