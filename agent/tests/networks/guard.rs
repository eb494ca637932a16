//! Tests of the plan of the rules that drop messages of DHCP servers and routers among VMs.

use berth_host_facts::HostFacts;
use berth_host_facts::links::BridgeFilter;

use super::kernel::KernelModel;
use super::{
    SHARED_BRIDGE_SPEC, apply_plan, apply_plan_on, change_lines, filter_change_text,
    host_facts_with_filter, make_plan,
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
