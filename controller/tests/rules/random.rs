//! Generates random hosts and pods with few different names and labels, so that rules often match.

use std::collections::BTreeMap;

use berth_kubelet_admission::pod::{Container, Pod, Resources};
use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

/// Random number generator (splitmix64). The same seed always results in the same numbers.
pub(crate) struct RandomGenerator(pub(crate) u64);

impl RandomGenerator {
    pub(crate) fn next_below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    /// Returns true with a probability of 1 in `times`.
    pub(crate) fn is_one_in(&mut self, times: u64) -> bool {
        self.next_below(times) == 0
    }

    pub(crate) fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.next_below(of.len() as u64)).unwrap()]
    }

    fn choose_some<T: Copy>(&mut self, of: &[T]) -> Vec<T> {
        let first = self.choose(of);
        let mut all = vec![first];
        if self.is_one_in(2) {
            all.push(self.choose(of));
        }
        all
    }
}

/// Options of the generator.
#[derive(Clone, Copy)]
pub(crate) struct GeneratorOptions {
    /// True to use features that Kubernetes 1.20 lacks: namespaceSelector, matchLabelKeys, minDomains, node inclusion
    /// policies, sidecars, and spread constraints with an empty selector.
    pub(crate) uses_current_features: bool,
    /// True if a real API server must accept the objects. Pods with an overhead then need a RuntimeClass.
    pub(crate) is_for_api_server: bool,
}

pub(crate) const NAMESPACES: [&str; 3] = ["red", "green", "blue"];
const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const TOPOLOGY_KEYS: [&str; 4] = [ZONE, HOSTNAME, "rack", "row"];

pub(crate) struct GeneratedHost {
    pub(crate) node: v1::Node,
    pub(crate) allocatable: Resources,
    pub(crate) pods_limit: u64,
}

pub(crate) struct GeneratedPod {
    pub(crate) pod: v1::Pod,
    pub(crate) containers: Pod,
}

pub(crate) fn random_namespace_labels(generator: &mut RandomGenerator) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    if !generator.is_one_in(4) {
        labels.insert("team".to_owned(), generator.choose(&["one", "two"]).to_owned());
    }
    labels
}

pub(crate) fn random_host(generator: &mut RandomGenerator, name: &str) -> GeneratedHost {
    let mut labels = json!({HOSTNAME: name});
    if !generator.is_one_in(6) {
        labels[ZONE] = generator.choose(&["z1", "z2", "z3"]).into();
    }
    if !generator.is_one_in(5) {
        labels["rack"] = generator.choose(&["r1", "r2", "r3", "r4", "r5"]).into();
    }
    if !generator.is_one_in(3) {
        labels["row"] = generator.choose(&["a", "b"]).into();
    }
    if !generator.is_one_in(4) {
        labels["disk"] = generator.choose(&["ssd", "hdd"]).into();
    }
    if !generator.is_one_in(4) {
        labels["generation"] = generator.choose(&["3", "4", "5", "12", "new"]).into();
    }
    let mut taints = Vec::new();
    for (key, value, effect) in [
        ("dedicated", "db", "NoSchedule"),
        ("dedicated", "web", "NoSchedule"),
        ("old", "", "PreferNoSchedule"),
        ("loud", "fan", "PreferNoSchedule"),
        ("drained", "", "NoExecute"),
    ] {
        if generator.is_one_in(9) {
            taints.push(json!({"key": key, "value": value, "effect": effect}));
        }
    }
    let allocatable = Resources {
        cpu_millis: 1000 * (3 + generator.next_below(6)),
        memory: (4 + generator.next_below(9)) << 30,
        hugepages: [("2Mi".parse().unwrap(), generator.next_below(4) << 29)].into(),
        extended: [("example.com/gpu".to_owned(), generator.next_below(3))].into(),
    };
    let pods_limit = 3 + generator.next_below(8);
    let mut amounts = format_amounts(&allocatable, true);
    amounts["pods"] = pods_limit.to_string().into();
    let node = json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": generator.is_one_in(12)},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    });
    GeneratedHost { node: serde_json::from_value(node).unwrap(), allocatable, pods_limit }
}

/// Formats amounts of resources as Kubernetes quantities. Zero amounts are omitted, unless `include_zero` is true.
fn format_amounts(resources: &Resources, include_zero: bool) -> Value {
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

fn random_container(generator: &mut RandomGenerator, name: String) -> Container {
    let requests = Resources {
        cpu_millis: generator.next_below(5) * 200,
        memory: (1 + generator.next_below(6)) << 28,
        hugepages: [("2Mi".parse().unwrap(), if generator.is_one_in(6) { 1 << 29 } else { 0 })]
            .into(),
        extended: [("example.com/gpu".to_owned(), u64::from(generator.is_one_in(8)))].into(),
    };
    Container { name, is_sidecar: false, requests: requests.clone(), limits: requests }
}

fn random_requirement(generator: &mut RandomGenerator, is_for_pods: bool) -> Value {
    let (key, values): (&str, &[&str]) = match (is_for_pods, generator.next_below(3)) {
        (true, 0) => ("tier", &["x", "y"]),
        (true, _) => ("app", &["a", "b", "c", "d"]),
        (false, 0) => ("rack", &["r1", "r2", "r3", "r4"]),
        (false, 1) => ("disk", &["ssd", "hdd"]),
        (false, _) => (ZONE, &["z1", "z2", "z3"]),
    };
    if !is_for_pods && generator.is_one_in(4) {
        let (operator, bound) =
            (generator.choose(&["Gt", "Lt"]), generator.choose(&["3", "4", "10"]));
        return json!({"key": "generation", "operator": operator, "values": [bound]});
    }
    match generator.next_below(6) {
        0 => json!({"key": key, "operator": "Exists"}),
        1 => json!({"key": key, "operator": "DoesNotExist"}),
        2 => json!({"key": key, "operator": "NotIn", "values": generator.choose_some(values)}),
        _ => json!({"key": key, "operator": "In", "values": generator.choose_some(values)}),
    }
}

fn random_label_selector(generator: &mut RandomGenerator) -> Value {
    match generator.next_below(12) {
        0 => json!({}),
        1 | 2 => {
            json!({"matchExpressions": [random_requirement(generator, true), random_requirement(generator, true)]})
        }
        3 => {
            json!({"matchLabels": {"tier": generator.choose(&["x", "y"])}, "matchExpressions": [random_requirement(generator, true)]})
        }
        4 | 5 => json!({"matchExpressions": [random_requirement(generator, true)]}),
        _ => json!({"matchLabels": {"app": generator.choose(&["a", "b", "c", "d"])}}),
    }
}

fn random_affinity_term(generator: &mut RandomGenerator, options: GeneratorOptions) -> Value {
    let mut term = json!({"topologyKey": generator.choose(&TOPOLOGY_KEYS)});
    let has_selector = !generator.is_one_in(15);
    if has_selector {
        term["labelSelector"] = random_label_selector(generator);
    }
    if generator.is_one_in(4) {
        term["namespaces"] = generator.choose_some(&NAMESPACES).into();
    }
    if options.uses_current_features && generator.is_one_in(5) {
        term["namespaceSelector"] = match generator.next_below(4) {
            0 => json!({}),
            1 => {
                json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["one"]}]})
            }
            _ => json!({"matchLabels": {"team": generator.choose(&["one", "two"])}}),
        };
    }
    if options.uses_current_features && has_selector && generator.is_one_in(6) {
        let field = generator.choose(&["matchLabelKeys", "mismatchLabelKeys"]);
        term[field] = json!([generator.choose(&["revision", "absent"])]);
    }
    term
}

fn random_node_term(generator: &mut RandomGenerator) -> Value {
    if generator.is_one_in(12) {
        let name = format!("host-{}", generator.next_below(24));
        let operator = generator.choose(&["In", "NotIn"]);
        return json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]});
    }
    let mut all = vec![random_requirement(generator, false)];
    if generator.is_one_in(2) {
        all.push(random_requirement(generator, false));
    }
    json!({"matchExpressions": all})
}

fn random_spread_constraint(generator: &mut RandomGenerator, options: GeneratorOptions) -> Value {
    let is_hard = generator.is_one_in(2);
    let mut one = json!({
        "topologyKey": generator.choose(&TOPOLOGY_KEYS),
        "maxSkew": 1 + generator.next_below(3),
        "whenUnsatisfiable": if is_hard { "DoNotSchedule" } else { "ScheduleAnyway" },
    });
    let has_selector = !generator.is_one_in(15);
    if has_selector {
        one["labelSelector"] = random_label_selector(generator);
        if !options.uses_current_features && one["labelSelector"] == json!({}) {
            one["labelSelector"] = json!({"matchLabels": {"app": "a"}});
        }
    }
    if options.uses_current_features {
        if is_hard && generator.is_one_in(4) {
            one["minDomains"] = (1 + generator.next_below(4)).into();
        }
        if generator.is_one_in(3) {
            one["nodeAffinityPolicy"] = generator.choose(&["Honor", "Ignore"]).into();
        }
        if generator.is_one_in(3) {
            one["nodeTaintsPolicy"] = generator.choose(&["Honor", "Ignore"]).into();
        }
        if has_selector && generator.is_one_in(6) {
            one["matchLabelKeys"] = json!(["revision"]);
        }
    }
    one
}

fn random_toleration(generator: &mut RandomGenerator) -> Value {
    match generator.next_below(7) {
        0 => json!({"operator": "Exists"}),
        1 => json!({"key": "dedicated", "operator": "Exists"}),
        2 => json!({"key": "dedicated", "value": "db", "effect": "NoSchedule"}),
        3 => json!({"key": "old", "operator": "Exists", "effect": "PreferNoSchedule"}),
        4 => json!({"key": "drained", "operator": "Exists", "effect": "NoExecute"}),
        5 => json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}),
        _ => json!({"operator": "Exists", "effect": "NoSchedule"}),
    }
}

fn generate_several(
    generator: &mut RandomGenerator,
    one_in: u64,
    mut make: impl FnMut(&mut RandomGenerator) -> Value,
) -> Vec<Value> {
    let mut all = Vec::new();
    while all.len() < 3 && generator.is_one_in(one_in + all.len() as u64) {
        all.push(make(generator));
    }
    all
}

pub(crate) fn random_pod(
    generator: &mut RandomGenerator,
    options: GeneratorOptions,
    name: &str,
) -> GeneratedPod {
    let mut labels = json!({"name": name, "app": generator.choose(&["a", "b", "c", "d"])});
    if !generator.is_one_in(3) {
        labels["tier"] = generator.choose(&["x", "y"]).into();
    }
    if !generator.is_one_in(3) {
        labels["revision"] = generator.choose(&["1", "2"]).into();
    }
    let weighted = |generator: &mut RandomGenerator, field: &str, value: Value| json!({"weight": 1 + generator.next_below(100), field: value});
    let preferred_near = |generator: &mut RandomGenerator| {
        let term = random_affinity_term(generator, options);
        weighted(generator, "podAffinityTerm", term)
    };
    let mut affinity = json!({});
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let terms = generate_several(generator, 5, random_node_term);
    if !terms.is_empty() {
        affinity["nodeAffinity"] = json!({REQUIRED: {"nodeSelectorTerms": &terms}});
    }
    let preferred = generate_several(generator, 4, |generator| {
        let term = random_node_term(generator);
        weighted(generator, "preference", term)
    });
    if !preferred.is_empty() {
        affinity["nodeAffinity"][PREFERRED] = preferred.into();
    }
    let near = generate_several(generator, 5, |generator| random_affinity_term(generator, options));
    let liked = generate_several(generator, 4, preferred_near);
    if !near.is_empty() || !liked.is_empty() {
        affinity["podAffinity"] = json!({REQUIRED: near, PREFERRED: liked});
    }
    let far = generate_several(generator, 5, |generator| random_affinity_term(generator, options));
    let disliked = generate_several(generator, 4, preferred_near);
    if !far.is_empty() || !disliked.is_empty() {
        affinity["podAntiAffinity"] = json!({REQUIRED: far, PREFERRED: disliked});
    }
    let mut node_selector = json!({});
    if generator.is_one_in(8) {
        node_selector["disk"] = generator.choose(&["ssd", "hdd"]).into();
    }
    let mut constraints =
        generate_several(generator, 3, |generator| random_spread_constraint(generator, options));
    // The API server accepts each topology key only once for each value of `whenUnsatisfiable`.
    constraints
        .sort_by_key(|one| (one["topologyKey"].to_string(), one["whenUnsatisfiable"].to_string()));
    constraints.dedup_by_key(|one| (one["topologyKey"].clone(), one["whenUnsatisfiable"].clone()));
    if !options.uses_current_features {
        // Kubernetes 1.20 also counts pods on hosts that the pod's node affinity excludes, if other hosts of the same
        // domain are eligible. Only a pod without node affinity may have a required constraint.
        let takes_all = terms.is_empty() && node_selector == json!({});
        let is_hard = |one: &Value| one["whenUnsatisfiable"] == "DoNotSchedule";
        let hard = constraints.iter().find(|one| takes_all && is_hard(one)).cloned();
        constraints.retain(|one| !is_hard(one));
        constraints.extend(hard);
    }
    let mut containers = Pod { uid: name.to_owned(), ..Pod::default() };
    containers.containers.push(random_container(generator, "c0".to_owned()));
    for number in 0..generator.next_below(3) {
        let mut one = random_container(generator, format!("i{number}"));
        one.is_sidecar = options.uses_current_features && generator.is_one_in(2);
        containers.init_containers.push(one);
    }
    if !options.is_for_api_server && generator.is_one_in(4) {
        containers.overhead.memory = 1 << 27;
    }
    let shown = |one: &Container| {
        let amounts = format_amounts(&one.requests, false);
        let mut shown = json!({"name": one.name, "image": "none", "resources": {"requests": amounts, "limits": amounts}});
        if one.is_sidecar {
            shown["restartPolicy"] = "Always".into();
        }
        shown
    };
    let pod = json!({
        "metadata": {"name": name, "namespace": generator.choose(&NAMESPACES), "labels": labels},
        "spec": {
            "affinity": affinity, "nodeSelector": node_selector,
            "tolerations": generate_several(generator, 3, random_toleration),
            "topologySpreadConstraints": constraints,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "containers": containers.containers.iter().map(shown).collect::<Vec<_>>(),
            "initContainers": containers.init_containers.iter().map(shown).collect::<Vec<_>>(),
        },
    });
    GeneratedPod { pod: serde_json::from_value(pod).unwrap(), containers }
}
