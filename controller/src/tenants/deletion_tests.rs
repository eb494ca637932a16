//! Deletions: the order, and that it is kept when they are cut short.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn tenant(vlan: Option<u16>) -> TenantCluster {
    let spec = serde_json::from_value(json!({"network": {"name": "trunk"}})).unwrap();
    let mut tenant = TenantCluster::new("abc", spec);
    tenant.status = serde_json::from_value(json!({"vlan": vlan})).unwrap();
    tenant
}

fn host(asked: bool, has_answered: bool) -> Host {
    let id = NetworkId::Vlan(120.try_into().unwrap());
    let network =
        json!({"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}});
    let mut host = Host {
        name: "rack1-a".to_owned(),
        labels: Some(BTreeMap::new()),
        networks: vec![serde_json::from_value(network).unwrap()],
        has_answered,
        ..Host::default()
    };
    if asked {
        host.asked.insert("cluster-abc".to_owned(), ("trunk".to_owned(), id));
    }
    host
}

fn machine(is_ours: bool, is_going: bool) -> Machine {
    Machine { kind: "VirtualMachine".to_owned(), name: "web-1".to_owned(), is_ours, is_going }
}

fn claims() -> Vec<(String, NetworkId)> {
    vec![("trunk-120".to_owned(), NetworkId::Vlan(120.try_into().unwrap()))]
}

fn view<'a>(tenant: &'a TenantCluster, namespace: Namespace) -> View<'a> {
    View {
        tenant,
        namespace,
        machines: &[],
        claims: &[],
        objects: 0,
        hosts: &[],
        now: Timestamp::from_second(10_000).unwrap(),
    }
}

#[test]
fn machines_go_first_and_foreign_ones_are_left_alone() {
    let tenant = tenant(Some(120));
    let machines = [machine(false, false)];
    let told = next(View { machines: &machines, ..view(&tenant, Namespace::Ours) });
    assert_eq!(told.action, Action::DeleteMachines(machines.to_vec()));
    let told = next(View { machines: &machines, ..view(&tenant, Namespace::NotOurs) });
    assert_eq!(told.action, Action::Wait);
    assert!(
        told.message.ends_with("VirtualMachine web-1 are not Berth's, delete them"),
        "{told:?}"
    );
    let going = [machine(false, true)];
    let told = next(View { machines: &going, ..view(&tenant, Namespace::Ours) });
    assert_eq!((told.action, told.reason), (Action::Wait, ConditionReason::DeletingMachines));
}

#[test]
fn the_claim_stays_until_the_hosts_say_that_the_network_is_off() {
    let has = tenant(Some(120));
    assert_eq!(next(view(&has, Namespace::Ours)).action, Action::TakeOffHosts);
    let tenant = tenant(None);
    let claims = claims();
    let with = |hosts: &[Host]| {
        let hosts: Vec<Arc<Host>> = hosts.iter().cloned().map(Arc::new).collect();
        let view = View { claims: &claims, hosts: &hosts, ..view(&tenant, Namespace::Ours) };
        let told = next(view);
        (told.action == Action::Release(vec!["trunk-120".to_owned()]), told.message)
    };
    assert_eq!(with(&[host(true, true)]).1, "network is to go off rack1-a (still asked for it)");
    assert_eq!(
        with(&[host(false, false)]).1,
        "network is to go off rack1-a (its agent has not answered yet)"
    );
    assert!(with(&[host(false, true)]).0);
    let mut stuck = host(false, true);
    stuck.stuck = vec![(
        "remove tn120 and tn120-v of tenant cluster-abc".to_owned(),
        "tap1 is in use".to_owned(),
    )];
    assert!(with(&[stuck.clone()]).1.contains("tap1 is in use"));
    stuck.stuck = vec![("remove VLAN 120 from eth1 on br-trunk".to_owned(), "busy".to_owned())];
    assert!(!with(&[stuck.clone()]).0);
    // Another's.
    stuck.stuck = vec![("remove tn7 of tenant cluster-abcd".to_owned(), "busy".to_owned())];
    assert!(with(&[stuck]).0);
}

#[test]
fn hosts_that_are_gone_or_silent_for_long_are_not_waited_for() {
    let (tenant, claims) = (tenant(None), claims());
    let mut silent = host(true, true);
    let with = |host: &Host| {
        let hosts = [Arc::new(host.clone())];
        next(View { claims: &claims, hosts: &hosts, ..view(&tenant, Namespace::Ours) })
    };
    silent.silent_since = Some(Timestamp::from_second(9_900).unwrap());
    assert_eq!(with(&silent).action, Action::Wait);
    silent.silent_since = Some(Timestamp::from_second(9_000).unwrap());
    let told = with(&silent);
    assert!(matches!(told.action, Action::Release(_)));
    assert!(told.message.ends_with("not waited for rack1-a (its agent is silent)"), "{told:?}");
    let mut gone = host(true, false);
    gone.labels = None;
    assert!(with(&gone).message.ends_with("not waited for rack1-a (its Node is gone)"));
}

#[test]
fn a_namespace_that_berth_did_not_make_stays() {
    let tenant = tenant(None);
    let objects = View { objects: 3, ..view(&tenant, Namespace::NotOurs) };
    assert_eq!(next(objects).action, Action::DeleteObjects);
    assert_eq!(next(view(&tenant, Namespace::NotOurs)).action, Action::Finish);
    assert_eq!(next(view(&tenant, Namespace::Ours)).action, Action::DeleteNamespace);
    assert_eq!(next(view(&tenant, Namespace::Going)).action, Action::Wait);
}

/// A world in which a deletion is carried out, and the order in which things went.
#[derive(Clone, Debug)]
struct World {
    tenant: TenantCluster,
    namespace: Namespace,
    machines: Vec<Machine>,
    claims: Vec<(String, NetworkId)>,
    objects: usize,
    host: Arc<Host>,
    went: Vec<&'static str>,
}

impl World {
    fn next(&self) -> Next {
        next(View {
            tenant: &self.tenant,
            namespace: self.namespace,
            machines: &self.machines,
            claims: &self.claims,
            objects: self.objects,
            hosts: std::slice::from_ref(&self.host),
            now: Timestamp::from_second(0).unwrap(),
        })
    }

    /// What others do in the meantime: KubeVirt, the hosts' reconciler, the agent, the namespace's controller.
    fn others(&mut self) {
        if self.machines.iter().any(|machine| machine.is_going) {
            self.machines.retain(|machine| !machine.is_going);
            self.went.push("machines");
        } else if self.tenant.status.as_ref().is_some_and(|status| status.vlan.is_none())
            && Arc::make_mut(&mut self.host).asked.remove("cluster-abc").is_some()
        {
            Arc::make_mut(&mut self.host).has_answered = false;
        } else if !self.host.has_answered {
            Arc::make_mut(&mut self.host).has_answered = true;
            self.went.push("network");
        } else if self.namespace == Namespace::Going {
            self.namespace = Namespace::Absent;
            self.went.push("namespace");
        }
    }
}

proptest! {
    /// Cut short after any step, and with others as slow as they like, the order is the same and nothing is left.
    #[test]
    fn the_order_is_kept_however_often_it_is_cut_short(moments in prop::collection::vec(0..3_u8, 40..80)) {
        let mut world = World {
            tenant: tenant(Some(120)),
            namespace: Namespace::Ours,
            machines: vec![machine(true, false), machine(false, false)],
            claims: claims(),
            objects: 5,
            host: Arc::new(host(true, true)),
            went: Vec::new(),
        };
        let mut is_done = false;
        for moment in moments.into_iter().chain(std::iter::repeat_n(2, 40)).chain([1; 1]) {
            if moment == 0 {
                world.others();
                continue;
            }
            // Decided, and cut short before anything was done.
            let step = world.next();
            match step.action {
                Action::Wait => world.others(),
                Action::DeleteMachines(some) => {
                    // Cut short in the middle.
                    let some = if moment == 1 { some.first().cloned() } else { None };
                    for machine in &mut world.machines {
                        machine.is_going |= some.as_ref().is_none_or(|one| one == machine);
                    }
                }
                Action::TakeOffHosts => world.tenant = tenant(None),
                Action::Release(names) => {
                    prop_assert!(world.went.contains(&"network"));
                    prop_assert_eq!(names.len(), 1);
                    world.claims.clear();
                    world.went.push("claim");
                }
                Action::DeleteObjects => prop_assert!(false, "the namespace is ours"),
                Action::DeleteNamespace => world.namespace = Namespace::Going,
                Action::Finish => is_done = true,
            }
        }
        prop_assert!(is_done, "{:?}", world);
        world.went.dedup();
        prop_assert_eq!(world.went, ["machines", "network", "claim", "namespace"]);
    }
}
