//! Tests of changes that would disconnect VMs and links: the plan blocks such a change or, if the spec allows it,
//! lists the change with its disruption.

use berth_agent::plan::Disruption;

use super::*;

const BRIDGE_PER_TENANT_SPEC: &str =
    "  networks: [{name: trunk, scenario: BridgePerTenant, uplink: {name: eth1}, bridge: tn}]\n";
const VXLAN_SPEC: &str = "  networks: [{name: trunk, scenario: Vxlan, vxlan: {localAddress: 10.0.0.1, port: 4790, peers: [10.0.0.2]}}]\n  tenantNetworks: [{name: a, network: trunk, vni: 5000}]\n";

/// Returns a host whose links match this spec, with a second local address for tunnels.
fn host_matching_spec(spec: &str) -> HostFacts {
    let mut facts = host_facts();
    let eth0 = facts.links.all.iter_mut().find(|link| link.name.as_str() == "eth0").unwrap();
    eth0.addresses.push("10.0.0.9/24".to_owned());
    let first = make_plan(&facts, spec);
    apply_plan(&mut facts, &first);
    assert!(make_plan(&facts, spec).is_empty());
    facts
}

fn add_link(facts: &mut HostFacts, link: Link) {
    facts.links.all.push(link);
    facts.links.all.sort_by(|a, b| a.name.cmp(&b.name));
}

/// Returns a disruptive change for each scenario with a VM on a tenant's bridge: the spec, the name of the bridge,
/// the old and the new text of the change in the spec, and the expected message of the disruption.
fn disruptive_changes() -> Vec<(String, &'static str, [&'static str; 2], &'static str)> {
    let one = tenants_spec(&[("a", "trunk", 120)]);
    vec![
        (
            SHARED_BRIDGE_SPEC.to_owned() + &one,
            "br-tenant",
            ["eth1", "eth2"],
            "eth2 replaces eth1 as the uplink of br-tenant",
        ),
        (
            BRIDGE_PER_TENANT_SPEC.to_owned() + &one,
            "tn120",
            ["eth1", "eth2"],
            "tn120-v is recreated",
        ),
        (VXLAN_SPEC.to_owned(), "tn5000", ["4790", "4791"], "tn5000-x is recreated"),
        (VXLAN_SPEC.to_owned(), "tn5000", ["10.0.0.1", "10.0.0.9"], "tn5000-x is recreated"),
    ]
}

#[test]
fn disruption_is_blocked_while_a_vm_is_attached_unless_allowed() {
    for (spec, bridge, [from, to], operation) in disruptive_changes() {
        let mut facts = host_matching_spec(&spec);
        let id = VlanId::try_from(120).unwrap();
        let only = VlanSet::from_iter([id]);
        let vlans = PortVlans { all: only.clone(), untagged: only, pvid: Some(id) };
        let vlans = (bridge == "br-tenant").then_some(vlans);
        add_link(
            &mut facts,
            Link { master: Some(link_name(bridge)), vlans, ..link("vnet0", LinkKind::Tun) },
        );

        let other = spec.replace(from, to);
        let plan = make_plan(&facts, &other);
        let blocked: Vec<&String> =
            plan.changes.iter().filter_map(|c| c.blocked.as_ref()).collect();
        let expected = format!("lose the network while {operation}");
        assert!(
            blocked.len() == 1
                && blocked[0].starts_with("vnet0 would ")
                && blocked[0].contains(&expected)
                && blocked[0].contains("spec.networks[trunk].allowDisruption"),
            "{expected}: {:#?}",
            change_lines(&plan)
        );
        let before = facts.links.clone();
        apply_plan(&mut facts, &plan);
        let port_names = |links: &Links| {
            links.ports_of(&link_name(bridge)).map(|port| port.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(port_names(&before), port_names(&facts.links), "{to}");
        assert_eq!(plan.networks[0].not_ready.len(), 1, "{:?}", plan.networks);

        let allowed = other.replace("{name: trunk,", "{name: trunk, allowDisruption: true,");
        let plan = make_plan(&facts, &allowed);
        let high: Vec<&Change> =
            plan.changes.iter().filter(|change| change.disruption == Disruption::High).collect();
        assert!(
            high.len() == 1 && high[0].effect == format!("vnet0 will {expected}"),
            "{:#?}",
            plan.changes
        );
        apply_plan(&mut facts, &plan);
        assert!(
            make_plan(&facts, &allowed).is_empty(),
            "{:#?}",
            change_lines(&make_plan(&facts, &allowed))
        );
        // If no VM is attached, the change is not disruptive, and the spec does not need to allow it.
        facts.links.all.retain(|link| link.name.as_str() != "vnet0");
        let return_plan = make_plan(&facts, &spec);
        assert!(
            return_plan
                .changes
                .iter()
                .all(|c| c.blocked.is_none() && c.disruption == Disruption::None),
            "{:#?}",
            return_plan.changes
        );
        apply_plan(&mut facts, &return_plan);
        // An uplink that Berth set up is set down after the last of Berth's links has been removed from it.
        let down_plan = make_plan(&facts, &spec);
        apply_plan(&mut facts, &down_plan);
        assert!(make_plan(&facts, &spec).is_empty());
    }
}

/// Tests a change of the scenario after which the tenants have the same bridges: the VLAN link or tunnel of the old
/// scenario is removed first, but not while a VM is attached.
#[test]
fn old_uplink_is_removed_before_a_scenario_change() {
    let spec = BRIDGE_PER_TENANT_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120)]);
    let mut facts = host_matching_spec(&spec);
    add_link(&mut facts, Link { master: Some(link_name("tn120")), ..link("vnet0", LinkKind::Tun) });
    let other = VXLAN_SPEC.replace("5000", "120");
    let plan = make_plan(&facts, &other);
    let lines = change_lines(&plan);
    assert!(
        lines.len() == 1
            && lines[0].starts_with("remove tn120-v of tenant a BLOCKED still in use by vnet0"),
        "{lines:?}"
    );
    assert_eq!(plan.networks[0].not_ready[&120].message, "waiting until tn120-v has been removed");
    facts.links.all.retain(|link| link.name.as_str() != "vnet0");
    for _ in 0..2 {
        let plan = make_plan(&facts, &other);
        apply_plan(&mut facts, &plan);
    }
    assert!(make_plan(&facts, &other).is_empty());
}

/// Checks that drift of a recorded network is corrected even if VMs are attached, because these VMs are connected
/// to the wrong network.
#[test]
fn drift_is_corrected_while_vms_are_attached() {
    let spec = BRIDGE_PER_TENANT_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120)]);
    let mut facts = host_matching_spec(&spec);
    add_link(&mut facts, Link { master: Some(link_name("tn120")), ..link("vnet0", LinkKind::Tun) });
    facts.links.all.iter_mut().find(|link| link.name.as_str() == "tn120-v").unwrap().vlan = Some(7);
    let plan = make_plan(&facts, &spec);
    assert!(plan.changes[0].drift && plan.changes[0].blocked.is_none(), "{:#?}", plan.changes);
    apply_plan(&mut facts, &plan);
    assert!(make_plan(&facts, &spec).is_empty());
}

/// Checks that macvlan, macvtap and VLAN links, in any network namespace, count as attached to the link on which
/// they are stacked.
#[test]
fn stacked_links_count_as_attached_links() {
    let spec = BRIDGE_PER_TENANT_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120)]);
    for lower in ["tn120", "tn120-v"] {
        for elsewhere in [false, true] {
            let mut facts = host_matching_spec(&spec);
            if elsewhere {
                let lower = facts.links.all.iter_mut().find(|link| link.name.as_str() == lower);
                lower
                    .unwrap()
                    .users_in_other_namespaces
                    .insert("macvtap0 (network namespace id 3)".to_owned());
            } else {
                add_link(
                    &mut facts,
                    Link { parent: Some(link_name(lower)), ..link("macvtap0", LinkKind::Other) },
                );
            }
            for other in [spec.replace("eth1", "eth2"), "  {}".to_owned()] {
                let plan = make_plan(&facts, &other);
                let blocked = plan.changes.iter().filter_map(|change| change.blocked.as_ref());
                let reasons: Vec<&String> =
                    blocked.filter(|why| why.contains("macvtap0")).collect();
                assert_eq!(reasons.len(), 1, "{lower} {elsewhere}: {:#?}", change_lines(&plan));
            }
        }
    }
    // Links that are stacked on a shared bridge are in the VLANs of the bridge's own port, which has no VLANs here.
    let spec = SHARED_BRIDGE_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120)]);
    let mut facts = host_matching_spec(&spec);
    add_link(
        &mut facts,
        Link { parent: Some(link_name("br-tenant")), ..link("macvtap0", LinkKind::Other) },
    );
    assert!(
        change_lines(&make_plan(&facts, "  {}"))[0].contains("BLOCKED still in use by macvtap0")
    );
    let without_tenants =
        make_plan(&facts, &(SHARED_BRIDGE_SPEC.to_owned() + "  tenantNetworks: []"));
    assert_eq!(change_lines(&without_tenants), ["remove VLAN 120 from eth1 on br-tenant"]);
}

/// Attaches a VM after the plan and before the step. Before each step that removes something, the agent must check
/// again whether links are attached.
#[test]
fn use_is_checked_again_before_each_step() {
    let one = tenants_spec(&[("a", "trunk", 120)]);
    for (spec, other, bridge) in [
        (
            SHARED_BRIDGE_SPEC.to_owned() + &one,
            SHARED_BRIDGE_SPEC.replace("eth1", "eth2") + &one,
            "br-tenant",
        ),
        (
            SHARED_BRIDGE_SPEC.to_owned() + &one,
            SHARED_BRIDGE_SPEC.to_owned() + "  tenantNetworks: []",
            "br-tenant",
        ),
        (SHARED_BRIDGE_SPEC.to_owned() + &one, "  {}".to_owned(), "br-tenant"),
        (
            BRIDGE_PER_TENANT_SPEC.to_owned() + &one,
            BRIDGE_PER_TENANT_SPEC.replace("eth1", "eth2") + &one,
            "tn120",
        ),
        (BRIDGE_PER_TENANT_SPEC.to_owned() + &one, "  {}".to_owned(), "tn120"),
        (VXLAN_SPEC.to_owned(), VXLAN_SPEC.replace("4790", "4791"), "tn5000"),
    ] {
        let mut facts = host_matching_spec(&spec);
        let plan = make_plan(&facts, &other);
        assert!(
            plan.changes.iter().all(|change| change.blocked.is_none()),
            "{:#?}",
            change_lines(&plan)
        );
        let vlans = facts.links.find_by_name(&link_name("eth1")).unwrap().vlans.clone();
        add_link(
            &mut facts,
            Link { master: Some(link_name(bridge)), vlans, ..link("vnet0", LinkKind::Tun) },
        );
        let before = kernel::uplinks_of_port(&facts.links, &link_name("vnet0"));
        assert_eq!(before.len(), 1);
        let model =
            RefCell::new(KernelModel { links: facts.links.clone(), ..KernelModel::default() });
        let outcomes = STATE.with(|tree| {
            let root = Root::open(tree.path()).unwrap();
            let context = ApplyContext::new(&root, BOOT_ID, &|| {}).with_kernel(&model);
            apply(&context, &plan, &facts.ledger, &mut |_| {}).unwrap().outcomes
        });
        assert!(
            outcomes.iter().any(|outcome| outcome.result == ChangeResult::Blocked
                && outcome
                    .message
                    .as_deref()
                    .is_some_and(|why| why.contains("attached after the plan was made: vnet0"))),
            "{other}: {outcomes:#?}"
        );
        assert_eq!(
            kernel::uplinks_of_port(&model.borrow().links, &link_name("vnet0")),
            before,
            "{other}"
        );
    }
}

/// Tests two host networks whose frames leave through the same link: a VLAN on this link can belong to only one
/// tenant.
#[test]
fn vlan_on_a_shared_segment_belongs_to_one_tenant() {
    let networks = "  networks: [{name: n1, scenario: BridgePerTenant, uplink: {name: eth1}, bridge: one}, {name: n2, scenario: BridgePerTenant, uplink: {name: UPLINK}, bridge: two}]\n";
    let two = |uplink: &str, list: &[(&str, &str, u32)]| {
        networks.replace("UPLINK", uplink) + &tenants_spec(list)
    };
    let requested = [("a", "n1", 120), ("b", "n2", 120), ("c", "n1", 121), ("d", "n2", 122)];
    let fault = "spec.tenantNetworks[b].vlan: `120`: is already used by a on network n1, and both networks leave the host through eth1";
    let faults = |plan: &Plan| plan.faults.iter().map(ToString::to_string).collect::<Vec<_>>();

    let mut facts = host_facts();
    let plan = make_plan(&facts, &two("eth1", &requested));
    assert!(faults(&plan).iter().any(|actual| actual.starts_with(fault)), "{:?}", faults(&plan));
    // The plan creates the links of the network without a fault.
    assert_eq!(change_lines(&plan).len(), 2, "{:?}", change_lines(&plan));
    assert!(
        make_plan(&facts, &two("eth2", &requested)).faults.is_empty(),
        "networks with different uplinks may use the same VLAN"
    );
    // The tenant that already has the VLAN keeps it, regardless of the order of the two tenants in the spec.
    let first = make_plan(&facts, &two("eth1", &requested[1..]));
    apply_plan(&mut facts, &first);
    let plan = make_plan(&facts, &two("eth1", &requested));
    assert!(
        faults(&plan)[0]
            .starts_with("spec.tenantNetworks[a].vlan: `120`: is already used by b on network n2"),
        "{:?}",
        faults(&plan)
    );
    assert!(make_plan(&facts, &two("eth1", &requested[1..])).is_empty());
    // Frames of a virtual function leave the host through its physical function.
    let function = link("eth1v0", LinkKind::VirtualFunction);
    add_link(&mut facts, Link { physical_function: Some(link_name("eth1")), ..function });
    let plan = make_plan(&facts, &two("eth1v0", &requested));
    assert!(!plan.faults.is_empty(), "{:?}", change_lines(&plan));
    // Tunnels with the same UDP port also belong to one layer 2 network.
    let overlays = "  networks: [{name: n1, scenario: Vxlan, bridge: one, vxlan: {localAddress: 10.0.0.1}}, {name: n2, scenario: Vxlan, bridge: two, vxlan: {localAddress: 10.0.0.1, port: PORT}}]\n  tenantNetworks: [{name: a, network: n1, vni: 120}, {name: b, network: n2, vni: 120}]\n";
    let plan = make_plan(&host_facts(), &overlays.replace("PORT", "4790"));
    assert!(
        faults(&plan)[0].starts_with("spec.tenantNetworks[b].vni: `120`: is already used by a")
    );
    assert!(make_plan(&host_facts(), &overlays.replace("PORT", "4791")).faults.is_empty());
    // The same VLAN ID inside another outer VLAN is a different layer 2 network.
    let mut facts = host_facts();
    let outer = link("eth1.50", LinkKind::Vlan);
    add_link(&mut facts, Link { parent: Some(link_name("eth1")), vlan: Some(50), ..outer });
    assert!(faults(&make_plan(&facts, &two("eth1.50", &requested))).is_empty());
}
