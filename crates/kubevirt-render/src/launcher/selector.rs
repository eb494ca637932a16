//! Node selector of a launcher pod (`nodeselectorrenderer.go`), and the node affinity that KubeVirt adds to the pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PreferredSchedulingTerm,
};

use super::cluster_objects::ClusterObjects;
use super::configuration::Configuration;
use super::gate::Gate;
use super::machine::Machine;
use super::spec::{Cpu, Spec};

const ARCHITECTURE: &str = "kubernetes.io/arch";

/// Returns the labels that the pod's node selector requires.
pub(super) fn required_labels(
    machine: &Machine,
    configuration: &Configuration,
    objects: &ClusterObjects,
) -> BTreeMap<String, String> {
    let (spec, version) = (&machine.spec, configuration.version);
    let mut all = BTreeMap::from([("kubevirt.io/schedulable".to_owned(), "true".to_owned())]);
    if !spec.architecture.is_empty() {
        all.insert(ARCHITECTURE.to_owned(), spec.architecture.to_lowercase());
    }
    all.extend(configuration.node_selectors.clone());
    all.extend(spec.node_selector.clone());
    if crosses_architectures(machine, configuration) {
        // With the feature gate CrossArchitectureVirtualization, KubeVirt selects the architecture by the label
        // `kubevirt.io/vm-arch-ARCHITECTURE`, and removes the label `kubernetes.io/arch` even if the machine sets it.
        all.remove(ARCHITECTURE);
    }

    let none = Cpu::default();
    let cpu = spec.domain.cpu.as_ref().unwrap_or(&none);
    let mut required_labels = Vec::new();
    let mut require =
        |is_required: bool, label: String| required_labels.extend(is_required.then_some(label));
    let cpu_manager_label =
        if version.is_at_least(8, 0) { "kubevirt.io/cpumanager" } else { "cpumanager" };
    require(cpu.dedicated_cpu_placement, cpu_manager_label.to_owned());
    let is_named_model = !matches!(cpu.model.as_str(), "" | "host-model" | "host-passthrough");
    require(is_named_model, format!("cpu-model.node.kubevirt.io/{}", cpu.model));
    if !cpu.model.is_empty() {
        for feature in &cpu.features {
            let required = matches!(feature.policy.as_str(), "" | "require");
            require(required, format!("cpu-feature.node.kubevirt.io/{}", feature.name));
        }
    }
    let kind = &spec.domain.machine.kind;
    require(
        version.is_at_least(5, 1) && !kind.is_empty(),
        format!("machine-type.node.kubevirt.io/{kind}"),
    );
    let frequency =
        configuration.tsc_frequency.or(objects.lowest_tsc_frequency).filter(|hz| *hz > 0);
    if let Some(hz) = frequency.filter(|_| needs_fixed_tsc(spec)) {
        require(true, format!("scheduling.node.kubevirt.io/tsc-frequency-{hz}"));
    }
    let is_secure_execution = spec.domain.launch_security.is_some() && spec.architecture == "s390x";
    require(cpu.realtime.is_some(), "kubevirt.io/realtime".to_owned());
    require(spec.is_sev(), "kubevirt.io/sev".to_owned());
    require(spec.is_sev_es(), "kubevirt.io/sev-es".to_owned());
    require(spec.is_snp(), "kubevirt.io/sev-snp".to_owned());
    require(is_secure_execution && version.is_at_least(6, 0), "kubevirt.io/s390-pv".to_owned());
    require(spec.is_tdx(), "kubevirt.io/tdx".to_owned());
    if configuration.is_gate_enabled(Gate::HypervStrictCheck) {
        for label in enlightenment_labels(spec) {
            require(true, label);
        }
    }
    if crosses_architectures(machine, configuration) {
        require(true, format!("kubevirt.io/vm-arch-{}", spec.architecture));
    }
    all.extend(required_labels.into_iter().map(|label| (label, "true".to_owned())));
    all
}

fn crosses_architectures(machine: &Machine, configuration: &Configuration) -> bool {
    configuration.is_gate_enabled(Gate::CrossArchitecture) && !machine.spec.architecture.is_empty()
}

/// Returns true if a guest needs a fixed TSC frequency (`GetTscFrequencyRequirement`; only on amd64).
fn needs_fixed_tsc(spec: &Spec) -> bool {
    let features = spec.domain.cpu.iter().flat_map(|cpu| &cpu.features);
    let invariant = |policy: &str| matches!(policy, "require" | "force");
    let fixed = features.into_iter().any(|f| f.name == "invtsc" && invariant(&f.policy));
    let hyperv = spec.domain.features.hyperv.as_ref();
    let guest = hyperv.and_then(|hyperv| hyperv.get("reenlightenment"));
    spec.architecture == "amd64" && (fixed || guest.is_some_and(|state| state.is_enabled()))
}

/// Returns the node labels for the Hyper-V enlightenments that the host's kernel must support
/// (`hypervNodeSelectors`).
fn enlightenment_labels(spec: &Spec) -> Vec<String> {
    let hyperv = spec.domain.features.hyperv.as_ref();
    let is_on = |name: &str| {
        hyperv.and_then(|hyperv| hyperv.get(name)).is_some_and(|state| state.is_enabled())
    };
    let kernel_enlightenments = [
        "vpindex",
        "runtime",
        "reset",
        "synic",
        "synictimer",
        "frequencies",
        "reenlightenment",
        "tlbflush",
        "ipi",
    ];
    let mut labels: Vec<_> = kernel_enlightenments
        .into_iter()
        .filter(|name| is_on(name))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|name| format!("hyperv.node.kubevirt.io/{name}"))
        .collect();
    labels.extend(is_on("evmcs").then(|| "cpu-vendor.node.kubevirt.io/Intel".to_owned()));
    labels
}

/// Returns the machine's affinity, extended by the requirements that `KubeVirt` adds (`setNodeAffinityForPod`).
pub(super) fn affinity(machine: &Machine, configuration: &Configuration) -> Option<Affinity> {
    let spec = &machine.spec;
    let mut affinity = spec.affinity.clone();
    let none = Cpu::default();
    let cpu = spec.domain.cpu.as_ref().unwrap_or(&none);
    if matches!(cpu.model.as_str(), "" | "host-model") {
        forbid_label(&mut affinity, "node-labeller.kubevirt.io/obsolete-host-model".to_owned());
    }
    for feature in cpu.features.iter().filter(|feature| feature.policy == "forbid") {
        forbid_label(&mut affinity, format!("cpu-feature.node.kubevirt.io/{}", feature.name));
    }
    if crosses_architectures(machine, configuration) {
        let architecture = Some(vec![spec.architecture.to_lowercase()]);
        let term = PreferredSchedulingTerm {
            weight: 100,
            preference: node_selector_term(ARCHITECTURE.to_owned(), "In", architecture),
        };
        let node = affinity.get_or_insert_default().node_affinity.get_or_insert_default();
        node.preferred_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(term);
    }
    affinity
}

/// Excludes nodes that have the label `label`. The requirement is added to every node selector term, because a node
/// needs to match only one of the terms.
fn forbid_label(affinity: &mut Option<Affinity>, label: String) {
    let node: &mut NodeAffinity =
        affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let new = node_selector_term(label, "DoesNotExist", None);
    match &mut node.required_during_scheduling_ignored_during_execution {
        Some(required) => {
            for term in &mut required.node_selector_terms {
                let requirements = new.match_expressions.clone().unwrap_or_default();
                term.match_expressions.get_or_insert_default().extend(requirements);
            }
        }
        required => *required = Some(NodeSelector { node_selector_terms: vec![new] }),
    }
}

fn node_selector_term(
    key: String,
    operator: &str,
    values: Option<Vec<String>>,
) -> NodeSelectorTerm {
    let requirement = NodeSelectorRequirement { key, operator: operator.to_owned(), values };
    NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None }
}
