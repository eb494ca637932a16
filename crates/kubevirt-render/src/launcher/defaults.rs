//! Defaults and checks of `KubeVirt`'s webhook for the creation of a VirtualMachineInstance.
//!
//! The defaults follow `pkg/defaults` and `ApplyNewVMIMutations`. From `vmi-create-admitter.go`, this module has only
//! the checks on which the requests of a pod depend.

use berth_api::{PageSize, Quantity};

use super::compute::set_missing_memory_request;
use super::configuration::{Configuration, EVEN_PARITY, Gate};
use super::invalid::Invalid;
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

/// Sets the defaults of a machine as the webhook does.
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
    // An API server drops the fields that do not exist in its KubeVirt release.
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
        cpu.model = configuration.cpu_model.clone().unwrap_or_else(|| "host-model".to_owned());
    }
    let parity = configuration.even_parity && configuration.is_gate_enabled(Gate::AlignCpus);
    if cpu.isolate_emulator_thread && parity {
        machine.annotations.insert(EVEN_PARITY.to_owned(), String::new());
    }
    if let Some(hyperv) = &mut spec.domain.features.hyperv {
        enable_required_enlightenments(hyperv);
        if hyperv.get("evmcs").is_some_and(|switch| switch.is_on()) {
            require_cpu_feature(&mut cpu.features, "vmx");
        }
    }
}

/// Sets default requests (`setDefaultResourceRequests`). Before 1.6.4 and 1.7, this KubeVirt function also set the
/// memory request, which then also counts for the page tables in the memory overhead.
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

/// Sets the default CPU topology (`SetDefaultGuestCPUTopology`): as many sockets as the CPU limit, or else the CPU
/// request.
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

/// Enables the Hyper-V enlightenments that the enabled enlightenments require, in the order of
/// `SetHypervFeatureDependencies`.
fn enable_required_enlightenments(hyperv: &mut Hyperv) {
    for (feature, needs) in [
        ("evmcs", "vapic"),
        ("ipi", "vpindex"),
        ("tlbflush", "vpindex"),
        ("synictimer", "synic"),
        ("synic", "vpindex"),
    ] {
        if hyperv.get(feature).is_some_and(|switch| switch.is_on())
            && !hyperv.entry(needs.to_owned()).or_default().is_on()
        {
            // The required enlightenment is disabled explicitly: the webhook stops here and rejects the VM later.
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

/// Maximum number of vCPUs. It exceeds the number of any host's CPUs and prevents overflows.
const MAX_VCPUS: u128 = 1 << 20;

/// Checks a machine as the webhook does; only the checks on which launcher pods depend are included.
///
/// # Errors
///
/// Returns the invalid field.
pub(super) fn check(machine: &Machine) -> Result<(), Invalid> {
    let (spec, domain) = (&machine.spec, &machine.spec.domain);
    for (list, amounts) in
        [("requests", &domain.resources.requests), ("limits", &domain.resources.limits)]
    {
        if let Some((name, amount)) = amounts.iter().find(|(_, amount)| amount.is_negative()) {
            return Err(machine.invalid(
                &format!("domain.resources.{list}.{name}"),
                format!("`{amount}` is negative"),
            ));
        }
    }
    let none = super::spec::Cpu::default();
    let cpu = domain.cpu.as_ref().unwrap_or(&none);
    let vcpus = cpu.vcpus().saturating_add(u128::from(spec.pool_threads()));
    if vcpus > MAX_VCPUS {
        return Err(machine
            .invalid("domain.cpu", format!("{vcpus} CPUs exceed the maximum of {MAX_VCPUS}")));
    }
    if cpu.isolate_emulator_thread && !cpu.dedicated_cpu_placement {
        return Err(
            machine.invalid("domain.cpu.isolateEmulatorThread", "requires dedicatedCpuPlacement")
        );
    }
    let guest = domain.memory.guest.unwrap_or_default();
    if guest <= Quantity::ZERO {
        return Err(machine
            .invalid("domain.memory.guest", "is missing: set it here or in domain.resources"));
    }
    if domain.memory.reserved_overhead.added_overhead.is_some_and(Quantity::is_negative) {
        return Err(machine.invalid("domain.memory.reservedOverhead.addedOverhead", "is negative"));
    }
    if let Some(pages) = &domain.memory.hugepages {
        check_pages(machine, &pages.page_size)?;
    }
    let passthrough = cpu.numa.is_some_and(|numa| numa.guest_mapping_passthrough.is_some());
    if passthrough && !(cpu.dedicated_cpu_placement && domain.memory.hugepages.is_some()) {
        let message = "requires dedicatedCpuPlacement and memory.hugepages";
        return Err(machine.invalid("domain.cpu.numa.guestMappingPassthrough", message));
    }
    if cpu.realtime.is_some() && !passthrough {
        let message = "requires dedicatedCpuPlacement and numa.guestMappingPassthrough";
        return Err(machine.invalid("domain.cpu.realtime", message));
    }
    if cpu.dedicated_cpu_placement { check_dedicated(machine, cpu.vcpus()) } else { Ok(()) }
}

/// Checks the page size and the memory amounts of a machine with huge pages (`validateHugepagesMemoryRequests`).
fn check_pages(machine: &Machine, size: &str) -> Result<(), Invalid> {
    let field = "domain.memory.hugepages.pageSize";
    let size: PageSize = size.parse().map_err(|e| machine.invalid(field, format!("{e}")))?;
    let domain = &machine.spec.domain;
    let requested = amount(&domain.resources.requests, "memory");
    let memory =
        if requested.is_zero() { domain.memory.guest.unwrap_or_default() } else { requested };
    if memory.whole_units_rounded_up() % i128::from(size.bytes()) != 0 {
        return Err(
            machine.invalid(field, format!("the memory {memory} is not a multiple of {size}"))
        );
    }
    Ok(())
}

/// Checks the CPU amounts of a machine with dedicated CPUs (`validateCpuPinning`).
fn check_dedicated(machine: &Machine, vcpus: u128) -> Result<(), Invalid> {
    let resources = &machine.spec.domain.resources;
    let (requests, limits) = (&resources.requests, &resources.limits);
    for (list, amounts) in [("requests", requests), ("limits", limits)] {
        let cpus = amount(amounts, "cpu");
        let field = format!("domain.resources.{list}.cpu");
        if cpus.millis_rounded_up() % 1000 != 0 {
            return Err(machine.invalid(
                &field,
                format!("`{cpus}` must be a whole number with dedicatedCpuPlacement"),
            ));
        }
    }
    for name in ["cpu", "memory"] {
        let (request, limit) = (amount(requests, name), amount(limits, name));
        if !request.is_zero()
            && !limit.is_zero()
            && request.whole_units_rounded_up() != limit.whole_units_rounded_up()
        {
            let message =
                format!("`{request}` must equal the limit {limit} with dedicatedCpuPlacement");
            return Err(machine.invalid(&format!("domain.resources.requests.{name}"), message));
        }
    }
    let requested = amount(limits, "cpu").max(amount(requests, "cpu"));
    if !requested.is_zero()
        && u128::try_from(requested.whole_units_rounded_up()).ok() != Some(vcpus)
    {
        let message = format!(
            "`{requested}` must equal the {vcpus} vCPUs of domain.cpu with dedicatedCpuPlacement"
        );
        return Err(machine.invalid("domain.resources.requests.cpu", message));
    }
    Ok(())
}
