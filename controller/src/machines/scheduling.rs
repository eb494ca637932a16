//! Which hosts a machine may go to, and how machines of one deployment are spread.

use serde_json::{Map, Value, json};

use super::provider::{NodePreset, Strength};
use super::render::Machine;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// `spec.template.spec.affinity`; there is always one, as machine-controller has it.
pub(super) fn affinity(machine: &Machine<'_>) -> Value {
    let presets = &machine.provider.affinity;
    let mut affinity = Map::new();
    let node = node_affinity(presets.node.as_ref(), presets.node_anti.as_ref());
    if !node.is_empty() {
        affinity.insert("nodeAffinity".to_owned(), node.into());
    }
    for (field, strength) in [("podAffinity", presets.pod), ("podAntiAffinity", presets.pod_anti)] {
        let Some(strength) = strength else { continue };
        let term = json!({"labelSelector": of_deployment(machine), "topologyKey": HOSTNAME});
        let value = match strength {
            Strength::Hard => json!({REQUIRED: [term]}),
            Strength::Soft => json!({PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}),
        };
        affinity.insert(field.to_owned(), value);
    }
    affinity.into()
}

/// Those that are hard must all hold, so they stand in one term.
fn node_affinity(near: Option<&NodePreset>, far: Option<&NodePreset>) -> Map<String, Value> {
    let expression = |preset: &NodePreset, with: &str, without: &str| {
        if preset.values.is_empty() {
            json!({"key": preset.key, "operator": without})
        } else {
            json!({"key": preset.key, "operator": with, "values": preset.values})
        }
    };
    let near = near.map(|preset| (preset.strength, expression(preset, "In", "Exists")));
    let far = far.map(|preset| (preset.strength, expression(preset, "NotIn", "DoesNotExist")));
    let all: Vec<(Strength, Value)> = near.into_iter().chain(far).collect();
    let of = |wanted: Strength| {
        all.iter()
            .filter(move |(strength, _)| *strength == wanted)
            .map(|(_, expression)| expression)
    };
    let mut affinity = Map::new();
    let hard: Vec<&Value> = of(Strength::Hard).collect();
    if !hard.is_empty() {
        affinity.insert(
            REQUIRED.to_owned(),
            json!({"nodeSelectorTerms": [{"matchExpressions": hard}]}),
        );
    }
    let soft: Vec<Value> = of(Strength::Soft)
        .map(|expression| json!({"weight": 1, "preference": {"matchExpressions": [expression]}}))
        .collect();
    if !soft.is_empty() {
        affinity.insert(PREFERRED.to_owned(), soft.into());
    }
    affinity
}

/// Machines of the same deployment. Those of the first proposal are told by their label `machine`.
fn of_deployment(machine: &Machine<'_>) -> Value {
    let labels = &machine.deployment.spec.template.metadata.labels;
    match labels.get("machine").filter(|_| machine.provider.is_flat) {
        Some(label) => {
            json!({"matchExpressions": [{"key": "machine", "operator": "In", "values": [label]}]})
        }
        None => json!({"matchLabels": {"md": machine.deployment.metadata.name}}),
    }
}

/// `spec.template.spec.topologySpreadConstraints`
pub(super) fn spread(machine: &Machine<'_>) -> Vec<Value> {
    let selector = json!({"matchLabels": {"md": machine.deployment.metadata.name}});
    let one = |skew: i32, key: &str, when: &str| json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector});
    let given = &machine.provider.spread;
    if given.is_empty() {
        return vec![one(1, HOSTNAME, "ScheduleAnyway")];
    }
    given
        .iter()
        .map(|each| one(each.max_skew, &each.topology_key, &each.when_unsatisfiable))
        .collect()
}
