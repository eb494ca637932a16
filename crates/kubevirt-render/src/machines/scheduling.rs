//! Which hosts a machine may go to, and how machines of one deployment are spread.

use berth_api::names::{SCHEDULER, VMS_TAINT};
use serde_json::{Map, Value, json};

use super::context::InstanceType;
use super::defaults::PREFERENCES;
use super::provider::{NodePreset, Strength};
use super::render::MachineRenderer;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// `spec.template.spec.affinity`; there is always one, as machine-controller has it.
pub(super) fn affinity(machine: &MachineRenderer<'_>) -> Value {
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

/// Those that are hard must all backoff, so they stand in one term.
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
fn of_deployment(machine: &MachineRenderer<'_>) -> Value {
    let labels = &machine.deployment.spec.template.metadata.labels;
    match labels.get("machine").filter(|_| machine.provider.is_flat) {
        Some(label) => {
            json!({"matchExpressions": [{"key": "machine", "operator": "In", "values": [label]}]})
        }
        None => json!({"matchLabels": {"md": machine.deployment.metadata.name}}),
    }
}

/// The instance type of a machine and its name. Of one that is not known, what is shipped under its name.
fn instancetype(machine: &MachineRenderer<'_>) -> Option<(String, InstanceType)> {
    let matcher = machine.provider.instancetype.as_ref()?;
    let text = |field: &str| matcher.get(field).and_then(Value::as_str).unwrap_or_default();
    let name = text("name").to_owned();
    let is_of_namespace = text("kind").eq_ignore_ascii_case("VirtualMachineInstancetype");
    let namespace = if is_of_namespace { machine.namespace.clone() } else { String::new() };
    let known = machine.context.instancetypes.get(&(namespace, name.clone())).cloned();
    let shipped = || {
        let is_of =
            |series: &&str| name.strip_prefix(*series).is_some_and(|rest| rest.starts_with('-'));
        let is_shipped = !is_of_namespace && PREFERENCES.iter().any(is_of);
        let scheduler = is_shipped.then(|| SCHEDULER.to_owned());
        InstanceType { scheduler, has_node_selector: false }
    };
    Some((name.clone(), known.unwrap_or_else(shipped)))
}

/// What a machine says of its scheduler, its hosts' labels and their taints.
///
/// KubeVirt refuses a machine that says what its instance type says, even the same (`VM field(s) ... conflicts with selected
/// instance type`), so one of them says it.
pub(super) fn placement(machine: &MachineRenderer<'_>) -> [(&'static str, Option<Value>); 3] {
    let instancetype = instancetype(machine);
    let theirs =
        instancetype.as_ref().and_then(|(_, instancetype)| instancetype.scheduler.as_deref());
    let asked = machine.tenant.and_then(|tenant| {
        let name = tenant.metadata.name.as_deref().unwrap_or_default();
        Some((name, tenant.spec.scheduler_name.as_deref()?))
    });
    let own = match (asked, theirs) {
        (Some((_, asked)), None) => Some(asked),
        (Some((tenant, asked)), Some(theirs)) if asked != theirs => {
            let name = instancetype.as_ref().map(|(name, _)| name.as_str()).unwrap_or_default();
            let message = format!(
                "names the scheduler `{theirs}`, and TenantCluster {tenant} names `{asked}` in spec.schedulerName: choose \
                 another instance type, or take spec.schedulerName away"
            );
            let path = "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.instancetype.name";
            machine.reader.error(path, &machine.provider.type_name(name), message);
            None
        }
        _ => None,
    };
    let selector = machine.provider.node_selector.clone();
    if let Some((name, InstanceType { has_node_selector: true, .. })) = &instancetype
        && selector.is_some()
    {
        let path = "spec.template.spec.providerSpec.value.cloudProviderSpec.nodeSelector";
        let message = format!(
            "stands beside one of instance type {}: keep one of the two",
            machine.provider.type_name(name)
        );
        machine.reader.error(path, "", message);
    }
    let mut tolerations = machine.provider.tolerations.clone();
    // Pods of other schedulers can be kept off hosts by this taint.
    if own.or(theirs) == Some(SCHEDULER) {
        tolerations.push(json!({"key": VMS_TAINT, "operator": "Exists"}));
    }
    [
        ("schedulerName", own.map(Value::from)),
        ("nodeSelector", selector),
        ("tolerations", (!tolerations.is_empty()).then(|| tolerations.into())),
    ]
}

/// `spec.template.spec.topologySpreadConstraints`
pub(super) fn spread(machine: &MachineRenderer<'_>) -> Vec<Value> {
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
