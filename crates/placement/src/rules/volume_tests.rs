//! Tests of the rules about volumes. Cases of kube-scheduler have their original names.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_kubelet_admission::pod::{Pod, Resources};
use k8s_openapi::api::core::v1::NodeSelector;
use serde_json::{Value, json};

use super::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Label with which the driver identifies the hosts.
const HOST_LABEL: &str = "topology.example.com/node";
const CLASS: &str = "local";
const DRIVER: &str = "local.example.com";
const NO_SPACE: &str = "node(s) did not have enough free storage";
const NODE_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
const BIND_CONFLICT: &str = "node(s) didn't find available persistent volumes to bind";

/// A cluster with the hosts node1 and node2, a driver that reports its storage, and a StorageClass of this driver.
struct TestCluster(ClusterState);

impl TestCluster {
    fn new() -> Self {
        let mut cluster = ClusterState::new();
        for name in ["node1", "node2"] {
            set_host(&mut cluster, name, name);
        }
        cluster.set_csi_driver(DRIVER, true);
        let mut cluster = Self(cluster);
        cluster.set_class(true, json!([]));
        cluster
    }

    fn set_class(&mut self, waits_for_consumer: bool, topologies: Value) {
        let class = StorageClassFields {
            provisioner: DRIVER.to_owned(),
            waits_for_consumer,
            allowed_topologies: serde_json::from_value(topologies).unwrap(),
        };
        self.0.set_storage_class(CLASS, Some(&class)).unwrap();
    }

    /// Sets a CSIStorageCapacity. `topology` is the field `nodeTopology`; null means that it is absent.
    fn set_capacity(
        &mut self,
        id: &str,
        topology: &Value,
        capacity: Option<u64>,
        max: Option<u64>,
    ) {
        let capacity = StorageCapacityFields {
            class: CLASS.to_owned(),
            node_topology: serde_json::from_value(topology.clone()).unwrap(),
            capacity,
            maximum_volume_size: max,
        };
        self.0.set_storage_capacity(id, Some(&capacity)).unwrap();
    }

    fn set_unbound(&mut self, claim: &str, bytes: Option<u64>, selected_node: Option<&str>) {
        let claim_volume = ClaimVolume::Unbound(UnboundClaim {
            class: CLASS.to_owned(),
            bytes,
            selected_node: selected_node.map(str::to_owned),
        });
        self.0.set_claim("default", claim, Some(&claim_volume)).unwrap();
    }

    fn compile(&mut self, claims: &[&str]) -> Arc<Rules> {
        let pod = Pod::default();
        let claims: Vec<String> = claims.iter().map(|claim| (*claim).to_owned()).collect();
        let fields = PodFields {
            namespace: "default",
            labels: None,
            is_terminating: false,
            node_selector: None,
            affinity: None,
            tolerations: &[],
            spread_constraints: &[],
            containers: &pod,
            claims: &claims,
        };
        Arc::new(Rules::compile(&mut self.0, &fields).unwrap())
    }

    fn place(&mut self, claims: &[&str], host: &str) -> PodId {
        let rules = self.compile(claims);
        let host = self.0.host(host).unwrap();
        self.0.add_pod(rules, host).unwrap()
    }

    /// Returns the reason why a pod with these claims cannot be placed on a host; an empty text if it can.
    fn refusal(&mut self, claims: &[&str], host: &str) -> String {
        let rules = self.compile(claims);
        let host = self.0.host(host).unwrap();
        let filter = self.0.pod_filter(&rules);
        let reasons = filter.reasons(host);
        assert_eq!(filter.allows(host), reasons.is_empty(), "{reasons:?}");
        reasons.first().map(|reason| reason.summary().into_owned()).unwrap_or_default()
    }
}

fn set_host(cluster: &mut ClusterState, name: &str, label: &str) {
    let labels = BTreeMap::from([
        (HOST_LABEL.to_owned(), label.to_owned()),
        ("zone".to_owned(), "a".to_owned()),
    ]);
    let fields = NodeFields {
        name,
        labels: Some(&labels),
        taints: &[],
        is_cordoned: false,
        allocatable: &Resources::default(),
        pods_limit: 100,
    };
    cluster.set_host(&fields).unwrap();
}

/// Returns the topology of the storage of one host.
fn only(host: &str) -> Value {
    json!({"matchLabels": {HOST_LABEL: host}})
}

/// `TestCapacity` of `pkg/scheduler/framework/plugins/volumebinding/binder_test.go` (Kubernetes 1.36): a claim of 1 GiB,
/// and a driver that reports its storage or does not.
#[test]
fn storage_is_compared_as_in_kube_scheduler() {
    let everywhere = json!({});
    let (gib, mib, nothing) = (Some(GIB), Some(MIB), Some(0));
    let cases = [
        ("network-attached", vec![(everywhere.clone(), gib, None)], ""),
        ("local-storage", vec![(only("node1"), gib, None)], ""),
        (
            "multiple",
            vec![(everywhere, gib, None), (only("node2"), gib, None), (only("node1"), gib, None)],
            "",
        ),
        ("no-storage", vec![], NO_SPACE),
        ("wrong-node", vec![(only("node2"), gib, None)], NO_SPACE),
        ("insufficient-storage", vec![(only("node1"), mib, None)], NO_SPACE),
        ("insufficient-volume-size", vec![(only("node1"), gib, mib)], NO_SPACE),
        ("zero-storage", vec![(only("node1"), nothing, None)], NO_SPACE),
        ("zero-volume-size", vec![(only("node1"), None, nothing)], NO_SPACE),
        ("nil-storage", vec![(only("node1"), None, None)], NO_SPACE),
        // `nodeHasAccess` and `capacitySufficient` of binder.go, without a case in `TestCapacity`.
        ("nil-topology", vec![(Value::Null, gib, None)], NO_SPACE),
        ("volume-size-is-preferred", vec![(only("node1"), mib, gib)], ""),
        ("one-of-two-pools", vec![(only("node1"), mib, None), (only("node1"), gib, None)], ""),
        ("not-the-sum-of-two-pools", vec![(only("node1"), Some(GIB / 2), None); 3], NO_SPACE),
    ];
    for (name, capacities, expected) in cases {
        for is_reporting in [true, false] {
            let mut cluster = TestCluster::new();
            cluster.0.set_csi_driver(DRIVER, is_reporting);
            for (at, (topology, capacity, max)) in capacities.iter().enumerate() {
                cluster.set_capacity(&format!("default/{at}"), topology, *capacity, *max);
            }
            cluster.set_unbound("disk", Some(GIB), None);
            let expected = if is_reporting { expected } else { "" };
            assert_eq!(cluster.refusal(&["disk"], "node1"), expected, "{name}");
        }
    }
    // The case `wrong-storage-class`.
    let mut cluster = TestCluster::new();
    let other = StorageCapacityFields {
        class: "other".to_owned(),
        node_topology: serde_json::from_value(only("node1")).unwrap(),
        capacity: Some(GIB),
        maximum_volume_size: None,
    };
    cluster.0.set_storage_capacity("default/0", Some(&other)).unwrap();
    cluster.set_unbound("disk", Some(GIB), None);
    assert_eq!(cluster.refusal(&["disk"], "node1"), NO_SPACE);
}

/// Claims that `hasEnoughCapacity` does not compare, or that kube-scheduler does not pass to it.
#[test]
fn other_claims_need_no_reported_storage() {
    let mut cluster = TestCluster::new();
    cluster.set_unbound("disk", None, None);
    assert_eq!(cluster.refusal(&["disk"], "node1"), "", "a claim that requests no size should fit");
    assert_eq!(
        cluster.refusal(&["unknown"], "node1"),
        "",
        "an unknown claim should restrict no hosts"
    );
    cluster.set_unbound("disk", Some(GIB), None);
    assert_eq!(cluster.refusal(&["disk"], "node1"), NO_SPACE);
    cluster.set_class(false, json!([]));
    assert_eq!(
        cluster.refusal(&["disk"], "node1"),
        "",
        "a claim with the binding mode Immediate should not be compared"
    );
    cluster.set_class(true, json!([]));
    assert_eq!(cluster.refusal(&["disk"], "node1"), NO_SPACE);
    cluster.0.set_claim("default", "disk", Some(&ClaimVolume::Bound(None))).unwrap();
    assert_eq!(cluster.refusal(&["disk"], "node1"), "", "a bound claim should not be compared");
    cluster.set_unbound("disk", Some(GIB), None);
    cluster.0.set_storage_class(CLASS, None).unwrap();
    assert_eq!(
        cluster.refusal(&["disk"], "node1"),
        "",
        "a claim of an unknown class should not be compared"
    );
}

/// `checkBoundClaims`, `MatchTopologySelectorTerms` and the selected node of `FindPodVolumes`.
#[test]
fn hosts_of_volumes_are_restricted() {
    let mut cluster = TestCluster::new();
    cluster.set_capacity("default/a", &json!({}), Some(10 * GIB), None);
    let affinity: NodeSelector = serde_json::from_value(json!({"nodeSelectorTerms": [
        {"matchExpressions": [{"key": HOST_LABEL, "operator": "In", "values": ["node2"]}]}]}))
    .unwrap();
    let bound = ClaimVolume::Bound(Some(affinity));
    cluster.0.set_claim("default", "disk", Some(&bound)).unwrap();
    assert_eq!(cluster.refusal(&["disk"], "node1"), NODE_CONFLICT);
    assert_eq!(cluster.refusal(&["disk"], "node2"), "");
    let rules = cluster.compile(&["disk"]);
    let host = cluster.0.host("node1").unwrap();
    let reasons = cluster.0.pod_filter(&rules).reasons(host);
    assert_eq!(
        reasons[0].to_string(),
        "the volume of PersistentVolumeClaim default/disk requires topology.example.com/node=node2"
    );

    cluster.set_unbound("disk", Some(GIB), Some("node2"));
    assert_eq!(cluster.refusal(&["disk"], "node1"), BIND_CONFLICT);
    assert_eq!(cluster.refusal(&["disk"], "node2"), "");

    cluster.set_unbound("disk", Some(GIB), None);
    let term =
        |value: &str| json!({"matchLabelExpressions": [{"key": HOST_LABEL, "values": [value]}]});
    cluster.set_class(true, json!([term("node2"), term("node3")]));
    assert_eq!(cluster.refusal(&["disk"], "node1"), BIND_CONFLICT);
    assert_eq!(cluster.refusal(&["disk"], "node2"), "");
    cluster.set_class(true, json!([{}]));
    assert_eq!(cluster.refusal(&["disk"], "node2"), BIND_CONFLICT, "an empty term matches no host");
    // A host that is added later is compared, too.
    cluster.set_class(true, json!([term("node3")]));
    set_host(&mut cluster.0, "node3", "node3");
    assert_eq!(cluster.refusal(&["disk"], "node3"), "");
}

/// Berth's own rule: claims of assumed pods use storage until their volumes are provisioned.
#[test]
fn claims_of_assumed_pods_use_storage() {
    let mut cluster = TestCluster::new();
    for host in ["node1", "node2"] {
        cluster.set_capacity(&format!("default/{host}"), &only(host), Some(10 * GIB), None);
    }
    let claims = ["a", "b", "c", "d"];
    claims.iter().for_each(|claim| cluster.set_unbound(claim, Some(4 * GIB), None));
    let first = cluster.place(&["a"], "node1");
    cluster.place(&["b"], "node1");
    assert_eq!(cluster.refusal(&["c"], "node1"), NO_SPACE);
    assert_eq!(cluster.refusal(&["c"], "node2"), "");
    let rules = cluster.compile(&["c"]);
    let host = cluster.0.host("node1").unwrap();
    assert_eq!(
        cluster.0.pod_filter(&rules).reasons(host)[0].to_string(),
        "no capacity of class local on host node1: 4 GiB requested, 2 GiB free"
    );
    // A claim that another pod on the host uses, too, counts once.
    assert_eq!(cluster.refusal(&["b"], "node1"), "");
    let shared = cluster.place(&["b"], "node1");
    assert!(cluster.0.remove_pod(shared));
    assert_eq!(cluster.refusal(&["c"], "node1"), NO_SPACE);

    // The volume of `a` is provisioned: the claim no longer counts, and the driver reports less free storage.
    let released = cluster.0.set_claim("default", "a", None).unwrap();
    assert_eq!(released, Some(host));
    assert_eq!(cluster.refusal(&["c"], "node1"), "");
    cluster.set_capacity("default/node1", &only("node1"), Some(6 * GIB), None);
    assert_eq!(cluster.refusal(&["c"], "node1"), NO_SPACE);
    assert!(cluster.0.remove_pod(first));
    assert_eq!(
        cluster.refusal(&["c"], "node1"),
        NO_SPACE,
        "the claim of the removed pod no longer counted"
    );

    // The sum of the pod's own claims is compared. kube-scheduler compares only each of them.
    assert_eq!(cluster.refusal(&["c", "d"], "node2"), "");
    cluster.set_unbound("d", Some(7 * GIB), None);
    assert_eq!(cluster.refusal(&["d"], "node2"), "");
    assert_eq!(cluster.refusal(&["c", "d"], "node2"), NO_SPACE);
    // A claim whose volume is being provisioned on this host is not compared again.
    cluster.set_unbound("d", Some(70 * GIB), Some("node2"));
    assert_eq!(cluster.refusal(&["d"], "node2"), "");
}

#[test]
fn claims_are_counted_again_after_changes() {
    let mut cluster = TestCluster::new();
    cluster.set_capacity("default/a", &json!({"matchLabels": {"zone": "a"}}), Some(10 * GIB), None);
    cluster.set_unbound("other", Some(3 * GIB), None);
    // The claim is not known yet when its pod is placed.
    cluster.place(&["disk"], "node1");
    assert_eq!(cluster.refusal(&["other"], "node2"), "");
    cluster.set_unbound("disk", Some(8 * GIB), None);
    assert_eq!(cluster.refusal(&["other"], "node2"), NO_SPACE, "both hosts use the same pool");
    // The driver, the class and the pool are replaced.
    cluster.0.set_csi_driver(DRIVER, false);
    assert_eq!(cluster.refusal(&["other"], "node2"), "");
    cluster.0.set_csi_driver(DRIVER, true);
    assert_eq!(cluster.refusal(&["other"], "node2"), NO_SPACE);
    cluster.set_class(false, json!([]));
    cluster.set_class(true, json!([]));
    assert_eq!(cluster.refusal(&["other"], "node2"), NO_SPACE);
    cluster.0.set_storage_capacity("default/a", None).unwrap();
    for host in ["node1", "node2"] {
        cluster.set_capacity(&format!("default/{host}"), &only(host), Some(10 * GIB), None);
    }
    assert_eq!(cluster.refusal(&["other"], "node1"), NO_SPACE);
    assert_eq!(cluster.refusal(&["other"], "node2"), "");
    // The label of the host changes.
    set_host(&mut cluster.0, "node1", "node9");
    cluster.set_capacity("default/node9", &only("node9"), Some(10 * GIB), None);
    assert_eq!(cluster.refusal(&["other"], "node1"), NO_SPACE);
    set_host(&mut cluster.0, "node1", "node1");
    assert_eq!(cluster.refusal(&["other"], "node1"), NO_SPACE);
    let host = cluster.0.host("node1").unwrap();
    assert_eq!(cluster.0.remove_host(host), 1);
    set_host(&mut cluster.0, "node1", "node1");
    assert_eq!(cluster.refusal(&["other"], "node1"), "", "the pod was removed with its host");
}

/// With a kube-scheduler that has checked the hosts, only the storage that other pods leave is compared.
#[test]
fn reservations_are_checked_after_kube_scheduler() {
    let mut cluster = TestCluster::new();
    cluster.0.set_volume_checks(VolumeChecks::Reservations);
    cluster.set_unbound("disk", Some(4 * GIB), None);
    assert_eq!(
        cluster.refusal(&["disk"], "node1"),
        "",
        "without reported storage, the claim should fit"
    );
    cluster.set_capacity("default/a", &only("node1"), Some(GIB), None);
    assert_eq!(
        cluster.refusal(&["disk"], "node1"),
        "",
        "a claim that kube-scheduler has compared should fit"
    );
    cluster.set_unbound("disk", Some(4 * GIB), Some("node2"));
    assert_eq!(
        cluster.refusal(&["disk"], "node1"),
        "",
        "the selected node is a rule of kube-scheduler"
    );
    cluster.set_unbound("disk", Some(4 * GIB), None);
    cluster.set_capacity("default/a", &only("node1"), Some(6 * GIB), None);
    cluster.set_unbound("other", Some(3 * GIB), None);
    cluster.place(&["other"], "node1");
    assert_eq!(cluster.refusal(&["disk"], "node1"), NO_SPACE);
    cluster.set_capacity("default/a", &only("node1"), Some(7 * GIB), None);
    assert_eq!(cluster.refusal(&["disk"], "node1"), "");
}

#[test]
fn hosts_with_more_storage_are_returned() {
    let mut cluster = TestCluster::new();
    let mut set = |topology: Value, capacity: Option<u64>| {
        let capacity = StorageCapacityFields {
            class: CLASS.to_owned(),
            node_topology: serde_json::from_value(topology).unwrap(),
            capacity,
            maximum_volume_size: None,
        };
        let hosts = cluster.0.set_storage_capacity("default/a", Some(&capacity)).unwrap();
        hosts.into_iter().map(HostId::index).collect::<Vec<_>>()
    };
    assert_eq!(set(only("node2"), Some(GIB)), [1]);
    assert_eq!(set(only("node2"), Some(GIB)), [0_usize; 0]);
    assert_eq!(set(only("node2"), Some(MIB)), [0_usize; 0]);
    assert_eq!(set(only("node2"), Some(2 * GIB)), [1]);
    assert_eq!(set(json!({}), Some(2 * GIB)), [0, 1]);
    let invalid = json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]});
    let capacity = StorageCapacityFields {
        class: CLASS.to_owned(),
        node_topology: serde_json::from_value(invalid).unwrap(),
        ..StorageCapacityFields::default()
    };
    let error = cluster.0.set_storage_capacity("default/a", Some(&capacity)).unwrap_err();
    assert_eq!(error.field, "nodeTopology.matchExpressions[0].operator");
    cluster.set_unbound("disk", Some(1), None);
    assert_eq!(cluster.refusal(&["disk"], "node1"), NO_SPACE, "the storage is removed");
}
