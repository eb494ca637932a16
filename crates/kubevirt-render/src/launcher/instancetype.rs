//! Applies instance types and preferences (`instancetype.kubevirt.io`) to a machine.
//!
//! The rules follow `pkg/instancetype/apply` and `pkg/instancetype/preference/apply`. An instance type must not set a
//! field that the machine sets. A preference then sets fields that are still empty.

use std::collections::BTreeMap;

use berth_api::Quantity;

use super::amounts;
use super::cluster_objects::ClusterObjects;
use super::instancetype_spec::{Instancetype, InstancetypeMemory, Preference, SpreadOptions};
use super::invalid::Invalid;
use super::machine::{Machine, Matcher};
use super::spec::{Cpu, IoThreads, Spec};

/// The kinds that a reference to an instance type or to a preference may name. The cluster-scoped kind is the
/// default.
struct Kinds {
    field: &'static str,
    cluster: &'static str,
    namespaced: &'static str,
}

const INSTANCETYPES: Kinds = Kinds {
    field: "instancetype",
    cluster: "VirtualMachineClusterInstancetype",
    namespaced: "VirtualMachineInstancetype",
};
const PREFERENCES: Kinds = Kinds {
    field: "preference",
    cluster: "VirtualMachineClusterPreference",
    namespaced: "VirtualMachinePreference",
};

/// Finds the instance type and the preference that a machine names.
///
/// # Errors
///
/// Returns an error if a named object is unknown.
pub(super) fn find<'a>(
    machine: &Machine,
    objects: &'a ClusterObjects,
) -> Result<(Option<&'a Instancetype>, Option<&'a Preference>), Invalid> {
    Ok((
        look_up(machine, machine.instancetype.as_ref(), &objects.instancetypes, &INSTANCETYPES)?,
        look_up(machine, machine.preference.as_ref(), &objects.preferences, &PREFERENCES)?,
    ))
}

fn look_up<'a, T>(
    machine: &Machine,
    matcher: Option<&Matcher>,
    objects: &'a BTreeMap<(Option<String>, String), T>,
    kinds: &Kinds,
) -> Result<Option<&'a T>, Invalid> {
    let Some(matcher) = matcher else { return Ok(None) };
    let invalid_field = |field: &str, message: String| {
        Invalid::new(&machine.object, format!("spec.{}.{field}", kinds.field), message)
    };
    if matcher.name.is_empty() {
        let message = if matcher.infer_from_volume.is_empty() {
            "is missing".to_owned()
        } else {
            format!(
                "is missing, and Berth cannot infer it from the volume `{}`",
                matcher.infer_from_volume
            )
        };
        return Err(invalid_field("name", message));
    }
    // KubeVirt compares kinds case-insensitively and accepts their plurals (`find/spec.go`).
    let kind = matcher.kind.to_ascii_lowercase();
    let kind = kind.strip_suffix('s').unwrap_or(&kind);
    let is_kind = |name: &str| kind == name.to_ascii_lowercase();
    let (namespace, kind) = if kind.is_empty() || is_kind(kinds.cluster) {
        (None, kinds.cluster)
    } else if is_kind(kinds.namespaced) {
        (Some(machine.namespace.clone()), kinds.namespaced)
    } else {
        let expected = format!("{} or {}", kinds.namespaced, kinds.cluster);
        return Err(invalid_field("kind", format!("`{}` must be {expected}", matcher.kind)));
    };
    let location = namespace.as_ref().map_or_else(String::new, |n| format!(" in namespace {n}"));
    let found = objects.get(&(namespace, matcher.name.clone()));
    found.map(Some).ok_or_else(|| {
        invalid_field("name", format!("{kind} `{}` not found{location}", matcher.name))
    })
}

/// Sets the fields `autoattach...` of a machine from a preference, where they are unset
/// (`ApplyAutoAttachPreferences`). The default network depends on one of them.
pub(super) fn apply_autoattach_preferences(preference: &Preference, spec: &mut Spec) {
    let (devices, prefer) = (&mut spec.domain.devices, &preference.devices);
    for (field, preferred) in [
        (&mut devices.autoattach_graphics_device, prefer.preferred_autoattach_graphics_device),
        (&mut devices.autoattach_pod_interface, prefer.preferred_autoattach_pod_interface),
        (&mut devices.autoattach_serial_console, prefer.preferred_autoattach_serial_console),
    ] {
        *field = field.or(preferred);
    }
}

/// Applies an instance type.
///
/// # Errors
///
/// Returns an error if the machine sets a field that the instance type sets, or if the instance type is malformed.
pub(super) fn apply_instancetype(
    machine: &mut Machine,
    from: &Instancetype,
    preference: Option<&Preference>,
) -> Result<(), Invalid> {
    if let Some(field) = conflict(&machine.spec, from) {
        return Err(
            machine.invalid(&field, "is set by the instance type and must not be set in the VM")
        );
    }
    let wrong = |field: &str, message: &str| {
        Invalid::new(
            &machine.object,
            "spec.instancetype",
            format!("{field} of the instance type {message}"),
        )
    };
    if from.cpu.guest == 0 {
        return Err(wrong("cpu.guest", "must be at least 1"));
    }
    if from.memory.guest <= Quantity::ZERO {
        return Err(wrong("memory.guest", "must be greater than 0"));
    }
    if from.memory.overcommit_percent > 100 {
        return Err(wrong("memory.overcommitPercent", "must be at most 100"));
    }
    let [cores, sockets, threads] = topology(from.cpu.guest, preference)
        .map_err(|error| Invalid::new(&machine.object, "spec.preference", error.to_string()))?;
    let spec = &mut machine.spec;
    if let Some(selector) = &from.node_selector {
        spec.node_selector.clone_from(selector);
    }
    if !from.scheduler_name.is_empty() {
        spec.scheduler_name.clone_from(&from.scheduler_name);
    }
    let domain = &mut spec.domain;
    let cpu = domain.cpu.get_or_insert_default();
    (cpu.cores, cpu.sockets, cpu.threads) = (cores, sockets, threads);
    if let Some(model) = &from.cpu.model {
        cpu.model.clone_from(model);
    }
    cpu.dedicated_cpu_placement =
        from.cpu.dedicated_cpu_placement.unwrap_or(cpu.dedicated_cpu_placement);
    cpu.isolate_emulator_thread =
        from.cpu.isolate_emulator_thread.unwrap_or(cpu.isolate_emulator_thread);
    cpu.numa = from.cpu.numa.or(cpu.numa);
    cpu.realtime = from.cpu.realtime.or(cpu.realtime);
    domain.memory.guest = Some(from.memory.guest);
    if from.memory.overcommit_percent > 0 {
        domain.resources.requests.insert("memory".to_owned(), overcommitted_memory(&from.memory));
    }
    if from.memory.hugepages.is_some() {
        domain.memory.hugepages.clone_from(&from.memory.hugepages);
    }
    if from.io_threads.supplemental_pool_thread_count.is_some() {
        domain.io_threads = from.io_threads;
    }
    if from.io_threads_policy.is_some() {
        domain.io_threads_policy.clone_from(&from.io_threads_policy);
    }
    domain.launch_security = from.launch_security.or(domain.launch_security);
    if !from.gpus.is_empty() {
        domain.devices.gpus.clone_from(&from.gpus);
    }
    if !from.host_devices.is_empty() {
        domain.devices.host_devices.clone_from(&from.host_devices);
    }
    for (key, value) in &from.annotations {
        machine.annotations.entry(key.clone()).or_insert_with(|| value.clone());
    }
    Ok(())
}

/// Returns the memory request for the overcommitted memory of an instance type. KubeVirt's `applyMemory` uses 32-bit
/// floats; their rounding errors are visible in the pods.
fn overcommitted_memory(memory: &InstancetypeMemory) -> Quantity {
    let share = 1.0 - f32::from(memory.overcommit_percent) / 100.0;
    let requested = memory.guest.whole_units_rounded_up() as f32 * share;
    amounts::multiply_truncating(1, f64::from(requested))
}

/// Returns the path of a field that both the machine and the instance type set, if there is one (`validateCPU`,
/// `validateMemory`, ...).
fn conflict(spec: &Spec, instancetype: &Instancetype) -> Option<String> {
    let domain = &spec.domain;
    let none = Cpu::default();
    let cpu = domain.cpu.as_ref().unwrap_or(&none);
    let (requests, limits) = (&domain.resources.requests, &domain.resources.limits);
    let sets_pool_threads = |threads: &IoThreads| threads.supplemental_pool_thread_count.is_some();
    let conflicts = [
        ("nodeSelector", instancetype.node_selector.is_some() && !spec.node_selector.is_empty()),
        (
            "schedulerName",
            !instancetype.scheduler_name.is_empty() && !spec.scheduler_name.is_empty(),
        ),
        ("domain.resources.requests.cpu", requests.contains_key("cpu")),
        ("domain.resources.limits.cpu", limits.contains_key("cpu")),
        ("domain.cpu.sockets", cpu.sockets != 0),
        ("domain.cpu.cores", cpu.cores != 0),
        ("domain.cpu.threads", cpu.threads != 0),
        ("domain.cpu.model", !cpu.model.is_empty() && instancetype.cpu.model.is_some()),
        (
            "domain.cpu.dedicatedCpuPlacement",
            cpu.dedicated_cpu_placement && instancetype.cpu.dedicated_cpu_placement.is_some(),
        ),
        (
            "domain.cpu.isolateEmulatorThread",
            cpu.isolate_emulator_thread && instancetype.cpu.isolate_emulator_thread.is_some(),
        ),
        ("domain.cpu.numa", cpu.numa.is_some() && instancetype.cpu.numa.is_some()),
        ("domain.cpu.realtime", cpu.realtime.is_some() && instancetype.cpu.realtime.is_some()),
        ("domain.memory.guest", domain.memory.guest.is_some()),
        (
            "domain.memory.hugepages",
            domain.memory.hugepages.is_some() && instancetype.memory.hugepages.is_some(),
        ),
        ("domain.resources.requests.memory", requests.contains_key("memory")),
        ("domain.resources.limits.memory", limits.contains_key("memory")),
        (
            "domain.ioThreads.supplementalPoolThreadCount",
            sets_pool_threads(&instancetype.io_threads) && sets_pool_threads(&domain.io_threads),
        ),
        (
            "domain.ioThreadsPolicy",
            instancetype.io_threads_policy.is_some() && domain.io_threads_policy.is_some(),
        ),
        (
            "domain.launchSecurity",
            instancetype.launch_security.is_some() && domain.launch_security.is_some(),
        ),
        ("domain.devices.gpus", !instancetype.gpus.is_empty() && !domain.devices.gpus.is_empty()),
        (
            "domain.devices.hostDevices",
            !instancetype.host_devices.is_empty() && !domain.devices.host_devices.is_empty(),
        ),
    ];
    conflicts.iter().find(|(_, is)| *is).map(|(field, _)| (*field).to_owned())
}

/// Reason why a preference determines no CPU topology.
#[derive(Debug, thiserror::Error)]
enum TopologyError {
    #[error("cpu.preferredCPUTopology of the preference: `{0}` is unknown")]
    UnknownTopology(String),
    #[error("cpu.spreadOptions.across of the preference: `{0}` is unknown")]
    UnknownAcross(String),
    #[error("cpu.spreadOptions of the preference: {vcpus} vCPUs are not divisible by {divisor}")]
    NotDivisible { vcpus: u32, divisor: u32 },
}

/// Returns the numbers of cores, sockets and threads for a number of vCPUs (`applyGuestCPUTopology`).
fn topology(vcpus: u32, preference: Option<&Preference>) -> Result<[u32; 3], TopologyError> {
    if vcpus == 1 {
        return Ok([1, 1, 1]);
    }
    let prefer = preference.map(|preference| &preference.cpu);
    match prefer.map_or("", |cpu| cpu.preferred_cpu_topology.as_str()) {
        "" | "sockets" | "any" | "preferSockets" | "preferAny" => Ok([1, vcpus, 1]),
        "cores" | "preferCores" => Ok([vcpus, 1, 1]),
        "threads" | "preferThreads" => Ok([1, 1, vcpus]),
        "spread" | "preferSpread" => spread_vcpus(vcpus, preference),
        other => Err(TopologyError::UnknownTopology(other.to_owned())),
    }
}

fn spread_vcpus(vcpus: u32, preference: Option<&Preference>) -> Result<[u32; 3], TopologyError> {
    let none = SpreadOptions::default();
    let options = preference.map_or(&none, |preference| &preference.cpu.spread_options);
    let deprecated_ratio =
        preference.map(|it| it.prefer_spread_socket_to_core_ratio).filter(|ratio| *ratio != 0);
    let ratio = options.ratio.or(deprecated_ratio).unwrap_or(2);
    // If the division has a remainder, the webhook rejects the VM when it is created
    // (`preference/validation/cpu.go`).
    let divide = |divisor: u32| {
        let is_divisible = divisor != 0 && vcpus.is_multiple_of(divisor);
        is_divisible.then(|| vcpus / divisor).ok_or(TopologyError::NotDivisible { vcpus, divisor })
    };
    match options.across.as_deref().unwrap_or("SocketsCores") {
        "SocketsCores" => Ok([ratio, divide(ratio)?, 1]),
        "CoresThreads" => Ok([divide(ratio)?, 1, ratio]),
        "SocketsCoresThreads" => Ok([ratio, divide(ratio.saturating_mul(2))?, 2]),
        other => Err(TopologyError::UnknownAcross(other.to_owned())),
    }
}

/// Sets a machine's empty fields from a preference (`preference/apply/vmi.go`). The instance type must have been
/// applied before.
pub(super) fn apply_preference(machine: &mut Machine, preference: &Preference) {
    apply_autoattach_preferences(preference, &mut machine.spec);
    let domain = &mut machine.spec.domain;
    let cpu = domain.cpu.get_or_insert_default();
    for feature in &preference.cpu.preferred_cpu_features {
        if !cpu.features.iter().any(|own| own.name == feature.name) {
            cpu.features.push(feature.clone());
        }
    }
    domain.devices.tpm = domain.devices.tpm.or(preference.devices.preferred_tpm);
    for interface in &mut domain.devices.interfaces {
        if interface.model.is_empty() {
            interface.model.clone_from(&preference.devices.preferred_interface_model);
        }
    }
    if let Some(preferred) = &preference.features.preferred_hyperv {
        let hyperv = domain.features.hyperv.get_or_insert_default();
        for (name, switch) in preferred {
            hyperv.entry(name.clone()).or_insert(*switch);
        }
    }
    if domain.machine.kind.is_empty() {
        domain.machine.kind.clone_from(&preference.machine.preferred_machine_type);
    }
    domain.launch_security = domain.launch_security.or(preference.preferred_launch_security);
    if machine.spec.architecture.is_empty() {
        machine.spec.architecture.clone_from(&preference.preferred_architecture);
    }
    for (key, value) in &preference.annotations {
        machine.annotations.entry(key.clone()).or_insert_with(|| value.clone());
    }
}
