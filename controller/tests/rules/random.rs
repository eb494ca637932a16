//! Generates random hosts and pods with few different names, so that rules often match.

use std::collections::BTreeMap;

use berth_kubelet_admission::pod::{Container, Pod, Resources};
use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

/// Random number generator (splitmix64) with the same numbers for the same seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    /// Returns true in one of `times` cases.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    fn some<T: Copy>(&mut self, of: &[T]) -> Vec<T> {
        let first = self.one(of);
        let mut all = vec![first];
        if self.once_in(2) {
            all.push(self.one(of));
        }
        all
    }
}

/// Options of the generator.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// True to use features that Kubernetes 1.20 lacks: namespaceSelector, matchLabelKeys, minDomains, inclusion
    /// policies and sidecars. In 1.20, an empty selector does not spread pods.
    pub(crate) current: bool,
    /// True if a real API server must accept the objects, which requires runtime classes for overhead.
    pub(crate) for_server: bool,
}

pub(crate) const NAMESPACES: [&str; 3] = ["red", "green", "blue"];
const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const TOPOLOGIES: [&str; 4] = [ZONE, HOSTNAME, "rack", "row"];

pub(crate) struct MadeHost {
    pub(crate) node: v1::Node,
    pub(crate) allocatable: Resources,
    pub(crate) pods_limit: u64,
}

pub(crate) struct MadePod {
    pub(crate) pod: v1::Pod,
    pub(crate) containers: Pod,
}

pub(crate) fn namespace_labels(dice: &mut Dice) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    if !dice.once_in(4) {
        labels.insert("team".to_owned(), dice.one(&["one", "two"]).to_owned());
    }
    labels
}

pub(crate) fn host(dice: &mut Dice, name: &str) -> MadeHost {
    let mut labels = json!({HOSTNAME: name});
    if !dice.once_in(6) {
        labels[ZONE] = dice.one(&["z1", "z2", "z3"]).into();
    }
    if !dice.once_in(5) {
        labels["rack"] = dice.one(&["r1", "r2", "r3", "r4", "r5"]).into();
    }
    if !dice.once_in(3) {
        labels["row"] = dice.one(&["a", "b"]).into();
    }
    if !dice.once_in(4) {
        labels["disk"] = dice.one(&["ssd", "hdd"]).into();
    }
    if !dice.once_in(4) {
        labels["generation"] = dice.one(&["3", "4", "5", "12", "new"]).into();
    }
    let mut taints = Vec::new();
    for (key, value, effect) in [
        ("dedicated", "db", "NoSchedule"),
        ("dedicated", "web", "NoSchedule"),
        ("old", "", "PreferNoSchedule"),
        ("loud", "fan", "PreferNoSchedule"),
        ("drained", "", "NoExecute"),
    ] {
        if dice.once_in(9) {
            taints.push(json!({"key": key, "value": value, "effect": effect}));
        }
    }
    let allocatable = Resources {
        cpu_millis: 1000 * (3 + dice.below(6)),
        memory: (4 + dice.below(9)) << 30,
        hugepages: [("2Mi".parse().unwrap(), dice.below(4) << 29)].into(),
        extended: [("example.com/gpu".to_owned(), dice.below(3))].into(),
    };
    let pods_limit = 3 + dice.below(8);
    let mut amounts = amounts(&allocatable, true);
    amounts["pods"] = pods_limit.to_string().into();
    let node = json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": dice.once_in(12)},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    });
    MadeHost { node: serde_json::from_value(node).unwrap(), allocatable, pods_limit }
}

/// Formats values as Kubernetes writes them. A zero amount is left out, unless `include_zero` is true.
fn amounts(resources: &Resources, include_zero: bool) -> Value {
    let mut all = json!({});
    let mut put = |name: &str, value: String, is_some: bool| {
        if is_some || include_zero {
            all[name] = value.into();
        }
    };
    put("cpu", format!("{}m", resources.cpu_millis), resources.cpu_millis > 0);
    put("memory", resources.memory.to_string(), resources.memory > 0);
    for (size, bytes) in &resources.hugepages {
        put(&format!("hugepages-{size}"), bytes.to_string(), *bytes > 0);
    }
    for (name, number) in &resources.extended {
        put(name, number.to_string(), *number > 0);
    }
    all
}

fn container(dice: &mut Dice, name: String) -> Container {
    let requests = Resources {
        cpu_millis: dice.below(5) * 200,
        memory: (1 + dice.below(6)) << 28,
        hugepages: [("2Mi".parse().unwrap(), if dice.once_in(6) { 1 << 29 } else { 0 })].into(),
        extended: [("example.com/gpu".to_owned(), u64::from(dice.once_in(8)))].into(),
    };
    Container { name, is_sidecar: false, requests: requests.clone(), limits: requests }
}

fn requirement(dice: &mut Dice, of_pods: bool) -> Value {
    let (key, values): (&str, &[&str]) = match (of_pods, dice.below(3)) {
        (true, 0) => ("tier", &["x", "y"]),
        (true, _) => ("app", &["a", "b", "c", "d"]),
        (false, 0) => ("rack", &["r1", "r2", "r3", "r4"]),
        (false, 1) => ("disk", &["ssd", "hdd"]),
        (false, _) => (ZONE, &["z1", "z2", "z3"]),
    };
    if !of_pods && dice.once_in(4) {
        let (operator, bound) = (dice.one(&["Gt", "Lt"]), dice.one(&["3", "4", "10"]));
        return json!({"key": "generation", "operator": operator, "values": [bound]});
    }
    match dice.below(6) {
        0 => json!({"key": key, "operator": "Exists"}),
        1 => json!({"key": key, "operator": "DoesNotExist"}),
        2 => json!({"key": key, "operator": "NotIn", "values": dice.some(values)}),
        _ => json!({"key": key, "operator": "In", "values": dice.some(values)}),
    }
}

fn label_selector(dice: &mut Dice) -> Value {
    match dice.below(12) {
        0 => json!({}),
        1 | 2 => json!({"matchExpressions": [requirement(dice, true), requirement(dice, true)]}),
        3 => {
            json!({"matchLabels": {"tier": dice.one(&["x", "y"])}, "matchExpressions": [requirement(dice, true)]})
        }
        4 | 5 => json!({"matchExpressions": [requirement(dice, true)]}),
        _ => json!({"matchLabels": {"app": dice.one(&["a", "b", "c", "d"])}}),
    }
}

fn affinity_term(dice: &mut Dice, kind: Kind) -> Value {
    let mut term = json!({"topologyKey": dice.one(&TOPOLOGIES)});
    let has_selector = !dice.once_in(15);
    if has_selector {
        term["labelSelector"] = label_selector(dice);
    }
    if dice.once_in(4) {
        term["namespaces"] = dice.some(&NAMESPACES).into();
    }
    if kind.current && dice.once_in(5) {
        term["namespaceSelector"] = match dice.below(4) {
            0 => json!({}),
            1 => {
                json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["one"]}]})
            }
            _ => json!({"matchLabels": {"team": dice.one(&["one", "two"])}}),
        };
    }
    if kind.current && has_selector && dice.once_in(6) {
        let field = dice.one(&["matchLabelKeys", "mismatchLabelKeys"]);
        term[field] = json!([dice.one(&["revision", "absent"])]);
    }
    term
}

fn node_term(dice: &mut Dice) -> Value {
    if dice.once_in(12) {
        let name = format!("host-{}", dice.below(24));
        let operator = dice.one(&["In", "NotIn"]);
        return json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]});
    }
    let mut all = vec![requirement(dice, false)];
    if dice.once_in(2) {
        all.push(requirement(dice, false));
    }
    json!({"matchExpressions": all})
}

fn spread(dice: &mut Dice, kind: Kind) -> Value {
    let is_hard = dice.once_in(2);
    let mut one = json!({
        "topologyKey": dice.one(&TOPOLOGIES),
        "maxSkew": 1 + dice.below(3),
        "whenUnsatisfiable": if is_hard { "DoNotSchedule" } else { "ScheduleAnyway" },
    });
    let has_selector = !dice.once_in(15);
    if has_selector {
        one["labelSelector"] = label_selector(dice);
        if !kind.current && one["labelSelector"] == json!({}) {
            one["labelSelector"] = json!({"matchLabels": {"app": "a"}});
        }
    }
    if kind.current {
        if is_hard && dice.once_in(4) {
            one["minDomains"] = (1 + dice.below(4)).into();
        }
        if dice.once_in(3) {
            one["nodeAffinityPolicy"] = dice.one(&["Honor", "Ignore"]).into();
        }
        if dice.once_in(3) {
            one["nodeTaintsPolicy"] = dice.one(&["Honor", "Ignore"]).into();
        }
        if has_selector && dice.once_in(6) {
            one["matchLabelKeys"] = json!(["revision"]);
        }
    }
    one
}

fn toleration(dice: &mut Dice) -> Value {
    match dice.below(7) {
        0 => json!({"operator": "Exists"}),
        1 => json!({"key": "dedicated", "operator": "Exists"}),
        2 => json!({"key": "dedicated", "value": "db", "effect": "NoSchedule"}),
        3 => json!({"key": "old", "operator": "Exists", "effect": "PreferNoSchedule"}),
        4 => json!({"key": "drained", "operator": "Exists", "effect": "NoExecute"}),
        5 => json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}),
        _ => json!({"operator": "Exists", "effect": "NoSchedule"}),
    }
}

fn several(dice: &mut Dice, one_in: u64, mut make: impl FnMut(&mut Dice) -> Value) -> Vec<Value> {
    let mut all = Vec::new();
    while all.len() < 3 && dice.once_in(one_in + all.len() as u64) {
        all.push(make(dice));
    }
    all
}

pub(crate) fn pod(dice: &mut Dice, kind: Kind, name: &str) -> MadePod {
    let mut labels = json!({"name": name, "app": dice.one(&["a", "b", "c", "d"])});
    if !dice.once_in(3) {
        labels["tier"] = dice.one(&["x", "y"]).into();
    }
    if !dice.once_in(3) {
        labels["revision"] = dice.one(&["1", "2"]).into();
    }
    let weighted = |dice: &mut Dice, field: &str, value: Value| json!({"weight": 1 + dice.below(100), field: value});
    let preferred_near = |dice: &mut Dice| {
        let term = affinity_term(dice, kind);
        weighted(dice, "podAffinityTerm", term)
    };
    let mut affinity = json!({});
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let terms = several(dice, 5, node_term);
    if !terms.is_empty() {
        affinity["nodeAffinity"] = json!({REQUIRED: {"nodeSelectorTerms": &terms}});
    }
    let preferred = several(dice, 4, |dice| {
        let term = node_term(dice);
        weighted(dice, "preference", term)
    });
    if !preferred.is_empty() {
        affinity["nodeAffinity"][PREFERRED] = preferred.into();
    }
    let near = several(dice, 5, |dice| affinity_term(dice, kind));
    let liked = several(dice, 4, preferred_near);
    if !near.is_empty() || !liked.is_empty() {
        affinity["podAffinity"] = json!({REQUIRED: near, PREFERRED: liked});
    }
    let far = several(dice, 5, |dice| affinity_term(dice, kind));
    let disliked = several(dice, 4, preferred_near);
    if !far.is_empty() || !disliked.is_empty() {
        affinity["podAntiAffinity"] = json!({REQUIRED: far, PREFERRED: disliked});
    }
    let mut node_selector = json!({});
    if dice.once_in(8) {
        node_selector["disk"] = dice.one(&["ssd", "hdd"]).into();
    }
    let mut constraints = several(dice, 3, |dice| spread(dice, kind));
    // A server accepts each topology key only once for each value of `whenUnsatisfiable`.
    constraints
        .sort_by_key(|one| (one["topologyKey"].to_string(), one["whenUnsatisfiable"].to_string()));
    constraints.dedup_by_key(|one| (one["topologyKey"].clone(), one["whenUnsatisfiable"].clone()));
    if !kind.current {
        // Old schedulers also count pods on hosts that are not eligible, if other hosts of the same domain are
        // eligible.
        let takes_all = terms.is_empty() && node_selector == json!({});
        let is_hard = |one: &Value| one["whenUnsatisfiable"] == "DoNotSchedule";
        let hard = constraints.iter().find(|one| takes_all && is_hard(one)).cloned();
        constraints.retain(|one| !is_hard(one));
        constraints.extend(hard);
    }
    let mut containers = Pod { uid: name.to_owned(), ..Pod::default() };
    containers.containers.push(container(dice, "c0".to_owned()));
    for number in 0..dice.below(3) {
        let mut one = container(dice, format!("i{number}"));
        one.is_sidecar = kind.current && dice.once_in(2);
        containers.init_containers.push(one);
    }
    if !kind.for_server && dice.once_in(4) {
        containers.overhead.memory = 1 << 27;
    }
    let shown = |one: &Container| {
        let amounts = amounts(&one.requests, false);
        let mut shown = json!({"name": one.name, "image": "none", "resources": {"requests": amounts, "limits": amounts}});
        if one.is_sidecar {
            shown["restartPolicy"] = "Always".into();
        }
        shown
    };
    let pod = json!({
        "metadata": {"name": name, "namespace": dice.one(&NAMESPACES), "labels": labels},
        "spec": {
            "affinity": affinity, "nodeSelector": node_selector,
            "tolerations": several(dice, 3, toleration),
            "topologySpreadConstraints": constraints,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "containers": containers.containers.iter().map(shown).collect::<Vec<_>>(),
            "initContainers": containers.init_containers.iter().map(shown).collect::<Vec<_>>(),
        },
    });
    MadePod { pod: serde_json::from_value(pod).unwrap(), containers }
}
