//! Tests of the spread of control-plane VMs over hosts, each with a complete engine.

use std::collections::BTreeMap;

use berth_api::infra_node::Zone;
use berth_api::names::ROLE_LABEL;
use berth_api::{Bytes, Class, ControlPlaneSpread, InfraNode, InfraNodeSpec, InfraNodeStatus};
use berth_kubelet_admission::pod::{Container, Pod, Resources};
use k8s_openapi::api::core::v1::Taint;
use proptest::prelude::*;

use super::{Engine, Request, VmRequirements};
use crate::inventory::ReportedHost;
use crate::rules::{HostId, PodFields};

const ZONE: &str = "topology.kubernetes.io/zone";

/// Returns an empty host with 32 shared CPUs.
fn host(name: &str, zone: &str) -> ReportedHost {
    let mut infra = InfraNode::new(name, InfraNodeSpec::default());
    let numa_zone = Zone {
        cpus: Some("0-31".parse().unwrap()),
        memory: Some(Bytes(128 << 30)),
        ..Zone::default()
    };
    infra.status = Some(InfraNodeStatus { zones: vec![numa_zone], ..InfraNodeStatus::default() });
    let mut facts = ReportedHost::read(&infra, None, &mut Vec::new()).unwrap();
    facts.labels.insert(ZONE.to_owned(), zone.to_owned());
    facts
}

fn engine_with_hosts(hosts: &[ReportedHost]) -> Engine {
    let mut engine = Engine::new();
    for host in hosts {
        engine.set_host(host.clone(), Class::Standard).unwrap();
    }
    engine
}

fn request(engine: &mut Engine, tenant: &str, name: &str, role: &str) -> Request {
    pod_request(engine, tenant, name, role, false)
}

fn pod_request(
    engine: &mut Engine,
    tenant: &str,
    name: &str,
    role: &str,
    is_terminating: bool,
) -> Request {
    let requests = Resources { cpu_millis: 1_000, memory: 2 << 30, ..Resources::default() };
    let container = Container { name: "compute".to_owned(), requests, ..Container::default() };
    let pod =
        Pod { uid: format!("{tenant}/{name}"), containers: vec![container], ..Pod::default() };
    let labels = BTreeMap::from([(ROLE_LABEL.to_owned(), role.to_owned())]);
    let fields = PodFields {
        namespace: tenant,
        labels: Some(&labels),
        is_terminating,
        node_selector: None,
        affinity: None,
        tolerations: &[],
        spread_constraints: &[],
        containers: &pod,
        claims: &[],
    };
    let needs = VmRequirements { is_vm: true, ..VmRequirements::default() };
    engine.compile_request(&fields, needs).unwrap()
}

fn place(engine: &mut Engine, tenant: &str, name: &str, role: &str) -> usize {
    let request = request(engine, tenant, name, role);
    engine.place_pod(&request, None).unwrap().index()
}

fn spread_config(topology_key: &str, weight: u32) -> ControlPlaneSpread {
    ControlPlaneSpread { topology_key: Some(topology_key.to_owned()), weight: Some(weight) }
}

/// Places a worker and three control-plane VMs of each of six tenants. Returns the hosts of the control-plane VMs by
/// tenant.
fn place_six_tenants(engine: &mut Engine) -> Vec<Vec<usize>> {
    let tenants = ["a", "b", "c", "d", "e", "f"].into_iter().map(|tenant| {
        place(engine, tenant, "worker", "worker");
        let mut hosts: Vec<usize> = ["cp-1", "cp-2", "cp-3"]
            .map(|name| place(engine, tenant, name, "control-plane"))
            .into();
        hosts.sort_unstable();
        hosts
    });
    tenants.collect()
}

#[test]
fn control_planes_of_all_tenants_are_spread_evenly() {
    let mut engine = engine_with_hosts(&["1", "2", "3"].map(|name| host(name, "z")));
    for hosts in place_six_tenants(&mut engine) {
        assert_eq!(hosts, [0, 1, 2]);
    }
    let counts: Vec<_> = engine.control_plane_spread().domains().map(|one| one.vms).collect();
    assert_eq!(counts, [6, 6, 6]);
    // All further VMs are placed on an added host until it has as many VMs as each other host.
    engine.set_host(host("4", "z"), Class::Standard).unwrap();
    for number in 0..6 {
        assert_eq!(place(&mut engine, "g", &format!("cp-{number}"), "control-plane"), 3);
    }
    assert_eq!(place(&mut engine, "h", "worker", "worker"), 0, "workers are packed");
}

#[test]
fn a_weight_of_zero_packs_control_planes() {
    let mut engine = engine_with_hosts(&["1", "2", "3"].map(|name| host(name, "z")));
    engine.set_control_plane_spread(&spread_config("kubernetes.io/hostname", 0));
    for hosts in place_six_tenants(&mut engine) {
        assert_eq!(hosts, [0, 0, 0]);
    }
    // A new configuration takes effect immediately for further VMs.
    engine.set_control_plane_spread(&ControlPlaneSpread::default());
    assert_eq!(place(&mut engine, "g", "cp-1", "control-plane"), 1);
    assert_eq!(place(&mut engine, "g", "cp-2", "control-plane"), 2);
}

#[test]
fn hosts_of_a_zone_count_together() {
    let zones = [("1", "x"), ("2", "x"), ("3", "x"), ("4", "y")];
    let mut engine = engine_with_hosts(&zones.map(|(name, zone)| host(name, zone)));
    engine.set_control_plane_spread(&spread_config(ZONE, 100));
    let names = ["cp-1", "cp-2", "cp-3", "cp-4", "cp-5", "cp-6"];
    let hosts = names.map(|name| place(&mut engine, "a", name, "control-plane"));
    assert_eq!(hosts, [0, 3, 0, 3, 0, 3]);
    // No host has the configured label, so VMs are not spread.
    engine.set_control_plane_spread(&spread_config("example.com/rack", 100));
    assert_eq!(place(&mut engine, "b", "cp-1", "control-plane"), 0);
    assert_eq!(place(&mut engine, "b", "cp-2", "control-plane"), 0);
}

#[test]
fn removed_vms_and_hosts_no_longer_count() {
    let mut engine = engine_with_hosts(&["1", "2"].map(|name| host(name, "z")));
    for (name, wanted) in [("cp-1", 0), ("cp-2", 1), ("cp-3", 0)] {
        assert_eq!(place(&mut engine, "a", name, "control-plane"), wanted);
    }
    assert!(engine.remove_pod("a/cp-2"));
    assert_eq!(place(&mut engine, "b", "cp-1", "control-plane"), 1);
    // A terminating VM does not count, so that its replacement may be placed on the same host.
    let terminating = pod_request(&mut engine, "a", "cp-1", "control-plane", true);
    engine.add_bound_pod(&terminating, HostId::from_index(0)).unwrap();
    assert_eq!(place(&mut engine, "a", "cp-4", "control-plane"), 0);
    engine.remove_host(HostId::from_index(0));
    engine.set_host(host("1", "z"), Class::Standard).unwrap();
    assert_eq!(place(&mut engine, "b", "cp-2", "control-plane"), 0);
}

#[test]
fn hosts_with_taints_do_not_count_for_the_minimum() {
    let mut hosts = ["1", "2", "3"].map(|name| host(name, "z"));
    hosts[2].taints = vec![Taint {
        key: "example.com/gpu".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    }];
    let mut engine = engine_with_hosts(&hosts);
    for (name, wanted) in [("cp-1", 0), ("cp-2", 1)] {
        assert_eq!(place(&mut engine, "a", name, "control-plane"), wanted);
    }
    assert_eq!(engine.control_plane_spread().minimum(), 1);
    hosts[2].taints.clear();
    engine.set_host(hosts[2].clone(), Class::Standard).unwrap();
    assert_eq!(engine.control_plane_spread().minimum(), 0);
    assert_eq!(place(&mut engine, "a", "cp-3", "control-plane"), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The chosen host must equal the choice of an engine that is built from scratch, and therefore uses no stored
    /// scores.
    #[test]
    fn the_chosen_host_equals_that_of_a_new_engine(
        steps in prop::collection::vec((0_usize..12, any::<prop::sample::Index>()), 1..40),
    ) {
        let zones = [("1", "x"), ("2", "y"), ("3", "x"), ("4", "y"), ("5", "w")];
        let mut hosts = zones.map(|(name, zone)| host(name, zone));
        let mut engine = engine_with_hosts(&hosts);
        let mut config = ControlPlaneSpread::default();
        let mut pods: Vec<(String, &str, HostId)> = Vec::new();
        for (number, (kind, index)) in steps.into_iter().enumerate() {
            match kind {
                8 if !pods.is_empty() => {
                    let (name, ..) = pods.swap_remove(index.index(pods.len()));
                    let uid = format!("t/{name}");
                    prop_assert!(engine.remove_pod(&uid));
                }
                9 => {
                    let key = ["kubernetes.io/hostname", ZONE, "none"][index.index(3)];
                    config = spread_config(key, [100, 20, 0][number % 3]);
                    engine.set_control_plane_spread(&config);
                }
                10 | 11 => {
                    let host = &mut hosts[index.index(5)];
                    if kind == 10 {
                        host.is_cordoned = !host.is_cordoned;
                    } else {
                        let zone = ["x", "y", "w"][number % 3].to_owned();
                        host.labels.insert(ZONE.to_owned(), zone);
                    }
                    engine.set_host(host.clone(), Class::Standard).unwrap();
                }
                _ => {
                    let role = if kind < 6 { "control-plane" } else { "worker" };
                    let mut new = engine_with_hosts(&hosts);
                    new.set_control_plane_spread(&config);
                    for (name, role, host) in &pods {
                        let request = request(&mut new, "t", name, role);
                        new.add_bound_pod(&request, *host).unwrap();
                    }
                    let name = format!("vm-{number}");
                    let wanted = request(&mut new, "t", &name, role);
                    let wanted = new.choose_host(&wanted, None);
                    let request = request(&mut engine, "t", &name, role);
                    let found = engine.place_pod(&request, None);
                    prop_assert_eq!(found, wanted, "{} {}", role, name);
                    pods.extend(found.map(|host| (name, role, host)));
                }
            }
        }
    }
}
