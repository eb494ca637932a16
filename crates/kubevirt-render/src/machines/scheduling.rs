//! Node affinity, tolerations, scheduler and topology spread of a machine.

use berth_api::names::{SCHEDULER_NAME, VM_NODE_TAINT};
use serde_json::{Map, Value, json};

use super::defaults::PREFERENCE_NAMES;
use super::provider::{AffinityType, NodeAffinityPreset};
use super::render_context::InstanceType;
use super::renderer::MachineRenderer;

const REQUIRED_FIELD: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED_FIELD: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
/// Series of `deploy/instancetypes` with dedicated CPUs.
const PINNED_SERIES: [&str; 2] = ["performance-database", "performance"];

/// Returns `spec.template.spec.affinity`. As in machine-controller, the field is also set if it is empty.
pub(super) fn render_affinity(machine: &MachineRenderer<'_>) -> Value {
    let presets = &machine.provider.affinity;
    let mut affinity = Map::new();
    let node =
        render_node_affinity(presets.node_affinity.as_ref(), presets.node_anti_affinity.as_ref());
    if !node.is_empty() {
        affinity.insert("nodeAffinity".to_owned(), node.into());
    }
    for (field, strength) in
        [("podAffinity", presets.pod_affinity), ("podAntiAffinity", presets.pod_anti_affinity)]
    {
        let Some(strength) = strength else { continue };
        let term =
            json!({"labelSelector": deployment_selector(machine), "topologyKey": HOSTNAME_LABEL});
        let value = match strength {
            AffinityType::Hard => json!({REQUIRED_FIELD: [term]}),
            AffinityType::Soft => {
                json!({PREFERRED_FIELD: [{"weight": 1, "podAffinityTerm": term}]})
            }
        };
        affinity.insert(field.to_owned(), value);
    }
    affinity.into()
}

/// Renders the presets `affinity_preset` (node affinity) and `anti_affinity_preset` (node anti-affinity). A node must
/// satisfy all hard presets, so they become expressions of a single node selector term.
fn render_node_affinity(
    affinity_preset: Option<&NodeAffinityPreset>,
    anti_affinity_preset: Option<&NodeAffinityPreset>,
) -> Map<String, Value> {
    let expression = |preset: &NodeAffinityPreset, with: &str, without: &str| {
        if preset.values.is_empty() {
            json!({"key": preset.key, "operator": without})
        } else {
            json!({"key": preset.key, "operator": with, "values": preset.values})
        }
    };
    let affinity_expression =
        affinity_preset.map(|preset| (preset.affinity_type, expression(preset, "In", "Exists")));
    let anti_affinity_expression = anti_affinity_preset
        .map(|preset| (preset.affinity_type, expression(preset, "NotIn", "DoesNotExist")));
    let all: Vec<(AffinityType, Value)> =
        affinity_expression.into_iter().chain(anti_affinity_expression).collect();
    let with_strength = |strength: AffinityType| {
        all.iter().filter(move |(each, _)| *each == strength).map(|(_, expression)| expression)
    };
    let mut affinity = Map::new();
    let hard: Vec<&Value> = with_strength(AffinityType::Hard).collect();
    if !hard.is_empty() {
        affinity.insert(
            REQUIRED_FIELD.to_owned(),
            json!({"nodeSelectorTerms": [{"matchExpressions": hard}]}),
        );
    }
    let soft: Vec<Value> = with_strength(AffinityType::Soft)
        .map(|expression| json!({"weight": 1, "preference": {"matchExpressions": [expression]}}))
        .collect();
    if !soft.is_empty() {
        affinity.insert(PREFERRED_FIELD.to_owned(), soft.into());
    }
    affinity
}

/// Returns the label selector for the machines of the same MachineDeployment. In the older flat form of the
/// providerSpec (fields directly in `cloudProviderSpec`), the selector uses the label `machine` if the template has it.
fn deployment_selector(machine: &MachineRenderer<'_>) -> Value {
    let labels = &machine.deployment.spec.template.metadata.labels;
    match labels.get("machine").filter(|_| machine.provider.is_flat) {
        Some(label) => {
            json!({"matchExpressions": [{"key": "machine", "operator": "In", "values": [label]}]})
        }
        None => json!({"matchLabels": {"md": machine.deployment.metadata.name}}),
    }
}

/// Returns the name and the fields of the machine's instance type. If no such instance type was read, the fields are
/// those of the instance type with the same name in `deploy/instancetypes`.
pub(super) fn find_instancetype(machine: &MachineRenderer<'_>) -> Option<(String, InstanceType)> {
    let matcher = machine.provider.instancetype.as_ref()?;
    let text = |field: &str| matcher.get(field).and_then(Value::as_str).unwrap_or_default();
    let name = text("name").to_owned();
    let is_namespaced = text("kind").eq_ignore_ascii_case("VirtualMachineInstancetype");
    let namespace = if is_namespaced { machine.namespace.clone() } else { String::new() };
    let known = machine.context.instancetypes.get(&(namespace, name.clone())).cloned();
    let shipped = || {
        let is_in_series =
            |series: &&&str| name.strip_prefix(**series).is_some_and(|rest| rest.starts_with('-'));
        let series = PREFERENCE_NAMES.iter().find(is_in_series).filter(|_| !is_namespaced);
        InstanceType {
            scheduler_name: series.is_some().then(|| SCHEDULER_NAME.to_owned()),
            has_node_selector: false,
            has_dedicated_cpus: series.is_some_and(|series| PINNED_SERIES.contains(series)),
            devices: [Vec::new(), Vec::new()],
        }
    };
    Some((name.clone(), known.unwrap_or_else(shipped)))
}

/// Returns `schedulerName`, `nodeSelector` and `tolerations` of a machine.
///
/// KubeVirt rejects a VM that sets a field of its instance type, even with an equal value (`VM field(s) ... conflicts
/// with selected instance type`). Therefore a field is set only if the instance type does not set it.
pub(super) fn render_placement_fields(
    machine: &MachineRenderer<'_>,
) -> [(&'static str, Option<Value>); 3] {
    let instancetype = find_instancetype(machine);
    let type_scheduler =
        instancetype.as_ref().and_then(|(_, instancetype)| instancetype.scheduler_name.as_deref());
    let tenant_scheduler = machine.tenant.and_then(|tenant| {
        let name = tenant.metadata.name.as_deref().unwrap_or_default();
        Some((name, tenant.spec.scheduler_name.as_deref()?))
    });
    let scheduler = match (tenant_scheduler, type_scheduler) {
        (Some((_, tenant_scheduler)), None) => Some(tenant_scheduler),
        (Some((tenant, tenant_scheduler)), Some(type_scheduler))
            if tenant_scheduler != type_scheduler =>
        {
            let name = instancetype.as_ref().map(|(name, _)| name.as_str()).unwrap_or_default();
            let message = format!(
                "sets the scheduler `{type_scheduler}`, but TenantCluster {tenant} sets `{tenant_scheduler}` in spec.schedulerName: use another \
                 instance type, or remove spec.schedulerName"
            );
            let path = "spec.template.spec.providerSpec.value.cloudProviderSpec.virtualMachine.instancetype.name";
            machine.reporter.report_error(path, &machine.provider.instancetype_name(name), message);
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
            "cannot be set because instance type {} also sets a node selector: remove one of them",
            machine.provider.instancetype_name(name)
        );
        machine.reporter.report_error(path, "", message);
    }
    let mut tolerations = machine.provider.tolerations.clone();
    // Administrators can taint hosts with `VM_NODE_TAINT` so that they run no pods of other schedulers.
    if scheduler.or(type_scheduler) == Some(SCHEDULER_NAME) {
        tolerations.push(json!({"key": VM_NODE_TAINT, "operator": "Exists"}));
    }
    [
        ("schedulerName", scheduler.map(Value::from)),
        ("nodeSelector", selector),
        ("tolerations", (!tolerations.is_empty()).then(|| tolerations.into())),
    ]
}

/// Returns `spec.template.spec.topologySpreadConstraints`.
pub(super) fn render_spread_constraints(machine: &MachineRenderer<'_>) -> Vec<Value> {
    let selector = json!({"matchLabels": {"md": machine.deployment.metadata.name}});
    let constraint = |skew: i32, key: &str, when: &str| json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector});
    let constraints = &machine.provider.spread_constraints;
    if constraints.is_empty() {
        return vec![constraint(1, HOSTNAME_LABEL, "ScheduleAnyway")];
    }
    constraints
        .iter()
        .map(|each| constraint(each.max_skew, &each.topology_key, &each.when_unsatisfiable))
        .collect()
}
