//! Checks of `KubeVirt`'s webhook for the creation of a VirtualMachineInstance (`vmi-create-admitter.go`). Only checks
//! of fields that affect the requests of the launcher pod are included.

use berth_api::{PageSize, Quantity};

use super::invalid::Invalid;
use super::machine::Machine;
use super::spec::{Cpu, HostDevice, amount};

/// Maximum number of vCPUs, which prevents overflows. No host has so many CPUs.
const MAX_VCPUS: u128 = 1 << 20;

/// Checks a machine as the webhook does, but only the fields that affect the launcher pod.
///
/// # Errors
///
/// Returns the first invalid field.
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
    let none = Cpu::default();
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
    check_devices(machine)?;
    check_memory_request(machine)?;
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
    if cpu.dedicated_cpu_placement { check_dedicated(machine, cpu) } else { Ok(()) }
}

/// Checks that each GPU and host device names a resource or a claim (`ValidateCreation` of pkg/dra/admitter). KubeVirt
/// 1.5 lacks this check and requests a resource without a name, which the API server refuses.
fn check_devices(machine: &Machine) -> Result<(), Invalid> {
    let devices = &machine.spec.domain.devices;
    for (list, devices) in [("gpus", &devices.gpus), ("hostDevices", &devices.host_devices)] {
        let is_unnamed = |device: &&HostDevice| device.resource().is_none() && !device.is_claimed();
        if let Some(device) = devices.iter().find(is_unnamed) {
            let message = format!("`{}` has neither a deviceName nor a claim", device.name);
            return Err(machine.invalid(&format!("domain.devices.{list}"), message));
        }
    }
    Ok(())
}

/// Checks that the memory request does not exceed the memory limit (`validateMemoryLimitsNegativeOrNull`). With huge
/// pages, the launcher pod would not show that the request is too large, because `WithHugePages` subtracts the guest's
/// memory from request and limit.
fn check_memory_request(machine: &Machine) -> Result<(), Invalid> {
    let resources = &machine.spec.domain.resources;
    let request = amount(&resources.requests, "memory");
    let limit = amount(&resources.limits, "memory");
    if limit > Quantity::ZERO && request.whole_units_rounded_up() > limit.whole_units_rounded_up() {
        let message = format!("`{request}` is greater than the limit {limit}");
        return Err(machine.invalid("domain.resources.requests.memory", message));
    }
    Ok(())
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
fn check_dedicated(machine: &Machine, cpu: &Cpu) -> Result<(), Invalid> {
    let vcpus = cpu.vcpus();
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
    check_threads(machine, cpu.threads)
}

/// Checks the threads per core of a machine with dedicated CPUs (`validateThreadCountOnArchitecture`,
/// `validateThreadCountOnDedicatedCPUPlacement`). The errors name the same fields as `KubeVirt`'s errors.
fn check_threads(machine: &Machine, threads: u32) -> Result<(), Invalid> {
    if threads > 1 && machine.spec.architecture == "arm64" {
        let message =
            format!("allows one thread per core with dedicated CPUs, but cpu.threads is {threads}");
        return Err(machine.invalid("architecture", message));
    }
    if threads > 2 {
        let message = format!("allows at most two threads per core, but cpu.threads is {threads}");
        return Err(machine.invalid("domain.cpu.dedicatedCpuPlacement", message));
    }
    Ok(())
}
