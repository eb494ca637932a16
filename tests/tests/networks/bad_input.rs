//! Tests of invalid networks: the error names the field and the value, nothing is changed for this network, and the
//! other networks are created.

use berth_tests::host::Host;

use crate::{MANIFEST_PATH, assert_link_state, manifest, read_link_state, write_manifest};

pub(crate) fn invalid_networks_are_reported_and_others_are_created(host: &mut Host) {
    host.run_checked(
        "modprobe -a 8021q bridge vxlan; ip link add br-foreign type bridge; ip link add port0 type dummy; \
         ip link set port0 master br-foreign; ip link add spare0 type dummy; ip link set spare0 mtu 1500 up; \
         ip address add 172.16.9.1/24 dev spare0",
    )
    .unwrap();
    let before = read_link_state(host);
    let good = "{name: good, scenario: BridgePerTenant, uplink: {name: spare0}, bridge: ok}";
    let tenant = "{name: cluster-good, network: good, vlan: 300}";
    let bridge = |rest: &str| {
        format!(
            "{{name: bad, scenario: VlanAwareBridge, uplink: {{name: trunk0}}, bridge: br-bad{rest}}}"
        )
    };
    let vxlan = |rest: &str| format!("{{name: bad, scenario: Vxlan, vxlan: {{{rest}}}}}");
    let a = "{name: cluster-x, network: bad, vlan: 120}";
    let vni = "{name: cluster-x, network: bad, vni: 120}";
    host.start_command("systemd-socket-activate --datagram --listen 4791 cat").unwrap();
    host.run_checked(
        "ip link add taken0 type vxlan id 9 dstport 5355 local 172.16.9.1; ip link set taken0 up",
    )
    .unwrap();
    for (network, tenants, expected) in [
        (bridge(""), vec![a, "{name: cluster-y, network: bad, vlan: 120}"], "spec.tenantNetworks[cluster-y].vlan: `120`: is already used by cluster-x"),
        (bridge(""), vec![a, "{name: cluster-y, network: bad, vlan: 1}"], "spec.tenantNetworks[cluster-y].vlan: `1`: is the default VLAN"),
        (bridge(""), vec![a, "{name: cluster-y, network: bad, vlan: 0}"], "spec.tenantNetworks[2].vlan: `0`: "),
        (bridge(""), vec![a, "{name: cluster-y, network: bad, vlan: 4095}"], "spec.tenantNetworks[2].vlan: `4095`: "),
        (bridge(", mtu: 9000"), vec![a], "spec.networks[bad].mtu: `9000`: trunk0 allows 2000 bytes at most"),
        ("{name: bad, scenario: VlanAwareBridge, uplink: {name: eth99}}".to_owned(), vec![a], "spec.networks[bad].uplink.name: `eth99`: does not exist"),
        ("{name: bad, scenario: VlanAwareBridge, uplink: {name: port0}}".to_owned(), vec![a], "`port0`: is a port of br-foreign"),
        ("{name: bad, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: a-name-that-is-too-long}".to_owned(), vec![a], "spec.networks[1].bridge: `a-name-that-is-too-long`: "),
        ("{name: bad, scenario: BridgePerTenant, uplink: {name: trunk0}, bridge: br-of-tenants}".to_owned(), vec![a], "spec.networks[bad].bridge: `br-of-tenants`: a link's name has at most 15 bytes"),
        (vxlan("localAddress: 192.0.2.1"), vec![vni], "spec.networks[bad].vxlan.localAddress: `192.0.2.1`: is not an address of a link of this host"),
        (vxlan("localAddress: 172.16.9.1, peers: [172.16.9.1]"), vec![vni], "spec.networks[bad].vxlan.peers[0]: `172.16.9.1`: is an address of this host"),
        (vxlan("localAddress: 172.16.9.1, port: 4791"), vec![vni], "spec.networks[bad].vxlan.port: `4791`: is in use by another program"),
        (vxlan("localAddress: 172.16.9.1, port: 5355"), vec![vni], "spec.networks[bad].vxlan.port: `5355`: is the port of VXLAN link taken0"),
    ] {
        let mut all = vec![tenant];
        all.extend(&tenants);
        write_manifest(host, &manifest(&[good, &network], &all));
        let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
        // `apply` refuses a manifest with an error; the daemon applies the valid part.
        assert_eq!(result.code, 2, "{network}: {}", result.output);
        assert!(result.output.contains(expected), "{expected} is not in:\n{}", result.output);
    }
    host.run_checked("pkill systemd-socket-a; ip link del taken0").unwrap();
    assert_link_state(&before, host);
    daemon_creates_the_valid_networks(host, good, tenant);
    // A bridge of another program blocks only the network that would use the name of the bridge.
    write_manifest(
        host,
        &manifest(
            &[
                good,
                "{name: bad, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: br-foreign}",
            ],
            &[tenant, a],
        ),
    );
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 1, "{}", result.output);
    assert!(
        crate::join_lines(&result.output)
            .contains("link br-foreign exists and was not created by Berth"),
        "{}",
        result.output
    );
    host.run_checked("ip link show ok300 && berth-agent revert").unwrap();
    assert_link_state(&before, host);
    host.run_checked("ip link del br-foreign; ip link del port0; ip link del spare0").unwrap();
}

fn daemon_creates_the_valid_networks(host: &mut Host, good: &str, tenant: &str) {
    let bad = "{name: bad, scenario: VlanAwareBridge, uplink: {name: eth99}, bridge: br-bad}";
    write_manifest(
        host,
        &manifest(&[good, bad], &[tenant, "{name: cluster-x, network: bad, vlan: 120}"]),
    );
    crate::daemon::start_agent(host);
    host.run_checked("ip link show ok300 && ! ip link show br-bad").unwrap();
    let status = crate::daemon::read_report(host);
    let status_text = status.to_string();
    assert!(
        status_text.contains("spec.networks[bad].uplink.name: `eth99`: does not exist"),
        "{status_text}"
    );
    let network_counts = |name: &str, field: &str| {
        let networks = status["status"]["networks"].as_array().unwrap();
        networks.iter().find(|network| network["name"] == name).unwrap()[field].clone()
    };
    assert_eq!(
        (network_counts("good", "ready"), network_counts("bad", "failed")),
        (1.into(), 1.into()),
        "{status_text}"
    );
    crate::daemon::stop_agent(host);
}
