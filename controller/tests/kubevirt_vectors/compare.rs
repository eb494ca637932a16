//! Compares a predicted launcher pod with the recorded launcher pod, one aspect at a time.

use std::collections::BTreeMap;

use berth_kubelet_admission::pod::{Container, Pod, Resources};
use berth_kubevirt_render::launcher::Launcher;
use serde_json::{Map, Value, json};

use super::format::{Case, ContainerRecord, ErrorRecord, GuestRecord, PodRecord, amount};

/// Compared values of a launcher pod, by name.
type Aspects = BTreeMap<&'static str, Value>;

/// A difference between a prediction and a record.
pub(crate) struct Difference {
    /// Name of a kind of difference: [`KNOWN_DIFFERENCES`](super::KNOWN_DIFFERENCES) lists the known kinds.
    pub(crate) class: String,
    pub(crate) predicted: String,
    pub(crate) recorded: String,
}

/// Result of the comparison of one machine.
pub(crate) enum Outcome {
    Equal,
    Different(Vec<Difference>),
    /// Berth and KubeVirt refuse the machine. The difference is set if their refusals name different fields although
    /// the fields must be the same (see [`conflict_fields`]).
    RefusedByBoth(Option<Difference>),
    RefusedByKubeVirt(Difference),
    RefusedByBerth(Difference),
}

/// Annotations that are compared, because only these were recorded.
const ANNOTATIONS: [&str; 2] = ["k8s.v1.cni.cncf.io/networks", "sidecar.istio.io/inject"];
/// Prefix of the labels that identify PersistentVolumeClaims in the pod anti-affinity for persistent reservations.
const CLAIM_LABEL: &str = "pr.kubevirt.io/";

pub(crate) fn compare(case: &Case) -> Outcome {
    match (case.predict(), &case.pod, &case.error) {
        (Ok(launcher), Some(pod), _) => {
            let guest = case.guest.as_ref().expect("a recorded pod should have a guest");
            let differences =
                differences(&predicted_aspects(&launcher), &recorded_aspects(pod, guest));
            if differences.is_empty() { Outcome::Equal } else { Outcome::Different(differences) }
        }
        (Ok(_), None, Some(refusal)) => Outcome::RefusedByKubeVirt(Difference {
            class: refusal_class(refusal).to_owned(),
            predicted: "a pod".to_owned(),
            recorded: format!("{}: {:?}", refusal.stage, refusal.causes),
        }),
        (Err(invalid), Some(_), _) => Outcome::RefusedByBerth(Difference {
            class: own_refusal_class(&invalid.field).to_owned(),
            predicted: invalid.to_string(),
            recorded: "a pod".to_owned(),
        }),
        (Err(invalid), None, Some(refusal)) => {
            let fields = conflict_fields(refusal);
            let is_same = fields.is_empty() || fields.contains(&invalid.field.as_str());
            Outcome::RefusedByBoth((!is_same).then(|| Difference {
                class: "the field of a conflict".to_owned(),
                predicted: invalid.to_string(),
                recorded: format!("{:?}", refusal.causes),
            }))
        }
        (_, None, None) => panic!("{}: the record has neither a pod nor an error", case.id),
    }
}

/// Returns the fields of those causes that are conflicts with an instance type or a preference: both set a field, vCPUs
/// cannot be spread, or a requirement is not met. Berth must name one of these fields.
fn conflict_fields(refusal: &ErrorRecord) -> Vec<&str> {
    let texts = [
        "conflicts with selected instance type",
        "are not divisible by",
        "failure checking preference requirements",
    ];
    let is_conflict = |message: &str| texts.iter().any(|text| message.contains(text));
    let causes = refusal.causes.iter().filter(|cause| is_conflict(&cause.message));
    causes.map(|cause| cause.field.as_str()).collect()
}

/// Returns the class of a difference: KubeVirt refuses a machine that Berth accepts. The class depends on the first
/// cause.
fn refusal_class(refusal: &ErrorRecord) -> &'static str {
    let cause = refusal.causes.first();
    let (field, message) =
        cause.map_or(("", ""), |cause| (cause.field.as_str(), cause.message.as_str()));
    let is_mutated = matches!(refusal.stage.as_str(), "vm-mutate" | "vmi-mutate");
    if is_mutated || message.contains(" in body ") {
        "KubeVirt: schema"
    } else if message.contains("is not enabled") {
        "KubeVirt: feature gate"
    } else if field.ends_with("memory.guest") {
        "KubeVirt: guest memory"
    } else if field.ends_with("launchSecurity") {
        "KubeVirt: launch security"
    } else if field.ends_with("machine.type") {
        "KubeVirt: machine type"
    } else if conflict_fields(refusal).is_empty() {
        "KubeVirt: other checks"
    } else {
        "KubeVirt: conflict"
    }
}

/// Returns the class of a difference: Berth refuses a machine that KubeVirt accepts. The class depends on the field
/// that Berth names.
fn own_refusal_class(field: &str) -> &'static str {
    if field.ends_with("memory.guest") {
        "Berth: guest memory"
    } else if field.ends_with("domain.cpu") {
        "Berth: number of CPUs"
    } else if field == "spec.instancetype" {
        "Berth: instance type"
    } else if field.ends_with("addedOverhead") {
        "Berth: negative overhead"
    } else if field.ends_with(".devices.gpus") {
        "Berth: device"
    } else if field.contains(".resources.requests.") {
        "Berth: resource name"
    } else {
        "Berth: other"
    }
}

fn differences(predicted: &Aspects, recorded: &Aspects) -> Vec<Difference> {
    let unequal = recorded.iter().filter(|(aspect, value)| predicted.get(*aspect) != Some(*value));
    let differences = unequal.map(|(aspect, value)| {
        let own = predicted.get(aspect).unwrap_or(&Value::Null);
        let is_of_claims = *aspect == "affinity" && without_claims(value) == *own;
        let class = if is_of_claims { "affinity of claims" } else { *aspect };
        Difference {
            class: class.to_owned(),
            predicted: own.to_string(),
            recorded: value.to_string(),
        }
    });
    differences.collect()
}

/// Returns an affinity without the terms that contain UIDs of PersistentVolumeClaims, which the prediction cannot know.
fn without_claims(affinity: &Value) -> Value {
    let mut affinity = affinity.clone();
    let path = "/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    if let Some(Value::Array(terms)) = affinity.pointer_mut(path) {
        terms.retain(|term| {
            let labels = term.pointer("/labelSelector/matchExpressions").and_then(Value::as_array);
            let mut keys = labels.into_iter().flatten().filter_map(|label| label["key"].as_str());
            !keys.any(|key| key.starts_with(CLAIM_LABEL))
        });
    }
    without_empty(affinity)
}

/// Returns a value without empty fields, as in the records. Empty elements of lists remain.
fn without_empty(value: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    match value {
        Value::Object(map) => {
            let fields = map.into_iter().map(|(key, value)| (key, without_empty(value)));
            let kept: Map<_, _> = fields.filter(|(_, value)| !is_empty(value)).collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        Value::Array(items) if items.is_empty() => Value::Null,
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        other => other,
    }
}

fn aspects<const N: usize>(all: [(&'static str, Value); N]) -> Aspects {
    all.into_iter().map(|(aspect, value)| (aspect, without_empty(value))).collect()
}

fn predicted_aspects(launcher: &Launcher) -> Aspects {
    let pod = &launcher.pod;
    let mut labels = launcher.labels.clone();
    labels.remove("kubevirt.io/created-by");
    let annotations = ANNOTATIONS.map(|name| (name, launcher.annotations.get(name)));
    let annotations: BTreeMap<_, _> = annotations.into_iter().collect();
    aspects([
        ("containers", pod.containers.iter().map(container).collect()),
        ("initContainers", pod.init_containers.iter().map(container).collect()),
        ("ephemeralStorage", json!(launcher.ephemeral_storage)),
        ("qosClass", json!(qos_class(pod))),
        ("labels", json!(labels)),
        ("annotations", json!(annotations)),
        ("nodeSelector", json!(launcher.node_selector)),
        ("affinity", json!(launcher.affinity)),
        ("tolerations", json!(launcher.tolerations)),
        ("topologySpreadConstraints", json!(launcher.spread)),
        ("schedulerName", json!(launcher.scheduler_name)),
        ("priorityClassName", json!(launcher.priority_class)),
        ("resourceClaims", json!(launcher.resource_claims)),
        ("memoryOverhead", json!(launcher.memory_overhead)),
        ("vcpus", json!(launcher.vcpus)),
        ("guestMemory", json!(launcher.guest_memory)),
    ])
}

fn recorded_aspects(pod: &PodRecord, guest: &GuestRecord) -> Aspects {
    let scheduler = pod.scheduler_name.as_deref().unwrap_or("default-scheduler");
    let claims: Vec<&str> = pod.resource_claims.iter().map(|claim| claim.name.as_str()).collect();
    // A count of 0 means that the count is not set.
    let counts = [guest.sockets, guest.cores, guest.threads];
    let vcpus: u64 = counts.into_iter().filter(|count| *count != 0).product();
    aspects([
        ("containers", pod.containers.iter().map(recorded_container).collect()),
        ("initContainers", pod.init_containers.iter().map(recorded_container).collect()),
        ("ephemeralStorage", json!(recorded_storage(pod))),
        ("qosClass", json!(pod.qos_class)),
        ("labels", pod.labels.clone()),
        ("annotations", pod.annotations.clone()),
        ("nodeSelector", pod.node_selector.clone()),
        ("affinity", pod.affinity.clone()),
        ("tolerations", pod.tolerations.clone()),
        ("topologySpreadConstraints", pod.topology_spread_constraints.clone()),
        ("schedulerName", json!(scheduler)),
        ("priorityClassName", json!(pod.priority_class_name)),
        ("resourceClaims", json!(claims)),
        ("memoryOverhead", json!(pod.memory_overhead)),
        ("vcpus", json!(vcpus)),
        ("guestMemory", json!(guest.memory)),
    ])
}

fn container(container: &Container) -> Value {
    json!({
        "name": container.name,
        "isSidecar": container.is_sidecar,
        "requests": amounts(&container.requests),
        "limits": amounts(&container.limits),
    })
}

fn recorded_container(container: &ContainerRecord) -> Value {
    json!({
        "name": container.name,
        "isSidecar": is_sidecar(container),
        "requests": recorded_amounts(&container.requests),
        "limits": recorded_amounts(&container.limits),
    })
}

fn is_sidecar(container: &ContainerRecord) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Returns the resources by name, in thousandths of a CPU, bytes or numbers of devices.
fn amounts(resources: &Resources) -> BTreeMap<String, u64> {
    let mut all = resources.extended.clone();
    all.extend(
        resources.hugepages.iter().map(|(size, bytes)| (format!("hugepages-{size}"), *bytes)),
    );
    all.insert("cpu".to_owned(), resources.cpu_millis);
    all.insert("memory".to_owned(), resources.memory);
    all.retain(|_, amount| *amount != 0);
    all
}

/// Returns the recorded resources in the same format as [`amounts`], without ephemeral storage.
fn recorded_amounts(resources: &BTreeMap<String, String>) -> BTreeMap<&str, u64> {
    let listed = resources.iter().filter(|(name, _)| *name != "ephemeral-storage");
    let amounts = listed
        .map(|(name, text)| (name.as_str(), amount(text, if name == "cpu" { 1000 } else { 1 })));
    amounts.filter(|(_, amount)| *amount != 0).collect()
}

/// Returns the ephemeral storage that a pod requests. Init containers that are not sidecars run one after the other,
/// before the containers.
fn recorded_storage(pod: &PodRecord) -> u64 {
    let storage = |container: &ContainerRecord| {
        container.requests.get("ephemeral-storage").map_or(0, |text| amount(text, 1))
    };
    let (sidecars, others): (Vec<_>, Vec<_>) =
        pod.init_containers.iter().partition(|container| is_sidecar(container));
    let concurrent: u64 = pod.containers.iter().chain(sidecars).map(storage).sum();
    others.into_iter().map(storage).fold(concurrent, u64::max)
}

fn qos_class(pod: &Pod) -> &'static str {
    let amounts = |container: &Container| {
        let (requests, limits) = (&container.requests, &container.limits);
        [requests.cpu_millis, requests.memory, limits.cpu_millis, limits.memory]
    };
    let mut containers = pod.init_containers.iter().chain(&pod.containers);
    if pod.is_guaranteed() {
        "Guaranteed"
    } else if containers.all(|container| amounts(container) == [0; 4]) {
        "BestEffort"
    } else {
        "Burstable"
    }
}
