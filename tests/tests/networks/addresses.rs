//! Tests that VMs of two tenants with the same addresses on two hosts get their addresses from the agent, with the DHCP
//! clients of common operating systems, and that no answer of a DHCP server leaves a host.

use berth_tests::host::Host;

use crate::daemon::{start_agent, stop_agent, wait_until};
use crate::{
    UPLINK_NAME, assert_link_state, manifest, read_link_state, run_on_both_hosts, write_manifest,
};

const SHARED_NETWORK: &str = "{name: tenants, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: br-tenant, mtu: 1500}";
const SEPARATE_NETWORK: &str = "{name: tenants, scenario: BridgePerTenant, uplink: {name: trunk0}}";
const TENANTS: [&str; 2] = [
    "{name: cluster-a, network: tenants, vlan: 100, dhcpGuard: true}",
    "{name: cluster-b, network: tenants, vlan: 200}",
];

/// VMs of both hosts: tenant, number, and DHCP client. The number is the last octet of the VM's Ethernet address and IP
/// address, so VMs of both tenants have the same IP addresses.
const VMS: [[(&str, u8, &str); 3]; 2] = [
    [("a", 11, "dhclient"), ("b", 11, "networkd"), ("a", 12, "udhcpc")],
    [("a", 13, "networkd"), ("b", 13, "udhcpc"), ("b", 14, "dhclient")],
];

/// VMs that move to the other host and back, one for each DHCP client: tenant, number, client, index of the first host,
/// and the number of a VM of the tenant on the other host, after the first and after the second move.
const MOVED_VMS: [(&str, u8, &str, usize, [u8; 2]); 3] = [
    ("a", 12, "udhcpc", 0, [11, 13]),
    ("a", 13, "networkd", 1, [12, 11]),
    ("b", 14, "dhclient", 1, [13, 11]),
];

/// Bridge and VLAN of the ports of a tenant.
fn port_of(network: &str, tenant: &str) -> (&'static str, &'static str) {
    match (network == SHARED_NETWORK, tenant) {
        (true, "a") => ("br-tenant", "100"),
        (true, _) => ("br-tenant", "200"),
        (false, "a") => ("tn100", ""),
        (false, _) => ("tn200", ""),
    }
}

fn mac(tenant: &str, number: u8) -> String {
    let tenant = if tenant == "a" { "0a" } else { "0b" };
    format!("02:00:00:00:{tenant}:{number:02x}")
}

/// Returns the manifest of a host, with the leases of the VMs of both hosts, because both hosts of a migration have the
/// leases of the VM.
fn manifest_with_leases(network: &str) -> String {
    let leases = |wanted: &str| {
        let all = VMS.iter().flatten().filter(|(tenant, ..)| *tenant == wanted);
        let leases: Vec<String> = all
            .map(|(tenant, number, _)| {
                format!(
                    "{{mac: \"{}\", machine: cluster-{tenant}/m{number}, hostname: m{number}, ipv4: 10.1.0.{number}}}",
                    mac(tenant, *number)
                )
            })
            .collect();
        leases.join(", ")
    };
    let networks: String = [("a", 100), ("b", 200)]
        .map(|(tenant, vlan)| {
            format!(
                "  - name: cluster-{tenant}\n    vlan: {vlan}\n    ipv4: {{prefixLength: 24}}\n    leases: [{}]\n",
                leases(tenant)
            )
        })
        .concat();
    format!(
        "{}---\napiVersion: berth.dev/v1alpha1\nkind: HostLeases\nmetadata: {{name: rack1-a}}\nspec:\n  networks:\n{networks}",
        manifest(&[network], &TENANTS)
    )
}

pub(crate) fn vms_get_the_addresses_of_their_leases(hosts: &mut [Host; 2]) {
    for network in [SHARED_NETWORK, SEPARATE_NETWORK] {
        let before = run_on_both_hosts(hosts, |_, host| {
            let before = read_link_state(host);
            write_manifest(host, &manifest_with_leases(network));
            start_agent(host);
            wait_until(host, "curl -sf http://127.0.0.1:9477/readyz");
            start_capture(host);
            before
        });
        run_on_both_hosts(hosts, |index, host| {
            for (tenant, number, client) in VMS[index] {
                let (bridge, vlan) = port_of(network, tenant);
                let mac = mac(tenant, number);
                host.run_checked(&format!(
                    "tenants boot {tenant}{number} {bridge} {mac} {client} {vlan}"
                ))
                .unwrap();
            }
            assert_addresses(host, VMS[index]);
        });
        // The VMs of a tenant reach each other.
        hosts[0].run_checked("tenants ping a11 10.1.0.12 && tenants ping a11 10.1.0.13").unwrap();
        hosts[0].run_checked("tenants ping b11 10.1.0.14").unwrap();
        // This address belongs to a VM of the other tenant.
        hosts[0].run_checked("tenants unreachable a11 10.1.0.14").unwrap();

        if network == SHARED_NETWORK {
            moved_vms_keep_their_addresses(hosts, network);
        }
        dhcp_servers_on_vms_are_filtered(hosts);
        // The steps of both hosts run at the same time, because each step needs only one host, and the clients on the
        // second host wait for 20 s.
        run_on_both_hosts(hosts, |index, host| {
            if index == 0 {
                addresses_are_kept_when_the_agent_restarts(host);
            } else {
                unknown_guests_get_no_address(host, network);
            }
        });
        run_on_both_hosts(hosts, |index, host| {
            assert_no_answer_on_uplink(host);
            stop_agent(host);
            for (tenant, number, _) in VMS[index] {
                let (bridge, vlan) = port_of(network, tenant);
                host.run_checked(&format!("tenants delete {tenant}{number} {bridge} {vlan}"))
                    .unwrap();
            }
            host.run_checked("nft delete table bridge nat 2>/dev/null || true").unwrap();
            host.run_checked("berth-agent revert").unwrap();
            assert_link_state(&before[index], host);
        });
    }
}

/// Starts to capture the DHCP messages on the uplink of a host.
fn start_capture(host: &mut Host) {
    let ports = "udp and (port 67 or port 68)";
    host.run_checked(&format!(
        "rm -f /run/wire.log; \
         setsid tcpdump -lnn --immediate-mode -i {UPLINK_NAME} '({ports}) or (vlan and {ports})' \
         >/run/wire 2>/run/wire.log & \
         echo $! >/run/wire.pid"
    ))
    .unwrap();
    wait_until(host, "grep -q 'listening on' /run/wire.log");
}

/// Tests that the requests of the clients, which the bridge sends to all ports, were captured on the uplink, but no
/// message of a DHCP server. Only an agent or a VM could have sent such a message.
fn assert_no_answer_on_uplink(host: &mut Host) {
    host.run_checked("kill $(cat /run/wire.pid)").unwrap();
    let messages = host.run_checked("cat /run/wire").unwrap();
    assert!(
        messages.contains(".68 > 255.255.255.255.67: "),
        "no request was captured:\n{messages}"
    );
    assert!(!messages.contains(".67 > "), "an answer left the host:\n{messages}");
}

fn assert_addresses(host: &mut Host, vms: [(&str, u8, &str); 3]) {
    for (tenant, number, client) in vms {
        let shown = host
            .run_checked(&format!("ip -n {tenant}{number} -4 -o address show dev net1"))
            .unwrap();
        assert!(shown.contains(&format!(" 10.1.0.{number}/24 ")), "{client}: {shown}");
    }
    let metrics =
        host.run_checked("curl -s http://127.0.0.1:9477/metrics | grep ^berth_dhcp_").unwrap();
    assert!(metrics.contains("berth_dhcp_ports 3"), "{metrics}");
}

/// Tests that VMs which end on one host and start on the other one, as in a migration, get the same addresses from the
/// agent there, and reach their tenant. Before they move back, the agents are killed, and read the leases from disk when
/// they start again.
fn moved_vms_keep_their_addresses(hosts: &mut [Host; 2], network: &str) {
    for (step, is_second) in [false, true].into_iter().enumerate() {
        let moved_from = |index: usize| {
            let is_here = move |first: usize| (first == index) != is_second;
            MOVED_VMS.into_iter().filter(move |(.., first, _)| is_here(*first))
        };
        run_on_both_hosts(hosts, |index, host| {
            if is_second {
                host.run_checked("kill -9 $(cat /run/agent.pid); sleep 1").unwrap();
                start_agent(host);
            }
            for (tenant, number, ..) in moved_from(index) {
                let (bridge, vlan) = port_of(network, tenant);
                host.run_checked(&format!("tenants delete {tenant}{number} {bridge} {vlan}"))
                    .unwrap();
            }
        });
        run_on_both_hosts(hosts, |index, host| {
            for (tenant, number, client, ..) in moved_from(1 - index) {
                let (bridge, vlan) = port_of(network, tenant);
                let (name, mac) = (format!("{tenant}{number}"), mac(tenant, number));
                host.run_checked(&format!("tenants boot {name} {bridge} {mac} {client} {vlan}"))
                    .unwrap();
                let shown = host.run_checked(&format!("ip -n {name} -4 -o address show dev net1"));
                let shown = shown.unwrap();
                assert!(shown.contains(&format!(" 10.1.0.{number}/24 ")), "{client}: {shown}");
            }
        });
        run_on_both_hosts(hosts, |index, host| {
            for (tenant, number, .., neighbours) in moved_from(1 - index) {
                let neighbour = neighbours[step];
                host.run_checked(&format!("tenants ping {tenant}{number} 10.1.0.{neighbour}"))
                    .unwrap();
            }
        });
    }
}

/// Tests that DHCP server messages of a VM reach no other VM of its tenant; [`assert_no_answer_on_uplink`] tests that
/// they do not reach the uplink.
fn dhcp_servers_on_vms_are_filtered(hosts: &mut [Host; 2]) {
    hosts[0]
        .run_checked(
            "ip netns exec a11 perl -MSocket -e 'socket(S, PF_INET, SOCK_DGRAM, 0) or die; \
             setsockopt(S, SOL_SOCKET, SO_BROADCAST, 1) or die; bind(S, sockaddr_in(67, INADDR_ANY)) or die; \
             send(S, chr(2) . chr(0) x 299, 0, sockaddr_in(68, inet_aton(\"10.1.0.255\"))) or die' && sleep 1",
        )
        .unwrap();
    let rules = hosts[0].run_checked("nft list chain bridge berth servers").unwrap();
    let is_counted = |line: &str| line.contains("packets ") && !line.contains("packets 0 ");
    assert!(rules.lines().any(is_counted), "{rules}");
    for host in hosts {
        let metrics =
            host.run_checked("curl -s http://127.0.0.1:9477/metrics | grep ^berth_dhcp_").unwrap();
        assert!(!metrics.contains("berth_dhcp_foreign_servers_total{"), "{metrics}");
    }
}

/// Tests that VMs keep their addresses if the agent is killed, and that they get the same addresses after they restart.
fn addresses_are_kept_when_the_agent_restarts(host: &mut Host) {
    host.run_checked("kill -9 $(cat /run/agent.pid); sleep 1").unwrap();
    host.run_checked("tenants ping a11 10.1.0.13").unwrap();
    start_agent(host);
    for (tenant, number, client) in VMS[0] {
        host.run_checked(&format!("tenants renew {tenant}{number} {client}")).unwrap();
    }
    assert_addresses(host, VMS[0]);
}

/// Tests that a guest without a lease, and a guest with the Ethernet address of the other tenant's VM, get no address.
fn unknown_guests_get_no_address(host: &mut Host, network: &str) {
    let (bridge, vlan) = port_of(network, "a");
    let thief = mac("b", 13);
    // Both clients give up after 20 s, so they run at the same time. The second VM is attached when the first client
    // runs.
    let output = host
        .run_checked(&format!(
            "tenants boot other {bridge} 02:00:00:00:0c:01 udhcpc {vlan} >/run/other.log 2>&1 & other=$!; \
             while kill -0 $other && ! pidof busybox >/dev/null; do sleep 0.1; done; \
             tenants boot thief {bridge} {thief} udhcpc {vlan}; echo \"thief: $?\"; \
             wait $other; echo \"other: $?\"; cat /run/other.log"
        ))
        .unwrap();
    for name in ["other", "thief"] {
        let code = output.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        assert!(code.is_some_and(|code| code != "0"), "{name} has an address:\n{output}");
        host.run_checked(&format!("tenants delete {name} {bridge} {vlan}")).unwrap();
    }
}
