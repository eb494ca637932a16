//! Tests which VMs reach each other: real frames between VMs of two tenants on two hosts.

use berth_tests::host::Host;

use crate::{
    apply, assert_link_state, frames, join_lines, manifest, read_link_state, run_on_both_hosts,
    running_pings,
};

/// Isolation method of a network, and the ports of the tenants' VMs.
struct Scenario {
    networks: [String; 2],
    tenants: [&'static str; 2],
    /// Bridge and VLAN of each tenant's port.
    ports: [(&'static str, &'static str); 2],
}

impl Scenario {
    /// Returns the VLAN tag that a guest of the first tenant would guess.
    fn vlan(&self) -> &'static str {
        if self.ports[0].1.is_empty() { "100" } else { self.ports[0].1 }
    }
}

fn scenarios(numbers: [u8; 2]) -> Vec<Scenario> {
    let for_both_hosts = |text: &str| [text.to_owned(), text.to_owned()];
    let tenants = [
        "{name: cluster-a, network: tenants, vlan: 100}",
        "{name: cluster-b, network: tenants, vlan: 200}",
    ];
    let vxlan = |ours: u8, theirs: u8| {
        format!(
            "{{name: tenants, scenario: Vxlan, vxlan: {{localAddress: 172.16.0.{ours}, peers: [172.16.0.{theirs}]}}}}"
        )
    };
    vec![
        Scenario {
            networks: for_both_hosts(
                "{name: tenants, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: br-tenant, mtu: 1500}",
            ),
            tenants,
            ports: [("br-tenant", "100"), ("br-tenant", "200")],
        },
        Scenario {
            networks: for_both_hosts(
                "{name: tenants, scenario: BridgePerTenant, uplink: {name: trunk0}}",
            ),
            tenants,
            ports: [("tn100", ""), ("tn200", "")],
        },
        Scenario {
            networks: [vxlan(numbers[0], numbers[1]), vxlan(numbers[1], numbers[0])],
            tenants: [
                "{name: cluster-a, network: tenants, vni: 5001}",
                "{name: cluster-b, network: tenants, vni: 5002}",
            ],
            ports: [("tn5001", ""), ("tn5002", "")],
        },
    ]
}

pub(crate) fn tenants_are_isolated_in_each_scenario(hosts: &mut [Host; 2]) {
    for scenario in scenarios([1, 2]) {
        let vxlan = scenario.networks[0].contains("Vxlan");
        if vxlan {
            for (host, number) in hosts.iter_mut().zip([1, 2]) {
                host.run_checked(&format!("ip address add 172.16.0.{number}/24 dev trunk0"))
                    .unwrap();
            }
        }
        let before = run_on_both_hosts(hosts, |index, host| {
            // The first use of the modules creates links and tables that remain when the modules are not in use.
            host.run_checked("modprobe -a 8021q bridge vxlan br_netfilter && sysctl -q net.bridge.bridge-nf-call-iptables=0").unwrap();
            let before = read_link_state(host);
            apply(host, &manifest(&[&scenario.networks[index]], &scenario.tenants));
            let again = host.run_checked("berth-agent apply -f /etc/berth/infranode.yaml").unwrap();
            assert!(again.trim() == "the host has the desired state", "{again}");
            attach(host, index + 1, &scenario);
            before
        });
        assert_vms_of_tenant_reach_each_other(hosts);
        assert_tenants_are_isolated(hosts);
        frames::switch_frames_are_dropped(hosts, scenario.vlan());
        network_in_use_is_kept(&mut hosts[0], &scenario);
        uplink_change_waits_for_vms(hosts, &scenario);
        run_on_both_hosts(hosts, |index, host| {
            detach(host, index + 1, &scenario);
            host.run_checked("berth-agent revert").unwrap();
            assert_link_state(&before[index], host);
            host.run_checked("test ! -e /var/lib/berth/found.json").unwrap();
        });
        if vxlan {
            for (host, number) in hosts.iter_mut().zip([1, 2]) {
                host.run_checked(&format!("ip address del 172.16.0.{number}/24 dev trunk0"))
                    .unwrap();
            }
        }
    }
}

/// Attaches one VM of each tenant on a host, all in one subnet. The last octets of their addresses are 1 (a1) and 11
/// (b1) on the first host, and 2 (a2) and 12 (b2) on the second host.
fn attach(host: &mut Host, number: usize, scenario: &Scenario) {
    for (tenant, (bridge, vlan), address) in
        [("a", scenario.ports[0], number), ("b", scenario.ports[1], number + 10)]
    {
        host.run_checked(&format!("tenants add {tenant}{number} {bridge} 10.1.0.{address} {vlan}"))
            .unwrap();
    }
}

fn detach(host: &mut Host, number: usize, scenario: &Scenario) {
    for (tenant, (bridge, vlan)) in ["a", "b"].iter().zip(scenario.ports) {
        host.run_checked(&format!("tenants delete {tenant}{number} {bridge} {vlan}")).unwrap();
    }
    // The CNI plugin leaves this table behind.
    host.run_checked("nft delete table bridge nat 2>/dev/null || true").unwrap();
}

/// Asserts that VMs of a tenant reach each other, with frames up to the network's MTU.
fn assert_vms_of_tenant_reach_each_other(hosts: &mut [Host; 2]) {
    hosts[0].run_checked("tenants ping a1 10.1.0.2").unwrap();
    hosts[0].run_checked("tenants ping b1 10.1.0.12").unwrap();
    hosts[1].run_checked("ip netns exec a2 ping -q -c 2 -W 2 -M do -s 1372 10.1.0.1").unwrap();
}

/// Asserts that frames of a tenant reach neither the other tenant nor the host. The frames are untagged, tagged, or
/// tagged twice.
fn assert_tenants_are_isolated(hosts: &mut [Host; 2]) {
    run_on_both_hosts(hosts, |index, host| {
        let unreachable =
            ["tenants unreachable a1 10.1.0.11 10.1.0.12", "tenants unreachable b2 10.1.0.2"];
        host.run_checked(unreachable[index]).unwrap();
    });
    for (tags, name) in
        [("200", "net1.200"), ("100 200", "tagged.200"), ("1 200", "tagged.200"), ("1", "net1.1")]
    {
        let mut below = "net1".to_owned();
        let mut links = String::new();
        let count = tags.split(' ').count();
        for (index, tag) in tags.split(' ').enumerate() {
            let link = if index + 1 == count { name.to_owned() } else { format!("outer.{tag}") };
            links.push_str(&format!(
                "ip -n a1 link add link {below} name {link} type vlan id {tag}; ip -n a1 link set {link} up; "
            ));
            below = link;
        }
        hosts[0].run_checked(&format!("{links} ip -n a1 address add 10.1.0.99/24 dev {name}; ip -n a1 address del 10.1.0.1/24 dev net1")).unwrap();
        hosts[0].run_checked("tenants unreachable a1 10.1.0.11 10.1.0.12").unwrap();
        let outermost = if count == 1 {
            name.to_owned()
        } else {
            format!("outer.{}", tags.split(' ').next().unwrap())
        };
        hosts[0]
            .run_checked(&format!(
                "ip -n a1 link del {outermost}; ip -n a1 address add 10.1.0.1/24 dev net1"
            ))
            .unwrap();
    }
    hosts[0].run_checked("tenants ping a1 10.1.0.2").unwrap();
    // Tenants must not reach the host's own addresses, on any link.
    hosts[0].run_checked("ip link add own0 type dummy; ip address add 10.1.0.200/32 dev own0; ip link set own0 up").unwrap();
    hosts[0].run_checked("tenants unreachable a1 10.1.0.200").unwrap();
    hosts[0].run_checked("ip link del own0").unwrap();
    let addressed = hosts[0]
        .run_checked("ip -br address | grep -E '^(tn|br-tenant)' | awk 'NF > 2'")
        .unwrap_or_default();
    assert!(addressed.trim().is_empty(), "tenants' links have addresses:\n{addressed}");
}

/// Tests a change to another uplink, or to another UDP port of the VXLAN tunnels. The agent blocks the change while VMs
/// are attached, and their pings are answered. With `allowDisruption` the agent makes the change, and the test reverts
/// it.
fn uplink_change_waits_for_vms(hosts: &mut [Host; 2], scenario: &Scenario) {
    running_pings::start(hosts);
    let host = &mut hosts[0];
    let network = &scenario.networks[0];
    let other = if network.contains("Vxlan") {
        network.replace("vxlan: {", "vxlan: {port: 4795, ")
    } else {
        network.replace("trunk0", "own0")
    };
    host.run_checked("ip link add own0 type dummy; ip link set own0 mtu 2000 up").unwrap();
    crate::write_manifest(host, &manifest(&[&other], &scenario.tenants));
    let result = host.run("berth-agent apply -f /etc/berth/infranode.yaml").unwrap();
    assert_eq!(result.code, 1, "{}", result.output);
    assert!(
        join_lines(&result.output).contains("would lose the network while"),
        "{}",
        result.output
    );
    let allowed = other.replace("{name: tenants,", "{name: tenants, allowDisruption: true,");
    if scenario.ports[0].0 == "br-tenant" {
        refused_bridge_port_interrupts_no_vm(host, &allowed, scenario);
    }
    running_pings::assert_answered(host);
    crate::write_manifest(host, &manifest(&[&allowed], &scenario.tenants));
    let plan = host.run("berth-agent plan -f /etc/berth/infranode.yaml").unwrap();
    assert!(plan.output.contains("HIGH disruption"), "{}", plan.output);
    host.run_checked("berth-agent apply -f /etc/berth/infranode.yaml && berth-agent plan -f /etc/berth/infranode.yaml | grep 'nothing to do'").unwrap();
    let result = host.run("tenants unreachable a1 10.1.0.2").unwrap();
    assert_eq!(result.code, 0, "the frames still use the former uplink: {}", result.output);
    let reverted = network.replace("{name: tenants,", "{name: tenants, allowDisruption: true,");
    apply(host, &manifest(&[&reverted], &scenario.tenants));
    host.run_checked("tenants ping a1 10.1.0.2").unwrap();
    apply(host, &manifest(&[network], &scenario.tenants));
    host.run_checked("ip link del own0").unwrap();
}

/// Tests that no VM is interrupted if the kernel refuses a bridge port: a link with a macvlan cannot become a bridge
/// port (`EBUSY`).
fn refused_bridge_port_interrupts_no_vm(host: &mut Host, network: &str, scenario: &Scenario) {
    host.run_checked("ip link add link own0 name taken0 type macvlan && ip link set taken0 up")
        .unwrap();
    crate::write_manifest(host, &manifest(&[network], &scenario.tenants));
    let result = host.run("berth-agent apply -f /etc/berth/infranode.yaml").unwrap();
    assert_eq!(result.code, 3, "{}", result.output);
    assert!(
        join_lines(&result.output).contains("already receives the frames of this link"),
        "{}",
        result.output
    );
    host.run_checked("tenants ping a1 10.1.0.2 && ip link del taken0").unwrap();
}

/// Tests a tenant that is removed from the manifest while a VM uses it: the agent reports the tenant, and does not
/// remove its network.
fn network_in_use_is_kept(host: &mut Host, scenario: &Scenario) {
    crate::write_manifest(host, &manifest(&[&scenario.networks[0]], &scenario.tenants[1..]));
    let result = host.run("berth-agent apply -f /etc/berth/infranode.yaml").unwrap();
    assert_eq!(result.code, 1, "{}", result.output);
    assert!(join_lines(&result.output).contains("still in use by veth"), "{}", result.output);
    host.run_checked("tenants ping a1 10.1.0.2").unwrap();
    crate::write_manifest(host, &manifest(&[&scenario.networks[0]], &scenario.tenants));
    host.run_checked("berth-agent apply -f /etc/berth/infranode.yaml").unwrap();
    link_with_a_macvlan_of_a_pod_is_in_use(host, scenario);
}

/// Tests a third tenant whose bridge has no port, but is in use by a pod's macvlan. The macvlan does not appear in the
/// link list of the host's network namespace.
fn link_with_a_macvlan_of_a_pod_is_in_use(host: &mut Host, scenario: &Scenario) {
    if scenario.ports[0].0 == "br-tenant" {
        return;
    }
    let third = scenario.tenants[0].replace("cluster-a", "cluster-c");
    let (third, bridge) = if third.contains("vni") {
        (third.replace("5001", "5003"), "tn5003")
    } else {
        (third.replace("100", "300"), "tn300")
    };
    let three = [scenario.tenants[0], scenario.tenants[1], third.as_str()];
    apply(host, &manifest(&[&scenario.networks[0]], &three));
    host.run_checked(&format!(
        "ip netns add pod; ip link add eth9 type veth peer name eth0 netns pod; \
         ip link add link {bridge} name macvlan0 netns pod type macvlan mode bridge; ! ip link show macvlan0"
    ))
    .unwrap();
    crate::write_manifest(host, &manifest(&[&scenario.networks[0]], &scenario.tenants));
    let result = host.run("berth-agent apply -f /etc/berth/infranode.yaml").unwrap();
    assert_eq!(result.code, 1, "{}", result.output);
    assert!(
        join_lines(&result.output).contains("still in use by macvlan0 (network namespace id"),
        "{}",
        result.output
    );
    host.run_checked(&format!("ip link show {bridge}; ip netns del pod")).unwrap();
    crate::daemon::wait_until(host, "! ip link show eth9");
    apply(host, &manifest(&[&scenario.networks[0]], &scenario.tenants));
}
