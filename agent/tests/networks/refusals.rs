//! Tests in which the kernel refuses steps, the agent is killed, or VMs are attached between steps. No VM that is
//! connected to the network may lose this connection permanently, no loop may exist at any time, and at the end the
//! links must match the spec.

use std::panic::{AssertUnwindSafe, catch_unwind};

use berth_agent::apply::{ConvergeResult, converge};

use super::kernel::{AgentKill, StepEvent, uplinks_of_port};
use super::*;

struct TestHost {
    model: RefCell<KernelModel>,
    tree: Tree,
}

/// Returns a host with spare uplinks and tunnel addresses, so that a test can change the networks between them.
fn test_host() -> TestHost {
    let mut links = host_facts_with_filter().links;
    links.all.extend(["eth4", "eth5"].map(|name| link(name, LinkKind::Physical)));
    links
        .all
        .iter_mut()
        .find(|link| link.name.as_str() == "eth0")
        .unwrap()
        .addresses
        .push("10.0.0.9/24".to_owned());
    links.all.sort_by(|a, b| a.name.cmp(&b.name));
    TestHost {
        model: RefCell::new(KernelModel { links, ..KernelModel::default() }),
        tree: state_tree(),
    }
}

impl TestHost {
    /// Runs one cycle of the agent; returns `None` if the agent was killed.
    fn run_cycle(&self, spec: &str, events: &[StepEvent]) -> Option<ConvergeResult> {
        self.model.borrow_mut().events = events.to_vec();
        let text = format!(
            "apiVersion: berth.dev/v1alpha1\nkind: InfraNode\nmetadata: {{name: a}}\nspec:\n{spec}\n"
        );
        let manifest = Manifest::parse(&text).unwrap();
        assert_eq!(manifest.faults, []);
        let root = Root::open(self.tree.path()).unwrap();
        let context = ApplyContext::new(&root, BOOT_ID, &|| {}).with_kernel(&self.model);
        let observe_host = || {
            let facts = HostFacts {
                links: self.model.borrow().links.clone(),
                ledger: Ledger::read(&root, Some(BOOT_ID)).unwrap(),
                boot_id: Some(BOOT_ID.to_owned()),
                ..host_facts()
            };
            (facts, HostSettings::default())
        };
        let nothing = BTreeSet::new();
        let cycle = || {
            converge(
                &context,
                &manifest.spec,
                &manifest.unparsed,
                &nothing,
                &observe_host,
                &mut |_| {},
            )
        };
        let result = catch_unwind(AssertUnwindSafe(cycle));
        self.model.borrow_mut().events.clear();
        match result {
            Ok(converged) => Some(converged),
            Err(killed) if killed.is::<AgentKill>() => None,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn vm_port(port: &str, bridge: &str, vlan: Option<u16>) -> Link {
        let vlans = vlan.map(|vlan| {
            let id = VlanId::try_from(vlan).unwrap();
            let only = VlanSet::from_iter([id]);
            PortVlans { all: only.clone(), untagged: only, pvid: Some(id) }
        });
        Link { master: Some(link_name(bridge)), vlans, ..link(port, LinkKind::Tun) }
    }

    /// Returns the uplinks through which the frames of each VM leave the host. Each uplink is listed with its
    /// settings, because a link that is removed and created again has the same name.
    fn uplinks_of_vms(&self) -> BTreeMap<LinkName, BTreeSet<String>> {
        let links = &self.model.borrow().links;
        let vms = links.all.iter().filter(|link| link.kind == LinkKind::Tun);
        let describe_uplink = |uplink: String| {
            let link = links.find_by_name(&link_name(&uplink)).unwrap();
            let tunnel =
                link.tunnel.as_ref().map(|tunnel| (tunnel.port, tunnel.local_address, tunnel.vni));
            format!("{uplink} {:?} {:?} {tunnel:?}", link.parent, link.vlan)
        };
        let uplinks_of_vm = |port: &Link| {
            (
                port.name.clone(),
                uplinks_of_port(links, &port.name).into_iter().map(describe_uplink).collect(),
            )
        };
        vms.map(uplinks_of_vm).collect()
    }
}

/// Values that a test changes in the spec, which has three networks with two tenants each.
#[derive(Debug, Clone)]
struct SpecOptions {
    trunk_uplink: &'static str,
    bridge_per_tenant_uplink: &'static str,
    port: u16,
    local: &'static str,
    allow_disruption: bool,
    /// True if the spec contains the second tenant of each network.
    has_second_tenants: bool,
}

impl SpecOptions {
    fn spec(&self) -> String {
        let Self {
            trunk_uplink: trunk,
            bridge_per_tenant_uplink: own,
            port,
            local,
            allow_disruption: allow,
            has_second_tenants: second,
        } = self;
        let tenants = |suffix: &str, last: u32| {
            format!(
                "  - {{name: a{suffix}, network: trunk, vlan: 12{last}}}\n  - {{name: b{suffix}, network: own, vlan: 12{last}}}\n  - {{name: c{suffix}, network: over, vni: 500{last}}}\n"
            )
        };
        format!(
            "  networks:\n  - {{name: trunk, scenario: VlanAwareBridge, uplink: {{name: {trunk}}}, bridge: br-tenant, allowDisruption: {allow}}}\n  - {{name: own, scenario: BridgePerTenant, uplink: {{name: {own}}}, bridge: own, allowDisruption: {allow}}}\n  - {{name: over, scenario: Vxlan, bridge: over, allowDisruption: {allow}, vxlan: {{localAddress: {local}, port: {port}, peers: [10.0.0.2]}}}}\n  tenantNetworks:\n{}{}",
            tenants("1", 0),
            if *second { tenants("2", 1) } else { String::new() }
        )
    }
}

fn any_spec_options() -> impl Strategy<Value = SpecOptions> {
    let uplinks =
        (prop::sample::select(vec!["eth1", "eth4"]), prop::sample::select(vec!["eth2", "eth5"]));
    let tunnels = (
        prop::sample::select(vec![4790, 4791]),
        prop::sample::select(vec!["10.0.0.1", "10.0.0.9"]),
    );
    (uplinks, tunnels, any::<bool>(), any::<bool>()).prop_map(
        |((trunk, own), (port, local), allow, second)| SpecOptions {
            trunk_uplink: trunk,
            bridge_per_tenant_uplink: own,
            port,
            local,
            allow_disruption: allow,
            has_second_tenants: second,
        },
    )
}

/// Generates events for the steps of a plan: often no event or one failure, sometimes several failures.
fn any_events() -> impl Strategy<Value = Vec<StepEvent>> {
    let bad = prop::sample::select(vec![
        StepEvent::StepRefused,
        StepEvent::StepRefused,
        StepEvent::AgentKilled,
        StepEvent::AgentKilledAfterStep,
        StepEvent::VmAttached,
    ]);
    let one = (0..24_usize, bad.clone()).prop_map(|(at, bad)| {
        let mut events = vec![StepEvent::Success; at];
        events.push(bad);
        events
    });
    let many = prop::collection::vec(prop_oneof![4 => Just(StepEvent::Success), 1 => bad], 0..40);
    prop_oneof![1 => Just(Vec::new()), 3 => one, 1 => many]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn refused_steps_disconnect_no_vm(changes in prop::collection::vec((any_spec_options(), any_events()), 1..6)) {
        let world = test_host();
        let original: BTreeSet<String> = world.model.borrow().links.all.iter().map(|link| format!("{:?}", (&link.name, &link.master, link.is_up))).collect();
        let start = SpecOptions { trunk_uplink: "eth1", bridge_per_tenant_uplink: "eth2", port: 4790, local: "10.0.0.1", allow_disruption: false, has_second_tenants: true };
        world.run_cycle(&start.spec(), &[]).unwrap();
        let vms = [("vnet0", "br-tenant", Some(120)), ("vnet1", "own120", None), ("vnet2", "over5000", None)];
        let pending_vms = [("vnet3", "br-tenant", Some(121)), ("vnet4", "own121", None), ("vnet5", "over5001", None)];
        {
            let mut model = world.model.borrow_mut();
            model.links.all.extend(vms.map(|(port, bridge, vlan)| TestHost::vm_port(port, bridge, vlan)));
            model.links.all.sort_by(|a, b| a.name.cmp(&b.name));
            model.pending_vms = pending_vms.map(|(port, bridge, vlan)| TestHost::vm_port(port, bridge, vlan)).to_vec();
        }
        prop_assert!(world.uplinks_of_vms().values().all(|ways| ways.len() == 1), "{:?}", world.uplinks_of_vms());
        let mut last = start;
        // Uplinks of each VM since the last complete cycle. If a killed agent left a change incomplete, the next
        // cycle restores one of these states, because it corrects drift or rolls back a trial that was not
        // confirmed.
        let mut known_uplinks = vec![world.uplinks_of_vms()];
        for (asked, fate) in &changes {
            let before = world.uplinks_of_vms();
            known_uplinks.push(before.clone());
            let is_known = |vm: &LinkName, after: &BTreeSet<String>| known_uplinks.iter().any(|ways| ways.get(vm) == Some(after));
            world.model.borrow_mut().refused_count = 0;
            let result = world.run_cycle(&asked.spec(), fate);
            let after = world.uplinks_of_vms();
            let refused = world.model.borrow().refused_count;
            for (vm, ways) in &before {
                // Without `allow_disruption`, a VM keeps its uplinks even if the agent is killed. Only an uplink
                // that was lost earlier may be restored.
                if !asked.allow_disruption && !ways.is_empty() && !is_known(vm, &after[vm]) {
                    prop_assert_eq!(&after[vm], ways, "{} {:?} {:?}", vm, asked, result.as_ref().map(|ended| &ended.outcomes));
                } else if result.is_some() && refused < 2 && !ways.is_empty() {
                    prop_assert!(!after[vm].is_empty(), "{} {:?} {:?}", vm, asked, result.as_ref().map(|ended| &ended.outcomes));
                }
            }
            let broken = world.model.borrow().violations.clone();
            prop_assert!(broken.is_empty(), "{:#?}", broken);
            if result.is_some() {
                known_uplinks = vec![after];
            }
            last = asked.clone();
        }
        // The kernel refuses no step of these last cycles, so the links must match the spec afterwards.
        let last = SpecOptions { allow_disruption: true, has_second_tenants: true, ..last };
        world.run_cycle(&last.spec(), &[]).unwrap();
        let converged = world.run_cycle(&last.spec(), &[]).unwrap();
        prop_assert!(converged.plan.is_empty(), "{:#?}", change_lines(&converged.plan));
        prop_assert!(world.uplinks_of_vms().values().all(|ways| ways.len() == 1), "{:?}", world.uplinks_of_vms());
        prop_assert!(world.uplinks_of_vms()[&link_name("vnet0")].iter().all(|way| way.starts_with(last.trunk_uplink)), "{:?}", world.uplinks_of_vms());
        // Removes all VMs, and then everything that Berth created.
        world.model.borrow_mut().links.all.retain(|link| link.kind != LinkKind::Tun);
        for _ in 0..2 {
            world.run_cycle("  {}", &[]).unwrap();
        }
        let current: BTreeSet<String> = world.model.borrow().links.all.iter().map(|link| format!("{:?}", (&link.name, &link.master, link.is_up))).collect();
        prop_assert_eq!(current, original);
        let root = Root::open(world.tree.path()).unwrap();
        prop_assert_eq!(Ledger::read(&root, Some(BOOT_ID)).unwrap(), Ledger::default());
        prop_assert!(world.model.borrow().violations.is_empty());
    }
}

/// Tests that the old uplink stays if the kernel refuses to make the new uplink a port. Otherwise all tenants of
/// the host would be disconnected.
#[test]
fn refused_join_keeps_the_old_uplink() {
    let start = SpecOptions {
        trunk_uplink: "eth1",
        bridge_per_tenant_uplink: "eth2",
        port: 4790,
        local: "10.0.0.1",
        allow_disruption: true,
        has_second_tenants: true,
    };
    let other = SpecOptions { trunk_uplink: "eth4", ..start.clone() };
    // In each iteration, the kernel refuses another step, beginning with the step that makes the uplink a port.
    for refused in 0..4 {
        let world = test_host();
        world.run_cycle(&start.spec(), &[]).unwrap();
        world.model.borrow_mut().links.all.push(TestHost::vm_port("vnet0", "br-tenant", Some(120)));
        world.model.borrow_mut().links.all.sort_by(|a, b| a.name.cmp(&b.name));
        let mut events = vec![StepEvent::Success; refused];
        events.push(StepEvent::StepRefused);
        let converged = world.run_cycle(&other.spec(), &events).unwrap();
        let failed: Vec<&Outcome> =
            converged.outcomes.iter().filter(|o| o.result == ChangeResult::Failed).collect();
        assert_eq!(failed.len(), 1, "{:#?}", converged.outcomes);
        let uplinks = world.uplinks_of_vms()[&link_name("vnet0")].clone();
        assert!(
            uplinks.len() == 1 && uplinks.first().unwrap().starts_with("eth1"),
            "{refused}: {uplinks:?}"
        );
        let message = failed[0].message.clone().unwrap();
        assert_eq!(
            message.contains("the previous links were restored"),
            refused > 1,
            "{refused}: {message}"
        );
        let again = world.run_cycle(&other.spec(), &[]).unwrap();
        assert!(again.plan.is_empty(), "{:#?}", change_lines(&again.plan));
        assert!(
            world.uplinks_of_vms()[&link_name("vnet0")].iter().all(|way| way.starts_with("eth4"))
        );
    }
}
