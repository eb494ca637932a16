//! Test cases of kube-scheduler, with their original names: Berth's rules must give the same results as the plugins of
//! kube-scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_placement::rules::{ClusterState, NodeFields, PodFields, Rules};
use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

const AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING_ANTI_AFFINITY: &str = "node(s) didn't satisfy existing pods anti-affinity rules";
const SPREAD: &str = "node(s) didn't match pod topology spread constraints";
const SPREAD_MISSING_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";

struct SchedulerCase {
    cluster: ClusterState,
}

fn parse_pod(labels: Value, spec: Value) -> v1::Pod {
    let mut spec = spec;
    spec["containers"] = json!([]);
    serde_json::from_value(json!({"metadata": {"labels": labels}, "spec": spec})).unwrap()
}

impl SchedulerCase {
    fn new(hosts: &[(&str, Value)]) -> Self {
        let mut cluster = ClusterState::new();
        for (name, labels) in hosts {
            let labels: BTreeMap<String, String> = serde_json::from_value(labels.clone()).unwrap();
            let allocatable =
                Resources { cpu_millis: 1000, memory: 1 << 30, ..Resources::default() };
            cluster
                .set_host(&NodeFields {
                    name,
                    labels: Some(&labels),
                    taints: &[],
                    is_cordoned: false,
                    allocatable: &allocatable,
                    pods_limit: 10,
                })
                .unwrap();
        }
        Self { cluster }
    }

    /// Creates four hosts in two zones, as in most of kube-scheduler's tests of spread constraints.
    fn in_two_zones() -> Self {
        let host = |zone: &str, node: &str| json!({"zone": zone, "node": node});
        Self::new(&[
            ("node-a", host("zone1", "node-a")),
            ("node-b", host("zone1", "node-b")),
            ("node-x", host("zone2", "node-x")),
            ("node-y", host("zone2", "node-y")),
        ])
    }

    fn with_pod(mut self, host: &str, namespace: &str, labels: Value, spec: Value) -> Self {
        let pod = parse_pod(labels, spec);
        let containers = Pod::default();
        let fields = PodFields { namespace, ..PodFields::from_pod(&pod, &containers) };
        let rules = Rules::compile(&mut self.cluster, &fields).unwrap();
        let host = self.cluster.host(host).unwrap();
        self.cluster.add_pod(Arc::new(rules), host).unwrap();
        self
    }

    fn with_foo_pods(self, hosts: &[&str]) -> Self {
        hosts.iter().fold(self, |case, host| case.with_pod(host, "", json!({"foo": ""}), json!({})))
    }

    /// Asserts the reasons against a pod with these labels and this spec, one for each host in the order of host names;
    /// the reason is empty for a host that fits.
    fn expect_reasons(mut self, labels: Value, spec: Value, expected: &[&str]) {
        let pod = parse_pod(labels, spec);
        let containers = Pod::default();
        let fields = PodFields::from_pod(&pod, &containers);
        let rules = Rules::compile(&mut self.cluster, &fields).unwrap();
        let filter = self.cluster.pod_filter(&rules);
        let hosts = ["machine1", "node-a", "node-b", "node-x", "node-y"];
        let actual: Vec<String> = hosts
            .into_iter()
            .filter_map(|name| self.cluster.host(name))
            .map(|host| filter.reasons(host).first().map_or(String::new(), |r| r.summary().into()))
            .collect();
        assert_eq!(actual, expected);
    }
}

fn single_host_case() -> SchedulerCase {
    SchedulerCase::new(&[("machine1", json!({"region": "r1", "zone": "z11"}))])
}

fn pod_affinity_spec(affinity: Value, anti_affinity: Value) -> Value {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    json!({"affinity": {"podAffinity": {REQUIRED: affinity}, "podAntiAffinity": {REQUIRED: anti_affinity}}})
}

fn affinity_term(key: &str, operator: &str, values: &[&str], topology: &str) -> Value {
    let expression = json!({"key": key, "operator": operator, "values": values});
    json!({"labelSelector": {"matchExpressions": [expression]}, "topologyKey": topology})
}

/// Test `TestRequiredAffinitySingleNode` of interpodaffinity.
#[test]
fn required_affinity_on_a_single_node_is_enforced() {
    let scan = json!({"service": "securityscan"});
    let s1 = json!({"security": "S1"});
    let with_scan_pod = || {
        single_host_case().with_pod("machine1", "", json!({"service": "securityscan"}), json!({}))
    };
    let scans = |topology| affinity_term("service", "In", &["securityscan", "value2"], topology);
    let viruses = |topology| affinity_term("service", "In", &["antivirusscan", "value2"], topology);
    let none = json!([]);
    // "A pod that has no required pod affinity scheduling rules can schedule onto a node with no existing pods"
    single_host_case().expect_reasons(json!({}), json!({}), &[""]);
    // "satisfies ... using In operator that matches the existing pod"
    with_scan_pod().expect_reasons(
        s1.clone(),
        pod_affinity_spec(json!([scans("region")]), none.clone()),
        &[""],
    );
    // "satisfies the pod ... using not in operator in labelSelector that matches the existing pod"
    let not_in = affinity_term("service", "NotIn", &["securityscan3", "value3"], "region");
    with_scan_pod().expect_reasons(
        s1.clone(),
        pod_affinity_spec(json!([not_in]), none.clone()),
        &[""],
    );
    // "Does not satisfy the PodAffinity with labelSelector because of diff Namespace"
    let mut elsewhere = scans("region");
    elsewhere["namespaces"] = json!(["DiffNameSpace"]);
    single_host_case().with_pod("machine1", "ns", scan.clone(), json!({})).expect_reasons(
        s1.clone(),
        pod_affinity_spec(json!([elsewhere]), none.clone()),
        &[AFFINITY],
    );
    // "Doesn't satisfy the PodAffinity because of unmatching labelSelector with the existing pod"
    with_scan_pod().expect_reasons(
        scan.clone(),
        pod_affinity_spec(json!([viruses("region")]), none.clone()),
        &[AFFINITY],
    );
    // "satisfies the PodAffinity and PodAntiAffinity with the existing pod"
    let both = pod_affinity_spec(json!([scans("region")]), json!([viruses("node")]));
    with_scan_pod().expect_reasons(s1.clone(), both.clone(), &[""]);
    // "satisfies the PodAffinity but doesn't satisfy the PodAntiAffinity with the existing pod"
    let against = pod_affinity_spec(json!([scans("region")]), json!([scans("zone")]));
    with_scan_pod().expect_reasons(s1.clone(), against, &[ANTI_AFFINITY]);
    // "satisfies the PodAffinity and PodAntiAffinity but doesn't satisfy PodAntiAffinity symmetry with the existing
    // pod"
    let refusing = pod_affinity_spec(none.clone(), json!([scans("zone")]));
    let with_refusing_pod = || {
        single_host_case().with_pod(
            "machine1",
            "",
            json!({"service": "securityscan"}),
            refusing.clone(),
        )
    };
    with_refusing_pod().expect_reasons(scan.clone(), both, &[EXISTING_ANTI_AFFINITY]);
    // "verify that PodAntiAffinity from existing pod is respected when pod has no AntiAffinity constraints. doesn't
    // satisfy PodAntiAffinity symmetry with the existing pod"
    with_refusing_pod().expect_reasons(scan.clone(), json!({}), &[EXISTING_ANTI_AFFINITY]);
    // "... satisfy PodAntiAffinity symmetry with the existing pod"
    let others = affinity_term("service", "NotIn", &["securityscan", "value2"], "zone");
    single_host_case()
        .with_pod("machine1", "", scan.clone(), pod_affinity_spec(none.clone(), json!([others])))
        .expect_reasons(scan.clone(), json!({}), &[""]);
    // The first pod of a group is allowed (`satisfyPodAffinity`): its affinity selects the pod itself, and no other
    // pod.
    single_host_case().expect_reasons(
        scan.clone(),
        pod_affinity_spec(json!([scans("region")]), none.clone()),
        &[""],
    );
    single_host_case().expect_reasons(
        scan,
        pod_affinity_spec(json!([scans("rack")]), none),
        &[AFFINITY],
    );
}

fn spread_constraint_spec(topology: &str, selector: Value) -> Value {
    json!({"topologySpreadConstraints": [{"topologyKey": topology, "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]})
}

/// Tests `TestSingleConstraint` and `TestPreFilterState` of podtopologyspread.
#[test]
fn single_spread_constraint_is_enforced() {
    let exists = json!({"matchExpressions": [{"key": "foo", "operator": "Exists"}]});
    let foo = json!({"foo": ""});
    // "pods spread across zones as 3/3, all nodes fit"
    SchedulerCase::in_two_zones()
        .with_foo_pods(&["node-a", "node-a", "node-b", "node-y", "node-y", "node-y"])
        .expect_reasons(
            foo.clone(),
            spread_constraint_spec("zone", exists.clone()),
            &["", "", "", ""],
        );
    // The same hosts, with three pods in one zone and two in the other ("key in matchLabelKeys is ignored when it isn't
    // exist in pod.labels").
    let mut ignored = spread_constraint_spec("zone", exists.clone());
    ignored["topologySpreadConstraints"][0]["matchLabelKeys"] = json!(["bar"]);
    SchedulerCase::in_two_zones()
        .with_foo_pods(&["node-a", "node-a", "node-b", "node-y", "node-y"])
        .expect_reasons(foo.clone(), ignored, &[SPREAD, SPREAD, "", ""]);
    // Pods of other namespaces do not count: the constraint counts no pod in the first zone, and two pods in the second
    // zone.
    SchedulerCase::in_two_zones()
        .with_pod("node-a", "ns1", foo.clone(), json!({}))
        .with_pod("node-a", "ns2", foo.clone(), json!({}))
        .with_foo_pods(&["node-x", "node-y"])
        .expect_reasons(
            foo.clone(),
            spread_constraint_spec("zone", exists.clone()),
            &["", "", SPREAD, SPREAD],
        );
    // "no pod is matched when LabelSelector is nil"
    SchedulerCase::in_two_zones()
        .with_foo_pods(&["node-a", "node-a", "node-b", "node-y", "node-y"])
        .expect_reasons(
            foo.clone(),
            spread_constraint_spec("zone", Value::Null),
            &["", "", "", ""],
        );
    // A host without the label belongs to no domain.
    SchedulerCase::in_two_zones().expect_reasons(
        foo,
        spread_constraint_spec("rack", exists),
        &[SPREAD_MISSING_LABEL; 4],
    );
}

/// `countPodsMatchSelector` of podtopologyspread: an empty selector matches no pods.
#[test]
fn empty_selector_spreads_no_pods() {
    SchedulerCase::in_two_zones().with_foo_pods(&["node-a", "node-a", "node-a"]).expect_reasons(
        json!({}),
        spread_constraint_spec("zone", json!({})),
        &["", "", "", ""],
    );
}

/// The effective request of a pod is the maximum over time (documentation of sidecars).
#[test]
fn requests_of_init_containers_and_sidecars_are_combined() {
    let container = |cpu_millis, is_sidecar| Container {
        is_sidecar,
        requests: Resources { cpu_millis, ..Resources::default() },
        ..Container::default()
    };
    let fits = |init: &[(u64, bool)], own: u64, overhead: u64| {
        let mut case = single_host_case();
        let pod = parse_pod(json!({}), json!({}));
        let containers = Pod {
            init_containers: init.iter().map(|(cpu, is)| container(*cpu, *is)).collect(),
            containers: vec![container(own, false)],
            overhead: Resources { cpu_millis: overhead, ..Resources::default() },
            ..Pod::default()
        };
        let rules =
            Rules::compile(&mut case.cluster, &PodFields::from_pod(&pod, &containers)).unwrap();
        let host = case.cluster.host("machine1").unwrap();
        let reasons = case.cluster.pod_filter(&rules).reasons(host);
        reasons.first().map(ToString::to_string)
    };
    assert_eq!(
        fits(&[(1000, false), (1000, false)], 1000, 0),
        None,
        "init containers that run one after the other should fit"
    );
    assert_eq!(
        fits(&[(400, true), (600, false)], 600, 0),
        None,
        "an init container runs together with the sidecar"
    );
    let too_much = |wanted: &str| Some(format!("{wanted} CPUs requested, 1 free"));
    assert_eq!(fits(&[(400, true), (601, false)], 600, 0), too_much("1.001"));
    assert_eq!(
        fits(&[(600, false), (400, true)], 601, 0),
        too_much("1.001"),
        "the init container runs before the sidecar starts"
    );
    assert_eq!(fits(&[(300, true), (300, true)], 400, 0), None);
    assert_eq!(fits(&[], 1000, 1), too_much("1.001"), "the overhead should count");
    assert_eq!(
        fits(&[(u64::MAX, true)], u64::MAX, 1),
        too_much("18446744073709551.615"),
        "sums should saturate"
    );
}

#[test]
fn messages_have_names_and_values() {
    let mut cluster = ClusterState::new();
    let taints: Vec<v1::Taint> = serde_json::from_value(
        json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]),
    )
    .unwrap();
    let labels = BTreeMap::from([("disk".to_owned(), "hdd".to_owned())]);
    let allocatable = Resources::default();
    let fields = NodeFields {
        name: "machine1",
        labels: Some(&labels),
        taints: &taints,
        is_cordoned: false,
        allocatable: &allocatable,
        pods_limit: 0,
    };
    let host = cluster.set_host(&fields).unwrap();
    let mut reasons_for = |spec: Value| {
        let pod = parse_pod(json!({}), spec);
        let containers = Pod::default();
        let rules = Rules::compile(&mut cluster, &PodFields::from_pod(&pod, &containers)).unwrap();
        let reasons = cluster.pod_filter(&rules).reasons(host);
        reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(reasons_for(json!({})), "taint dedicated=db:NoSchedule is not tolerated");
    let all = json!([{"operator": "Exists"}]);
    assert_eq!(
        reasons_for(json!({"tolerations": all, "nodeSelector": {"disk": "ssd"}})),
        "nodeSelector requires disk=ssd, but the label's value is hdd"
    );
    assert_eq!(
        reasons_for(json!({"tolerations": all})),
        "the host already runs its maximum of 0 pods"
    );
}
