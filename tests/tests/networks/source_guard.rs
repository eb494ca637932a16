//! Tests on both kinds of bridges that frames of VMs from foreign addresses reach no other VM of their tenant, neither on
//! their host nor on the other host.

use berth_tests::host::Host;

use crate::daemon::{start_agent, stop_agent, wait_until};
use crate::{assert_link_state, manifest, read_link_state, run_on_both_hosts, write_manifest};

const TENANTS: [&str; 1] = ["{name: cluster-a, network: tenants, vlan: 100, sourceGuard: true}"];

/// VMs of both hosts: the last octet of the Ethernet address and of the IP address.
const VMS: [&[u8]; 2] = [&[21, 22], &[23]];

/// Networks, the bridge and the VLAN of a VM's port, and the chain of the source guard.
const NETWORKS: [(&str, &str, &str, &str); 2] = [
    (
        "{name: tenants, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: br-tenant, mtu: 1500}",
        "br-tenant",
        "100",
        "vlan_sources",
    ),
    (
        "{name: tenants, scenario: BridgePerTenant, uplink: {name: trunk0}}",
        "tn100",
        "",
        "bridge_sources",
    ),
];

/// Returns the manifest of a host with the leases of its VMs.
fn manifest_with_leases(network: &str, numbers: &[u8]) -> String {
    let leases: Vec<String> = numbers
        .iter()
        .map(|number| {
            format!(
                "{{mac: \"02:00:00:00:0a:{number:02x}\", machine: cluster-a/m{number}, ipv4: 10.1.0.{number}}}"
            )
        })
        .collect();
    format!(
        "{}---\napiVersion: berth.dev/v1alpha1\nkind: HostLeases\nmetadata: {{name: rack1-a}}\nspec:\n  networks:\n  \
         - name: cluster-a\n    vlan: 100\n    ipv4: {{prefixLength: 24}}\n    leases: [{}]\n",
        manifest(&[network], &TENANTS),
        leases.join(", ")
    )
}

pub(crate) fn foreign_addresses_are_dropped(hosts: &mut [Host; 2]) {
    for (network, bridge, vlan, chain) in NETWORKS {
        let before = run_on_both_hosts(hosts, |index, host| {
            let before = read_link_state(host);
            write_manifest(host, &manifest_with_leases(network, VMS[index]));
            start_agent(host);
            wait_until(host, &format!("nft list chain bridge berth {chain}"));
            for number in VMS[index] {
                host.run_checked(&format!(
                    "tenants boot a{number} {bridge} 02:00:00:00:0a:{number:02x} udhcpc {vlan}"
                ))
                .unwrap();
            }
            before
        });
        let [first, second] = hosts;
        // VMs reach each other with the addresses of their leases, on one host and on two.
        first.run_checked("tenants ping a21 10.1.0.22 && tenants ping a21 10.1.0.23").unwrap();

        // The VM takes the address of a machine that is on no host, and then the address of its neighbour: ARP requests,
        // and IPv4 packets to a known neighbour.
        // When the first address is deleted, the VM may ask for it from its own address, which is permitted: its kernel
        // reports a failed ping to the address from which the ping was sent.
        let filter = "ether src 02:00:00:00:0a:15 and (src host 10.1.0.99 or src host 10.1.0.22)";
        let listen = |names: &str| format!("tenants listen '{filter}' {names}");
        first.run_checked(&listen("a22")).unwrap();
        second.run_checked(&listen("a23")).unwrap();
        first
            .run_checked(
                "for address in 10.1.0.99 10.1.0.22; do \
                   ip -n a21 address add $address/32 dev net1; \
                   ip netns exec a21 ping -q -c 2 -i 0.3 -W 0.5 -I $address 10.1.0.23 >/dev/null || true; \
                   ip -n a21 neighbor flush dev net1; \
                   ip netns exec a21 ping -q -c 2 -i 0.3 -W 0.5 -I $address 10.1.0.23 >/dev/null || true; \
                   ip -n a21 address del $address/32 dev net1; \
                 done",
            )
            .unwrap();
        assert_heard_nothing(first, "a22");
        assert_heard_nothing(second, "a23");
        let rules = first.run_checked(&format!("nft list chain bridge berth {chain}")).unwrap();
        let is_counted = |line: &&str| line.contains("packets ") && !line.contains("packets 0 ");
        assert!(rules.lines().filter(is_counted).count() >= 2, "{rules}");
        first.run_checked("tenants ping a21 10.1.0.23").unwrap();

        // Another program flushes the leases: the agent restores them.
        let set = chain.replace("sources", "ipv4");
        first.run_checked(&format!("nft flush set bridge berth {set}")).unwrap();
        wait_until(first, &format!("nft list set bridge berth {set} | grep -q elements"));
        first.run_checked("tenants ping a21 10.1.0.22").unwrap();

        run_on_both_hosts(hosts, |index, host| {
            stop_agent(host);
            for number in VMS[index] {
                host.run_checked(&format!("tenants delete a{number} {bridge} {vlan}")).unwrap();
            }
            host.run_checked("nft delete table bridge nat 2>/dev/null || true").unwrap();
            host.run_checked("berth-agent revert && ! nft list table bridge berth").unwrap();
            assert_link_state(&before[index], host);
        });
    }
}

/// Asserts that a VM received no frame from a foreign address.
#[track_caller]
fn assert_heard_nothing(host: &mut Host, name: &str) {
    if host.run_checked(&format!("tenants heard {name}")).unwrap().is_empty() {
        return;
    }
    let explain = "nft list table bridge berth; tail -20 /run/agent.log; ip -d link";
    let state = host.run(&format!("cat /run/heard.{name}; {explain}")).unwrap().output;
    panic!("{name} received a frame from a foreign address:\n{state}");
}
