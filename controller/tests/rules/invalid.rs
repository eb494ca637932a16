//! Invalid rules cause errors that name the field; they never match all pods, and never cause a panic.

use std::collections::BTreeMap;

use berth_kubelet_admission::pod::Pod;
use berth_placement::rules::{ClusterState, InvalidField, PodFields, Rules};
use k8s_openapi::api::core::v1;
use proptest::prelude::*;
use serde_json::{Value, json};

fn compile(spec: Value) -> Result<Rules, InvalidField> {
    let mut spec = spec;
    spec["containers"] = json!([]);
    let pod: v1::Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
    let containers = Pod::default();
    let fields = PodFields::from_pod(&pod, &containers);
    Rules::compile(&mut ClusterState::new(), &fields)
}

fn pod_affinity_spec(kind: &str, term: Value) -> Value {
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
}

fn node_affinity_spec(expression: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}, expression]}],
    }}}})
}

fn spread_constraint_spec(field: &str, value: Value) -> Value {
    let mut one =
        json!({"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"});
    one[field] = value;
    json!({"topologySpreadConstraints": [one]})
}

#[test]
fn errors_name_the_field() {
    let terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let expression = format!("{terms}[0].matchExpressions[1]");
    let pods = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
    let constraint = "spec.topologySpreadConstraints[0]";
    let cases = [
        (json!({"nodeSelector": {"a b": "c"}}), "spec.nodeSelector: `a b`".to_owned()),
        (json!({"nodeSelector": {"a": "-"}}), "spec.nodeSelector.a: `-`".to_owned()),
        (node_affinity_spec(json!({"key": "b", "operator": "Is", "values": ["x"]})), format!("{expression}.operator: `Is`")),
        (node_affinity_spec(json!({"key": "b", "operator": "In"})), format!("{expression}.values: ``")),
        (node_affinity_spec(json!({"key": "b", "operator": "In", "values": ["x", "!"]})), format!("{expression}.values[1]: `!`")),
        (node_affinity_spec(json!({"key": "", "operator": "Exists"})), format!("{expression}.key: ``")),
        (node_affinity_spec(json!({"key": "b", "operator": "Exists", "values": ["x"]})), format!("{expression}.values: `x`")),
        (node_affinity_spec(json!({"key": "b", "operator": "Gt", "values": ["1", "2"]})), format!("{expression}.values: `1,2`")),
        (node_affinity_spec(json!({"key": "b", "operator": "Lt", "values": ["few"]})), format!("{expression}.values[0]: `few`")),
        (
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}),
            format!("{terms}: `[]`"),
        ),
        (
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["x"]}]}]}}}}),
            format!("{terms}[0].matchFields[0].key: `metadata.uid`"),
        ),
        (
            json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 101, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]}}}),
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: `101`".to_owned(),
        ),
        (pod_affinity_spec("podAntiAffinity", json!({"topologyKey": ""})), format!("{pods}.topologyKey: ``")),
        (
            pod_affinity_spec("podAntiAffinity", json!({"topologyKey": "zone", "labelSelector": {"matchExpressions": [
                {"key": "n", "operator": "Gt", "values": ["1"]}]}})),
            format!("{pods}.labelSelector.matchExpressions[0].operator: `Gt`"),
        ),
        (
            pod_affinity_spec("podAntiAffinity", json!({"topologyKey": "zone", "namespaceSelector": {"matchLabels": {"a": "?"}}})),
            format!("{pods}.namespaceSelector.matchLabels.a: `?`"),
        ),
        (
            pod_affinity_spec("podAntiAffinity", json!({"topologyKey": "zone", "matchLabelKeys": ["a"]})),
            format!("{pods}.matchLabelKeys: `a`"),
        ),
        (spread_constraint_spec("maxSkew", 0.into()), format!("{constraint}.maxSkew: `0`")),
        (spread_constraint_spec("minDomains", 0.into()), format!("{constraint}.minDomains: `0`")),
        (spread_constraint_spec("whenUnsatisfiable", "Never".into()), format!("{constraint}.whenUnsatisfiable: `Never`")),
        (spread_constraint_spec("nodeTaintsPolicy", "honor".into()), format!("{constraint}.nodeTaintsPolicy: `honor`")),
        (json!({"tolerations": [{"operator": "Gt", "key": "a", "value": "1"}]}), "spec.tolerations[0].operator: `Gt`".to_owned()),
        (json!({"tolerations": [{"value": "a"}]}), "spec.tolerations[0].key: ``".to_owned()),
        (json!({"tolerations": [{"operator": "Exists", "value": "a"}]}), "spec.tolerations[0].value: `a`".to_owned()),
        (json!({"tolerations": [{"operator": "Exists", "effect": "No"}]}), "spec.tolerations[0].effect: `No`".to_owned()),
    ];
    for (spec, begins) in cases {
        let error = compile(spec.clone()).expect_err(&spec.to_string());
        assert!(error.to_string().starts_with(&begins), "{error}\ndoes not start with {begins}");
    }
}

/// Generates a JSON tree with the fields of a pod and arbitrary strings.
fn arbitrary_spec() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[ -~]{0,8}",
        prop::sample::select(vec![
            "In",
            "Exists",
            "Gt",
            "DoNotSchedule",
            "a/b",
            "Honor",
            "NoExecute"
        ])
        .prop_map(str::to_owned),
    ];
    (prop::collection::vec(text, 12), any::<i32>(), any::<i32>()).prop_map(|(t, one, two)| {
        let selector = json!({"matchLabels": {&t[0]: t[1]}, "matchExpressions": [{"key": t[2], "operator": t[3], "values": [t[4]]}]});
        let term = json!({"topologyKey": t[5], "labelSelector": selector, "namespaces": [t[6]], "namespaceSelector": selector, "matchLabelKeys": [t[7]]});
        json!({
            "nodeSelector": {&t[8]: t[9]},
            "affinity": {
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": one, "preference": {"matchExpressions": [{"key": t[2], "operator": t[3], "values": [t[4]]}]}}]},
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term],
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": two, "podAffinityTerm": term}]},
            },
            "tolerations": [{"key": t[8], "operator": t[3], "value": t[10], "effect": t[11]}],
            "topologySpreadConstraints": [{"topologyKey": t[5], "maxSkew": one, "minDomains": two,
                "whenUnsatisfiable": t[3], "labelSelector": selector, "nodeAffinityPolicy": t[11]}],
        })
    })
}

proptest! {
    #[test]
    fn errors_of_arbitrary_specs_name_a_field(spec in arbitrary_spec()) {
        if let Err(error) = compile(spec) {
            let error = error.to_string();
            prop_assert!(error.starts_with("spec.") && error.contains(": `"), "{error}");
        }
    }

    #[test]
    fn hosts_are_found_by_arbitrary_labels(labels: BTreeMap<String, String>, name: String, key: String) {
        use berth_placement::rules::NodeFields;
        let mut cluster = ClusterState::new();
        let allocatable = berth_kubelet_admission::pod::Resources::default();
        let fields = NodeFields { name: &name, labels: Some(&labels), taints: &[], is_cordoned: false, allocatable: &allocatable, pods_limit: u64::MAX };
        let host = cluster.set_host(&fields).unwrap();
        for (key, value) in &labels {
            prop_assert_eq!(cluster.hosts_with_label(key, value).collect::<Vec<_>>(), vec![host]);
        }
        prop_assert_eq!(cluster.hosts_with_label(&key, "no value").count(), 0);
    }
}
