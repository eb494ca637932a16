//! Tests that agents verify the trunk between two hosts, with a shared bridge and with a bridge for each tenant: both
//! hosts report a VLAN that the trunk does not carry, until the trunk carries it again; and a switch that announces
//! itself with LLDP is reported.

use berth_tests::demo::hub::Hub;
use berth_tests::host::Host;

use crate::daemon::{read_report, start_agent, stop_agent, wait_until};
use crate::{UPLINK_NAME, manifest, write_manifest};

const SHARED_NETWORK: &str = "{name: tenants, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: br-tenant, mtu: 1500}";
const SEPARATE_NETWORK: &str =
    "{name: tenants, scenario: BridgePerTenant, uplink: {name: trunk0}, mtu: 1500}";
const TENANTS: [&str; 3] = [
    "{name: cluster-a, network: tenants, vlan: 100}",
    "{name: cluster-b, network: tenants, vlan: 200}",
    "{name: cluster-c, network: tenants, vlan: 300}",
];
/// Names of the hosts, which must differ.
const NAMES: [&str; 2] = ["rack1-a", "rack1-b"];
const KEY_FILE: &str = "/etc/berth/trunk.key";

/// Returns a shell command that succeeds if the report of the agent, which is indented JSON, has this state of the
/// network's trunk.
fn trunk_has_state(state: &str) -> String {
    format!(
        "curl -s http://127.0.0.1:9477/report | tr -d ' \\n' | grep -q '\"trunk\":{{\"state\":\"{state}\"'"
    )
}

/// Tests the scenarios in which a host sends and receives the frames of tenants with VLAN tags on the uplink.
pub(crate) fn missing_vlan_is_reported_by_both_hosts(switch: &Hub, hosts: &mut [Host; 2]) {
    for (host, name) in hosts.iter_mut().zip(NAMES) {
        host.run_checked(&format!("hostname {name}; rm -f {KEY_FILE}")).unwrap();
    }
    start_agents(hosts, SHARED_NETWORK);
    agents_require_a_secret_key(hosts);
    missing_vlan_is_reported(switch, hosts);
    let [first, second] = hosts;
    announced_switch_is_reported(first, second);
    stop_agents(hosts);

    start_agents(hosts, SEPARATE_NETWORK);
    for host in hosts.iter_mut() {
        // The kernel gives the frames of each VLAN to a VLAN link, and not to the uplink.
        host.run_checked(
            "for id in 100 200 300; do ip -d link show tn$id-v | grep -q \"master tn$id \" || exit 1; done; \
             ! ip link show trunk0 | grep -q master",
        )
        .unwrap();
    }
    missing_vlan_is_reported(switch, hosts);
    stop_agents(hosts);
    for host in hosts {
        host.run_checked(&format!("rm {KEY_FILE}; hostname {}", NAMES[0])).unwrap();
    }
}

fn start_agents(hosts: &mut [Host; 2], network: &str) {
    for (host, name) in hosts.iter_mut().zip(NAMES) {
        write_manifest(host, &manifest(&[network], &TENANTS).replace(NAMES[0], name));
        start_agent(host);
    }
}

fn stop_agents(hosts: &mut [Host; 2]) {
    for host in hosts {
        stop_agent(host);
        host.run_checked("berth-agent revert && test ! -e /var/lib/berth/trunk.json").unwrap();
    }
}

/// Tests that agents without a key, or with a key that every user can read, report this. Afterwards they have a key.
fn agents_require_a_secret_key(hosts: &mut [Host; 2]) {
    for host in hosts.iter_mut() {
        // Without a key the state is unknown, and the message has the remedy.
        wait_until(host, &trunk_has_state("Unknown"));
        wait_until(host, "curl -s http://127.0.0.1:9477/report | grep -q NoTrunkKey");
    }
    for host in hosts.iter_mut() {
        // At first, every user can read the file with the key: the agent refuses the key, and reports the remedy.
        host.run_checked(&format!("umask 022; printf '%064d\\n' 7 > {KEY_FILE}")).unwrap();
        host.run_checked("kill -HUP $(cat /run/agent.pid)").unwrap();
        wait_until(host, "curl -s http://127.0.0.1:9477/report | grep -q 'chmod 600'");
        host.run_checked(&format!("chmod 600 {KEY_FILE}")).unwrap();
        // SIGHUP starts a cycle, which reads the key.
        host.run_checked("kill -HUP $(cat /run/agent.pid)").unwrap();
    }
}

/// Tests that both hosts verify all VLANs, report a VLAN that the switch drops with the name of the other host, and
/// verify all VLANs again when the switch carries it.
fn missing_vlan_is_reported(switch: &Hub, hosts: &mut [Host; 2]) {
    for host in hosts.iter_mut() {
        wait_until(host, &trunk_has_state("Verified"));
        // After the daemon publishes the result of the verification, it saves the result for `berth-agent check`.
        wait_until(host, "berth-agent check network.trunk | grep -q PASS");
    }
    // The port of the first host lacks a VLAN.
    switch.set_missing_vlans(0, &[200]);
    for (host, peer) in hosts.iter_mut().zip(NAMES.into_iter().rev()) {
        wait_until(host, &trunk_has_state("Missing"));
        let network = &read_report(host)["status"]["networks"][0];
        assert_eq!(network["mtu"], 1500);
        let trunk = &network["trunk"];
        assert_eq!((&trunk["vlans"], &trunk["from"][0]), (&"200".into(), &peer.into()), "{trunk}");
        wait_until(host, "berth-agent check network.trunk | grep -q FAIL");
        let check = host.run("berth-agent check network.trunk | tr -s ' \\n' ' '").unwrap();
        assert!(check.output.contains("VLAN 200 is not received from"), "{}", check.output);
    }
    switch.set_missing_vlans(0, &[]);
    for host in hosts.iter_mut() {
        wait_until(host, &trunk_has_state("Verified"));
    }
}

/// Tests that an LLDP frame, which the second host sends in place of a switch, appears in the report of the first host.
fn announced_switch_is_reported(first: &mut Host, second: &mut Host) {
    // Chassis id, port id, time to live, system name, port VLAN id 1, VLAN 100 with the name `a`, end.
    let frame = "0180c200000e 02aabbccdd01 88cc 0207 04 02aabbccdd01 0404 05 703137 0602 0078 0a05 6c65616631 \
                 fe06 0080c2 01 0001 fe08 0080c2 03 0064 01 61 0000";
    second
        .run_checked(&format!(
            "perl -e 'use Socket; socket(my $s, 17, SOCK_RAW, 0) or die $!; \
             my $index = `cat /sys/class/net/{UPLINK_NAME}/ifindex`; \
             my $to = pack(\"S n i S C C x8\", 17, 0x88cc, $index, 0, 0, 0); \
             (my $frame = \"{frame}\") =~ s/ //g; \
             send($s, pack(\"H*\", $frame), 0, $to) or die $!;'"
        ))
        .unwrap();
    wait_until(first, "curl -s http://127.0.0.1:9477/report | grep -q leaf1");
    let neighbor = &read_report(first)["status"]["neighbors"][0];
    assert_eq!(neighbor["uplink"], UPLINK_NAME, "{neighbor}");
    assert_eq!(neighbor["chassis"], "02:aa:bb:cc:dd:01", "{neighbor}");
    assert_eq!(neighbor["port"], "p17", "{neighbor}");
    assert_eq!((&neighbor["portVlan"], &neighbor["vlans"][0]["id"]), (&1.into(), &100.into()));
}
