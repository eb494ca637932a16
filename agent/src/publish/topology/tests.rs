//! Tests of the NodeResourceTopology of a complete host, of hosts with missing facts, and of random hosts.

use berth_api::infra_node::{AllocatedHugepages, Capabilities, HugepagePool, ZoneDistance};
use proptest::prelude::*;

use super::*;
use berth_host_facts::kubelet::memory_state::NodeState;

const GIB: u64 = 1 << 30;

fn kubelet(memory: &str) -> Kubelet {
    Kubelet {
        cpu_manager_policy: Some("static".to_owned()),
        topology_manager_policy: Some("single-numa-node".to_owned()),
        topology_manager_scope: Some("pod".to_owned()),
        memory_manager_policy: Some(memory.to_owned()),
        ..Kubelet::default()
    }
}

/// Returns a zone with eight CPUs (one reserved, two pinned) and 16 GiB of memory (2 GiB in huge pages, half of
/// them used).
fn zone(id: u32) -> infra_node::Zone {
    let from = id % 64 * 8;
    let cpus =
        |first: u32, last: u32| Some(format!("{}-{}", from + first, from + last).parse().unwrap());
    infra_node::Zone {
        id,
        cpus: cpus(0, 7),
        reserved_cpus: cpus(0, 0),
        pinnable_cpus: cpus(1, 7),
        pinned_cpus: cpus(1, 2),
        memory: Some(Bytes(16 * GIB)),
        hugepages: vec![pool(1024, Some(512))],
        distances: vec![ZoneDistance { zone: id, distance: 10 }],
        ..infra_node::Zone::default()
    }
}

fn pool(total: u64, free: Option<u64>) -> HugepagePool {
    HugepagePool { size: PageSize::MIB_2, total, free, surplus: None, reserved: None }
}

fn status(kubelet: Kubelet, zones: Vec<infra_node::Zone>) -> InfraNodeStatus {
    let capabilities = Capabilities { kubelet: Some(kubelet), ..Capabilities::default() };
    InfraNodeStatus { capabilities, zones, ..InfraNodeStatus::default() }
}

fn published_json(status: &InfraNodeStatus, memory: Option<&MemoryManagerState>) -> Value {
    json!(build_topology(status, memory).unwrap())
}

/// Returns the capacity, allocatable and available amount of a resource of a zone.
fn published_amounts(object: &Value, zone: usize, name: &str) -> Option<[String; 3]> {
    let resources = object["zones"][zone]["resources"].as_array()?;
    let resource = resources.iter().find(|resource| resource["name"] == name)?;
    let text = |field: &str| resource[field].as_str().unwrap().to_owned();
    Some([text("capacity"), text("allocatable"), text("available")])
}

#[test]
fn complete_host_is_published_in_the_format_of_the_plugin() {
    let status = status(kubelet("None"), vec![zone(0)]);
    let body = build_topology(&status, None).unwrap().apply_body("a", "uid-of-node", Some("uid"));
    assert_eq!(
        body,
        json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": "a", "uid": "uid",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "uid-of-node"}]},
            "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"},
                {"name": "topologyManagerScope", "value": "pod"}],
            "zones": [{
                "name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}],
                "resources": [
                    {"name": "cpu", "capacity": "8", "allocatable": "7", "available": "5"},
                    {"name": "memory", "capacity": "16Gi", "allocatable": "14Gi", "available": "14Gi"},
                    {"name": "hugepages-2Mi", "capacity": "2Gi", "allocatable": "2Gi", "available": "1Gi"},
                ],
            }],
        })
    );
    let published_topology = build_topology(&status, None).unwrap();
    assert!(published_topology.has_same_content(&body));
    let mut other = body.clone();
    other["topologyPolicies"] = json!(["None"]);
    assert!(
        !published_topology.has_same_content(&other)
            && !published_topology.has_same_content(&json!({}))
    );
    assert!(published_topology.apply_body("a", "b", None)["metadata"].get("uid").is_none());
}

#[test]
fn allocated_but_unused_pages_are_unavailable() {
    let mut status = status(kubelet("None"), vec![zone(0), zone(1)]);
    let pod = |zones: Vec<u32>, count| Allocation {
        zones,
        hugepages: vec![AllocatedHugepages { size: PageSize::MIB_2, count }],
        ..Allocation::default()
    };
    // The last pod has resources in both zones, so the zone of its pages is unknown.
    status.allocations = vec![pod(vec![0], 768), pod(vec![1], 256), pod(vec![0, 1], 1024)];
    let available = |zone| {
        published_amounts(&published_json(&status, None), zone, "hugepages-2Mi").unwrap()[2].clone()
    };
    assert_eq!((available(0).as_str(), available(1).as_str()), ("512Mi", "1Gi"));
}

#[test]
fn memory_manager_checkpoint_takes_precedence() {
    let table = |allocatable, free| MemoryTable { allocatable, free, ..MemoryTable::default() };
    let mut state =
        MemoryManagerState { policy_name: "Static".to_owned(), ..MemoryManagerState::default() };
    let map = [("memory", table(13 * GIB, 3 * GIB)), ("hugepages-2Mi", table(2 * GIB, 2 * GIB))];
    let memory_map = map.map(|(name, table)| (name.to_owned(), table)).into();
    state.machine_state.insert(0, NodeState { memory_map, ..NodeState::default() });
    let status = status(kubelet("Static"), vec![zone(0), zone(1)]);
    let all = published_json(&status, Some(&state));
    assert_eq!(published_amounts(&all, 0, "memory").unwrap(), ["16Gi", "13Gi", "3Gi"]);
    // A program that is not a pod uses half of the huge pages.
    assert_eq!(published_amounts(&all, 0, "hugepages-2Mi").unwrap(), ["2Gi", "2Gi", "1Gi"]);
    assert_eq!(published_amounts(&all, 1, "memory"), None);
    // The checkpoint is ignored, because its policy differs from the configured one.
    state.policy_name = "None".to_owned();
    assert!(
        build_topology(&status, Some(&state)).unwrap_err()
            == TopologyError::UnknownResource("memory")
    );
}

#[test]
fn pods_are_not_bound_to_a_zone_without_a_cpu_manager() {
    let mut loose = kubelet("None");
    loose.cpu_manager_policy = Some("none".to_owned());
    let status = status(loose, vec![zone(0)]);
    assert_eq!(
        published_amounts(&published_json(&status, None), 0, "cpu").unwrap(),
        ["8", "7", "7"]
    );
}

#[test]
fn unknown_resources_are_left_out() {
    let mut unknown = zone(1);
    unknown.pinned_cpus = None;
    unknown.memory = None;
    unknown.hugepages = vec![pool(1024, None)];
    let all = published_json(&status(kubelet("None"), vec![zone(0), unknown.clone()]), None);
    assert_eq!(all["zones"][1]["resources"], Value::Null);
    assert!(published_amounts(&all, 0, "cpu").is_some());

    // A zone without CPUs has a known amount of CPUs: 0.
    let memory_only = infra_node::Zone {
        cpus: Some("".parse().unwrap()),
        pinnable_cpus: Some("".parse().unwrap()),
        pinned_cpus: Some("".parse().unwrap()),
        ..zone(1)
    };
    let all = published_json(&status(kubelet("None"), vec![zone(0), memory_only]), None);
    assert_eq!(published_amounts(&all, 1, "cpu").unwrap(), ["0", "0", "0"]);

    // Under the policy single-numa-node, an unknown amount would make the plugin filter the host for every pod.
    unknown.id = 0;
    let mut alone = status(kubelet("None"), vec![unknown]);
    assert!(build_topology(&alone, None).unwrap_err() == TopologyError::UnknownResource("cpu"));
    alone.capabilities.kubelet.as_mut().unwrap().topology_manager_policy = None;
    assert_eq!(
        published_json(&alone, None)["attributes"],
        json!([{"name": "topologyManagerScope", "value": "pod"}])
    );
    alone.capabilities.kubelet = None;
    assert!(build_topology(&alone, None).unwrap_err() == TopologyError::NoKubelet);
}

#[test]
fn zone_ids_are_indexes_of_the_list() {
    let names = |ids: &[u32]| {
        let zones = ids.iter().map(|id| zone(*id)).collect();
        let object = build_topology(&status(kubelet("None"), zones), None).map(|all| json!(all))?;
        let names = object["zones"].as_array().unwrap().iter();
        Ok::<_, TopologyError>(
            names.map(|zone| zone["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(names(&[2, 0, 2]).unwrap(), ["node-0", "node-1", "node-2"]);
    let sparse = published_json(&status(kubelet("None"), vec![zone(2), zone(0)]), None);
    assert_eq!(sparse["zones"][1], json!({"name": "node-1", "type": "Node"}));
    // The largest zone id that the plugin supports is 63.
    assert_eq!(names(&[0, 64, u32::MAX]).unwrap(), ["node-0"]);
    assert_eq!(names(&(0..64).collect::<Vec<_>>()).unwrap().len(), 64);
    assert!(names(&[0, 40]).unwrap_err() == TopologyError::TooManyGaps { zones: 2, last: 40 });
    assert!(names(&[64]).unwrap_err() == TopologyError::NoZone);
}

#[test]
fn zone_limit_of_the_kubelet_is_published() {
    let mut many = kubelet("None");
    many.topology_manager_policy_options =
        vec!["max-allowable-numa-nodes=16".to_owned(), "prefer-closest-numa-nodes".to_owned()];
    let all = published_json(&status(many, vec![zone(0)]), None);
    assert_eq!(all["attributes"][2], json!({"name": "topologyManagerMaxNUMANodes", "value": "16"}));
    assert_eq!(all["attributes"].as_array().unwrap().len(), 3);
}

prop_compose! {
    fn any_cpus()(cpus in proptest::option::of(proptest::collection::btree_set(0_u32..40, 0..20))) -> Option<berth_api::CpuSet> {
        cpus.map(|cpus| {
            let mut set = berth_api::CpuSet::new();
            cpus.into_iter().for_each(|cpu| set.insert(cpu));
            set
        })
    }
}

prop_compose! {
    fn any_zone()(
        id in prop_oneof![0_u32..6, any::<u32>()],
        cpus in [any_cpus(), any_cpus(), any_cpus(), any_cpus()],
        memory: Option<u64>,
        pools in proptest::collection::vec((any::<bool>(), any::<u64>(), any::<Option<u64>>()), 0..4),
    ) -> infra_node::Zone {
        let [cpus, reserved_cpus, pinnable_cpus, pinned_cpus] = cpus;
        let size = |large| if large { PageSize::GIB_1 } else { PageSize::MIB_2 };
        let pools = pools.into_iter().map(|(large, total, free)| HugepagePool { size: size(large), ..pool(total, free) });
        infra_node::Zone {
            id, cpus, reserved_cpus, pinnable_cpus, pinned_cpus, memory: memory.map(Bytes),
            hugepages: pools.collect(), ..zone(0)
        }
    }
}

proptest! {
    #[test]
    fn available_is_at_most_allocatable_and_allocatable_at_most_capacity(
        zones in proptest::collection::vec(any_zone(), 0..6),
        policies in (prop_oneof!["static", "none", "x"], prop_oneof!["Static", "None", "x"]),
        tables in proptest::collection::vec((0_u32..6, any::<u64>(), any::<u64>()), 0..6),
        pages: u64,
    ) {
        let mut state = MemoryManagerState { policy_name: "Static".to_owned(), ..MemoryManagerState::default() };
        for (id, allocatable, free) in tables {
            let table = MemoryTable { allocatable, free, ..MemoryTable::default() };
            let map = ["memory", "hugepages-2Mi", "hugepages-1Gi"].map(|name| (name.to_owned(), table.clone()));
            state.machine_state.insert(id, NodeState { memory_map: map.into(), ..NodeState::default() });
        }
        let kubelet = Kubelet {
            cpu_manager_policy: Some(policies.0), topology_manager_policy: None, ..kubelet(&policies.1)
        };
        let mut status = status(kubelet, zones);
        status.allocations = vec![Allocation {
            zones: vec![0], hugepages: vec![AllocatedHugepages { size: PageSize::MIB_2, count: pages }], ..Allocation::default()
        }];
        let Ok(said) = build_topology(&status, Some(&state)) else { return Ok(()) };
        let mut names = std::collections::BTreeSet::new();
        for (place, zone) in said.zones.iter().enumerate() {
            prop_assert_eq!(&zone.name, &format!("node-{place}"));
            for resource in &zone.resources {
                let amount = |text: &String| text.parse::<Bytes>().unwrap();
                prop_assert!(amount(&resource.available) <= amount(&resource.allocatable), "{resource:?}");
                prop_assert!(amount(&resource.allocatable) <= amount(&resource.capacity), "{resource:?}");
                prop_assert!(names.insert((place, resource.name.clone())), "{} is listed twice", resource.name);
            }
        }
    }
}
