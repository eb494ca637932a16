//! Tests which VMs receive which frames. The real CNI plugin `bridge` attaches VMs of two tenants with the
//! NetworkAttachmentDefinitions that the controller writes, on hosts with the spec that the controller writes.

use std::collections::BTreeSet;

use berth_tests::host::Host;

use crate::desired_networks::{BANK_NETWORK, DesiredNetworks, ExampleOverrides};
use crate::{
    MANIFEST_PATH, apply, assert_link_state, read_link_state, run_on_both_hosts, write_manifest,
};

/// Network namespace in the role of a VM's pod.
struct Vm {
    name: &'static str,
    tenant: &'static str,
    /// Index of the VM's host.
    host: usize,
    address: &'static str,
    mac: &'static str,
}

const fn vm(
    name: &'static str,
    tenant: &'static str,
    host: usize,
    address: &'static str,
    mac: &'static str,
) -> Vm {
    Vm { name, tenant, host, address, mac }
}

/// VMs of both tenants, all in one subnet.
static VMS: [Vm; 6] = [
    vm("shop1", "shop", 0, "10.20.0.1", "02:00:00:00:01:01"),
    vm("shop2", "shop", 0, "10.20.0.2", "02:00:00:00:01:02"),
    vm("shop3", "shop", 1, "10.20.0.3", "02:00:00:00:01:03"),
    vm("bank1", "bank", 0, "10.20.0.11", "02:00:00:00:02:01"),
    vm("bank2", "bank", 0, "10.20.0.12", "02:00:00:00:02:02"),
    vm("bank3", "bank", 1, "10.20.0.13", "02:00:00:00:02:03"),
];

/// Hardware address that no VM has.
const SPOOFED_MAC: &str = "02:00:00:00:03:09";

/// One shared bridge, with the frame size that the profile requests.
const SHARED_BRIDGE: ExampleOverrides = ExampleOverrides {
    network: "{name: tenant-trunk, scenario: VlanAwareBridge, uplink: {name: trunk0}, bridge: br-tenant, mtu: 1450}",
    bank_network: BANK_NETWORK,
};
/// A bridge for each tenant, with the frame size of the uplinks; the VMs of one tenant may send from any address.
const SEPARATE_BRIDGES: ExampleOverrides = ExampleOverrides {
    network: "{name: tenant-trunk, scenario: BridgePerTenant, uplink: {name: trunk0}}",
    bank_network: "{name: tenant-trunk, vlan: 120, macSpoofCheck: false, cidr: 10.20.0.0/24}",
};

pub(crate) fn tenants_are_isolated_by_definitions(hosts: &mut [Host; 2]) {
    let shared = DesiredNetworks::from_hosts(hosts, &SHARED_BRIDGE);
    bridge_of_the_plugin_does_not_isolate_tenants(&mut hosts[0], &shared);
    for (desired, has_shared_bridge, mtu) in
        [(shared, true, 1450), (DesiredNetworks::from_hosts(hosts, &SEPARATE_BRIDGES), false, 2000)]
    {
        let states = run_on_both_hosts(hosts, |number, host| {
            let before = read_link_state(host);
            apply(host, &desired.manifest(number, &[]));
            let empty = read_link_state(host);
            for vm in vms_on_host(number) {
                attach(host, vm, &desired);
            }
            (before, empty)
        });
        assert_ports_are_in_their_vlan(hosts, &desired, has_shared_bridge);
        assert_vms_of_tenant_reach_each_other(hosts, &desired, mtu);
        for [from, to] in [["shop", "bank"], ["bank", "shop"]] {
            assert_tenants_are_isolated(hosts, &desired, from, to);
        }
        assert_spoofed_frames_are_dropped(hosts, &desired);
        tenant_is_removed_with_its_last_port(&mut hosts[0], &desired, has_shared_bridge);
        run_on_both_hosts(hosts, |number, host| {
            let (before, empty) = &states[number];
            for vm in vms_on_host(number).filter(|vm| number == 1 || vm.tenant == "shop") {
                detach(host, vm);
            }
            let rules = host.run_checked("nft list ruleset; nft delete table bridge nat").unwrap();
            assert!(!rules.contains("veth") && !rules.contains("02:00:00"), "{rules}");
            // On the second host, the test only created and deleted pods, so the links are the same as before the pods
            // were created.
            if number == 1 {
                assert_link_state(empty, host);
            }
            host.run_checked("berth-agent revert").unwrap();
            assert_link_state(before, host);
        });
    }
}

fn attach(host: &mut Host, vm: &Vm, desired: &DesiredNetworks) {
    let Vm { name, tenant, address, mac, .. } = vm;
    let configuration = desired.configuration(tenant);
    host.run_checked(&format!(
        "cat >/run/{tenant}.json <<'END'\n{configuration}\nEND\ntenants attach {name} {address} {mac} /run/{tenant}.json"
    ))
    .unwrap();
}

fn detach(host: &mut Host, vm: &Vm) {
    let Vm { name, tenant, .. } = vm;
    host.run_checked(&format!("tenants detach {name} /run/{tenant}.json")).unwrap();
}

/// Returns the VMs on a host.
fn vms_on_host(host: usize) -> impl Iterator<Item = &'static Vm> {
    VMS.iter().filter(move |vm| vm.host == host)
}

/// Returns the first VM of a tenant, and the names of the tenant's other VMs.
fn vms_of_tenant(tenant: &str) -> (&'static Vm, BTreeSet<String>) {
    let mut all = VMS.iter().filter(|vm| vm.tenant == tenant);
    (all.next().unwrap(), all.map(|vm| vm.name.to_owned()).collect())
}

/// Returns the VMs that receive frames from a hardware address while `send` runs on the first host.
fn receivers_of(
    hosts: &mut [Host; 2],
    from: &str,
    send: impl FnOnce(&mut Host),
) -> BTreeSet<String> {
    let names =
        [0, 1].map(|host| vms_on_host(host).map(|vm| vm.name).collect::<Vec<_>>().join(" "));
    run_on_both_hosts(hosts, |number, host| {
        host.run_checked(&format!("tenants listen 'ether src {from}' {}", names[number])).unwrap();
    });
    send(&mut hosts[0]);
    let receivers = run_on_both_hosts(hosts, |number, host| {
        host.run_checked(&format!("tenants heard {}", names[number])).unwrap()
    });
    receivers.iter().flat_map(|names| names.lines()).map(str::to_owned).collect()
}

/// Tests a bridge that the plugin has created because a VM started before Berth's bridge existed. Plugins before 1.3 do
/// not support `preserveDefaultVlan`, so the port stays in VLAN 1 and in its own VLAN. With later plugins, the test
/// adds VLAN 1 to the ports itself, so that the test also proves that the listener can detect the frames whose absence
/// the other tests assert.
fn bridge_of_the_plugin_does_not_isolate_tenants(host: &mut Host, desired: &DesiredNetworks) {
    let (shop, bank) = (&VMS[0], &VMS[3]);
    for vm in [shop, bank] {
        attach(host, vm, desired);
    }
    host.run_checked(&format!("tenants listen 'ether src {}' shop1", bank.mac)).unwrap();
    host.run_checked("tenants shout bank1").unwrap();
    assert_eq!(
        host.run_checked("tenants heard shop1").unwrap(),
        "",
        "VLANs do not isolate the VMs"
    );
    host.run_checked(&format!("tenants listen 'ether src {}' shop1", bank.mac)).unwrap();
    let is_older = "dpkg --compare-versions $(dpkg-query -W -f '${Version}' containernetworking-plugins) lt 1.3";
    if host.run(is_older).unwrap().code != 0 {
        host.run_checked("tenants shout bank1 1").unwrap();
        let heard = host.run_checked("tenants heard shop1").unwrap();
        assert_eq!(heard, "", "the plugin leaves the port in VLAN 1");
        host.run_checked(
            "for port in /sys/class/net/br-tenant/brif/*; do bridge vlan add vid 1 dev ${port##*/}; done",
        )
        .unwrap();
        host.run_checked(&format!("tenants listen 'ether src {}' shop1", bank.mac)).unwrap();
    }
    host.run_checked("tenants shout bank1 1").unwrap();
    assert_eq!(
        host.run_checked("tenants heard shop1").unwrap(),
        "shop1\n",
        "the VM receives no frames"
    );
    // Berth did not create this bridge, so Berth does not use or change the bridge, and reports an error.
    write_manifest(host, &desired.manifest(0, &[]));
    let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
    assert_eq!(result.code, 1, "{}", result.output);
    let expected = "link br-tenant exists and was not created by Berth";
    assert!(crate::join_lines(&result.output).contains(expected), "{}", result.output);
    for vm in [shop, bank] {
        detach(host, vm);
    }
    host.run_checked("berth-agent revert; ip link delete br-tenant; nft delete table bridge nat")
        .unwrap();
}

/// Asserts that a port on the shared bridge is untagged in its tenant's VLAN and in no other VLAN, and that a port
/// of a tenant with its own bridge is on that bridge.
fn assert_ports_are_in_their_vlan(
    hosts: &mut [Host; 2],
    desired: &DesiredNetworks,
    has_shared_bridge: bool,
) {
    for (number, host) in hosts.iter_mut().enumerate() {
        let bridge =
            |tenant| desired.configuration_field(tenant, "bridge").as_str().unwrap().to_owned();
        let ports = |host: &mut Host, bridge: &str| {
            let all = host.run_checked(&format!("ls /sys/class/net/{bridge}/brif")).unwrap();
            all.lines().filter(|name| name.starts_with("veth")).map(str::to_owned).collect()
        };
        if !has_shared_bridge {
            for tenant in ["shop", "bank"] {
                let ports: Vec<String> = ports(host, &bridge(tenant));
                assert_eq!(
                    ports.len(),
                    vms_on_host(number).filter(|vm| vm.tenant == tenant).count()
                );
            }
            continue;
        }
        let ports: Vec<String> = ports(host, &bridge("shop"));
        let mut vlans = Vec::new();
        for port in &ports {
            let output = host.run_checked(&format!("bridge -j vlan show dev {port}")).unwrap();
            let port_vlans: serde_json::Value = serde_json::from_str(&output).unwrap();
            let [vlan] = port_vlans[0]["vlans"].as_array().unwrap().as_slice() else {
                unreachable!("{port} is in more than one VLAN, or none: {port_vlans}");
            };
            assert_eq!(vlan["flags"].to_string(), r#"["PVID","Egress Untagged"]"#);
            vlans.push(vlan["vlan"].as_u64().unwrap());
        }
        vlans.sort_unstable();
        let mut expected: Vec<u64> =
            vms_on_host(number).map(|vm| u16::from(desired.vlan(vm.tenant)).into()).collect();
        expected.sort_unstable();
        assert_eq!(vlans, expected);
        let output = host.run_checked("berth-agent check network.isolation").unwrap();
        assert!(output.contains("PASS"), "{output}");
    }
}

/// Asserts that VMs of a tenant reach each other on the same host and on different hosts, with the largest frame of the
/// definition and with no larger frame.
fn assert_vms_of_tenant_reach_each_other(
    hosts: &mut [Host; 2],
    desired: &DesiredNetworks,
    mtu: u64,
) {
    for (from, to) in [("shop1", "10.20.0.2"), ("shop1", "10.20.0.3"), ("bank1", "10.20.0.12")] {
        hosts[0].run_checked(&format!("tenants ping {from} {to}")).unwrap();
    }
    hosts[1].run_checked("tenants ping bank3 10.20.0.11").unwrap();
    for tenant in ["shop", "bank"] {
        assert_eq!(desired.configuration_field(tenant, "mtu"), mtu);
        let payload = mtu - 28;
        hosts[0]
            .run_checked(&format!(
                "ip -n {tenant}1 link show net1 | grep -q ' mtu {mtu} ' && \
                 ip netns exec {tenant}1 ping -q -c 2 -W 2 -M do -s {payload} {} && \
                 ! ip netns exec {tenant}1 ping -q -c 1 -W 1 -M do -s {} {0}",
                VMS.iter().find(|vm| vm.tenant == tenant && vm.host == 1).unwrap().address,
                payload + 1,
            ))
            .unwrap();
    }
}

/// Asserts that another tenant gets neither an answer nor a single frame: untagged, with VLAN 0, with VLAN 1, with the
/// VLAN of the receiving tenant, or with two tags. VMs of the sender's tenant receive the frames on both hosts.
fn assert_tenants_are_isolated(
    hosts: &mut [Host; 2],
    desired: &DesiredNetworks,
    from: &str,
    to: &str,
) {
    let [own, other] = [desired.vlan(from), desired.vlan(to)].map(u16::from);
    let (sender, others) = vms_of_tenant(from);
    let all = receivers_of(hosts, sender.mac, |host| {
        let addresses = VMS.iter().filter(|vm| vm.tenant == to).map(|vm| vm.address);
        let addresses = addresses.collect::<Vec<_>>().join(" ");
        let result = host.run(&format!("tenants unreachable {} {addresses}", sender.name)).unwrap();
        assert_eq!(result.code, 0, "{from} reaches {to}: {}", result.output);
        let tags = ["", "0", "1"].map(str::to_owned).into_iter();
        let nested = ["0", "1", &own.to_string()].map(|outer| format!("{outer} {other}"));
        let tags = tags.chain([other.to_string()]).chain(nested);
        let commands = tags.map(|tags| format!("tenants shout {} {tags}", sender.name));
        host.run_checked(&commands.collect::<Vec<_>>().join(" && ")).unwrap();
    });
    assert_eq!(all, others, "VMs of another tenant received frames of {from}");
}

/// Asserts that frames with another hardware address are dropped, unless the tenant's definition allows them.
fn assert_spoofed_frames_are_dropped(hosts: &mut [Host; 2], desired: &DesiredNetworks) {
    for tenant in ["shop", "bank"] {
        let (Vm { name, mac, .. }, others) = vms_of_tenant(tenant);
        let checked = desired.configuration_field(tenant, "macspoofchk").as_bool().unwrap();
        let all = receivers_of(hosts, SPOOFED_MAC, |host| {
            host.run_checked(&format!(
                "ip -n {name} link set net1 address {SPOOFED_MAC} && tenants shout {name} && \
                 ip -n {name} link set net1 address {mac}"
            ))
            .unwrap();
        });
        let expected = if checked { BTreeSet::new() } else { others };
        assert_eq!(all, expected, "{tenant}: {}", desired.configuration(tenant));
    }
    hosts[0].run_checked("tenants ping shop1 10.20.0.3").unwrap();
}

/// Tests a tenant that the controller removes from a host while pods still use its network: the agent reports the
/// tenant, and removes the network with the last of these pods.
fn tenant_is_removed_with_its_last_port(
    host: &mut Host,
    desired: &DesiredNetworks,
    has_shared_bridge: bool,
) {
    let vlan = desired.vlan("bank");
    let network_exists = if has_shared_bridge {
        format!("bridge vlan show dev trunk0 | grep -qw {vlan}")
    } else {
        format!("ip link show tn{vlan} && ip link show tn{vlan}-v")
    };
    write_manifest(host, &desired.manifest(0, &["bank"]));
    let [first, last] = [&VMS[3], &VMS[4]];
    for detached in [None, Some(first)] {
        if let Some(vm) = detached {
            detach(host, vm);
        }
        let result = host.run(&format!("berth-agent apply -f {MANIFEST_PATH}")).unwrap();
        assert_eq!(result.code, 1, "{}", result.output);
        assert!(
            crate::join_lines(&result.output).contains("still in use by veth"),
            "{}",
            result.output
        );
        host.run_checked(&format!("{network_exists} && tenants ping {} 10.20.0.13", last.name))
            .unwrap();
    }
    detach(host, last);
    host.run_checked(&format!("berth-agent apply -f {MANIFEST_PATH} && ! {{ {network_exists}; }}"))
        .unwrap();
    host.run_checked("tenants ping shop1 10.20.0.3").unwrap();
}
