//! Tests of an uplink that carries the host's own traffic: changes are refused, or applied on trial if the manifest
//! explicitly allows them.

use berth_tests::host::Host;

use crate::daemon::{start_agent, stop_agent, wait_until};
use crate::{
    MANIFEST_PATH, add_management_link, assert_link_state, join_lines, manifest, read_link_state,
    write_manifest,
};

/// Returns a network on the uplink of the host's own traffic.
fn network_manifest(is_management_allowed: bool) -> String {
    let allow = if is_management_allowed { ", allowManagement: true" } else { "" };
    format!(
        "{{name: tenants, scenario: VlanAwareBridge, uplink: {{name: trunk0{allow}}}, bridge: br-tenant, mtu: 1500}}"
    )
}
const TENANT: &str = "{name: cluster-a, network: tenants, vlan: 100}";

/// Tests an uplink that has the host's address, and an uplink that has a VLAN link with the address. The second
/// host is the gateway of the first host.
pub(crate) fn management_traffic_is_kept(hosts: &mut [Host; 2], thorough: bool) {
    let [host, gateway] = hosts;
    for each in [&mut *host, &mut *gateway] {
        add_management_link(each);
    }
    gateway
        .run_checked(
            "ip address add 10.99.0.1/24 dev mgmt0; ip address add 10.98.0.1/24 dev trunk0",
        )
        .unwrap();
    host.run_checked("ip address add 10.99.0.2/24 dev mgmt0; ip route add default via 10.99.0.1")
        .unwrap();
    let before = read_link_state(host);

    // The agent refuses the network, and does not change the host.
    write_manifest(host, &manifest(&[&network_manifest(false)], &[TENANT]));
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 1, "{}", result.output);
    assert!(
        join_lines(&result.output).contains("the host's default route leaves through trunk0"),
        "{}",
        result.output
    );
    assert_link_state(&before, host);

    uplink_is_found_by_routes_alone(host);
    assert_link_state(&before, host);

    // A tenant's bridge on a VLAN of the uplink needs no permission, because the uplink itself is not changed.
    let own = "{name: tenants, scenario: BridgePerTenant, uplink: {name: trunk0}}";
    write_manifest(host, &manifest(&[own], &[TENANT]));
    host.run_checked(&format!(
        "berth-agent apply -f {MANIFEST_PATH} && ping -c 1 -W 5 10.99.0.1 && berth-agent revert"
    ))
    .unwrap();

    // The network is allowed, and the gateway always answers, because the VLAN link still gets its frames.
    write_manifest(host, &manifest(&[&network_manifest(true)], &[TENANT]));
    let output = host.run_checked(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert!(
        join_lines(&output).contains("the gateway answers (guarded by berth-trial-guard-"),
        "{output}"
    );
    host.run_checked("ping -c 1 -W 5 10.99.0.1 && ip link show trunk0 | grep -q 'master br-tenant' && test ! -e /var/lib/berth/trial.json").unwrap();
    host.run_checked("berth-agent revert").unwrap();
    assert_link_state(&before, host);

    move_address_to_the_uplink(host);
    change_is_rolled_back_when_the_gateway_is_lost(host);
    change_is_rolled_back_at_the_next_start(host);
    change_is_rolled_back_when_the_control_group_is_killed(host);
    if thorough {
        change_is_rolled_back_by_the_guard(host);
        daemon_rolls_back_and_does_not_retry(host);
    }
    move_address_to_the_vlan(host);

    host.run_checked("ip link del mgmt0; ip neigh flush all").unwrap();
    gateway.run_checked("ip link del mgmt0; ip address flush dev trunk0 scope global").unwrap();
}

/// Tests a host whose address is on `lo`, with no default route: the agent finds the uplink of the host's own
/// traffic by other routes.
fn uplink_is_found_by_routes_alone(host: &mut Host) {
    host.run_checked(
        "ip route del default; ip address del 10.99.0.2/24 dev mgmt0; ip address add 10.99.0.2/32 dev lo; \
         ip route add 10.99.0.1 dev mgmt0 src 10.99.0.2; ip route add 10.96.0.0/12 via 10.99.0.1",
    )
    .unwrap();
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 1, "{}", result.output);
    assert!(
        join_lines(&result.output).contains("the host's route to 10.9")
            && join_lines(&result.output).contains("through mgmt0"),
        "{}",
        result.output
    );
    host.run_checked(
        "ip route del 10.96.0.0/12; ip route del 10.99.0.1; ip address del 10.99.0.2/32 dev lo; \
         ip address add 10.99.0.2/24 dev mgmt0; ip route add default via 10.99.0.1",
    )
    .unwrap();
}

/// Moves the address to the uplink itself; the host is unreachable as soon as the uplink is a bridge port.
fn move_address_to_the_uplink(host: &mut Host) {
    host.run_checked(
        "ip route del default; ip address del 10.99.0.2/24 dev mgmt0; ip address add 10.98.0.2/24 dev trunk0; \
         ip route add default via 10.98.0.1",
    )
    .unwrap();
}

fn move_address_to_the_vlan(host: &mut Host) {
    host.run_checked(
        "ip route del default; ip address del 10.98.0.2/24 dev trunk0; ip address add 10.99.0.2/24 dev mgmt0; \
         ip route add default via 10.99.0.1",
    )
    .unwrap();
}

fn change_is_rolled_back_when_the_gateway_is_lost(host: &mut Host) {
    let before = read_link_state(host);
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 3, "{}", result.output);
    assert!(
        join_lines(&result.output).contains("gateway 10.98.0.1 has not answered"),
        "{}",
        result.output
    );
    assert!(join_lines(&result.output).contains("rolled back"), "{}", result.output);
    host.run_checked("ping -c 1 -W 5 10.98.0.1 && test ! -e /var/lib/berth/trial.json").unwrap();
    host.run_checked("berth-agent revert").unwrap();
    assert_link_state(&before, host);
}

/// Starts apply, and kills it as soon as the uplink is a bridge port.
fn kill_apply_during_the_trial(host: &mut Host) {
    host.run_checked(&format!(
        "setsid berth-agent apply -f {MANIFEST_PATH} </dev/null >/run/apply.log 2>&1 & pid=$!; \
         until ip link show trunk0 | grep -q 'master br-tenant'; do sleep 0.1; done; kill -9 $pid; wait $pid; \
         ip link show trunk0 | grep -q 'master br-tenant'"
    ))
    .unwrap();
}

fn change_is_rolled_back_at_the_next_start(host: &mut Host) {
    let before = read_link_state(host);
    kill_apply_during_the_trial(host);
    let result = host.run("berth-agent revert").unwrap();
    assert!(
        join_lines(&result.output)
            .contains("berth-agent exited during the trial of trunk0, which was rolled back"),
        "{}",
        result.output
    );
    host.run_checked("ping -c 1 -W 5 10.98.0.1").unwrap();
    host.run_checked("berth-agent revert").unwrap();
    assert_link_state(&before, host);
}

/// Tests the end of all processes of the agent's control group without a restart, as after `systemctl stop`, an
/// out-of-memory kill of the group, or the end of a container. The trial guard runs in a separate systemd unit and
/// survives.
fn change_is_rolled_back_when_the_control_group_is_killed(host: &mut Host) {
    let before = read_link_state(host);
    host.run_checked(&format!(
        "systemd-run --unit=berth-try --collect --property=KillMode=control-group berth-agent apply -f {MANIFEST_PATH}; \
         until ip link show trunk0 | grep -q 'master br-tenant'; do sleep 0.1; done; \
         systemctl kill --kill-whom=all --signal=KILL berth-try.service; \
         while systemctl is-active --quiet berth-try.service; do sleep 0.1; done; ! pgrep -f 'berth-agent apply'"
    ))
    .unwrap();
    let guard = host.run_checked("systemctl list-units --plain --no-legend 'berth-trial-guard-*.service'; pgrep -af trial-guard").unwrap();
    assert!(guard.contains("active") && guard.contains("running"), "no guard survived: {guard}");
    host.run_checked(
        "ip link show trunk0 | grep -q 'master br-tenant' && test -e /var/lib/berth/trial.json",
    )
    .unwrap();
    wait_until(host, "ping -c 1 -W 2 10.98.0.1");
    host.run_checked("! ip link show trunk0 | grep -q master").unwrap();
    let result = host.run("berth-agent revert").unwrap();
    assert!(
        join_lines(&result.output).contains("berth-agent exited during the trial of trunk0"),
        "{}",
        result.output
    );
    host.run_checked("berth-agent revert && test ! -e /var/lib/berth/trial.json").unwrap();
    // The guard exits, and systemd unloads its unit.
    wait_until(host, "! systemctl list-units --all --plain --no-legend | grep berth-trial-guard");
    assert_link_state(&before, host);
}

/// Tests that the guard reverts the change if the agent is not restarted.
fn change_is_rolled_back_by_the_guard(host: &mut Host) {
    let before = read_link_state(host);
    kill_apply_during_the_trial(host);
    wait_until(host, "ping -c 1 -W 2 10.98.0.1");
    host.run("berth-agent revert").unwrap();
    host.run_checked("berth-agent revert && test ! -e /var/lib/berth/trial.json").unwrap();
    assert_link_state(&before, host);
}

fn daemon_rolls_back_and_does_not_retry(host: &mut Host) {
    let before = read_link_state(host);
    start_agent(host);
    wait_until(host, "curl -s http://127.0.0.1:9477/report | grep -q 'rolled back'");
    host.run_checked("ping -c 1 -W 5 10.98.0.1").unwrap();
    // The change stays reverted after the next cycle.
    host.run_checked(
        "kill -HUP $(cat /run/agent.pid); sleep 3; ! ip link show trunk0 | grep -q master",
    )
    .unwrap();
    stop_agent(host);
    host.run_checked("berth-agent revert").unwrap();
    assert_link_state(&before, host);
}
