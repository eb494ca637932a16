//! Tests of `run --standalone` with tenant networks: drift is corrected immediately or only reported, and no event
//! of the agent or of another tenant interrupts a VM.

use std::time::Duration;

use berth_tests::host::Host;
use berth_tests::package::newest_package;
use serde_json::Value;

use crate::{
    MANIFEST_PATH, UPLINK_NAME, assert_link_state, frames, manifest, read_link_state,
    running_pings, write_manifest,
};

const SHARED_NETWORK: &str = "{name: tenants, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: br-tenant, mtu: 1500}";
const SEPARATE_NETWORK: &str = "{name: own, scenario: BridgePerTenant, uplink: {name: own0}}";
const TENANTS: [&str; 3] = [
    "{name: cluster-a, network: tenants, vlan: 100}",
    "{name: cluster-b, network: tenants, vlan: 200}",
    "{name: cluster-c, network: own, vlan: 300}",
];

pub(crate) fn start_agent(host: &mut Host) {
    // The first loop does not start `curl`, which on an emulated host takes CPU time that the agent needs for its
    // start.
    host.run_checked(&format!(
        "berth-agent run --standalone {MANIFEST_PATH} </dev/null >>/run/agent.log 2>&1 & echo $! >/run/agent.pid; \
         for i in $(seq 300); do {{ : </dev/tcp/127.0.0.1/9477; }} 2>/dev/null && break; sleep 0.2; done; \
         for i in $(seq 100); do curl -s http://127.0.0.1:9477/readyz | grep -q . && break; sleep 0.2; done"
    ))
    .unwrap();
    wait_until(host, "curl -s http://127.0.0.1:9477/report | grep -q TenantNetworksReady");
}

pub(crate) fn stop_agent(host: &mut Host) {
    host.run_checked("kill $(cat /run/agent.pid); tail --pid=$(cat /run/agent.pid) -f /dev/null")
        .unwrap();
}

pub(crate) fn read_report(host: &mut Host) -> Value {
    serde_json::from_str(&host.run_checked("curl -s http://127.0.0.1:9477/report").unwrap())
        .unwrap()
}

/// Waits until a shell condition holds.
#[track_caller]
pub(crate) fn wait_until(host: &mut Host, condition: &str) {
    let explain =
        "tail -50 /run/agent.log; curl -s http://127.0.0.1:9477/report | head -c 6000; ip -d link";
    host.wait_until(condition, Duration::from_secs(60), explain).unwrap();
}

fn networks_condition(report: &Value) -> (String, String) {
    let all = report["status"]["conditions"].as_array().unwrap();
    let found = all.iter().find(|condition| condition["type"] == "TenantNetworksReady").unwrap();
    (found["status"].as_str().unwrap().to_owned(), found["message"].as_str().unwrap().to_owned())
}

pub(crate) fn daemon_maintains_networks(hosts: &mut [Host; 2]) {
    for host in hosts.iter_mut() {
        host.run_checked("ip link add own0 type dummy; ip link set own0 up").unwrap();
    }
    let before: Vec<String> = hosts.iter_mut().map(read_link_state).collect();
    for (host, number) in hosts.iter_mut().zip([1, 2]) {
        write_manifest(host, &manifest(&[SHARED_NETWORK, SEPARATE_NETWORK], &TENANTS));
        start_agent(host);
        let (state, message) = networks_condition(&read_report(host));
        assert_eq!(state, "True", "{message}");
        host.run_checked(&format!("tenants add a{number} br-tenant 10.1.0.{number} 100")).unwrap();
    }
    hosts[0].run_checked("tenants ping a1 10.1.0.2").unwrap();
    running_pings::start(hosts);

    let [first, _] = hosts;
    drift_is_corrected(first);
    drift_is_only_reported(first);
    foreign_changes_are_reported(first);
    vms_stay_connected(first);

    running_pings::assert_answered(&mut hosts[0]);
    for (host, number) in hosts.iter_mut().zip([1, 2]) {
        stop_agent(host);
        host.run_checked(&format!(
            "tenants delete a{number} br-tenant 100; nft delete table bridge nat"
        ))
        .unwrap();
        host.run_checked("berth-agent revert").unwrap();
    }
    for (host, before) in hosts.iter_mut().zip(&before) {
        assert_link_state(before, host);
        host.run_checked("ip link del own0").unwrap();
    }
}

/// Shell condition that is true if the networks of both tenants exist on a host: the VLAN on the shared bridge, and a
/// bridge with its VLAN link.
const NETWORKS_EXIST: &str = "ip link show tn300 && ip -d link show tn300-v | grep -q 'master tn300 ' \
     && bridge vlan show dev trunk0 | grep -q 200";

/// Tests that the agent restores a link that another program deletes or changes. The kernel's event triggers the
/// correction, long before the timer, which runs once a minute. `make bench` measures the delay.
fn drift_is_corrected(host: &mut Host) {
    for (damage, sound) in [
        (
            "ip link del tn300",
            "ip link show tn300 && ip -d link show tn300-v | grep -q 'master tn300 '",
        ),
        ("ip link del tn300-v", "ip -d link show tn300-v | grep -q 'master tn300 '"),
        ("bridge vlan del vid 200 dev trunk0", "bridge vlan show dev trunk0 | grep -q 200"),
        ("bridge vlan add vid 777 dev trunk0", "! bridge vlan show dev trunk0 | grep -q 777"),
        ("ip link set tn300 down", "ip link show tn300 | grep -q ',UP'"),
        ("ip link set tn300 mtu 1300", "ip link show tn300 | grep -q 'mtu 1500'"),
        ("ip address add 10.9.9.9/24 dev tn300", "! ip address show tn300 | grep -q 10.9.9.9"),
    ]
    .into_iter()
    .chain(frames::TABLE_CHANGES)
    {
        host.run_checked(&format!(
            "{damage}; for i in $(seq 300); do {{ {sound}; }} >/dev/null 2>&1 && exit 0; sleep 0.1; done; \
             echo '{damage}: not corrected'; exit 1"
        ))
        .unwrap();
    }
    frames::other_tables_are_kept(host);
    let report = read_report(host);
    assert_eq!(networks_condition(&report).0, "True", "{report}");
    // Another program that repeats the change does not stop the corrections.
    host.run_checked(
        "for i in $(seq 40); do ip link del tn300 2>/dev/null; bridge vlan del vid 200 dev trunk0 2>/dev/null; sleep 0.1; done",
    )
    .unwrap();
    wait_until(host, NETWORKS_EXIST);
}

fn drift_is_only_reported(host: &mut Host) {
    let text = manifest(&[SHARED_NETWORK, SEPARATE_NETWORK], &TENANTS)
        .replace("spec:\n", "spec:\n  enforce: false\n");
    write_manifest(host, &text);
    // An agent that has not read the new manifest yet restores the bridge, so the test deletes the bridge again.
    wait_until(
        host,
        "ip link del tn300; sleep 1; curl -s http://127.0.0.1:9477/report | grep -q 'spec.enforce is false'",
    );
    host.run_checked("sleep 1; ! ip link show tn300").unwrap();
    write_manifest(host, &manifest(&[SHARED_NETWORK, SEPARATE_NETWORK], &TENANTS));
    wait_until(host, NETWORKS_EXIST);
    // A new tenant is created with `enforce: false` too, because a new tenant is not drift.
    wait_until(host, "curl -sf http://127.0.0.1:9477/readyz");
}

/// Tests that a state which Berth may not change is reported, with a remedy.
fn foreign_changes_are_reported(host: &mut Host) {
    host.run_checked(
        "ip link add link trunk0 name thief0 type vlan id 200 && ip link set thief0 up",
    )
    .unwrap();
    wait_until(
        host,
        "curl -s http://127.0.0.1:9477/report | grep -q 'thief0, which was not created by Berth, is VLAN 200'",
    );
    let result = host.run("berth-agent check network.stolen").unwrap();
    assert!(
        result.code == 1 && result.output.contains("thief0 receives all frames of VLAN 200"),
        "{}",
        result.output
    );
    assert!(
        result.output.contains("br-tenant  VLAN-aware bridge"),
        "the output has no tree of links:\n{}",
        result.output
    );
    host.run_checked("ip link del thief0").unwrap();
    wait_until(
        host,
        "curl -s http://127.0.0.1:9477/report | grep -q '3 tenant networks are ready'",
    );
    host.run_checked("sysctl -q net.bridge.bridge-nf-call-iptables=1").unwrap();
    let result = host.run("berth-agent check network").unwrap();
    assert!(result.output.contains("WARN  network.netfilter"), "{}", result.output);
    assert!(result.output.contains("PASS  network.mtu"), "{}", result.output);
    host.run_checked("sysctl -q net.bridge.bridge-nf-call-iptables=0").unwrap();
    let output = host.run_checked("berth-agent report").unwrap();
    assert!(output.contains("VLANs 100,200") && output.contains("(berth:tenants)"), "{output}");
}

/// Tests that VMs stay connected while the agent is stopped, killed, started and upgraded by package, and while
/// `revert` removes the networks of the other tenants.
fn vms_stay_connected(host: &mut Host) {
    host.run_checked("kill -9 $(cat /run/agent.pid); sleep 1").unwrap();
    start_agent(host);
    stop_agent(host);
    host.copy_file(&newest_package().unwrap(), "/run/berth.deb").unwrap();
    host.run_checked("dpkg -i /run/berth.deb && systemctl is-active berth-agent").unwrap();
    wait_until(host, "curl -sf http://127.0.0.1:9477/readyz");
    // The unit's sandbox permits the necessary changes: a tenant is removed and added.
    write_manifest(host, &manifest(&[SHARED_NETWORK, SEPARATE_NETWORK], &TENANTS[..1]));
    wait_until(host, "! ip link show tn300 && ! bridge vlan show dev trunk0 | grep -q 200");
    write_manifest(host, &manifest(&[SHARED_NETWORK, SEPARATE_NETWORK], &TENANTS));
    wait_until(host, NETWORKS_EXIST);
    host.run_checked("dpkg -i /run/berth.deb && systemctl is-active berth-agent").unwrap();
    wait_until(host, "curl -sf http://127.0.0.1:9477/readyz");
    host.run_checked("systemctl stop berth-agent && dpkg --remove berth-agent").unwrap();
    // Revert removes only networks that are not in use: the network of the tenant with the VM remains.
    let result = host.run("/usr/local/bin/berth-agent revert").unwrap();
    assert!(
        result.code == 1 && crate::join_lines(&result.output).contains("still in use by veth"),
        "{}",
        result.output
    );
    host.run_checked("tenants ping a1 10.1.0.2").unwrap();
    host.run_checked(&format!("ip link show {UPLINK_NAME} | grep -q 'master br-tenant'")).unwrap();
    start_agent(host);
}
