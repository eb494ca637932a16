//! Tests of plans of tenant networks on a small model of the kernel's links. The agent's own code applies the steps
//! of a plan to the model. Afterwards the next plan must be empty, removed links must not exist, and links of other
//! programs must be unchanged.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;
#[path = "networks/disruption.rs"]
mod disruption;
#[path = "networks/guard.rs"]
mod guard;
#[path = "networks/kernel.rs"]
mod kernel;
#[path = "networks/refusals.rs"]
mod refusals;
#[path = "networks/trial.rs"]
mod trial;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use berth_agent::apply::{ApplyContext, Outcome, apply};
use berth_agent::manifest::Manifest;
use berth_agent::plan::network::LinkOp;
use berth_agent::plan::{Change, Input, LeasedNetworks, Plan, plan};
use berth_agent::state_folder::save_ledger;
use berth_api::infra_node::{ChangeResult, LinkState};
use berth_api::{LinkName, VlanId, VlanSet};
use berth_host_facts::HostFacts;
use berth_host_facts::host_settings::HostSettings;
use berth_host_facts::ledger::Ledger;
use berth_host_facts::links::{BridgeFilter, Link, LinkKind, Links, PortVlans};
use berth_host_facts::nftables::Table;
use berth_host_facts::root::Root;
use common::Tree;
use kernel::{KernelModel, apply_step};
use proptest::prelude::*;

fn link_name(text: &str) -> LinkName {
    text.parse().unwrap()
}

fn link(text: &str, kind: LinkKind) -> Link {
    Link {
        mtu: Some(9000),
        is_up: Some(true),
        state: Some(LinkState::Up),
        mac: Some("52:54:00:00:00:01".to_owned()),
        ..Link::new(link_name(text), kind)
    }
}

/// Returns a host with two uplinks, of which one has the host's address, and with a bridge and a VLAN link of
/// another program.
fn host_facts() -> HostFacts {
    let mut eth0 = link("eth0", LinkKind::Physical);
    eth0.addresses = vec!["10.0.0.1/24".to_owned()];
    eth0.has_default_route = true;
    let mut foreign = link("eth1.99", LinkKind::Vlan);
    (foreign.parent, foreign.vlan) = (Some(link_name("eth1")), Some(99));
    let mut bridge = link("br-other", LinkKind::Bridge);
    bridge.mtu = Some(1500);
    let mut eth3 = link("eth3", LinkKind::Physical);
    eth3.master = Some(link_name("br-other"));
    let mut eth2 = link("eth2", LinkKind::Physical);
    eth2.is_up = Some(false);
    let mut facts = HostFacts { name: Some("a".to_owned()), ..HostFacts::default() };
    facts.links = Links {
        all: vec![bridge, eth0, link("eth1", LinkKind::Physical), foreign, eth2, eth3],
        are_routes_known: true,
        ..Links::default()
    };
    facts
}

/// Returns the host of [`host_facts`] with a kernel that supports nf_tables and has no table yet.
fn host_facts_with_filter() -> HostFacts {
    let mut facts = host_facts();
    facts.links.filter = BridgeFilter::Absent;
    facts
}

fn make_plan(facts: &HostFacts, spec: &str) -> Plan {
    make_plan_with_leases(facts, spec, None)
}

fn make_plan_with_leases(facts: &HostFacts, spec: &str, leases: Option<&LeasedNetworks>) -> Plan {
    let text = format!(
        "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: a}}\nspec:\n{spec}\n"
    );
    let manifest = Manifest::parse(&text).unwrap();
    let shape = HostSettings::default();
    let mut plan = plan(Input {
        spec: &manifest.spec,
        unparsed: &manifest.unparsed,
        facts,
        settings: &shape,
        leases,
    });
    plan.faults = manifest.faults.into_iter().chain(plan.faults).collect();
    plan
}

fn change_lines(plan: &Plan) -> Vec<String> {
    let line = |change: &Change| {
        let blocked =
            change.blocked.as_ref().map(|why| format!(" BLOCKED {why}")).unwrap_or_default();
        format!("{}{blocked}", change.id)
    };
    plan.changes.iter().map(line).collect()
}

const BOOT_ID: &str = "0b1e9f4a-6d53-4a0e-9b0c-2f6a3d1c7e55";

thread_local! {
    /// State folder of the agent, which contains the rollback ledger.
    static STATE: Tree = state_tree();
}

fn state_tree() -> Tree {
    let tree = Tree::new();
    tree.create_folder("var/lib/berth");
    tree
}

/// Applies a plan with the agent's code to a model of the kernel.
fn apply_plan(facts: &mut HostFacts, plan: &Plan) {
    apply_plan_on(facts, plan, KernelModel::default());
}

fn apply_plan_on(facts: &mut HostFacts, plan: &Plan, model: KernelModel) {
    let mut plan = plan.clone();
    plan.changes.retain(|change| change.blocked.is_none());
    let model = KernelModel { links: std::mem::take(&mut facts.links), ..model };
    let model = RefCell::new(model);
    STATE.with(|tree| {
        let root = Root::open(tree.path()).unwrap();
        save_ledger(&facts.ledger, &root, BOOT_ID).unwrap();
        let context = ApplyContext::new(&root, BOOT_ID, &|| {}).with_kernel(&model);
        let applied = apply(&context, &plan, &facts.ledger, &mut |_| {}).unwrap();
        let is_done = |outcome: &&Outcome| outcome.result == ChangeResult::Done;
        let done = applied.outcomes.iter().filter(is_done).count();
        assert_eq!(done, plan.changes.len(), "{:#?}", applied.outcomes);
        facts.ledger = Ledger::read(&root, Some(BOOT_ID)).unwrap();
    });
    let model = model.into_inner();
    assert!(model.violations.is_empty(), "{:#?}", model.violations);
    facts.links = model.links;
}

/// Returns the text of the change that installs the nftables rules.
fn filter_change_text(by: &str) -> String {
    format!("drop guests' BPDUs and discovery frames to {by} (nftables table bridge berth)")
}

const SHARED_BRIDGE_SPEC: &str = "  networks: [{name: trunk, scenario: VlanAwareBridge, uplink: {name: eth1}, bridge: br-tenant}]\n";

fn tenants_spec(list: &[(&str, &str, u32)]) -> String {
    let one = |(name, network, id): &(&str, &str, u32)| {
        format!("  - {{name: {name}, network: {network}, vlan: {id}}}\n")
    };
    format!("  tenantNetworks:\n{}", list.iter().map(one).collect::<String>())
}

#[test]
fn plan_is_readable_for_operators() {
    let mut facts = host_facts_with_filter();
    let spec = SHARED_BRIDGE_SPEC.to_owned() + &tenants_spec(&[("cluster-abc", "trunk", 120)]);
    let first = make_plan(&facts, &spec);
    assert_eq!(
        change_lines(&first),
        [
            filter_change_text("eth1").as_str(),
            "create bridge br-tenant for network trunk",
            "make eth1 a port of br-tenant",
            "add VLAN 120 to eth1 on br-tenant for cluster-abc"
        ]
    );
    apply_plan(&mut facts, &first);
    assert!(make_plan(&facts, &spec).is_empty());
    let more = tenants_spec(&[
        ("cluster-abc", "trunk", 120),
        ("b", "trunk", 121),
        ("c", "trunk", 122),
        ("d", "trunk", 130),
    ]);
    let next = make_plan(&facts, &(SHARED_BRIDGE_SPEC.to_owned() + &more));
    assert_eq!(change_lines(&next), ["add VLANs 121-122,130 to eth1 on br-tenant for 3 tenants"]);
    assert!(!next.changes[0].drift);
    // A VLAN that another program removed is drift. With `enforce: false` the plan reports the drift, but blocks
    // its correction.
    facts.links.all.iter_mut().find(|link| link.name.as_str() == "eth1").unwrap().vlans =
        Some(PortVlans::default());
    assert!(make_plan(&facts, &spec).changes[0].drift);
    let not_enforced = make_plan(&facts, &("  enforce: false\n".to_owned() + &spec));
    assert!(
        change_lines(&not_enforced)[0].contains("BLOCKED another program changed the network"),
        "{:?}",
        change_lines(&not_enforced)
    );
}

#[test]
fn change_that_disconnects_the_host_is_blocked() {
    let facts = host_facts_with_filter();
    let spec = SHARED_BRIDGE_SPEC.replace("eth1", "eth0") + &tenants_spec(&[("a", "trunk", 120)]);
    let refused = change_lines(&make_plan(&facts, &spec));
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains(
        "BLOCKED the host's default route leaves through eth0, and the host has the address 10.0.0.1/24 on eth0"
    ));
    let allowed =
        make_plan(&facts, &spec.replace("{name: eth0}", "{name: eth0, allowManagement: true}"));
    let trial: Vec<bool> =
        allowed.changes.iter().map(|change| change.link_action().unwrap().on_trial).collect();
    assert_eq!(trial, [false, false, true, false], "{:?}", change_lines(&allowed));
    // The uplink has neither the default route nor an address: the host's address is on `lo`, and another route
    // leaves through the uplink.
    let mut unnumbered = host_facts();
    let eth1 = unnumbered.links.all.iter_mut().find(|link| link.name.as_str() == "eth1").unwrap();
    eth1.route_destination = Some("10.0.0.0/8".to_owned());
    let spec_of_eth1 = SHARED_BRIDGE_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120)]);
    let refused = change_lines(&make_plan(&unnumbered, &spec_of_eth1));
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0].contains("BLOCKED the host's route to 10.0.0.0/8 leaves through eth1."),
        "{refused:?}"
    );
    // The change is also blocked if the route is on a VLAN link that is stacked on the uplink.
    let mut stacked = host_facts();
    let vlan = stacked.links.all.iter_mut().find(|link| link.name.as_str() == "eth1.99").unwrap();
    vlan.route_destination = Some("10.0.0.0/8".to_owned());
    let refused = change_lines(&make_plan(&stacked, &spec_of_eth1));
    assert!(refused[0].contains("leaves through eth1.99"), "{refused:?}");
    // In scenario BridgePerTenant, the tenants' VLAN links are stacked on the uplink and do not change it.
    let own = spec.replace("VlanAwareBridge", "BridgePerTenant").replace("br-tenant", "tn");
    assert_eq!(
        change_lines(&make_plan(&facts, &own)),
        [
            filter_change_text("tenants' links").as_str(),
            "add VLAN 120 of eth0 on bridge tn120 for a"
        ]
    );
}

#[test]
fn fault_blocks_only_its_own_network() {
    let facts = host_facts_with_filter();
    let good = "{name: good, scenario: BridgePerTenant, uplink: {name: eth1}}";
    for (bad, tenant, fault) in [
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {name: eth7}}",
            "vlan: 5",
            "spec.networks[bad].uplink.name: `eth7`: does not exist; uplinks of this host: eth0, eth1, eth2, eth3",
        ),
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {name: eth3}}",
            "vlan: 5",
            "spec.networks[bad].uplink.name: `eth3`: is a port of br-other",
        ),
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {name: br-other}}",
            "vlan: 5",
            "`br-other`: is a bridge",
        ),
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {}}",
            "vlan: 5",
            "must have exactly one of name, mac and pciAddress",
        ),
        (
            "{name: bad, scenario: BridgePerTenant}",
            "vlan: 5",
            "spec.networks[bad].uplink: ``: is missing",
        ),
        ("{name: bad, scenario: Vxlan}", "vni: 5", "spec.networks[bad].vxlan: ``: is missing"),
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {name: eth1}, bridge: tx, mtu: 9001}",
            "vlan: 5",
            "spec.networks[bad].mtu: `9001`: eth1 allows 9000 bytes at most",
        ),
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {name: eth1}, bridge: br-of-tenants}",
            "vlan: 4000",
            "spec.networks[bad].bridge: `br-of-tenants`: a link's name has at most 15 bytes",
        ),
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {name: eth1}, bridge: tx}",
            "vni: 5",
            "spec.tenantNetworks[x].vlan: ``: network bad requires vlan",
        ),
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {name: eth1}, bridge: tx}",
            "vlan: 1",
            "`1`: is the default VLAN",
        ),
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {name: eth1}, bridge: tx}",
            "vlan: 4095",
            "`4095`: ",
        ),
        (
            "{name: bad, scenario: BridgePerTenant, uplink: {name: eth1}}",
            "vlan: 50",
            "`tn50`: network good also needs link tn50",
        ),
        (
            "{name: bad, scenario: VlanAwareBridge, uplink: {name: eth1}, bridge: a-name-that-is-too-long}",
            "vlan: 5",
            "`a-name-that-is-too-long`: ",
        ),
        (
            "{name: bad, scenario: SriovVf, uplink: {name: eth1}}",
            "vlan: 5",
            "spec.networks[bad].uplink: `eth1`: has no virtual functions",
        ),
        (
            "{name: Bad_, scenario: BridgePerTenant, uplink: {name: eth1}}",
            "vlan: 5",
            "spec.networks[Bad_].name: `Bad_`: must be",
        ),
    ] {
        let spec = format!(
            "  networks:\n  - {good}\n  - {bad}\n  tenantNetworks:\n  - {{name: ok, network: good, vlan: 50}}\n  - {{name: x, network: bad, {tenant}}}"
        );
        let plan = make_plan(&facts, &spec);
        let faults: Vec<String> = plan.faults.iter().map(ToString::to_string).collect();
        assert!(faults.iter().any(|said| said.contains(fault)), "{fault}\nis not in {faults:#?}");
        assert_eq!(
            change_lines(&plan),
            [
                filter_change_text("tenants' links").as_str(),
                "add VLAN 50 of eth1 on bridge tn50 for ok"
            ],
            "{bad} {faults:?}"
        );
    }
}

#[test]
fn captured_vlan_is_reported_and_others_are_created() {
    let facts = host_facts();
    for scenario in ["VlanAwareBridge", "BridgePerTenant"] {
        let spec =
            SHARED_BRIDGE_SPEC.replace("VlanAwareBridge", scenario).replace("br-tenant", "tn")
                + &tenants_spec(&[("a", "trunk", 99), ("b", "trunk", 100)]);
        let plan = make_plan(&facts, &spec);
        let lines = change_lines(&plan);
        assert!(
            lines.iter().any(|line| line.contains("99")
                && line.contains("BLOCKED eth1.99, which was not created by Berth")),
            "{lines:#?}"
        );
        assert!(
            lines.iter().any(|line| line.contains("VLAN 100") && !line.contains("BLOCKED")),
            "{lines:#?}"
        );
        let state = plan.networks[0].status();
        assert_eq!((state.ready, state.failed, state.pending), (0, 1, 1));
        assert_eq!(state.mtu, Some(9000), "the MTU should be that of the uplink");
    }
}

#[test]
fn effective_mtu_is_the_smallest_of_the_path() {
    let mut facts = host_facts();
    let spec = |mtu: u32| {
        SHARED_BRIDGE_SPEC.replace("bridge: br-tenant", &format!("bridge: br-tenant, mtu: {mtu}"))
            + &tenants_spec(&[("a", "trunk", 120)])
    };
    let mtu =
        |facts: &HostFacts, desired| make_plan(facts, &spec(desired)).networks[0].status().mtu;
    assert_eq!(mtu(&facts, 9001), None, "without a link, a spec with a fault should have no MTU");
    assert_eq!(mtu(&facts, 8000), Some(8000));
    let first = make_plan(&facts, &spec(8000));
    apply_plan(&mut facts, &first);
    assert_eq!(
        mtu(&facts, 9000),
        Some(8000),
        "the bridge should keep its MTU until the change is applied"
    );
    assert_eq!(mtu(&facts, 1500), Some(1500));
    assert_eq!(
        mtu(&facts, 9001),
        Some(8000),
        "with a fault in the spec, the bridge should keep its MTU"
    );
    let uplink = facts.links.all.iter_mut().find(|link| link.name.as_str() == "eth1").unwrap();
    uplink.mtu = Some(4000);
    assert_eq!(
        mtu(&facts, 8000),
        Some(4000),
        "the MTU should be that of the uplink, which is below that of its bridge"
    );
}

/// Adds the port of a VM in a VLAN of the shared bridge.
fn attach_vm(facts: &mut HostFacts, vlan: u16) {
    let id = VlanId::try_from(vlan).unwrap();
    let only = VlanSet::from_iter([id]);
    let vlans = PortVlans { all: only.clone(), untagged: only, pvid: Some(id) };
    let port = link("vnet0", LinkKind::Tun);
    facts.links.all.push(Link { master: Some(link_name("br-tenant")), vlans: Some(vlans), ..port });
    facts.links.all.sort_by(|a, b| a.name.cmp(&b.name));
}

#[test]
fn network_in_use_is_kept() {
    let mut facts = host_facts();
    let spec =
        SHARED_BRIDGE_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120), ("b", "trunk", 121)]);
    let first = make_plan(&facts, &spec);
    apply_plan(&mut facts, &first);
    attach_vm(&mut facts, 121);
    let lines =
        change_lines(&make_plan(&facts, &(SHARED_BRIDGE_SPEC.to_owned() + "  tenantNetworks: []")));
    assert_eq!(lines[0], "remove VLAN 120 from eth1 on br-tenant");
    assert!(
        lines[1]
            .starts_with("remove VLAN 121 from eth1 on br-tenant BLOCKED still in use by vnet0"),
        "{lines:?}"
    );
    let lines = change_lines(&make_plan(&facts, "  {}"));
    assert!(
        lines[0].starts_with("remove br-tenant of network trunk BLOCKED still in use by vnet0"),
        "{lines:?}"
    );
    // If the spec of the networks cannot be parsed, the plan removes no links.
    assert!(make_plan(&facts, "  networks: 5").is_empty());
    assert!(make_plan(&facts, "  netwroks: []").is_empty());
}

#[test]
fn handover_replaces_the_uplink() {
    let mut facts = host_facts_with_filter();
    let spec = SHARED_BRIDGE_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120)]);
    let first = make_plan(&facts, &spec);
    apply_plan(&mut facts, &first);
    let other = spec.replace("eth1", "eth2");
    let next = make_plan(&facts, &other);
    assert_eq!(
        change_lines(&next)[..2],
        [filter_change_text("eth1, eth2").as_str(), "make eth2 a port of br-tenant"],
        "frames leave through eth1 until eth2 is a port"
    );
    apply_plan(&mut facts, &next);
    let next = make_plan(&facts, &other);
    assert_eq!(
        change_lines(&next),
        [filter_change_text("eth2")],
        "the rules should no longer contain eth1"
    );
    apply_plan(&mut facts, &next);
    let bridge = link_name("br-tenant");
    let ports: Vec<&str> = facts.links.ports_of(&bridge).map(|port| port.name.as_str()).collect();
    assert_eq!(ports, ["eth2"], "the bridge should have only one uplink, because two form a loop");
    assert!(make_plan(&facts, &other).is_empty());
    // The uplink was down originally. It is set down only after the last of Berth's links has been removed from it.
    let removal = make_plan(&facts, "  {}");
    assert_eq!(change_lines(&removal), ["remove br-tenant of network trunk"]);
    apply_plan(&mut facts, &removal);
    assert_eq!(
        change_lines(&make_plan(&facts, "  {}")),
        ["delete nftables table bridge berth", "set eth2 down"]
    );
    // A misspelt field of the network does not cause the uplink to be set down.
    assert!(make_plan(&facts, "  networks: [{name: trunk, colour: red}]").is_empty());
}

#[test]
fn vlan_is_reassigned_after_its_vms_are_detached() {
    let mut facts = host_facts();
    let first =
        make_plan(&facts, &(SHARED_BRIDGE_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120)])));
    apply_plan(&mut facts, &first);
    attach_vm(&mut facts, 120);
    let spec = SHARED_BRIDGE_SPEC.to_owned() + &tenants_spec(&[("b", "trunk", 120)]);
    let state = make_plan(&facts, &spec).networks[0].clone();
    assert!(
        state.not_ready[&120].message.contains("still belongs to a: still in use by vnet0"),
        "{state:?}"
    );
    facts.links.all.retain(|link| link.name.as_str() != "vnet0");
    let free = make_plan(&facts, &spec);
    apply_plan(&mut facts, &free);
    assert_eq!(facts.ledger.networks["trunk"].tenants[&120], "b");
    assert_eq!(make_plan(&facts, &spec).networks[0].ready, 1);
}

#[test]
fn changed_rules_are_restored() {
    let mut facts = host_facts_with_filter();
    let spec = SHARED_BRIDGE_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120)]);
    let first = make_plan(&facts, &spec);
    apply_plan(&mut facts, &first);
    let BridgeFilter::Present(sound) = facts.links.filter.clone() else { unreachable!() };
    let mut accepts = sound.clone();
    accepts.chains.get_mut("forward").unwrap().rules.insert(0, String::new());
    let mut dormant = sound.clone();
    dormant.flags = 1;
    let mut without_hook = sound.clone();
    without_hook.chains.get_mut("forward").unwrap().hook = None;
    let mut without_uplinks = sound.clone();
    without_uplinks.sets.get_mut("uplinks").unwrap().clear();
    for damaged in [accepts, dormant, without_hook, without_uplinks] {
        facts.links.filter = BridgeFilter::Present(damaged);
        let plan = make_plan(&facts, &spec);
        assert_eq!(change_lines(&plan), [filter_change_text("eth1")]);
        assert!(plan.changes[0].drift);
        let not_enforced = make_plan(&facts, &("  enforce: false\n".to_owned() + &spec));
        assert!(
            change_lines(&not_enforced)[0].contains("BLOCKED another program changed the network"),
            "{not_enforced:?}"
        );
    }
    // An agent that is not permitted to read the table plans no changes of it.
    facts.links.filter = BridgeFilter::Unknown;
    assert!(make_plan(&facts, &spec).is_empty());
    // The rules of an older agent are not drift, so `enforce: false` does not prevent their update.
    facts.links.filter = BridgeFilter::Present(Table::default());
    facts.ledger.filter.as_mut().unwrap().version = 0;
    let plan = make_plan(&facts, &("  enforce: false\n".to_owned() + &spec));
    assert_eq!(change_lines(&plan), [filter_change_text("eth1")]);
}

#[test]
fn record_of_a_deleted_table_is_removed() {
    let mut facts = host_facts_with_filter();
    let first =
        make_plan(&facts, &(SHARED_BRIDGE_SPEC.to_owned() + &tenants_spec(&[("a", "trunk", 120)])));
    apply_plan(&mut facts, &first);
    let removal = make_plan(&facts, "  {}");
    apply_plan(&mut facts, &removal);
    facts.links.filter = BridgeFilter::Absent;
    let plan = make_plan(&facts, "  {}");
    assert!(plan.is_empty() && plan.stale_records.is_filter_stale, "{:?}", change_lines(&plan));
}

/// Generates a random spec with two networks and their tenants.
fn any_spec() -> impl Strategy<Value = String> {
    let ids = prop::collection::btree_set(2_u32..400, 0..12);
    let network = (0..3_usize, ids);
    (network.clone(), network, any::<bool>()).prop_map(|(one, two, stp)| {
        // In one spec, the two networks never have the same UDP port, because a VNI is unique per port. The next
        // spec may assign the port of the first network to the second.
        let port = |name: &str| if name == "n2" && one.0 == 2 { 4791 } else { 4790 };
        let scenario = |kind: usize, name: &str, uplink: &str| match kind {
            0 => format!("{{name: {name}, scenario: VlanAwareBridge, uplink: {{name: {uplink}}}, stp: {stp}}}"),
            1 => format!("{{name: {name}, scenario: BridgePerTenant, uplink: {{name: {uplink}}}, bridge: {name}}}"),
            _ => format!("{{name: {name}, scenario: Vxlan, bridge: {name}, vxlan: {{localAddress: 10.0.0.1, port: {}, peers: [10.0.0.2]}}}}", port(name)),
        };
        let tenants = |(kind, ids): &(usize, BTreeSet<u32>), name: &str| {
            let id_field = if *kind == 2 { "vni" } else { "vlan" };
            ids.iter().filter(|id| **id != 99).map(|id| format!("  - {{name: {name}-{id}, network: {name}, {id_field}: {id}}}\n")).collect::<String>()
        };
        format!(
            "  networks:\n  - {}\n  - {}\n  tenantNetworks:\n{}{}  - {{name: last, network: n1, {}: 401}}\n",
            scenario(one.0, "n1", "eth1"),
            scenario(two.0, "n2", "eth2"),
            tenants(&one, "n1"),
            tenants(&two, "n2"),
            if one.0 == 2 { "vni" } else { "vlan" },
        )
    })
}

/// Returns the links that Berth did not create, with the properties that a plan might change: the bridge, and
/// whether the link is up.
fn foreign_links(facts: &HostFacts) -> BTreeMap<String, (Option<LinkName>, Option<bool>)> {
    let all = facts.links.all.iter().filter(|link| !link.is_created_by_berth());
    all.map(|link| (link.name.to_string(), (link.master.clone(), link.is_up))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Checks that one plan changes the host from any spec to any other, that the next plan is empty, and that an
    /// empty spec restores the host.
    #[test]
    fn a_second_plan_is_empty(specs in prop::collection::vec(any_spec(), 1..4), damage in any::<prop::sample::Index>()) {
        let mut facts = host_facts_with_filter();
        let original = foreign_links(&facts);
        for spec in &specs {
            // A change of the scenario may need two cycles: one that removes links, and one that creates links.
            for _ in 0..3 {
                let plan = make_plan(&facts, spec);
                prop_assert!(plan.faults.is_empty(), "{:?}", plan.faults);
                apply_plan(&mut facts, &plan);
            }
            let plan = make_plan(&facts, spec);
            prop_assert!(plan.is_empty(), "{:#?}", change_lines(&plan));
            prop_assert!(plan.networks.iter().all(|network| network.not_ready.is_empty()), "{:?}", plan.networks);
            // Another program flushes all nf_tables rules.
            facts.links.filter = BridgeFilter::Absent;
            let plan = make_plan(&facts, spec);
            prop_assert!(!plan.is_empty() && plan.changes.iter().all(|change| change.drift), "{:#?}", change_lines(&plan));
            // Another program deletes one of Berth's links.
            let ours: Vec<LinkName> = facts.links.all.iter().filter(|l| l.is_created_by_berth()).map(|l| l.name.clone()).collect();
            let deleted = &ours[damage.index(ours.len())];
            apply_step(&mut facts.links, &LinkOp::Remove(deleted.clone())).unwrap();
            let plan = make_plan(&facts, spec);
            prop_assert!(!plan.is_empty() && plan.changes.iter().all(|change| change.drift), "{:#?}", change_lines(&plan));
            for _ in 0..2 {
                let plan = make_plan(&facts, spec);
                apply_plan(&mut facts, &plan);
            }
            prop_assert!(make_plan(&facts, spec).is_empty());
        }
        for _ in 0..2 {
            let plan = make_plan(&facts, "  {}");
            apply_plan(&mut facts, &plan);
        }
        let nothing = make_plan(&facts, "  {}");
        prop_assert!(nothing.is_empty(), "{:?}", change_lines(&nothing));
        prop_assert_eq!(foreign_links(&facts), original);
        prop_assert_eq!(&facts.ledger, &Ledger::default());
    }
}
