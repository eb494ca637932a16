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

fn host(is_desired: bool, has_reported: bool) -> TenantHostState {
    let id = NetworkId::Vlan(120.try_into().unwrap());
    let network =
        json!({"name": "trunk", "scenario": "VlanAwareBridge", "uplink": {"name": "eth1"}});
    let mut host = TenantHostState {
        name: "rack1-a".to_owned(),
        labels: Some(BTreeMap::new()),
        networks: vec![serde_json::from_value(network).unwrap()],
        has_reported,
        ..TenantHostState::default()
    };
    if is_desired {
        host.desired_networks.insert("cluster-abc".to_owned(), ("trunk".to_owned(), id));
    }
    host
}

fn machine(is_owned: bool, is_deleting: bool) -> MachineObject {
    MachineObject {
        kind: "VirtualMachine".to_owned(),
        name: "web-1".to_owned(),
        is_owned,
        is_deleting,
    }
}

fn claims() -> Vec<(String, NetworkId)> {
    vec![("trunk-120".to_owned(), NetworkId::Vlan(120.try_into().unwrap()))]
}

fn deletion_state<'a>(tenant: &'a TenantCluster, namespace: NamespaceState) -> DeletionState<'a> {
    DeletionState {
        tenant,
        namespace,
        machines: &[],
        attached_machines: &[],
        claims: &[],
        object_count: 0,
        hosts: &[],
        now: Timestamp::from_second(10_000).unwrap(),
    }
}

#[test]
fn steps_before_which_the_data_of_a_requested_tenant_are_listed() {
    let tenant = tenant(None);
    let machines = [machine(true, false)];
    let state = deletion_state(&tenant, NamespaceState::Owned);
    let with_machines = next_step(DeletionState { machines: &machines, ..state });
    assert!(with_machines.action.destroys_data(), "{with_machines:?}");
    let without = next_step(state);
    assert_eq!(without.action, DeletionAction::DeleteNamespace);
    assert!(without.action.destroys_data());
    let not_owned = deletion_state(&tenant, NamespaceState::NotOwned);
    let only_objects = next_step(DeletionState { object_count: 1, ..not_owned });
    assert!(!only_objects.action.destroys_data(), "{only_objects:?}");
}

#[test]
fn machines_are_deleted_first_and_foreign_machines_stay() {
    let tenant = tenant(Some(120));
    let machines = [machine(false, false)];
    let step = next_step(DeletionState {
        machines: &machines,
        ..deletion_state(&tenant, NamespaceState::Owned)
    });
    assert_eq!(step.action, DeletionAction::DeleteMachines(machines.to_vec()));
    let step = next_step(DeletionState {
        machines: &machines,
        ..deletion_state(&tenant, NamespaceState::NotOwned)
    });
    assert_eq!(step.action, DeletionAction::Wait);
    assert!(
        step.message.ends_with("Berth did not create VirtualMachine web-1: delete them"),
        "{step:?}"
    );
    let deleting = [machine(false, true)];
    let step = next_step(DeletionState {
        machines: &deleting,
        ..deletion_state(&tenant, NamespaceState::Owned)
    });
    assert_eq!(
        (step.action, step.reason),
        (DeletionAction::Wait, ConditionReason::DeletingMachines)
    );
}

#[test]
fn the_network_stays_while_machines_of_other_tenants_use_it() {
    let tenant = tenant(Some(120));
    let attached = ["cluster-shop/web-1".to_owned()];
    let step = next_step(DeletionState {
        attached_machines: &attached,
        ..deletion_state(&tenant, NamespaceState::Owned)
    });
    assert!(step.message.contains("are deleted: cluster-shop/web-1; remove"), "{step:?}");
    assert!(step.message.starts_with("waiting until the machines"), "{step:?}");
    let mut deleted = tenant.clone();
    deleted.metadata = serde_json::from_value(json!({
        "name": "abc", "deletionTimestamp": "2026-01-02T03:04:05Z",
    }))
    .unwrap();
    let users = ["Pod cluster-shop/probe".to_owned()];
    let waiting = network_users_step(&deleted, &users);
    assert_eq!(waiting.action, DeletionAction::Wait);
    let words = ["waiting since 2026-01-02T03:04:05Z for", "Pod cluster-shop/probe; delete them"];
    assert!(words.iter().all(|words| waiting.message.contains(words)), "{waiting:?}");
    assert_eq!(
        (step.action, step.reason),
        (DeletionAction::Wait, ConditionReason::DeletingMachines)
    );
}

#[test]
fn the_claim_stays_until_hosts_report_that_the_network_is_removed() {
    let with_network_id = tenant(Some(120));
    assert_eq!(
        next_step(deletion_state(&with_network_id, NamespaceState::Owned)).action,
        DeletionAction::ClearNetworkId
    );
    let tenant = tenant(None);
    let claims = claims();
    let with = |hosts: &[TenantHostState]| {
        let hosts: Vec<Arc<TenantHostState>> = hosts.iter().cloned().map(Arc::new).collect();
        let view = DeletionState {
            claims: &claims,
            hosts: &hosts,
            ..deletion_state(&tenant, NamespaceState::Owned)
        };
        let step = next_step(view);
        (step.action == DeletionAction::ReleaseClaims(vec!["trunk-120".to_owned()]), step.message)
    };
    assert_eq!(
        with(&[host(true, true)]).1,
        "the tenant's network is still on hosts rack1-a (the InfraNode's spec still contains the network)"
    );
    assert_eq!(
        with(&[host(false, false)]).1,
        "the tenant's network is still on hosts rack1-a (its agent has not reported yet)"
    );
    assert!(with(&[host(false, true)]).0);
    let failed = |message: &str, removes: serde_json::Value| {
        let removal = serde_json::from_value(removes).unwrap();
        let (description, message) = ("remove it".to_owned(), message.to_owned());
        let mut host = host(false, true);
        host.failed_removals = vec![FailedRemoval { removal, description, message }];
        with(&[host])
    };
    assert!(
        failed("tap1 is in use", json!({"tenant": "cluster-abc"})).1.contains("tap1 is in use")
    );
    assert!(!failed("busy", json!({"vlans": "120"})).0);
    // The failed removal concerns the network of another tenant, so it does not block this deletion.
    assert!(failed("busy", json!({"tenant": "cluster-abcd"})).0);
}

#[test]
fn deletion_does_not_wait_for_missing_and_unresponsive_hosts() {
    let (tenant, claims) = (tenant(None), claims());
    let mut unresponsive = host(true, true);
    let with = |host: &TenantHostState| {
        let hosts = [Arc::new(host.clone())];
        next_step(DeletionState {
            claims: &claims,
            hosts: &hosts,
            ..deletion_state(&tenant, NamespaceState::Owned)
        })
    };
    unresponsive.unresponsive_since = Some(Timestamp::from_second(9_900).unwrap());
    assert_eq!(with(&unresponsive).action, DeletionAction::Wait);
    unresponsive.unresponsive_since = Some(Timestamp::from_second(9_000).unwrap());
    let step = with(&unresponsive);
    assert!(matches!(step.action, DeletionAction::ReleaseClaims(_)));
    assert!(
        step.message.ends_with("no longer waiting for hosts rack1-a (its agent is unresponsive)"),
        "{step:?}"
    );
    let mut gone = host(true, false);
    gone.labels = None;
    assert!(
        with(&gone)
            .message
            .ends_with("no longer waiting for hosts rack1-a (its Node does not exist)")
    );
}

#[test]
fn a_namespace_that_berth_did_not_create_stays() {
    let tenant = tenant(None);
    let objects =
        DeletionState { object_count: 3, ..deletion_state(&tenant, NamespaceState::NotOwned) };
    assert_eq!(next_step(objects).action, DeletionAction::DeleteObjects);
    assert_eq!(
        next_step(deletion_state(&tenant, NamespaceState::NotOwned)).action,
        DeletionAction::RemoveFinalizer
    );
    assert_eq!(
        next_step(deletion_state(&tenant, NamespaceState::Owned)).action,
        DeletionAction::DeleteNamespace
    );
    assert_eq!(
        next_step(deletion_state(&tenant, NamespaceState::Terminating)).action,
        DeletionAction::Wait
    );
}

/// A simulated cluster in which a tenant is deleted, and which records the order of the deletions.
#[derive(Clone, Debug)]
struct SimulatedCluster {
    tenant: TenantCluster,
    namespace: NamespaceState,
    machines: Vec<MachineObject>,
    claims: Vec<(String, NetworkId)>,
    objects: usize,
    host: Arc<TenantHostState>,
    completed: Vec<&'static str>,
}

impl SimulatedCluster {
    fn next_step(&self) -> DeletionStep {
        next_step(DeletionState {
            tenant: &self.tenant,
            namespace: self.namespace,
            machines: &self.machines,
            attached_machines: &[],
            claims: &self.claims,
            object_count: self.objects,
            hosts: std::slice::from_ref(&self.host),
            now: Timestamp::from_second(0).unwrap(),
        })
    }

    /// Simulates one action of one of the other controllers: KubeVirt, the reconciler of hosts, the agent, or the
    /// namespace controller.
    fn run_other_controllers(&mut self) {
        if self.machines.iter().any(|machine| machine.is_deleting) {
            self.machines.retain(|machine| !machine.is_deleting);
            self.completed.push("machines");
        } else if self.tenant.status.as_ref().is_some_and(|status| status.vlan.is_none())
            && Arc::make_mut(&mut self.host).desired_networks.remove("cluster-abc").is_some()
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
    /// The order is the same and no object remains, even if the deletion is interrupted after any step, and even if
    /// other controllers are slow.
    #[test]
    fn interruptions_do_not_change_the_order(moments in prop::collection::vec(0..3_u8, 40..80)) {
        let mut world = SimulatedCluster {
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
            let step = world.next_step();
            match step.action {
                DeletionAction::Wait => world.run_other_controllers(),
                DeletionAction::DeleteMachines(some) => {
                    // The controller is interrupted during the action.
                    let some = if moment == 1 { some.first().cloned() } else { None };
                    for machine in &mut world.machines {
                        machine.is_deleting |= some.as_ref().is_none_or(|one| one == machine);
                    }
                }
                DeletionAction::ClearNetworkId => world.tenant = tenant(None),
                DeletionAction::ReleaseClaims(names) => {
                    prop_assert!(world.completed.contains(&"network"));
                    prop_assert_eq!(names.len(), 1);
                    world.claims.clear();
                    world.completed.push("claim");
                }
                DeletionAction::DeleteObjects => prop_assert!(false, "Berth created the namespace"),
                DeletionAction::DeleteNamespace => world.namespace = NamespaceState::Terminating,
                DeletionAction::RemoveFinalizer => is_done = true,
            }
        }
        prop_assert!(is_done, "{:?}", world);
        world.completed.dedup();
        prop_assert_eq!(world.completed, ["machines", "network", "claim", "namespace"]);
    }
}
