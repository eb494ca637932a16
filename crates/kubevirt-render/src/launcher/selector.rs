//! Which nodes a launcher pod asks for by labels (`nodeselectorrenderer.go`), and what is added to its affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PreferredSchedulingTerm,
};

use super::configuration::{Configuration, Gate};
use super::machine::Machine;
use super::spec::{Cpu, Spec};
use super::surroundings::Surroundings;

const ARCHITECTURE: &str = "kubernetes.io/arch";

/// Labels that a node must have.
pub(super) fn labels(
    machine: &Machine,
    configuration: &Configuration,
    around: &Surroundings,
) -> BTreeMap<String, String> {
    let (spec, version) = (&machine.spec, configuration.version);
    let mut all = BTreeMap::from([("kubevirt.io/schedulable".to_owned(), "true".to_owned())]);
    if !spec.architecture.is_empty() {
        all.insert(ARCHITECTURE.to_owned(), spec.architecture.to_lowercase());
    }
    all.extend(configuration.node_selectors.clone());
    all.extend(spec.node_selector.clone());
    if crosses_architectures(machine, configuration) {
        // Asked of the node by another label, and even if the machine itself names one.
        all.remove(ARCHITECTURE);
    }

    let none = Cpu::default();
    let cpu = spec.domain.cpu.as_ref().unwrap_or(&none);
    let mut wanted = Vec::new();
    let mut want = |is: bool, label: String| wanted.extend(is.then_some(label));
    let pinnable = if version.since(8, 0) { "kubevirt.io/cpumanager" } else { "cpumanager" };
    want(cpu.dedicated_cpu_placement, pinnable.to_owned());
    let named = !matches!(cpu.model.as_str(), "" | "host-model" | "host-passthrough");
    want(named, format!("cpu-model.node.kubevirt.io/{}", cpu.model));
    if !cpu.model.is_empty() {
        for feature in &cpu.features {
            let required = matches!(feature.policy.as_str(), "" | "require");
            want(required, format!("cpu-feature.node.kubevirt.io/{}", feature.name));
        }
    }
    let kind = &spec.domain.machine.kind;
    want(version.since(5, 1) && !kind.is_empty(), format!("machine-type.node.kubevirt.io/{kind}"));
    let frequency =
        configuration.tsc_frequency.or(around.lowest_tsc_frequency).filter(|hz| *hz > 0);
    if let Some(hz) = frequency.filter(|_| needs_fixed_tsc(spec)) {
        want(true, format!("scheduling.node.kubevirt.io/tsc-frequency-{hz}"));
    }
    let secure = spec.domain.launch_security.is_some() && spec.architecture == "s390x";
    want(cpu.realtime.is_some(), "kubevirt.io/realtime".to_owned());
    want(spec.is_sev(), "kubevirt.io/sev".to_owned());
    want(spec.is_sev_es(), "kubevirt.io/sev-es".to_owned());
    want(spec.is_snp(), "kubevirt.io/sev-snp".to_owned());
    want(secure && version.since(6, 0), "kubevirt.io/s390-pv".to_owned());
    want(spec.is_tdx(), "kubevirt.io/tdx".to_owned());
    if configuration.gate(Gate::HypervStrictCheck) {
        for label in enlightenments(spec) {
            want(true, label);
        }
    }
    if crosses_architectures(machine, configuration) {
        want(true, format!("kubevirt.io/vm-arch-{}", spec.architecture));
    }
    all.extend(wanted.into_iter().map(|label| (label, "true".to_owned())));
    all
}

fn crosses_architectures(machine: &Machine, configuration: &Configuration) -> bool {
    configuration.gate(Gate::CrossArchitecture) && !machine.spec.architecture.is_empty()
}

/// `GetTscFrequencyRequirement`, which the hinter follows on amd64.
fn needs_fixed_tsc(spec: &Spec) -> bool {
    let features = spec.domain.cpu.iter().flat_map(|cpu| &cpu.features);
    let invariant = |policy: &str| matches!(policy, "require" | "force");
    let fixed = features.into_iter().any(|f| f.name == "invtsc" && invariant(&f.policy));
    let hyperv = spec.domain.features.hyperv.as_ref();
    let guest = hyperv.and_then(|hyperv| hyperv.get("reenlightenment"));
    spec.architecture == "amd64" && (fixed || guest.is_some_and(|switch| switch.is_on()))
}

/// `hypervNodeSelectors`: only those that the host's kernel must know.
fn enlightenments(spec: &Spec) -> Vec<String> {
    let hyperv = spec.domain.features.hyperv.as_ref();
    let is_on = |name: &str| {
        hyperv.and_then(|hyperv| hyperv.get(name)).is_some_and(|switch| switch.is_on())
    };
    let host = [
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
    let mut labels: Vec<_> = host
        .into_iter()
        .filter(|name| is_on(name))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|name| format!("hyperv.node.kubevirt.io/{name}"))
        .collect();
    labels.extend(is_on("evmcs").then(|| "cpu-vendor.node.kubevirt.io/Intel".to_owned()));
    labels
}

/// The machine's affinity, with what `KubeVirt` adds to it (`setNodeAffinityForPod`).
pub(super) fn affinity(machine: &Machine, configuration: &Configuration) -> Option<Affinity> {
    let spec = &machine.spec;
    let mut affinity = spec.affinity.clone();
    let none = Cpu::default();
    let cpu = spec.domain.cpu.as_ref().unwrap_or(&none);
    if matches!(cpu.model.as_str(), "" | "host-model") {
        reject(&mut affinity, "node-labeller.kubevirt.io/obsolete-host-model".to_owned());
    }
    for feature in cpu.features.iter().filter(|feature| feature.policy == "forbid") {
        reject(&mut affinity, format!("cpu-feature.node.kubevirt.io/{}", feature.name));
    }
    if crosses_architectures(machine, configuration) {
        let architecture = Some(vec![spec.architecture.to_lowercase()]);
        let term = PreferredSchedulingTerm {
            weight: 100,
            preference: term(ARCHITECTURE.to_owned(), "In", architecture),
        };
        let node = affinity.get_or_insert_default().node_affinity.get_or_insert_default();
        node.preferred_during_scheduling_ignored_during_execution
            .get_or_insert_default()
            .push(term);
    }
    affinity
}

/// Nodes with the label are out: said in every term, as one of them is enough.
fn reject(affinity: &mut Option<Affinity>, label: String) {
    let node: &mut NodeAffinity =
        affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let new = term(label, "DoesNotExist", None);
    match &mut node.required_during_scheduling_ignored_during_execution {
        Some(required) => {
            for term in &mut required.node_selector_terms {
                let more = new.match_expressions.clone().unwrap_or_default();
                term.match_expressions.get_or_insert_default().extend(more);
            }
        }
        required => *required = Some(NodeSelector { node_selector_terms: vec![new] }),
    }
}

fn term(key: String, operator: &str, values: Option<Vec<String>>) -> NodeSelectorTerm {
    let requirement = NodeSelectorRequirement { key, operator: operator.to_owned(), values };
    NodeSelectorTerm { match_expressions: Some(vec![requirement]), match_fields: None }
}
