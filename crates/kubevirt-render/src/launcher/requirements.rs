//! Checks what a preference requires of a machine: CPUs, memory, architecture (`preference/requirements`).

use berth_api::Quantity;

use super::instancetype_spec::{Instancetype, Preference};
use super::invalid::Invalid;
use super::machine::Machine;
use super::topology::{self, ANY, CORES, SOCKETS, SPREAD, THREADS};
use super::version::Version;

/// Checks that a machine whose defaults have been set meets the requirements of its preference (`Check`).
///
/// # Errors
///
/// Returns the first field that does not meet a requirement, with the same field path as in `KubeVirt`'s error.
pub(super) fn check(
    machine: &Machine,
    instancetype: Option<&Instancetype>,
    preference: Option<&Preference>,
    version: Version,
) -> Result<(), Invalid> {
    let Some(preference) = preference else { return Ok(()) };
    let required = &preference.requirements;
    if let Some(cpu) = &required.cpu {
        check_cpus(machine, instancetype, preference, cpu.guest)?;
    }
    if let Some(memory) = &required.memory {
        check_memory(machine, instancetype, memory.guest)?;
    }
    // KubeVirt checks the architecture since 1.7 (`checkArch`).
    if let Some(architecture) = required.architecture.as_ref().filter(|_| version.is_at_least(7, 0))
    {
        let own = &machine.spec.architecture;
        if own != architecture {
            let message = format!("`{own}` is not `{architecture}`, which the preference requires");
            return Err(machine.invalid("architecture", message));
        }
    }
    Ok(())
}

/// Checks the number of vCPUs (`checkCPU`). With an instance type, this is the number of the instance type. Without
/// one, it is the product of those fields (sockets, cores, threads) over which the preference spreads vCPUs; a field
/// that the machine does not set counts as 0.
fn check_cpus(
    machine: &Machine,
    instancetype: Option<&Instancetype>,
    preference: &Preference,
    required: u32,
) -> Result<(), Invalid> {
    if let Some(instancetype) = instancetype {
        let vcpus = instancetype.cpu.guest;
        return if vcpus < required {
            let message =
                format!("{vcpus} vCPUs are fewer than the {required} that the preference requires");
            Err(Invalid::new(&machine.object, "spec.instancetype", message))
        } else {
            Ok(())
        };
    }
    let cpu = machine.spec.domain.cpu.clone().unwrap_or_default();
    let (cores, sockets, threads) =
        (("cores", cpu.cores), ("sockets", cpu.sockets), ("threads", cpu.threads));
    let counts = match topology::preferred_cpu_topology(Some(preference)) {
        name if THREADS.contains(&name) => vec![threads],
        name if CORES.contains(&name) => vec![cores],
        name if SOCKETS.contains(&name) => vec![sockets],
        name if ANY.contains(&name) => vec![cores, sockets, threads],
        name if SPREAD.contains(&name) => match topology::spread_options(Some(preference)).1 {
            "SocketsCores" => vec![sockets, cores],
            "CoresThreads" => vec![cores, threads],
            "SocketsCoresThreads" => vec![sockets, cores, threads],
            _ => return Ok(()),
        },
        _ => return Ok(()),
    };
    let vcpus: u128 = counts.iter().map(|(_, count)| u128::from(*count)).product();
    if vcpus >= u128::from(required) {
        return Ok(());
    }
    let path = |name: &str| format!("{}.domain.cpu.{name}", machine.spec_path);
    let paths: Vec<String> = counts.iter().map(|(name, _)| path(name)).collect();
    let message =
        format!("{vcpus} vCPUs are fewer than the {required} that the preference requires");
    Err(Invalid::new(&machine.object, paths.join(", "), message))
}

/// Checks the memory of the guest (`checkMemory`).
fn check_memory(
    machine: &Machine,
    instancetype: Option<&Instancetype>,
    required: Quantity,
) -> Result<(), Invalid> {
    let guest = machine.spec.domain.memory.guest.unwrap_or_default();
    if guest >= required {
        return Ok(());
    }
    let message =
        format!("{guest} of memory is less than the {required} that the preference requires");
    Err(match instancetype {
        Some(_) => Invalid::new(&machine.object, "spec.instancetype", message),
        None => machine.invalid("domain.memory", message),
    })
}
