//! Tests of the order of deletions, including interrupted deletions.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::tenants::hosts::FailedRemoval;

fn tenant(vlan: Option<u16>) -> TenantCluster {
    let spec = serde_json::from_value(json!({"network": {"name": "trunk"}})).unwrap();
    let mut tenant = TenantCluster::new("abc", spec);
    tenant.status = serde_json::from_value(json!({"vlan": vlan})).unwrap();
    tenant
}

fn host(is_desired: bool, has_reported: bool) -> HostState {
    let id = NetworkId::Vlan(120.try_into().unwrap());
    let network =
        json!({"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}});
    let mut host = HostState {
        name: "rack1-a".to_owned(),
        labels: Some(BTreeMap::new()),
        networks: vec![serde_json::from_value(network).unwrap()],
        has_reported,
        ..HostState::default()
    };
    if is_desired {
        host.desired.insert("cluster-abc".to_owned(), ("trunk".to_owned(), id));
    }
    host
}

fn machine(is_owned: bool, is_deleting: bool) -> Machine {
    Machine { kind: "VirtualMachine".to_owned(), name: "web-1".to_owned(), is_owned, is_deleting }
}

fn claims() -> Vec<(String, NetworkId)> {
    vec![("trunk-120".to_owned(), NetworkId::Vlan(120.try_into().unwrap()))]
}

fn view<'a>(tenant: &'a TenantCluster, namespace: NamespaceState) -> DeletionState<'a> {
    DeletionState {
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
fn machines_are_deleted_first_and_others_objects_stay() {
    let tenant = tenant(Some(120));
    let machines = [machine(false, false)];
    let step =
        next_step(DeletionState { machines: &machines, ..view(&tenant, NamespaceState::Owned) });
    assert_eq!(step.action, Action::DeleteMachines(machines.to_vec()));
    let step =
        next_step(DeletionState { machines: &machines, ..view(&tenant, NamespaceState::NotOwned) });
    assert_eq!(step.action, Action::Wait);
    assert!(
        step.message.ends_with("VirtualMachine web-1 were not created by Berth, delete them"),
        "{step:?}"
    );
    let deleting = [machine(false, true)];
    let step =
        next_step(DeletionState { machines: &deleting, ..view(&tenant, NamespaceState::Owned) });
    assert_eq!((step.action, step.reason), (Action::Wait, ConditionReason::DeletingMachines));
}

#[test]
fn the_claim_stays_until_hosts_report_that_the_network_is_removed() {
    let with_network_id = tenant(Some(120));
    assert_eq!(
        next_step(view(&with_network_id, NamespaceState::Owned)).action,
        Action::ClearNetworkId
    );
    let tenant = tenant(None);
    let claims = claims();
    let with = |hosts: &[HostState]| {
        let hosts: Vec<Arc<HostState>> = hosts.iter().cloned().map(Arc::new).collect();
        let view = DeletionState {
            claims: &claims,
            hosts: &hosts,
            ..view(&tenant, NamespaceState::Owned)
        };
        let step = next_step(view);
        (step.action == Action::Release(vec!["trunk-120".to_owned()]), step.message)
    };
    assert_eq!(
        with(&[host(true, true)]).1,
        "the network is still on rack1-a (the InfraNode's spec still contains the network)"
    );
    assert_eq!(
        with(&[host(false, false)]).1,
        "the network is still on rack1-a (its agent has not reported yet)"
    );
    assert!(with(&[host(false, true)]).0);
    let failed = |message: &str, removes: serde_json::Value| {
        let removes = serde_json::from_value(removes).unwrap();
        let (what, message) = ("remove it".to_owned(), message.to_owned());
        let mut host = host(false, true);
        host.failed_removals = vec![FailedRemoval { removes, what, message }];
        with(&[host])
    };
    assert!(
        failed("tap1 is in use", json!({"tenant": "cluster-abc"})).1.contains("tap1 is in use")
    );
    assert!(!failed("busy", json!({"vlans": "120"})).0);
    // A failed removal of another tenant's network does not block the deletion.
    assert!(failed("busy", json!({"tenant": "cluster-abcd"})).0);
}

#[test]
fn missing_and_unresponsive_hosts_are_not_waited_for() {
    let (tenant, claims) = (tenant(None), claims());
    let mut unresponsive = host(true, true);
    let with = |host: &HostState| {
        let hosts = [Arc::new(host.clone())];
        next_step(DeletionState {
            claims: &claims,
            hosts: &hosts,
            ..view(&tenant, NamespaceState::Owned)
        })
    };
    unresponsive.unresponsive_since = Some(Timestamp::from_second(9_900).unwrap());
    assert_eq!(with(&unresponsive).action, Action::Wait);
    unresponsive.unresponsive_since = Some(Timestamp::from_second(9_000).unwrap());
    let step = with(&unresponsive);
    assert!(matches!(step.action, Action::Release(_)));
    assert!(
        step.message.ends_with("not waiting for rack1-a (its agent is unresponsive)"),
        "{step:?}"
    );
    let mut gone = host(true, false);
    gone.labels = None;
    assert!(with(&gone).message.ends_with("not waiting for rack1-a (its Node does not exist)"));
}

#[test]
fn a_namespace_that_berth_did_not_create_stays() {
    let tenant = tenant(None);
    let objects = DeletionState { objects: 3, ..view(&tenant, NamespaceState::NotOwned) };
    assert_eq!(next_step(objects).action, Action::DeleteObjects);
    assert_eq!(next_step(view(&tenant, NamespaceState::NotOwned)).action, Action::Finish);
    assert_eq!(next_step(view(&tenant, NamespaceState::Owned)).action, Action::DeleteNamespace);
    assert_eq!(next_step(view(&tenant, NamespaceState::Terminating)).action, Action::Wait);
}

/// A simulated cluster in which a tenant is deleted. It records the order of the deletions.
#[derive(Clone, Debug)]
struct World {
    tenant: TenantCluster,
    namespace: NamespaceState,
    machines: Vec<Machine>,
    claims: Vec<(String, NetworkId)>,
    objects: usize,
    host: Arc<HostState>,
    completed: Vec<&'static str>,
}

impl World {
    fn next(&self) -> Step {
        next_step(DeletionState {
            tenant: &self.tenant,
            namespace: self.namespace,
            machines: &self.machines,
            claims: &self.claims,
            objects: self.objects,
            hosts: std::slice::from_ref(&self.host),
            now: Timestamp::from_second(0).unwrap(),
        })
    }

    /// Simulates one action of the other controllers: KubeVirt, the reconciler of hosts, the agent, or the namespace
    /// controller.
    fn run_other_controllers(&mut self) {
        if self.machines.iter().any(|machine| machine.is_deleting) {
            self.machines.retain(|machine| !machine.is_deleting);
            self.completed.push("machines");
        } else if self.tenant.status.as_ref().is_some_and(|status| status.vlan.is_none())
            && Arc::make_mut(&mut self.host).desired.remove("cluster-abc").is_some()
        {
            Arc::make_mut(&mut self.host).has_reported = false;
        } else if !self.host.has_reported {
            Arc::make_mut(&mut self.host).has_reported = true;
            self.completed.push("network");
        } else if self.namespace == NamespaceState::Terminating {
            self.namespace = NamespaceState::Absent;
            self.completed.push("namespace");
        }
    }
}

proptest! {
    /// The order is the same and no object remains, even if the deletion is interrupted after any step and other
    /// controllers are slow.
    #[test]
    fn the_order_is_kept_however_often_it_is_interrupted(moments in prop::collection::vec(0..3_u8, 40..80)) {
        let mut world = World {
            tenant: tenant(Some(120)),
            namespace: NamespaceState::Owned,
            machines: vec![machine(true, false), machine(false, false)],
            claims: claims(),
            objects: 5,
            host: Arc::new(host(true, true)),
            completed: Vec::new(),
        };
        let mut is_done = false;
        for moment in moments.into_iter().chain(std::iter::repeat_n(2, 40)).chain([1; 1]) {
            if moment == 0 {
                world.run_other_controllers();
                continue;
            }
            // The controller is interrupted after the decision and before the action.
            let step = world.next();
            match step.action {
                Action::Wait => world.run_other_controllers(),
                Action::DeleteMachines(some) => {
                    // The controller is interrupted during the action.
                    let some = if moment == 1 { some.first().cloned() } else { None };
                    for machine in &mut world.machines {
                        machine.is_deleting |= some.as_ref().is_none_or(|one| one == machine);
                    }
                }
                Action::ClearNetworkId => world.tenant = tenant(None),
                Action::Release(names) => {
                    prop_assert!(world.completed.contains(&"network"));
                    prop_assert_eq!(names.len(), 1);
                    world.claims.clear();
                    world.completed.push("claim");
                }
                Action::DeleteObjects => prop_assert!(false, "Berth created the namespace"),
                Action::DeleteNamespace => world.namespace = NamespaceState::Terminating,
                Action::Finish => is_done = true,
            }
        }
        prop_assert!(is_done, "{:?}", world);
        world.completed.dedup();
        prop_assert_eq!(world.completed, ["machines", "network", "claim", "namespace"]);
    }
}
