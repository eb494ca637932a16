//! Finds the instance type and the preference of a machine, and applies the instance type (`pkg/instancetype/apply`).

use std::collections::BTreeMap;

use berth_api::Quantity;

use super::amounts;
use super::cluster_objects::ClusterObjects;
use super::conflict;
use super::instancetype_spec::{Instancetype, InstancetypeMemory, Preference};
use super::invalid::Invalid;
use super::machine::{Machine, Matcher};
use super::topology::topology;
use super::version::Version;

/// The kinds that a VM may reference as its instance type or preference. If the reference names no kind, the
/// cluster-scoped kind is meant.
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
/// Returns an error if the instance type or the preference is not among `objects`.
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
    // KubeVirt ignores the case of kinds, and also accepts plurals (`find/spec.go`).
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

/// Applies an instance type to a machine.
///
/// # Errors
///
/// Returns an error if the machine sets a field that the instance type also sets, or if the instance type is malformed.
pub(super) fn apply(
    machine: &mut Machine,
    instancetype: &Instancetype,
    preference: Option<&Preference>,
    version: Version,
) -> Result<(), Invalid> {
    let [cores, sockets, threads] = topology(instancetype.cpu.guest, preference)
        .map_err(|error| Invalid::new(&machine.object, error.field(), error.to_string()))?;
    conflict::check(machine, instancetype, version)?;
    let wrong = |field: &str, message: &str| {
        Invalid::new(
            &machine.object,
            "spec.instancetype",
            format!("{field} of the instance type {message}"),
        )
    };
    if instancetype.cpu.guest == 0 {
        return Err(wrong("cpu.guest", "must be at least 1"));
    }
    if instancetype.memory.guest <= Quantity::ZERO {
        return Err(wrong("memory.guest", "must be greater than 0"));
    }
    if instancetype.memory.overcommit_percent > 100 {
        return Err(wrong("memory.overcommitPercent", "must be at most 100"));
    }
    let spec = &mut machine.spec;
    if let Some(selector) = &instancetype.node_selector {
        spec.node_selector.clone_from(selector);
    }
    if !instancetype.scheduler_name.is_empty() {
        spec.scheduler_name.clone_from(&instancetype.scheduler_name);
    }
    let domain = &mut spec.domain;
    let cpu = domain.cpu.get_or_insert_default();
    (cpu.cores, cpu.sockets, cpu.threads) = (cores, sockets, threads);
    if let Some(model) = &instancetype.cpu.model {
        cpu.model.clone_from(model);
    }
    cpu.dedicated_cpu_placement =
        instancetype.cpu.dedicated_cpu_placement.unwrap_or(cpu.dedicated_cpu_placement);
    cpu.isolate_emulator_thread =
        instancetype.cpu.isolate_emulator_thread.unwrap_or(cpu.isolate_emulator_thread);
    cpu.numa = instancetype.cpu.numa.or(cpu.numa);
    cpu.realtime = instancetype.cpu.realtime.or(cpu.realtime);
    domain.memory.guest = Some(instancetype.memory.guest);
    if instancetype.memory.overcommit_percent > 0 {
        domain
            .resources
            .requests
            .insert("memory".to_owned(), overcommitted_memory(&instancetype.memory));
    }
    if instancetype.memory.hugepages.is_some() {
        domain.memory.hugepages.clone_from(&instancetype.memory.hugepages);
    }
    // KubeVirt applies I/O threads of instance types since 1.7 (`applyIOThreads`).
    if version.is_at_least(7, 0) && instancetype.io_threads.supplemental_pool_thread_count.is_some()
    {
        domain.io_threads = instancetype.io_threads;
    }
    if instancetype.io_threads_policy.is_some() {
        domain.io_threads_policy.clone_from(&instancetype.io_threads_policy);
    }
    domain.launch_security = instancetype.launch_security.or(domain.launch_security);
    if !instancetype.gpus.is_empty() {
        domain.devices.gpus.clone_from(&instancetype.gpus);
    }
    if !instancetype.host_devices.is_empty() {
        domain.devices.host_devices.clone_from(&instancetype.host_devices);
    }
    for (key, value) in &instancetype.annotations {
        machine.annotations.entry(key.clone()).or_insert_with(|| value.clone());
    }
    Ok(())
}

/// Returns the memory request for an instance type with memory overcommitment. Like KubeVirt's `applyMemory`,
/// calculates with 32-bit floating-point numbers, because their rounding errors are visible in the pods.
fn overcommitted_memory(memory: &InstancetypeMemory) -> Quantity {
    let share = 1.0 - f32::from(memory.overcommit_percent) / 100.0;
    let requested = memory.guest.whole_units_rounded_up() as f32 * share;
    amounts::multiply_truncating(1, f64::from(requested))
}
