//! Memory overhead of a launcher pod (`GetMemoryOverhead`, `pkg/network/resources/memory.go`).

use std::collections::BTreeSet;

use berth_api::Quantity;

use super::amounts::multiply_truncating;
use super::configuration::Configuration;
use super::spec::{Spec, amount};
use super::version::Version;

const MIB: u64 = 1 << 20;

/// Returns the memory overhead of a machine's launcher pod: the memory that the pod needs in addition to the guest's
/// memory.
pub(super) fn memory_overhead(spec: &Spec, configuration: &Configuration) -> Quantity {
    let version = configuration.version;
    // The configured ratio also applies to the overhead of dedicated CPUs since KubeVirt 1.5.3.
    let pinned = if is_pinned(spec, version) { mib(100) } else { Quantity::ZERO };
    let ratio_applies_to_pinned = version.is_at_least(5, 3);
    let own = fixed_overhead(spec, version).saturating_add(if ratio_applies_to_pinned {
        pinned
    } else {
        Quantity::ZERO
    });
    let own = configuration.overhead_ratio.map_or(own, |ratio| multiply_memory(own, ratio));
    let own = own.saturating_add(if ratio_applies_to_pinned { Quantity::ZERO } else { pinned });
    own.saturating_add(network_overhead(spec, configuration))
}

/// Returns the overhead to which the configured ratio applies, without the overhead of networks and of dedicated CPUs.
fn fixed_overhead(spec: &Spec, version: Version) -> Quantity {
    let (domain, devices) = (&spec.domain, &spec.domain.devices);
    // The page tables need 1/512 of the requested memory. KubeVirt calculates this amount in thousands of bytes.
    let kilos = amount(&domain.resources.requests, "memory").thousands_rounded_up();
    let tables = u64::try_from(kilos.saturating_mul(1000) / 512).unwrap_or(0);
    // KubeVirt's constants in MiB: monitor 25, launcher 100, and virtlogd, virtqemud and QEMU, which differ between
    // releases.
    let virtlogd = if version.is_at_least(5, 0) { 25 } else { 20 };
    let virtqemud = if version.is_since_or_backport(5, 0, 4, 1) { 40 } else { 35 };
    let qemu = if version.is_at_least(10, 0) { 50 } else { 30 };
    let mut total_mib = 25 + 100 + virtlogd + virtqemud + qemu;
    total_mib += 8 * vcpus(spec) + 8;
    if devices.autoattach_graphics_device.unwrap_or(true) {
        total_mib += if version.is_at_least(6, 0) { 32 } else { 16 };
    }
    if spec.architecture == "arm64" {
        total_mib += 128;
    }
    let sriov = devices.interfaces.iter().any(|it| it.sriov.is_some());
    if !devices.gpus.is_empty() || !devices.host_devices.is_empty() || sriov {
        total_mib += 1024;
    }
    if spec.volumes.iter().any(|volume| volume.downward_metrics.is_some()) {
        total_mib += 1;
    }
    let probes =
        [spec.liveness_probe, spec.readiness_probe].iter().filter(|p| p.exec.is_some()).count();
    total_mib += [0, 110, 120][probes.min(2)];
    if spec.is_sev() {
        total_mib += 256;
    }
    // Since 1.5.1 and 1.4.1, KubeVirt does not add the overhead of a TPM with `enabled: false`.
    let reads_enabled = version.is_since_or_backport(5, 1, 4, 1);
    if devices.tpm.is_some_and(|tpm| !reads_enabled || tpm.enabled.unwrap_or(true)) {
        total_mib += 53;
    }
    let reserved = domain.memory.reserved_overhead.added_overhead.unwrap_or_default();
    Quantity::from_units(tables).saturating_add(mib(total_mib)).saturating_add(reserved)
}

/// Returns the number of vCPUs in the machine's CPU topology or, without a topology, the CPU limit or the CPU request.
fn vcpus(spec: &Spec) -> u64 {
    let resources = &spec.domain.resources;
    let requested_cpus = resources.limits.get("cpu").or_else(|| resources.requests.get("cpu"));
    let count = match &spec.domain.cpu {
        Some(cpu) => u64::try_from(cpu.vcpus()).ok(),
        None => requested_cpus.and_then(|cpus| u64::try_from(cpus.whole_units_rounded_up()).ok()),
    };
    // The maximum avoids an overflow in the caller. Valid machines have fewer vCPUs, because `check` rejects larger
    // numbers.
    count.unwrap_or(1).clamp(1, 1 << 32)
}

/// Returns true if the machine has dedicated CPUs, or if its requests equal its limits, as the QoS class Guaranteed
/// requires (`WantsToHaveQOSGuaranteed`).
pub(super) fn is_pinned(spec: &Spec, version: Version) -> bool {
    let resources = &spec.domain.resources;
    let request_and_limit =
        |name| (amount(&resources.requests, name), amount(&resources.limits, name));
    let are_equal = |(request, limit): (Quantity, Quantity)| !request.is_zero() && request == limit;
    // The webhook no longer sets the memory request since 1.6.4. Since then, a memory limit without a request also
    // counts as the request.
    let (request, limit) = request_and_limit("memory");
    let limit_alone = version.is_at_least(6, 4) && request.is_zero() && !limit.is_zero();
    spec.is_dedicated()
        || (limit_alone || are_equal((request, limit))) && are_equal(request_and_limit("cpu"))
}

/// Multiplies memory by a ratio. As in `MultiplyMemory`, the change is calculated in thousands of bytes and truncated.
fn multiply_memory(memory: Quantity, ratio: f64) -> Quantity {
    let fraction = |factor: f64| {
        let kilos =
            multiply_truncating(memory.thousands_rounded_up(), factor).whole_units_rounded_up();
        Quantity::from_units(u64::try_from(kilos.saturating_mul(1000)).unwrap_or(u64::MAX))
    };
    if ratio < 1.0 {
        memory.saturating_sub(fraction(1.0 - ratio))
    } else {
        memory.saturating_add(fraction(ratio - 1.0))
    }
}

/// Returns the memory overhead of the networks, to which the configured ratio does not apply. The overhead of passt and
/// of each binding plugin is added only once, even if several interfaces use them.
fn network_overhead(spec: &Spec, configuration: &Configuration) -> Quantity {
    let interfaces = &spec.domain.devices.interfaces;
    let passt = interfaces.iter().any(|it| it.passt_binding.is_some());
    let used: BTreeSet<&String> = interfaces
        .iter()
        .filter_map(|it| it.binding.as_ref())
        .map(|binding| &binding.name)
        .collect();
    let plugins = used.into_iter().filter_map(|name| configuration.bindings.get(name));
    plugins.fold(mib(if passt { 250 } else { 0 }), |sum, plugin| sum.saturating_add(plugin.memory))
}

fn mib(amount: u64) -> Quantity {
    Quantity::from_units(amount.saturating_mul(MIB))
}
