//! Tests of an uplink that carries the host's own traffic: changes are refused, or applied on trial if the manifest
//! explicitly allows them.

use berth_tests::host::Host;

use crate::daemon::{start, stop, until};
use crate::{MANIFEST, add_management_link, assert_same, links, manifest, unwrapped, write};

/// Returns a network on the uplink of the host's own traffic.
fn network(allow: bool) -> String {
    let allow = if allow { ", allowManagement: true" } else { "" };
    format!(
        "{{name: tenants, scenario: VlanAwareBridge, uplink: {{name: trunk0{allow}}}, bridge: br-tenant, mtu: 1500}}"
    )
}
const TENANT: &str = "{name: cluster-a, network: tenants, vlan: 100}";

/// Tests an uplink that has the host's address, and an uplink that has a VLAN link with the address. The second
/// host is the gateway of the first host.
pub(crate) fn is_safe(hosts: &mut [Host; 2], thorough: bool) {
    let [host, gateway] = hosts;
    for each in [&mut *host, &mut *gateway] {
        add_management_link(each);
    }
    gateway
        .must("ip address add 10.99.0.1/24 dev mgmt0; ip address add 10.98.0.1/24 dev trunk0")
        .unwrap();
    host.must("ip address add 10.99.0.2/24 dev mgmt0; ip route add default via 10.99.0.1").unwrap();
    let before = links(host);

    // The network is refused, and nothing is changed.
    write(host, &manifest(&[&network(false)], &[TENANT]));
    let said = host.run(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
    assert_eq!(said.code, 1, "{}", said.output);
    assert!(
        unwrapped(&said.output).contains("the host's default route leaves through it"),
        "{}",
        said.output
    );
    assert_same(&before, &links(host));

    routes_alone_count(host);
    assert_same(&before, &links(host));

    // A tenant's bridge on a VLAN of the uplink needs no permission, because the uplink itself is not changed.
    let own = "{name: tenants, scenario: BridgePerTenant, uplink: {name: trunk0}}";
    write(host, &manifest(&[own], &[TENANT]));
    host.must(&format!(
        "berth-agent apply -f {MANIFEST} && ping -c 1 -W 5 10.99.0.1 && berth-agent revert"
    ))
    .unwrap();

    // The network is allowed, and the gateway always answers, because the VLAN link still gets its frames.
    write(host, &manifest(&[&network(true)], &[TENANT]));
    let said = host.must(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
    assert!(
        unwrapped(&said).contains("the gateway answers (guarded by berth-trial-guard-"),
        "{said}"
    );
    host.must("ping -c 1 -W 5 10.99.0.1 && ip link show trunk0 | grep -q 'master br-tenant' && test ! -e /var/lib/berth/trial.json").unwrap();
    host.must("berth-agent revert").unwrap();
    assert_same(&before, &links(host));

    live_on_the_uplink(host);
    undone_when_the_gateway_is_lost(host);
    undone_at_the_next_start(host);
    undone_when_the_control_group_is_killed(host);
    if thorough {
        undone_by_the_guard(host);
        undone_by_the_daemon_and_not_tried_again(host);
    }
    live_on_the_vlan(host);

    host.must("ip link del mgmt0; ip neigh flush all").unwrap();
    gateway.must("ip link del mgmt0; ip address flush dev trunk0 scope global").unwrap();
}

/// Tests a host whose address is on `lo`, with no default route: the agent finds the uplink of the host's own
/// traffic by other routes.
fn routes_alone_count(host: &mut Host) {
    host.must(
        "ip route del default; ip address del 10.99.0.2/24 dev mgmt0; ip address add 10.99.0.2/32 dev lo; \
         ip route add 10.99.0.1 dev mgmt0 src 10.99.0.2; ip route add 10.96.0.0/12 via 10.99.0.1",
    )
    .unwrap();
    let said = host.run(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
    assert_eq!(said.code, 1, "{}", said.output);
    assert!(
        unwrapped(&said.output).contains("the host's route to 10.9")
            && unwrapped(&said.output).contains("through mgmt0"),
        "{}",
        said.output
    );
    host.must(
        "ip route del 10.96.0.0/12; ip route del 10.99.0.1; ip address del 10.99.0.2/32 dev lo; \
         ip address add 10.99.0.2/24 dev mgmt0; ip route add default via 10.99.0.1",
    )
    .unwrap();
}

/// Moves the address to the uplink itself; the host is unreachable as soon as the uplink is a bridge port.
fn live_on_the_uplink(host: &mut Host) {
    host.must(
        "ip route del default; ip address del 10.99.0.2/24 dev mgmt0; ip address add 10.98.0.2/24 dev trunk0; \
         ip route add default via 10.98.0.1",
    )
    .unwrap();
}

fn live_on_the_vlan(host: &mut Host) {
    host.must(
        "ip route del default; ip address del 10.98.0.2/24 dev trunk0; ip address add 10.99.0.2/24 dev mgmt0; \
         ip route add default via 10.99.0.1",
    )
    .unwrap();
}

fn undone_when_the_gateway_is_lost(host: &mut Host) {
    let before = links(host);
    let said = host.run(&format!("berth-agent apply -f {MANIFEST}")).unwrap();
    assert_eq!(said.code, 3, "{}", said.output);
    assert!(
        unwrapped(&said.output).contains("gateway 10.98.0.1 has not answered"),
        "{}",
        said.output
    );
    assert!(unwrapped(&said.output).contains("rolled back"), "{}", said.output);
    host.must("ping -c 1 -W 5 10.98.0.1 && test ! -e /var/lib/berth/trial.json").unwrap();
    host.must("berth-agent revert").unwrap();
    assert_same(&before, &links(host));
}

/// Starts apply, and kills it as soon as the uplink is a bridge port.
fn kill_in_between(host: &mut Host) {
    host.must(&format!(
        "setsid berth-agent apply -f {MANIFEST} </dev/null >/run/apply.log 2>&1 & pid=$!; \
         until ip link show trunk0 | grep -q 'master br-tenant'; do sleep 0.1; done; kill -9 $pid; wait $pid; \
         ip link show trunk0 | grep -q 'master br-tenant'"
    ))
    .unwrap();
}

fn undone_at_the_next_start(host: &mut Host) {
    let before = links(host);
    kill_in_between(host);
    let said = host.run("berth-agent revert").unwrap();
    assert!(
        unwrapped(&said.output)
            .contains("was on trial when berth-agent exited, and was rolled back"),
        "{}",
        said.output
    );
    host.must("ping -c 1 -W 5 10.98.0.1").unwrap();
    host.must("berth-agent revert").unwrap();
    assert_same(&before, &links(host));
}

/// Tests the end of all processes of the agent's control group without a restart, as after `systemctl stop`, an
/// out-of-memory kill of the group, or the end of a container. The trial guard runs in a separate systemd unit and
/// survives.
fn undone_when_the_control_group_is_killed(host: &mut Host) {
    let before = links(host);
    host.must(&format!(
        "systemd-run --unit=berth-try --collect --property=KillMode=control-group berth-agent apply -f {MANIFEST}; \
         until ip link show trunk0 | grep -q 'master br-tenant'; do sleep 0.1; done; \
         systemctl kill --kill-whom=all --signal=KILL berth-try.service; \
         while systemctl is-active --quiet berth-try.service; do sleep 0.1; done; ! pgrep -f 'berth-agent apply'"
    ))
    .unwrap();
    let left = host.must("systemctl list-units --plain --no-legend 'berth-trial-guard-*.service'; pgrep -af trial-guard").unwrap();
    assert!(left.contains("active") && left.contains("running"), "no guard survived: {left}");
    host.must(
        "ip link show trunk0 | grep -q 'master br-tenant' && test -e /var/lib/berth/trial.json",
    )
    .unwrap();
    until(host, "ping -c 1 -W 2 10.98.0.1");
    host.must("! ip link show trunk0 | grep -q master").unwrap();
    let said = host.run("berth-agent revert").unwrap();
    assert!(
        unwrapped(&said.output).contains("was on trial when berth-agent exited"),
        "{}",
        said.output
    );
    host.must("berth-agent revert && test ! -e /var/lib/berth/trial.json").unwrap();
    // The guard's unit ends without a command, and systemd unloads the unit.
    until(host, "! systemctl list-units --all --plain --no-legend | grep berth-trial-guard");
    assert_same(&before, &links(host));
}

/// Tests that the guard reverts the change if the agent is not restarted.
fn undone_by_the_guard(host: &mut Host) {
    let before = links(host);
    kill_in_between(host);
    until(host, "ping -c 1 -W 2 10.98.0.1");
    host.run("berth-agent revert").unwrap();
    host.must("berth-agent revert && test ! -e /var/lib/berth/trial.json").unwrap();
    assert_same(&before, &links(host));
}

fn undone_by_the_daemon_and_not_tried_again(host: &mut Host) {
    let before = links(host);
    start(host);
    until(host, "curl -s http://127.0.0.1:9477/report | grep -q 'rolled back'");
    host.must("ping -c 1 -W 5 10.98.0.1").unwrap();
    // The change stays reverted after the next cycle.
    host.must("kill -HUP $(cat /run/agent.pid); sleep 3; ! ip link show trunk0 | grep -q master")
        .unwrap();
    stop(host);
    host.must("berth-agent revert").unwrap();
    assert_same(&before, &links(host));
}
