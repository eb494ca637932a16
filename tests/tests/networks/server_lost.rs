//! Test of a change to the uplink of the host's own traffic in a cluster: the gateway still answers, but the API
//! server is unreachable after the change.

use std::time::Duration;

use berth_tests::cluster::{ControlPlane, ControlPlaneOptions, HOST_GATEWAY, condition};
use berth_tests::host::Host;
use serde_json::{Value, json};

use crate::{UPLINK_NAME, add_management_link, assert_link_state, read_link_state};

const NODE_NAME: &str = "rack1-19";
const SHORT_TIMEOUT: Duration = Duration::from_secs(120);

/// Tests the rollback. The host's default route uses a VLAN link of the uplink, which still gets its frames when
/// the uplink becomes a bridge port. The route to the API server uses an address on the uplink itself, which then
/// gets no frames. The second host is the router of both routes.
pub(crate) fn change_is_rolled_back_when_the_server_is_unreachable(hosts: &mut [Host; 2]) {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).unwrap();
    plane.deploy(&[]).unwrap();
    plane.create_node(NODE_NAME).unwrap();
    let [host, router] = hosts;
    configure_routes(host, router);
    let token = plane.create_token("berth-agent").unwrap();
    let kubeconfig = plane.write_kubeconfig("berth-agent", &token, true).unwrap();
    host.copy_file(&kubeconfig, "/etc/berth/kubeconfig").unwrap();
    let before = read_link_state(host);
    host.run_checked(&format!(
        "berth-agent run --kubeconfig /etc/berth/kubeconfig --node-name {NODE_NAME} </dev/null >/run/agent.log 2>&1 & \
         echo $! >/run/agent.pid"
    ))
    .unwrap();
    wait_until(&plane, host, "the InfraNode is Ready", |node| {
        condition(node, "Ready")["status"] == "True"
    });

    plane.set_infra_node_spec(NODE_NAME, &network_spec(1500)).unwrap();
    wait_until(&plane, host, "the change is rolled back and reported", |node| {
        let status = node["status"].to_string();
        status.contains("the API server") && status.contains("is no longer reachable")
    });
    host.run_checked(&format!(
        "! ip link show {UPLINK_NAME} | grep -q master && ping -c 1 -W 5 10.99.0.1"
    ))
    .unwrap();
    let infra_node = plane.infra_node(NODE_NAME);
    assert_eq!(condition(&infra_node, "TenantNetworksReady")["status"], "False", "{infra_node:#}");
    // The agent does not retry the change, and still reaches the API server.
    let rollbacks = host.run_checked("grep -c 'was rolled back' /run/agent.log").unwrap();
    host.run_checked("kill -HUP $(cat /run/agent.pid); sleep 5").unwrap();
    host.run_checked(&format!("! ip link show {UPLINK_NAME} | grep -q master")).unwrap();
    assert_eq!(host.run_checked("grep -c 'was rolled back' /run/agent.log").unwrap(), rollbacks);

    // After the route to the API server also uses the VLAN link, the same change succeeds when it is requested
    // again.
    host.run_checked(&format!("ip route replace {HOST_GATEWAY}/32 via 10.99.0.1")).unwrap();
    plane.set_infra_node_spec(NODE_NAME, &network_spec(1400)).unwrap();
    wait_until(&plane, host, "the change is applied", |node| {
        condition(node, "TenantNetworksReady")["status"] == "True"
    });
    host.run_checked(&format!("ip link show {UPLINK_NAME} | grep -q 'master br-tenant'")).unwrap();

    host.run_checked("kill $(cat /run/agent.pid); tail --pid=$(cat /run/agent.pid) -f /dev/null")
        .unwrap();
    host.run_checked("berth-agent revert && test ! -e /var/lib/berth/trial.json").unwrap();
    host.run_checked(&format!("ip route replace {HOST_GATEWAY}/32 via 10.98.0.1")).unwrap();
    assert_link_state(&before, host);
}

fn network_spec(mtu: u32) -> Value {
    json!({
        "networks": [{
            "name": "tenants", "scenario": "VlanAwareBridge", "bridge": "br-tenant", "mtu": mtu,
            "uplink": {"name": UPLINK_NAME, "allowManagement": true},
        }],
        "tenantNetworks": [{"name": "cluster-a", "network": "tenants", "vlan": 100}],
    })
}

fn configure_routes(host: &mut Host, router: &mut Host) {
    for each in [&mut *host, &mut *router] {
        add_management_link(each);
    }
    router
        .run_checked(&format!(
            "ip address add 10.99.0.1/24 dev mgmt0; ip address add 10.98.0.1/24 dev {UPLINK_NAME}
             out=$(ip -o link | awk '/52:54:00:12:34:56/ {{ sub(\":\", \"\", $2); print $2; exit }}')
             ip link set $out up; ip address replace 10.0.2.15/24 dev $out
             sysctl -qw net.ipv4.ip_forward=1
             nft \"table ip berth_tests {{ chain out {{ type nat hook postrouting priority 100; oifname $out masquerade; }}; }}\""
        ))
        .unwrap();
    host.run_checked(&format!(
        "ip address add 10.99.0.2/24 dev mgmt0; ip route add default via 10.99.0.1
         ip address add 10.98.0.2/24 dev {UPLINK_NAME}; ip route add {HOST_GATEWAY}/32 via 10.98.0.1"
    ))
    .unwrap();
}

/// Waits until a condition holds for the InfraNode.
#[track_caller]
fn wait_until(
    plane: &ControlPlane,
    host: &mut Host,
    description: &str,
    condition: fn(&Value) -> bool,
) {
    let result = plane.wait_until(description, SHORT_TIMEOUT, |plane| {
        condition(&plane.infra_node(NODE_NAME)).then_some(())
    });
    if let Err(error) = result {
        let log =
            host.run("tail -50 /run/agent.log; ip address; ip route; ip neigh").unwrap().output;
        unreachable!("{error:#}\n{:#}\n{log}", plane.infra_node(NODE_NAME)["status"]);
    }
}
