//! Conflicts between a machine and its instance type: both set the same field (`pkg/instancetype/apply`).

use super::instancetype_spec::Instancetype;
use super::invalid::Invalid;
use super::machine::Machine;
use super::spec::{Cpu, IoThreads, Spec};
use super::version::Version;

/// Checks that a machine sets no field that its instance type sets (`ApplyToVMI`).
///
/// # Errors
///
/// Returns the first field that both set, with the same field path as in `KubeVirt`'s error.
pub(super) fn check(
    machine: &Machine,
    instancetype: &Instancetype,
    version: Version,
) -> Result<(), Invalid> {
    let problem = "is set by the instance type and must not be set in the VM";
    let spec = &machine.spec;
    let conflicts = [
        scheduling_conflict(spec, instancetype),
        cpu_conflict(spec, instancetype),
        memory_conflict(spec, instancetype, version),
        thread_conflict(spec, instancetype, version),
        device_conflict(spec, instancetype),
    ];
    if let Some(field) = conflicts.into_iter().flatten().next() {
        return Err(machine.invalid(field, problem));
    }
    // Annotations conflict only if their values in the instance type and in the VM's template differ
    // (`applyInstanceTypeAnnotations`).
    let differs = |key: &str, value: &str| {
        machine.annotations.get(key).is_some_and(|own| own.as_str() != value)
    };
    match instancetype.annotations.iter().find(|(key, value)| differs(key, value)) {
        Some((key, value)) => {
            let message = format!("is set to `{value}` by the instance type and must not differ");
            Err(Invalid::new(&machine.object, format!("annotations.{key}"), message))
        }
        None => Ok(()),
    }
}

/// Returns the first field whose condition is true.
fn first_conflict<const N: usize>(conflicts: [(&'static str, bool); N]) -> Option<&'static str> {
    conflicts.into_iter().find(|(_, is_conflict)| *is_conflict).map(|(field, _)| field)
}

/// Returns the first scheduling field that both the machine and the instance type set (`applyNodeSelector`,
/// `applySchedulerName`).
fn scheduling_conflict(spec: &Spec, instancetype: &Instancetype) -> Option<&'static str> {
    first_conflict([
        ("nodeSelector", instancetype.node_selector.is_some() && !spec.node_selector.is_empty()),
        (
            "schedulerName",
            !instancetype.scheduler_name.is_empty() && !spec.scheduler_name.is_empty(),
        ),
    ])
}

/// Returns the first CPU field that both the machine and the instance type set (`validateCPU`). Every instance type
/// sets the CPU topology, so the machine must not set the topology, a CPU request or a CPU limit.
fn cpu_conflict(spec: &Spec, instancetype: &Instancetype) -> Option<&'static str> {
    let none = Cpu::default();
    let cpu = spec.domain.cpu.as_ref().unwrap_or(&none);
    let resources = &spec.domain.resources;
    let instancetype_cpu = &instancetype.cpu;
    first_conflict([
        ("domain.resources.requests.cpu", resources.requests.contains_key("cpu")),
        ("domain.resources.limits.cpu", resources.limits.contains_key("cpu")),
        ("domain.cpu.sockets", cpu.sockets != 0),
        ("domain.cpu.cores", cpu.cores != 0),
        ("domain.cpu.threads", cpu.threads != 0),
        ("domain.cpu.model", !cpu.model.is_empty() && instancetype_cpu.model.is_some()),
        (
            // KubeVirt's error spells this path with `CPU`, although the field is named `dedicatedCpuPlacement`.
            "domain.cpu.dedicatedCPUPlacement",
            cpu.dedicated_cpu_placement && instancetype_cpu.dedicated_cpu_placement.is_some(),
        ),
        (
            "domain.cpu.isolateEmulatorThread",
            cpu.isolate_emulator_thread && instancetype_cpu.isolate_emulator_thread.is_some(),
        ),
        ("domain.cpu.numa", cpu.numa.is_some() && instancetype_cpu.numa.is_some()),
        ("domain.cpu.realtime", cpu.realtime.is_some() && instancetype_cpu.realtime.is_some()),
    ])
}

/// Returns the first memory field that both the machine and the instance type set (`validateMemory`). Before 1.7,
/// `applyMemory` rejected every machine with the field `domain.memory`, even if this field was empty.
fn memory_conflict(
    spec: &Spec,
    instancetype: &Instancetype,
    version: Version,
) -> Option<&'static str> {
    let (memory, resources) = (&spec.domain.memory, &spec.domain.resources);
    let instancetype_memory = &instancetype.memory;
    let is_compared = version.is_at_least(7, 0);
    first_conflict([
        ("domain.memory", !is_compared && memory.is_set),
        ("domain.memory.guest", memory.guest.is_some()),
        (
            "domain.memory.hugepages",
            memory.hugepages.is_some() && instancetype_memory.hugepages.is_some(),
        ),
        (
            "domain.memory.maxGuest",
            memory.max_guest.is_some() && instancetype_memory.max_guest.is_some(),
        ),
        ("domain.resources.requests.memory", resources.requests.contains_key("memory")),
        ("domain.resources.limits.memory", resources.limits.contains_key("memory")),
    ])
}

/// Returns the first field about I/O threads that both the machine and the instance type set (`applyIOThreads` since
/// 1.7, `applyIOThreadPolicy`).
fn thread_conflict(
    spec: &Spec,
    instancetype: &Instancetype,
    version: Version,
) -> Option<&'static str> {
    let domain = &spec.domain;
    let sets_pool_threads = |threads: &IoThreads| threads.supplemental_pool_thread_count.is_some();
    first_conflict([
        (
            "domain.ioThreads.supplementalPoolThreadCount",
            version.is_at_least(7, 0)
                && sets_pool_threads(&instancetype.io_threads)
                && sets_pool_threads(&domain.io_threads),
        ),
        (
            "domain.ioThreadsPolicy",
            instancetype.io_threads_policy.is_some() && domain.io_threads_policy.is_some(),
        ),
    ])
}

/// Returns the first field about devices or launch security that both the machine and the instance type set
/// (`applyLaunchSecurity`, `applyGPUs`, `applyHostDevices`).
fn device_conflict(spec: &Spec, instancetype: &Instancetype) -> Option<&'static str> {
    let (domain, devices) = (&spec.domain, &spec.domain.devices);
    first_conflict([
        (
            "domain.launchSecurity",
            instancetype.launch_security.is_some() && domain.launch_security.is_some(),
        ),
        ("domain.devices.gpus", !instancetype.gpus.is_empty() && !devices.gpus.is_empty()),
        (
            "domain.devices.hostDevices",
            !instancetype.host_devices.is_empty() && !devices.host_devices.is_empty(),
        ),
    ])
}
