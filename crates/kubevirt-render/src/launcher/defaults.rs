//! Defaults that `KubeVirt`'s webhook sets in a VirtualMachineInstance (`pkg/defaults`, `ApplyNewVMIMutations`).

use super::compute::set_missing_memory_request;
use super::configuration::{Configuration, EVEN_PARITY_ANNOTATION};
use super::gate::Gate;
use super::machine::Machine;
use super::spec::{CpuFeature, Hyperv, Interface, Spec, amount};

/// Adds the default interface to a machine without interfaces (`SetDefaultNetworkInterface`).
pub(super) fn add_default_network(spec: &mut Spec) {
    let devices = &mut spec.domain.devices;
    let is_enabled = devices.autoattach_pod_interface.unwrap_or(true);
    if is_enabled && spec.networks.is_empty() && devices.interfaces.is_empty() {
        let name = "default".to_owned();
        devices.interfaces.push(Interface { name, ..Interface::default() });
    }
}

/// Sets the defaults of a machine in the same way as the webhook.
pub(super) fn apply(machine: &mut Machine, configuration: &Configuration) {
    let version = configuration.version;
    let spec = &mut machine.spec;
    if spec.architecture.is_empty() {
        spec.architecture.clone_from(&configuration.architecture);
    }
    if spec.domain.machine.kind.is_empty() {
        let by_architecture = || configuration.machine_types.get(&spec.architecture);
        let kind = configuration.machine_type.as_ref().or_else(by_architecture);
        spec.domain.machine.kind = kind.cloned().unwrap_or_else(|| "q35".to_owned());
    }
    // Fields that a KubeVirt release does not have are removed, because the API server drops unknown fields.
    if !version.is_at_least(7, 0)
        && let Some(security) = &mut spec.domain.launch_security
    {
        (security.snp, security.tdx) = (None, None);
    }
    if !version.is_at_least(8, 0) {
        spec.domain.memory.reserved_overhead.added_overhead = None;
        spec.domain.devices.interfaces.iter_mut().for_each(|it| it.passt_binding = None);
    }
    if !version.is_at_least(5, 0) {
        spec.domain.io_threads.supplemental_pool_thread_count = None;
    }
    set_default_requests(spec, configuration);
    spec.domain.memory.guest = spec.guest_memory();
    set_default_topology(spec);
    add_default_network(spec);
    let cpu = spec.domain.cpu.get_or_insert_default();
    if cpu.model.is_empty() {
        // The configured CPU model is not used for arm64, because `setDefaultArm64CPUModel` precedes
        // `setDefaultCPUModel`.
        let configured = configuration.cpu_model.as_deref().unwrap_or("host-model");
        let is_arm = spec.architecture == "arm64";
        cpu.model = if is_arm { "host-passthrough" } else { configured }.to_owned();
    }
    let parity = configuration.even_parity && configuration.is_gate_enabled(Gate::AlignCpus);
    if cpu.isolate_emulator_thread && parity {
        machine.annotations.insert(EVEN_PARITY_ANNOTATION.to_owned(), String::new());
    }
    if let Some(hyperv) = &mut spec.domain.features.hyperv {
        enable_required_enlightenments(hyperv);
        if hyperv.get("evmcs").is_some_and(|state| state.is_enabled()) {
            require_cpu_feature(&mut cpu.features, "vmx");
        }
    }
}

/// Sets default requests (`setDefaultResourceRequests`). Before 1.6.4 and 1.7, this function of KubeVirt also set the
/// memory request, from which the overhead for page tables is then calculated.
fn set_default_requests(spec: &mut Spec, configuration: &Configuration) {
    let dedicated = spec.is_dedicated();
    let resources = &mut spec.domain.resources;
    let cpu = amount(&resources.limits, "cpu");
    if !cpu.is_zero() && amount(&resources.requests, "cpu").is_zero() {
        resources.requests.insert("cpu".to_owned(), cpu);
    }
    if !configuration.version.is_at_least(6, 4) {
        set_missing_memory_request(spec, configuration.memory_overcommit);
    }
    if let Some(cpu) = configuration.cpu_request.filter(|_| !dedicated) {
        spec.domain.resources.requests.entry("cpu".to_owned()).or_insert(cpu);
    }
}

/// Sets the default CPU topology (`SetDefaultGuestCPUTopology`). The number of sockets is the CPU limit, or the CPU
/// request if there is no limit.
fn set_default_topology(spec: &mut Spec) {
    let resources = &spec.domain.resources;
    let requested = resources.limits.get("cpu").or_else(|| resources.requests.get("cpu"));
    let sockets = requested
        .map_or(1, |cpus| u32::try_from(cpus.whole_units_rounded_up()).unwrap_or(u32::MAX));
    let cpu = spec.domain.cpu.get_or_insert_default();
    if (cpu.cores, cpu.sockets, cpu.threads) == (0, 0, 0) {
        (cpu.sockets, cpu.cores, cpu.threads) = (sockets, 1, 1);
    }
}

/// Enables each Hyper-V enlightenment that another enabled enlightenment requires, in the order of
/// `SetHypervFeatureDependencies`.
fn enable_required_enlightenments(hyperv: &mut Hyperv) {
    for (feature, needs) in [
        ("evmcs", "vapic"),
        ("ipi", "vpindex"),
        ("tlbflush", "vpindex"),
        ("synictimer", "synic"),
        ("synic", "vpindex"),
    ] {
        if hyperv.get(feature).is_some_and(|state| state.is_enabled())
            && !hyperv.entry(needs.to_owned()).or_default().is_enabled()
        {
            // The required enlightenment is explicitly disabled. The webhook also stops here, and rejects the VM in a
            // later step.
            return;
        }
    }
}

fn require_cpu_feature(features: &mut Vec<CpuFeature>, name: &str) {
    let policy = "require".to_owned();
    match features.iter_mut().find(|feature| feature.name == name) {
        Some(feature) => feature.policy = policy,
        None => features.push(CpuFeature { name: name.to_owned(), policy }),
    }
}
