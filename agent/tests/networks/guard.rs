//! Tests of the plan of the rules that drop messages of DHCP servers and routers among VMs, and frames of VMs from
//! foreign addresses.

use std::net::IpAddr;

use berth_agent::plan::{LeasedNetwork, LeasedNetworks};
use berth_api::MacAddress;
use berth_host_facts::HostFacts;
use berth_host_facts::links::BridgeFilter;
use berth_host_facts::nftables::Table;

use super::kernel::KernelModel;
use super::{
    SHARED_BRIDGE_SPEC, apply_plan, apply_plan_on, change_lines, filter_change_text,
    host_facts_with_filter, make_plan, make_plan_with_leases,
};

#[test]
fn servers_among_vms_are_dropped_in_guarded_networks() {
    let mut facts = host_facts_with_filter();
    let tenants = |guards: [&str; 2]| {
        let [first, second] = guards;
        format!(
            "{SHARED_BRIDGE_SPEC}  tenantNetworks:\n  - {{name: a, network: trunk, vlan: 120{first}}}\n  \
             - {{name: b, network: trunk, vlan: 121{second}}}\n"
        )
    };
    let guard = ", dhcpGuard: true";
    let first = make_plan(&facts, &tenants([guard, ""]));
    let text = "drop guests' BPDUs and discovery frames to eth1, and DHCP servers and routers among VMs of 1 networks \
                (nftables table bridge berth)";
    assert_eq!(change_lines(&first)[0], text);
    apply_plan(&mut facts, &first);
    assert!(make_plan(&facts, &tenants([guard, ""])).is_empty());
    let vlans = |facts: &HostFacts| facts.ledger.filter.as_ref().unwrap().guard.vlans.len();
    assert_eq!(vlans(&facts), 1);

    // The spec has another guarded network, and later a fault: the guarded networks stay the same.
    let both = make_plan(&facts, &tenants([guard, guard]));
    assert_eq!(both.changes.len(), 1, "{both:?}");
    assert!(!both.changes[0].drift);
    apply_plan(&mut facts, &both);
    assert_eq!(vlans(&facts), 2);
    let fault = tenants([guard, guard]).replace("vlan: 121", "vni: 121");
    assert!(make_plan(&facts, &fault).changes.is_empty());

    // Without guarded networks, the table has no such rules, and equals the table of an older agent.
    let none = make_plan(&facts, &tenants(["", ", dhcpGuard: false"]));
    assert_eq!(change_lines(&none), [filter_change_text("eth1")]);
    apply_plan(&mut facts, &none);
    let BridgeFilter::Present(table) = &facts.links.filter else { unreachable!() };
    assert_eq!(table.chains.keys().collect::<Vec<_>>(), ["forward", "leaving"]);
    assert!(make_plan(&facts, &tenants(["", ""])).is_empty());
}

#[test]
fn a_kernel_without_the_expression_has_the_other_rules() {
    let mut facts = host_facts_with_filter();
    let first_network = format!(
        "{SHARED_BRIDGE_SPEC}  tenantNetworks:\n  - {{name: a, network: trunk, vlan: 120, dhcpGuard: true}}\n"
    );
    let both_networks =
        format!("{first_network}  - {{name: b, network: trunk, vlan: 121, dhcpGuard: true}}\n");
    for spec in [&first_network, &both_networks] {
        let plan = make_plan(&facts, spec);
        let kernel = KernelModel { has_no_bridge_meta: true, ..KernelModel::default() };
        apply_plan_on(&mut facts, &plan, kernel);
        assert!(facts.ledger.filter.as_ref().unwrap().guard.unsupported);
        let BridgeFilter::Present(table) = &facts.links.filter else { unreachable!() };
        assert!(table.chains.contains_key("leaving") && !table.chains.contains_key("servers"));
        let second = make_plan(&facts, spec);
        assert!(second.is_empty(), "{second:?}");
    }
    // The kernel's module was installed in the meantime. After a change of the guarded networks the agent tries the
    // rules again.
    let plan = make_plan(&facts, &first_network);
    apply_plan(&mut facts, &plan);
    let guard = &facts.ledger.filter.as_ref().unwrap().guard;
    assert_eq!((guard.unsupported, guard.vlans.len()), (false, 1));
    let BridgeFilter::Present(table) = &facts.links.filter else { unreachable!() };
    assert!(table.chains.contains_key("servers"));
    assert!(make_plan(&facts, &first_network).is_empty());
}

const SOURCE_GUARD_SPEC: &str = "  networks: [{name: trunk, scenario: VlanAwareBridge, uplink: {name: eth1}, bridge: br-tenant}]\n  \
    tenantNetworks:\n  - {name: a, network: trunk, vlan: 120, sourceGuard: true}\n  - {name: b, network: trunk, vlan: 121}\n";

/// Returns leases of the network `a` with these last octets of their addresses.
fn leases(segment: u32, numbers: &[u8]) -> LeasedNetworks {
    let lease =
        |number: &u8| (MacAddress([2, 0, 0, 0, 0, *number]), IpAddr::from([10, 0, 0, *number]));
    let addresses = numbers.iter().map(lease).collect();
    [("a".to_owned(), LeasedNetwork { segment: Some(segment), addresses })].into()
}

fn table(facts: &HostFacts) -> &Table {
    let BridgeFilter::Present(table) = &facts.links.filter else { unreachable!() };
    table
}

/// Text of the change that installs the rules of [`SOURCE_GUARD_SPEC`].
const SOURCE_GUARD_TEXT: &str = "drop guests' BPDUs and discovery frames to eth1, and foreign addresses of VMs of 1 networks \
    (nftables table bridge berth)";

/// Returns the number of leases in the kernel's table; `None` without source guard.
fn lease_count(facts: &HostFacts) -> Option<usize> {
    table(facts).sets.get("vlan_ipv4").map(|keys| keys.len())
}

#[test]
fn foreign_addresses_are_dropped_after_leases_were_read() {
    // While the leases are unknown, and without a lease of the network, no VM is restricted. Leases of another VLAN do
    // not belong to the network.
    let empty = Some(LeasedNetworks::new());
    for unknown in [None, empty, Some(leases(120, &[])), Some(leases(121, &[1]))] {
        let mut facts = host_facts_with_filter();
        let plan = make_plan_with_leases(&facts, SOURCE_GUARD_SPEC, unknown.as_ref());
        assert_eq!(change_lines(&plan)[0], SOURCE_GUARD_TEXT);
        apply_plan(&mut facts, &plan);
        assert_eq!(lease_count(&facts), Some(0));
        assert!(table(&facts).sets["vlan_ipv4_macs"].is_empty());
    }

    let mut facts = host_facts_with_filter();
    let one = leases(120, &[1]);
    let plan = make_plan_with_leases(&facts, SOURCE_GUARD_SPEC, Some(&one));
    assert_eq!(change_lines(&plan)[0], SOURCE_GUARD_TEXT);
    apply_plan(&mut facts, &plan);
    assert!(make_plan_with_leases(&facts, SOURCE_GUARD_SPEC, Some(&one)).is_empty());
    assert_eq!(lease_count(&facts), Some(1));
    let chains: Vec<&str> = table(&facts).chains.keys().map(String::as_str).collect();
    assert_eq!(chains, ["forward", "leaving", "vlan_sources"]);
    assert_eq!(table(&facts).sets["source_vlans"].len(), 1);
    // The VM has no IPv6 address in its lease, so no rule compares its IPv6 addresses.
    assert_eq!(table(&facts).sets["vlan_ipv4_macs"].len(), 1);
    assert!(table(&facts).sets["vlan_ipv6_macs"].is_empty());

    // A new lease changes only a set, and is no drift. Its chains stay the same.
    let before = table(&facts).chains.clone();
    let two = leases(120, &[1, 2]);
    let plan = make_plan_with_leases(&facts, SOURCE_GUARD_SPEC, Some(&two));
    assert_eq!(change_lines(&plan), ["update leases in nftables table bridge berth"]);
    assert_eq!(plan.changes[0].was, "different leases");
    assert!(!plan.changes[0].drift);
    apply_plan(&mut facts, &plan);
    assert_eq!(lease_count(&facts), Some(2));
    assert_eq!(table(&facts).chains, before);
    // After a restart without the API server and without saved leases, the recorded leases stay.
    assert!(make_plan(&facts, SOURCE_GUARD_SPEC).is_empty());
}

#[test]
fn drift_of_the_source_guard_is_corrected_and_its_removal_restores_the_table() {
    let mut facts = host_facts_with_filter();
    let known = leases(120, &[1, 2]);
    let plan = make_plan_with_leases(&facts, SOURCE_GUARD_SPEC, Some(&known));
    apply_plan(&mut facts, &plan);
    let BridgeFilter::Present(table) = &mut facts.links.filter else { unreachable!() };
    table.sets.get_mut("vlan_ipv4").unwrap().pop_first();
    let plan = make_plan_with_leases(&facts, SOURCE_GUARD_SPEC, Some(&known));
    assert_eq!((plan.changes.len(), plan.changes[0].drift), (1, true));
    assert_eq!(change_lines(&plan), [SOURCE_GUARD_TEXT]);
    apply_plan(&mut facts, &plan);
    assert_eq!(lease_count(&facts), Some(2));

    // While the spec of a network has a fault, its VMs still get their addresses.
    let fault = SOURCE_GUARD_SPEC.replace("vlan: 121", "vni: 121");
    let three = leases(120, &[1, 2, 3]);
    let plan = make_plan_with_leases(&facts, &fault, Some(&three));
    assert_eq!(plan.changes.len(), 1, "{plan:?}");
    apply_plan(&mut facts, &plan);
    assert_eq!(lease_count(&facts), Some(3));
    // The source guard can be disabled in spite of the fault.
    let disabled = fault.replace(", sourceGuard: true", "");
    let plan = make_plan_with_leases(&facts, &disabled, Some(&three));
    assert_eq!(change_lines(&plan), [filter_change_text("eth1")]);

    let unguarded = SOURCE_GUARD_SPEC.replace(", sourceGuard: true", "");
    let plan = make_plan_with_leases(&facts, &unguarded, Some(&three));
    assert_eq!(change_lines(&plan), [filter_change_text("eth1")]);
    apply_plan(&mut facts, &plan);
    assert_eq!(lease_count(&facts), None);
    assert!(make_plan_with_leases(&facts, &unguarded, Some(&three)).is_empty());
}

#[test]
fn bridges_of_single_tenants_have_separate_sets() {
    for (scenario, sets) in [
        ("BridgePerTenant, uplink: {name: eth1}", &["bridge_ipv4", "bridge_ipv6"][..]),
        ("VlanAwareBridge, uplink: {name: eth1}", &["vlan_ipv4", "vlan_ipv6"]),
    ] {
        let mut facts = host_facts_with_filter();
        let spec = format!(
            "  networks: [{{name: trunk, scenario: {scenario}}}]\n  \
             tenantNetworks:\n  - {{name: a, network: trunk, vlan: 120, sourceGuard: true}}\n"
        );
        let known = leases(120, &[1]);
        let plan = make_plan_with_leases(&facts, &spec, Some(&known));
        apply_plan(&mut facts, &plan);
        let found: Vec<&str> = table(&facts)
            .sets
            .keys()
            .map(String::as_str)
            .filter(|name| name.ends_with("_ipv4") || name.ends_with("_ipv6"))
            .collect();
        assert_eq!(found, sets);
        assert!(make_plan_with_leases(&facts, &spec, Some(&known)).is_empty());
    }
}

#[test]
fn unsupported_source_guard_is_tried_again_only_after_networks_change() {
    let mut facts = host_facts_with_filter();
    let known = leases(120, &[1]);
    let plan = make_plan_with_leases(&facts, SOURCE_GUARD_SPEC, Some(&known));
    let kernel = KernelModel { has_no_bridge_meta: true, ..KernelModel::default() };
    apply_plan_on(&mut facts, &plan, kernel);
    let guard = &facts.ledger.filter.as_ref().unwrap().guard;
    assert_eq!((guard.unsupported, guard.sources.len()), (true, 1));
    assert_eq!(lease_count(&facts), None);
    // After a change of leases alone, the rules are not tried again.
    let more = leases(120, &[1, 2]);
    assert!(make_plan_with_leases(&facts, SOURCE_GUARD_SPEC, Some(&more)).is_empty());
    let moved = SOURCE_GUARD_SPEC.replace("vlan: 120", "vlan: 122");
    let leases = leases(122, &[1]);
    let plan = make_plan_with_leases(&facts, &moved, Some(&leases));
    apply_plan(&mut facts, &plan);
    assert_eq!(lease_count(&facts), Some(1));
}
